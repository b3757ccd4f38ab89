// mla_heads of many rows on the CUDA backend against the reference: prompts from the beginning and at depth,
// several in a step, beside answers.
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
  int64_t heads, nope, value;
  bool with_q;
  quant::Type v_b = quant::Type::Q8_0, cache = quant::Type::F16;
};

struct Param {
  Shape shape;
  const char* name;
  std::vector<Chunk> cached, step;  ///< computed before, a chunk a step; compared
};

constexpr int64_t kMostRows = 1300;
constexpr int32_t kSequences = 12, kPages = 32;  ///< of a sequence
/// Queries, keys, weights and values are halves: 2^-12 each, of scores of some units.
constexpr double kMostError = 0x1p-9;

OpCase op_case(const Shape& s) {
  return {s.name, kMostRows, [s](Builder& b) {
            constexpr int64_t kRotated = 64, kRank = 512, kLow = 768;
            MlaHeads op;
            MlaQuery& query = op.query;
            if (s.with_q) {
              query.in.id = b.activation("x", kStepRows, 1, kLow);
              query.q_norm.id = b.weight("q_norm", quant::Type::F32, 1, 1, kLow);
              query.q.id = b.weight("q", quant::Type::Q4_0, 1, s.heads * (s.nope + kRotated), kLow);
            } else {
              query.in.id = b.activation("x", kStepRows, s.heads, s.nope + kRotated);
            }
            query.kv.id = b.activation("kv", kStepRows, 1, kRank + kRotated);
            query.kv_norm.id = b.weight("kv_norm", quant::Type::F32, 1, 1, kRank);
            query.k_b.id = b.weight("k_b", quant::Type::Q8_0, s.heads, kRank, s.nope);
            query.cache.id = b.cache(2, kRank + kRotated, s.cache, kRotated);
            query.rope.base = 1e6;
            query.rope.pairs = s.with_q ? RopePairs::Neighbours : RopePairs::Halves;
            query.cache_layer = 1;
            op.v_b.id = b.weight("v_b", s.v_b, s.heads, s.value, kRank);
            op.out.id = b.activation("values", kStepRows, s.heads, s.value);
            op.scale = s.with_q ? 0x1p-15f : 0x1p-8f;
            b.emit(op);
          }};
}

/// The result of a step's first rows, all heads: an executable hands back the first one's.
std::vector<float> all_heads(const CaseRun& run, Executable& executable, size_t rows) {
  const TensorId id = run.program().output();
  std::vector<float> values(run.elements(id) / kMostRows * rows);
  executable.peek(id, static_cast<int64_t>(rows), values);
  return values;
}

/// Values of a step of these chunks, whose sequences' pages lie anywhere.
std::vector<float> values_of(const CaseRun& run, Executable& executable, const std::vector<Chunk>& chunks) {
  std::vector<int32_t> table(kSequences * kPages), tokens, positions, sequences, slots, outputs;
  for (int32_t i = 0; i < kSequences * kPages; ++i)
    table[static_cast<size_t>(i)] = i * 113 % (kSequences * kPages);
  for (const Chunk& chunk : chunks) {
    for (int32_t p = chunk.first; p < chunk.first + chunk.rows; ++p) {
      constexpr auto kRows = static_cast<int32_t>(kPageRows);
      tokens.push_back(1), positions.push_back(p), sequences.push_back(chunk.sequence);
      const int32_t page = chunk.sequence * kPages + p / kRows;
      slots.push_back(table[static_cast<size_t>(page)] * kRows + p % kRows);
      outputs.push_back(static_cast<int32_t>(outputs.size()));
    }
  }
  run.poke_inputs(executable);  // what a step made may lie where they were
  run_step(executable, {.input = {tokens, positions, sequences, slots, table, kPages, outputs}});
  return all_heads(run, executable, outputs.size());
}

std::vector<float> values_of(const CaseRun& run, Backend& backend, const Param& param) {
  const auto executable =
      backend.compile(run.program(), run.weights(), {kMostRows, kMostRows, kSequences * kPages});
  for (const Chunk& chunk : param.cached) values_of(run, *executable, {chunk});
  return values_of(run, *executable, param.step);
}

class CudaPrompts : public testing::TestWithParam<Param> {};

TEST_P(CudaPrompts, AgreeWithReference) {
  CUDA_OR_SKIP(cuda);
  const CaseRun run(op_case(GetParam().shape), 7);
  const std::vector<float> expected = values_of(run, *backend::make_ref_backend(), GetParam());
  const std::vector<float> seen = values_of(run, cuda, GetParam());
  double error = 0, norm = 0, worst = 0;
  const auto columns = static_cast<size_t>(GetParam().shape.value);
  for (size_t at = 0; at < seen.size(); at += columns) {  // a head of a row
    double of_head = 0, norm_of_head = 0;
    for (size_t i = at; i < at + columns; ++i) {
      ASSERT_TRUE(std::isfinite(seen[i])) << i;
      ASSERT_TRUE(std::isfinite(expected[i])) << i;
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

constexpr Shape kGlm{"GLM", 4, 192, 256, true}, kLite{"V2 Lite", 4, 128, 128, false},
    kYoutu{"Youtu", 3, 128, 128, true, quant::Type::Q5_K},
    kCoded{"cache of Q8_0", 3, 192, 256, true, quant::Type::Q8_0, quant::Type::Q8_0};

std::vector<Param> all_cases() {
  std::vector<Param> list;
  for (const Shape& shape : {kGlm, kLite, kYoutu, kCoded}) {
    list.push_back({shape, "from 0", {}, {{0, 0, 1025}}});
    list.push_back({shape, "at depth", {{3, 0, 447}}, {{3, 447, 1217}}});
  }
  for (const Shape& shape : {kGlm, kLite}) {
    // Answers, a short prompt at depth and one of few rows attend in latent space, the others do not.
    list.push_back({shape,
                    "beside answers",
                    {{1, 0, 70}, {2, 0, 600}, {4, 0, 900}, {6, 0, 193}},
                    {{1, 70, 1}, {2, 600, 1}, {5, 0, 200}, {4, 900, 257}, {6, 193, 384}, {7, 0, 300}}});
    list.push_back({shape, "of four", {}, {{8, 0, 256}, {9, 0, 256}, {10, 0, 257}, {11, 0, 511}}});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Prompts, CudaPrompts, testing::ValuesIn(all_cases()), name_of);

/// What a prompt's rows get does not depend on who else is in the step.
TEST(CudaPromptRows, FeelNoNeighbours) {
  CUDA_OR_SKIP(cuda);
  const CaseRun run(op_case(kGlm), 7);
  const auto executable =
      cuda.compile(run.program(), run.weights(), {kMostRows, kMostRows, kSequences * kPages});
  const auto last_rows = [&](std::vector<float> values) {
    values.erase(values.begin(), values.end() - 300 * 4 * 256);
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

/// A context so long that not all heads are expanded at once: the same rows attend in latent space where they
/// are few.
TEST(CudaPromptRows, OfALongContextGoByGroupsOfHeads) {
  CUDA_OR_SKIP(cuda);
  constexpr int32_t kRows = 1024, kFewRows = 256, kDepth = 32768, kFilledPages = 16;
  constexpr auto kPage = static_cast<int32_t>(kPageRows);
  const CaseRun run(op_case({"12 heads", 12, 192, 256, true}), 7);
  // Contexts beyond 32,768 have room for 131,072 positions: 12 heads of them are 1.4 GB.
  const auto executable = cuda.compile(run.program(), run.weights(), {kMostRows, kMostRows, 2100});
  std::vector<int32_t> table;
  table.reserve((kDepth + kRows) / kPage);
  for (int32_t i = 0; i < kDepth / kPage; ++i) table.push_back(i % kFilledPages);
  for (int32_t i = 0; i < kRows / kPage; ++i) table.push_back(kFilledPages + i);
  const auto values_at = [&](int32_t first, int32_t rows) {
    std::vector<int32_t> tokens(static_cast<size_t>(rows), 1), sequences(tokens.size(), 0), positions, slots,
        outputs;
    for (int32_t r = 0; r < rows; ++r) {
      const int32_t p = first + r;
      positions.push_back(p), outputs.push_back(r);
      slots.push_back(table[static_cast<size_t>(p / kPage)] * kPage + p % kPage);
    }
    run.poke_inputs(*executable);
    const auto pages = static_cast<int32_t>(table.size());
    run_step(*executable, {.input = {tokens, positions, sequences, slots, table, pages, outputs}});
    return all_heads(run, *executable, kFewRows);
  };
  values_at(0, kFilledPages * kPage);
  const std::vector<float> together = values_at(kDepth, kRows), alone = values_at(kDepth, kFewRows);
  double error = 0, norm = 0;
  for (size_t i = 0; i < alone.size(); ++i) {
    ASSERT_TRUE(std::isfinite(together[i])) << i;
    error += std::pow(double{together[i]} - alone[i], 2);
    norm += std::pow(double{alone[i]}, 2);
  }
  fmt::print("relative difference {:.2e}\n", std::sqrt(error / norm));
  EXPECT_GT(error, 0);  // they are different kernels
  EXPECT_LE(std::sqrt(error / norm), kMostError);
}

}  // namespace
}  // namespace sluice::test
