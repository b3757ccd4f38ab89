// Attention in steps of several sequences: prompts, which are attended to in tiles, from the beginning or
// behind what is cached, with rows of other sequences between them.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "backend/ref/ref_backend.h"
#include "support/op_case.h"
#include "support/vulkan.h"

namespace sluice::test {
namespace {

/// Positions [first, last) of a sequence.
struct Part {
  int32_t sequence, first, last;
};
using Parts = std::vector<Part>;
/// What steps gave, by sequence and position.
using Results = std::map<std::pair<int32_t, int32_t>, std::vector<float>>;

constexpr int32_t kSequences = 4, kPages = 3;  // of a sequence

int64_t width(const Tensor& tensor) { return tensor.heads() * tensor.columns(); }

/// Numbers that belong to a sequence's position, whatever step it is in.
std::vector<float> numbers_of(int32_t sequence, int32_t position, TensorId id, int64_t count) {
  std::mt19937 random(static_cast<uint32_t>((id * 1000 + sequence) * 1000 + position));
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) number = normal(random);
  return numbers;
}

/// The inputs of a case whose ops are kv_append and attention.
std::vector<TensorId> inputs_of(const Program& program) {
  std::vector<TensorId> inputs;
  for (const Op& op : program.ops()) {
    info(op).operands(op, [&](const char*, TensorId id, bool written) {
      if (!written && program[id].kind == Kind::Activation) inputs.push_back(program.storage(id));
    });
  }
  return inputs;
}

Results run(const CaseRun& of, Backend& backend, const std::vector<Parts>& steps) {
  const Program& program = of.program();
  const Source source{program, of.weights()};
  const auto executable =
      backend.compile(source, backend.load({&source, 1}, {}),
                      {.max_rows = of.rows(), .max_outputs = of.rows(), .cache_pages = kSequences * kPages});
  std::vector<int32_t> pages;
  for (int32_t page = kSequences * kPages; page-- > 0;) pages.push_back(page);
  Results results;
  for (const Parts& parts : steps) {
    std::vector<int32_t> positions, sequences, slots, outputs;
    for (const Part& part : parts) {
      for (int32_t position = part.first; position < part.last; ++position) {
        outputs.push_back(static_cast<int32_t>(positions.size()));
        positions.push_back(position), sequences.push_back(part.sequence);
        const auto page = static_cast<size_t>(part.sequence * kPages + position / kPageRows);
        slots.push_back(static_cast<int32_t>(pages[page] * kPageRows + position % kPageRows));
      }
    }
    const auto rows = static_cast<int64_t>(positions.size());
    for (const TensorId id : inputs_of(program)) {
      std::vector<float> values;
      for (size_t r = 0; r < positions.size(); ++r) {
        const auto row = numbers_of(sequences[r], positions[r], id, width(program[id]));
        values.insert(values.end(), row.begin(), row.end());
      }
      executable->poke(id, rows, values);
    }
    const std::vector<int32_t> tokens(positions.size(), 1);
    const StateSlots none{};
    run_step(*executable,
             {.input = {tokens, positions, sequences, slots, pages, kPages, outputs, {&none, 1}}});
    const TensorId out = of.results().front();
    const auto wide = static_cast<size_t>(width(program[out]));
    std::vector<float> got(positions.size() * wide);
    executable->peek(out, rows, got);
    for (size_t r = 0; r < positions.size(); ++r) {
      const auto* begin = got.data() + r * wide;
      results[{sequences[r], positions[r]}] = std::vector<float>(begin, begin + wide);
    }
  }
  return results;
}

/// Of attention's cases those that differ in what a tile has to know.
std::vector<OpCase> attention_cases() {
  const std::vector<std::string> some = {
      "20 heads 512+64 of Q8_0 rows 150", "5 heads 64+32 rows 70", "6 heads of 3x64+32, window 64, rows 150",
      "14 heads of 2x96 rows 150", "16 heads of 2x64, sinks, window 70, rows 150"};
  std::vector<OpCase> list;
  for (const char* kind : {"mla_attend", "attend"}) {
    for (const OpInfo& op : all_ops()) {
      if (std::string(op.name) != kind) continue;
      for (const OpCase& op_case : op.cases()) {
        if (std::find(some.begin(), some.end(), op_case.name) != some.end()) list.push_back(op_case);
      }
    }
  }
  EXPECT_EQ(list.size(), some.size());
  return list;
}

const std::vector<Parts> kMixed = {{{0, 0, 61}, {1, 0, 5}, {2, 0, 9}},
                                   {{2, 9, 10}, {0, 61, 110}, {1, 5, 6}, {3, 0, 19}},
                                   {{0, 110, 111}, {3, 19, 20}, {1, 6, 26}}};

TEST(VulkanPrompts, OfSeveralSequencesAgreeWithReference) {
  VULKAN_OR_SKIP(vulkan);
  const auto judge = backend::make_ref_backend();
  for (OpCase op_case : attention_cases()) {
    SCOPED_TRACE(op_case.name);
    op_case.rows = 128;
    const CaseRun of(op_case, 3);
    const Results expected = run(of, *judge, kMixed), results = run(of, vulkan, kMixed);
    for (const auto& [row, numbers] : expected) {
      double error = 0, norm = 0;
      for (size_t i = 0; i < numbers.size(); ++i) {
        error += std::pow(numbers[i] - results.at(row)[i], 2), norm += std::pow(numbers[i], 2);
      }
      EXPECT_LE(std::sqrt(error / norm), vulkan.tolerance(of.program()))
          << "sequence " << row.first << ", position " << row.second;
    }
  }
}

TEST(VulkanPrompts, DoNotFeelOtherRowsOfTheirSteps) {
  VULKAN_OR_SKIP(vulkan);
  for (OpCase op_case : attention_cases()) {
    SCOPED_TRACE(op_case.name);
    op_case.rows = 128;
    const CaseRun of(op_case, 3);
    const Results mixed = run(of, vulkan, kMixed),
                  alone = run(of, vulkan, {{{0, 0, 61}}, {{0, 61, 90}}, {{0, 90, 110}}});
    for (const auto& [row, numbers] : alone) {
      EXPECT_EQ(numbers, mixed.at(row)) << "sequence " << row.first << ", position " << row.second;
    }
  }
}

}  // namespace
}  // namespace sluice::test
