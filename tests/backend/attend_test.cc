// attend of many rows on the CPU backend: prompts from the beginning and at depth, several in a step, beside
// answers, with sinks and other caches, against the reference; and what a row's bits depend on.
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
  int64_t heads, kv_heads, key, value;
  bool sinks = false;
  quant::Type cache = quant::Type::F16;
  int64_t window = 0;
};

constexpr int64_t kMostRows = 620;
/// Four roundings to bfloat16, or numbers of 16 bits, which are finer.
constexpr double kMostError = 0x1p-7;

OpCase op_case(const Shape& s) {
  return {s.name, kMostRows, [s](Builder& b) {
            const TensorId keys = b.activation("keys", kStepRows, 1, s.kv_heads * s.key);
            const TensorId values = b.activation("values", kStepRows, 1, s.kv_heads * s.value);
            const TensorId cache = b.cache(2, s.kv_heads * (s.key + s.value), s.cache);
            b.kv_append(keys, values, cache, 1);
            Attend op{.q = {b.activation("q", kStepRows, s.heads, s.key)},
                      .cache = {cache},
                      .out = {b.activation("attended", kStepRows, s.heads, s.value)},
                      .kv_heads = s.kv_heads,
                      .scale = 0.3f,
                      .cache_layer = 1,
                      .window = s.window};
            if (s.sinks) op.sinks.id = b.weight("sinks", quant::Type::F32, 1, 1, s.heads);
            b.emit(op);
          }};
}

std::vector<float> values_of(const CaseRun& run, Backend& backend, const Chunks& cached, const Chunks& step,
                             bool batch_invariant = false) {
  return values_of(run, backend, kMostRows, cached, step, batch_invariant);
}

const Shape kEight{"eight heads a group", 16, 2, 128, 128}, kOne{"a head a group", 3, 3, 64, 64},
    kOdd{"seven heads a group", 14, 2, 64, 96}, kSinks{"sinks", 16, 2, 64, 64, true},
    kCoded{"cache of Q8_0", 8, 2, 128, 128, false, quant::Type::Q8_0},
    kWindow{"a window", 8, 2, 64, 64, false, quant::Type::F16, 100},
    kNarrow{"columns that are no multiple of 32", 8, 2, 48, 48};

struct Param {
  Shape shape;
  const char* name;
  Chunks cached, step;
};

class AttendOfPrompts : public testing::TestWithParam<Param> {};

TEST_P(AttendOfPrompts, AgreesWithReference) {
  const Param& param = GetParam();
  const CaseRun run(op_case(param.shape), 7);
  const std::vector<float> expected = values_of(run, *backend::make_ref_backend(), param.cached, param.step);
  for (const backend::cpu::Isa isa : usable_isas()) {
    SCOPED_TRACE(backend::cpu::isa_name(isa));
    const auto cpu = backend::make_cpu_backend({.threads = 3, .isa = isa});
    const HeadErrors errors = errors_of_heads(values_of(run, *cpu, param.cached, param.step), expected,
                                              static_cast<size_t>(param.shape.value));
    EXPECT_LE(errors.all, kMostError);
    EXPECT_LE(errors.worst, 3 * kMostError);
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
  for (const Shape& shape : {kEight, kOne, kOdd, kSinks, kCoded, kWindow, kNarrow}) {
    list.push_back({shape, "from the beginning", {}, {{1, 0, 333}}});
    list.push_back({shape, "at depth", {{2, 0, 300}}, {{2, 300, 33}}});
    list.push_back({shape,
                    "several beside answers",
                    {{0, 0, 70}, {1, 0, 130}, {3, 0, 40}},
                    {{0, 70, 1}, {3, 40, 1}, {4, 0, 20}, {1, 130, 150}, {2, 0, 257}}});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Cases, AttendOfPrompts, testing::ValuesIn(all_cases()), name_of);

TEST(AttendOfManyRows, BitsDependNeitherOnThreadsNorOnNeighbours) {
  const CaseRun run(op_case(kEight), 7);
  const Chunks cached = {{0, 0, 70}, {2, 0, 210}};
  for (const backend::cpu::Isa isa : usable_isas()) {
    SCOPED_TRACE(backend::cpu::isa_name(isa));
    const auto cpu = [&](int threads) { return backend::make_cpu_backend({.threads = threads, .isa = isa}); };
    const Chunks together = {{0, 70, 1}, {2, 210, 193}};
    const std::vector<float> values = values_of(run, *cpu(1), cached, together);
    EXPECT_EQ(values, values_of(run, *cpu(2), cached, together));
    EXPECT_EQ(values, values_of(run, *cpu(7), cached, together));
    // Inputs are the same row by row, whoever's row it is.
    const auto rows = [&](const std::vector<float>& all) {
      return std::vector<float>(all.end() - 193 * kEight.heads * kEight.value, all.end());
    };
    EXPECT_EQ(rows(values), rows(values_of(run, *cpu(2), cached, {{3, 0, 1}, {2, 210, 193}})));
    const auto alone = values_of(run, *cpu(2), cached, {{0, 70, 1}});
    EXPECT_EQ(alone, std::vector<float>(values.begin(), values.begin() + static_cast<int64_t>(alone.size())));
  }
}

/// Of up to eight rows a step drafts: their bits are those of single rows.
TEST(AttendOfManyRows, DraftedRowsHaveTheBitsOfSingleOnes) {
  const CaseRun run(op_case(kEight), 7);
  for (const backend::cpu::Isa isa : usable_isas()) {
    SCOPED_TRACE(backend::cpu::isa_name(isa));
    const auto cpu = backend::make_cpu_backend({.threads = 2, .isa = isa});
    const auto eight = values_of(run, *cpu, {{2, 0, 64}}, {{2, 64, 8}}),
               one = values_of(run, *cpu, {{2, 0, 64}}, {{2, 64, 1}});
    EXPECT_EQ(one, std::vector<float>(eight.begin(), eight.begin() + static_cast<int64_t>(one.size())));
  }
}

TEST(AttendOfManyRows, BatchInvariantOnesDoNotMindHowManyTheyAre) {
  const CaseRun run(op_case(kEight), 7);
  for (const backend::cpu::Isa isa : usable_isas()) {
    SCOPED_TRACE(backend::cpu::isa_name(isa));
    const auto cpu = backend::make_cpu_backend({.threads = 2, .isa = isa});
    const auto many = values_of(run, *cpu, {}, {{2, 0, 300}}, true),
               few = values_of(run, *cpu, {}, {{2, 0, 20}}, true);
    EXPECT_EQ(few, std::vector<float>(many.begin(), many.begin() + static_cast<int64_t>(few.size())));
  }
}

}  // namespace
}  // namespace sluice::test
