// attend on the CUDA backend against the reference: answers over short and long contexts, prompts from the
// beginning and at depth, several in a step, beside answers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "backend/ref/ref_backend.h"
#include "support/cuda.h"
#include "support/op_case.h"

namespace sluice::test {
namespace {

/// Rows of a sequence from a position on.
struct Chunk {
  int32_t sequence, first, rows;
};

struct Shape {
  const char* name;
  int64_t heads, kv_heads, columns;
  quant::Type cache = quant::Type::F16;
  bool makes = false;  ///< queries and keys are made ready by the same op
  int64_t window = 0;
  bool sinks = false;
  bool gate = false;
};

struct Param {
  Shape shape;
  const char* name;
  std::vector<Chunk> cached, step;  ///< computed before, a chunk a step; compared
};

constexpr int64_t kMostRows = 1300;
constexpr int32_t kSequences = 40, kPages = 36;  ///< of a sequence
/// Weights are halves, and queries of prompts: 2^-12 each, of scores of some units.
constexpr double kMostError = 0x1p-10;

OpCase op_case(const Shape& s) {
  return {s.name, kMostRows, [s](Builder& b) {
            const Read sinks{s.sinks ? b.weight("sinks", quant::Type::F32, 1, 1, s.heads) : kNoTensor};
            if (s.makes) {
              GqaAttend op{.query = GqaQuery::example(b, {.heads = s.heads,
                                                          .kv_heads = s.kv_heads,
                                                          .columns = s.columns,
                                                          .value = s.columns,
                                                          .cache = s.cache}),
                           .sinks = sinks,
                           .gate = {s.gate ? b.activation("gate", kStepRows, s.heads, s.columns) : kNoTensor},
                           .scale = 0.125f,
                           .window = s.window};
              b.gqa_attend(op, s.columns);
              return;
            }
            const TensorId rows = b.cache(2, 2 * s.kv_heads * s.columns, s.cache);
            const TensorId keys = b.activation("keys", kStepRows, s.kv_heads, s.columns);
            const TensorId values = b.activation("values", kStepRows, s.kv_heads, s.columns);
            b.kv_append(b.flatten(keys), b.flatten(values), rows, 1);
            b.attend(b.activation("q", kStepRows, s.heads, s.columns), rows, s.kv_heads, s.columns, 0.125f, 1,
                     s.window, sinks.id);
          }};
}

/// A step of these chunks, whose sequences' pages lie anywhere.
struct Rows {
  std::vector<int32_t> table, tokens, positions, sequences, slots, outputs;

  explicit Rows(const std::vector<Chunk>& chunks) : table(static_cast<size_t>(kSequences * kPages)) {
    constexpr auto kRows = static_cast<int32_t>(kPageRows);
    for (int32_t i = 0; i < kSequences * kPages; ++i)
      table[static_cast<size_t>(i)] = i * 113 % (kSequences * kPages);
    for (const Chunk& chunk : chunks) {
      for (int32_t p = chunk.first; p < chunk.first + chunk.rows; ++p) {
        tokens.push_back(1), positions.push_back(p), sequences.push_back(chunk.sequence);
        const int32_t page = chunk.sequence * kPages + p / kRows;
        slots.push_back(table[static_cast<size_t>(page)] * kRows + p % kRows);
        outputs.push_back(static_cast<int32_t>(outputs.size()));
      }
    }
  }
  StepInput input() const { return {tokens, positions, sequences, slots, table, kPages, outputs}; }
};

/// The results of a step, all heads.
std::vector<float> values_of(const CaseRun& run, Executable& executable, const std::vector<Chunk>& chunks) {
  const Rows rows(chunks);
  run.poke_inputs(executable);  // what a step made may lie where they were
  run_step(executable, {.input = rows.input()});
  const TensorId id = run.program().output();
  std::vector<float> values(run.elements(id) / kMostRows * rows.tokens.size());
  executable.peek(id, static_cast<int64_t>(rows.tokens.size()), values);
  return values;
}

std::vector<float> values_of(const CaseRun& run, Backend& backend, const Param& param) {
  const auto executable =
      backend.compile(run.program(), run.weights(), {kMostRows, kMostRows, kSequences * kPages});
  for (const Chunk& chunk : param.cached) values_of(run, *executable, {chunk});
  return values_of(run, *executable, param.step);
}

class CudaAttention : public testing::TestWithParam<Param> {};

TEST_P(CudaAttention, AgreesWithReference) {
  CUDA_OR_SKIP(cuda);
  const CaseRun run(op_case(GetParam().shape), 7);
  const std::vector<float> expected = values_of(run, *backend::make_ref_backend(/*halves=*/true), GetParam());
  const std::vector<float> seen = values_of(run, cuda, GetParam());
  double error = 0, norm = 0, worst = 0;
  const auto columns = static_cast<size_t>(GetParam().shape.columns);
  for (size_t at = 0; at < seen.size(); at += columns) {  // a head of a row
    double of_head = 0, norm_of_head = 0;
    for (size_t i = at; i < at + columns; ++i) {
      ASSERT_TRUE(std::isfinite(seen[i])) << i;
      of_head += std::pow(double{seen[i]} - expected[i], 2);
      norm_of_head += std::pow(double{expected[i]}, 2);
    }
    ASSERT_GT(norm_of_head, 0) << "a result of zeros proves nothing";
    error += of_head, norm += norm_of_head;
    worst = std::max(worst, std::sqrt(of_head / norm_of_head));
  }
  fmt::print("relative error {:.2e}, of a head of a row {:.2e} at most\n", std::sqrt(error / norm), worst);
  EXPECT_LE(std::sqrt(error / norm), kMostError);
  EXPECT_LE(worst, 8 * kMostError);
}

std::string name_of(const testing::TestParamInfo<Param>& param) {
  std::string name = fmt::format("{} {}", param.param.shape.name, param.param.name);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

std::vector<Chunk> answers(int32_t count) {
  std::vector<Chunk> list;
  list.reserve(static_cast<size_t>(count));
  for (int32_t s = 0; s < count; ++s) list.push_back({s, 150 * s % 371 + s, 1});
  return list;
}

std::vector<Param> all_cases() {
  std::vector<Param> list;
  const auto q8_0 = quant::Type::Q8_0;
  for (const Shape& shape :
       {Shape{"8x128 by 2", 8, 2, 128}, Shape{"7x64 by 1", 7, 1, 64},
        Shape{"8x128 by 2 of Q8_0", 8, 2, 128, q8_0}, Shape{"6x64 by 3 of Q8_0", 6, 3, 64, q8_0},
        Shape{"4x96 by 4", 4, 4, 96}, Shape{"16x80 by 1", 16, 1, 80},
        Shape{"products of 32x128 by 4", 32, 4, 128, quant::Type::F16, true},
        Shape{"products of 32x128 by 4 of Q8_0", 32, 4, 128, q8_0, true},
        Shape{"products of 6x64 by 3 of Q8_0", 6, 3, 64, q8_0, true},
        Shape{"products of 16x256 by 1", 16, 1, 256, quant::Type::F16, true},
        Shape{"products of 16x256 by 2, gate", 16, 2, 256, quant::Type::F16, true, 0, false, true},
        Shape{"products of 8x64 by 2, gate", 8, 2, 64, quant::Type::F16, true, 0, false, true},
        Shape{"8x64 by 1, window 70", 8, 1, 64, quant::Type::F16, false, 70},
        Shape{"16x64 by 2 of Q8_0, sinks", 16, 2, 64, q8_0, false, 0, true},
        Shape{"products of 16x64 by 2, sinks, window 128", 16, 2, 64, quant::Type::F16, true, 128, true},
        Shape{"products of 16x64 by 2, sinks", 16, 2, 64, quant::Type::F16, true, 0, true},
        Shape{"products of 8x128 by 2 of Q8_0, window 9", 8, 2, 128, q8_0, true, 9}}) {
    list.push_back({shape, "from 0", {}, {{0, 0, 1025}}});
    list.push_back({shape, "at depth", {{3, 0, 447}}, {{3, 447, 1217}}});
    list.push_back({shape, "an answer", {{3, 0, 1297}}, {{3, 1297, 1}}});
    list.push_back({shape, "two answers", {{3, 0, 1297}, {2, 0, 10}}, {{3, 1297, 1}, {2, 10, 1}}});
    list.push_back({shape, "a draft", {{3, 0, 800}}, {{3, 800, 5}}});
    list.push_back({shape, "a draft across pages", {{3, 0, 61}, {1, 0, 128}}, {{3, 61, 7}, {1, 128, 1}}});
    // Rows of one sequence attend together; chunks of their context end where it suits the first of them.
    list.push_back({shape, "a short prompt at depth", {{3, 0, 1272}}, {{3, 1272, 16}}});
    list.push_back({shape, "13 drafts across pages", {{3, 0, 1275}}, {{3, 1275, 13}}});
    list.push_back({shape, "a longer prompt at depth", {{3, 0, 1279}, {3, 1279, 650}}, {{3, 1929, 100}}});
    std::vector<Chunk> cached;
    for (const Chunk& answer : answers(36)) cached.push_back({answer.sequence, 0, answer.first});
    cached.erase(cached.begin());  // empty
    list.push_back({shape, "36 answers", cached, answers(36)});
    list.push_back(
        {shape,
         "beside answers",
         {{1, 0, 70}, {2, 0, 600}, {4, 0, 900}, {6, 0, 193}},
         {{1, 70, 1}, {2, 600, 3}, {5, 0, 20}, {4, 900, 257}, {6, 193, 8}, {7, 0, 7}, {8, 0, 300}}});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Attention, CudaAttention, testing::ValuesIn(all_cases()), name_of);

/// What the rows of a prompt get does not depend on who else is in the step.
TEST(CudaAttentionRows, FeelNoNeighbours) {
  CUDA_OR_SKIP(cuda);
  for (const quant::Type cache : {quant::Type::F16, quant::Type::Q8_0}) {
    const CaseRun run(op_case({"8x128 by 2", 8, 2, 128, cache}), 7);
    const auto executable =
        cuda.compile(run.program(), run.weights(), {kMostRows, kMostRows, kSequences * kPages});
    const auto last_rows = [&](std::vector<float> values) {
      values.erase(values.begin(), values.end() - 300 * 8 * 128);
      return values;
    };
    // The same rows of the inputs, so that the prompt has the same numbers.
    const std::vector<float> one = last_rows(values_of(run, *executable, {{0, 0, 900}, {1, 0, 300}}));
    std::vector<Chunk> others;
    for (int32_t s = 2; s < 12; ++s) others.push_back({s, 5, 1});
    others.push_back({0, 0, 890});
    others.push_back({1, 0, 300});
    EXPECT_EQ(one, last_rows(values_of(run, *executable, others)));
  }
}

}  // namespace
}  // namespace sluice::test
