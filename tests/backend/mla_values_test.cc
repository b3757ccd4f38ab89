// mla_values of many rows on the CPU backend: prompts from the beginning and at depth, several in a step,
// beside answers, against the reference; and what a row's bits depend on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "support/chunks.h"
#include "support/isas.h"

namespace sluice::test {
namespace {

struct Shape {
  const char* name;
  int64_t heads, nope, value;
  quant::Type v_b = quant::Type::Q8_0, cache = quant::Type::F16;
};

constexpr int64_t kMostRows = 620, kRank = 512, kRotated = 64;
/// Queries and results in eight bits, 32 under a scale, or four roundings to bfloat16.
constexpr double kMostError = 0x1p-7;

OpCase op_case(const Shape& s) {
  return {s.name, kMostRows, [s](Builder& b) {
            const TensorId latent = b.activation("latent", kStepRows, 1, kRank);
            const TensorId key = b.activation("key", kStepRows, 1, kRotated);
            const TensorId cache = b.cache(2, kRank + kRotated, s.cache, kRotated);
            b.kv_append(latent, key, cache, 1);
            const TensorId q = b.activation("q", kStepRows, s.heads, kRank + kRotated);
            const TensorId context = b.activation("context", kStepRows, s.heads, kRank);
            b.emit(MlaValues{.turn = {{b.activation("q_rope", kStepRows, s.heads, kRotated)},
                                      {b.columns(q, "query_rope", kRank, kRotated)}},
                             .queries = {{b.activation("in", kStepRows, s.heads, s.nope)},
                                         {b.weight("k_b", quant::Type::Q8_0, s.heads, kRank, s.nope)},
                                         {b.columns(q, "query", 0, kRank)}},
                             .attend = {{q}, {cache}, {context}, 0x1p-9f, 1},
                             .values = {{context},
                                        {b.weight("v_b", s.v_b, s.heads, s.value, kRank)},
                                        {b.activation("values", kStepRows, s.heads, s.value)}}});
          }};
}

/// The step's values after the cached chunks, a step each: [rows][heads][value].
std::vector<float> values_of(const CaseRun& run, Backend& backend, const Chunks& cached, const Chunks& step,
                             bool batch_invariant = false) {
  return values_of(run, backend, kMostRows, cached, step, batch_invariant);
}

const Shape kGlm{"GLM", 3, 192, 256}, kLite{"V2 Lite", 4, 128, 128},
    kYoutu{"v_b of Q5_K", 2, 128, 128, quant::Type::Q5_K},
    kCoded{"cache of Q8_0", 2, 192, 256, quant::Type::Q8_0, quant::Type::Q8_0};

struct Param {
  Shape shape;
  const char* name;
  Chunks cached, step;
};

class MlaValuesOfPrompts : public testing::TestWithParam<Param> {};

TEST_P(MlaValuesOfPrompts, AgreeWithReference) {
  const Param& param = GetParam();
  const CaseRun run(op_case(param.shape), 7);
  const std::vector<float> expected = values_of(run, *backend::make_ref_backend(), param.cached, param.step);
  for (const backend::cpu::Isa isa : usable_isas()) {
    const auto cpu = backend::make_cpu_backend({.threads = 3, .isa = isa});
    const HeadErrors errors = errors_of_heads(values_of(run, *cpu, param.cached, param.step), expected,
                                              static_cast<size_t>(param.shape.value));
    SCOPED_TRACE(backend::cpu::isa_name(isa));
    RecordProperty(std::string(backend::cpu::isa_name(isa)),
                   fmt::format("{:.2e} {:.2e}", errors.all, errors.worst));
    EXPECT_LE(errors.all, kMostError);
    EXPECT_LE(errors.worst, 2 * kMostError);
  }
}

std::string name_of(const testing::TestParamInfo<Param>& param) {
  std::string name = fmt::format("{} {}", param.param.shape.name, param.param.name);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

std::vector<Param> all_cases() {
  std::vector<Param> list;
  for (const Shape& shape : {kGlm, kLite, kYoutu, kCoded}) {
    list.push_back({shape, "from the beginning", {}, {{1, 0, 333}}});
    list.push_back({shape, "at depth", {{2, 0, 130}}, {{2, 130, 280}}});
    list.push_back({shape,
                    "several beside answers",
                    {{0, 0, 70}, {1, 0, 130}, {3, 0, 40}},
                    {{0, 70, 1}, {3, 40, 1}, {1, 130, 150}, {2, 0, 257}}});
    list.push_back({shape,
                    "more short ones than are in latent space at a time",
                    {{3, 0, 20}},
                    {{0, 0, 100}, {1, 0, 110}, {2, 0, 103}, {3, 20, 100}, {4, 0, 97}, {5, 0, 106}}});
    list.push_back({shape, "before answers", {{0, 0, 70}}, {{1, 0, 140}, {0, 70, 1}}});
    list.push_back({shape, "one answer, a chunk", {{0, 0, 127}}, {{0, 127, 1}}});
    list.push_back({shape, "one answer, two chunks", {{0, 0, 128}}, {{0, 128, 1}}});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Cases, MlaValuesOfPrompts, testing::ValuesIn(all_cases()), name_of);

/// The last `rows` rows of the values of a step.
std::vector<float> last(const std::vector<float>& values, const Shape& shape, int64_t rows) {
  return {values.end() - rows * shape.heads * shape.value, values.end()};
}

TEST(MlaValues, BitsDependNeitherOnThreadsNorOnNeighbours) {
  const CaseRun run(op_case(kLite), 7);
  const Chunks cached = {{0, 0, 70}, {2, 0, 210}};
  for (const backend::cpu::Isa isa : usable_isas()) {
    SCOPED_TRACE(backend::cpu::isa_name(isa));
    const auto cpu = [&](int threads) { return backend::make_cpu_backend({.threads = threads, .isa = isa}); };
    const Chunks together = {{0, 70, 1}, {2, 210, 193}};
    const std::vector<float> values = values_of(run, *cpu(1), cached, together);
    EXPECT_EQ(values, values_of(run, *cpu(2), cached, together));
    EXPECT_EQ(values, values_of(run, *cpu(7), cached, together));
    // Inputs are the same row by row, whoever's row it is.
    const Chunks beside_another = {{3, 0, 1}, {2, 210, 193}};
    EXPECT_EQ(last(values, kLite, 193), last(values_of(run, *cpu(2), cached, beside_another), kLite, 193));
    for (const int threads : {1, 2, 3, 4}) {  // those that four heads can be dealt to take heads
      const auto alone = values_of(run, *cpu(threads), cached, {{0, 70, 1}});
      EXPECT_EQ(alone,
                std::vector<float>(values.begin(), values.begin() + static_cast<int64_t>(alone.size())));
    }
  }
}

TEST(MlaValues, BatchInvariantRowsDoNotMindHowManyTheyAre) {
  const CaseRun run(op_case(kLite), 7);
  for (const backend::cpu::Isa isa : usable_isas()) {
    SCOPED_TRACE(backend::cpu::isa_name(isa));
    const auto cpu = backend::make_cpu_backend({.threads = 2, .isa = isa});
    const auto many = values_of(run, *cpu, {}, {{2, 0, 300}}, true),
               few = values_of(run, *cpu, {}, {{2, 0, 40}}, true);
    EXPECT_EQ(few, std::vector<float>(many.begin(), many.begin() + static_cast<int64_t>(few.size())));
  }
}

}  // namespace
}  // namespace sluice::test
