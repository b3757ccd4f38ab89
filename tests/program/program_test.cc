// The waist itself: verification, expansion, memory plans, dumps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "base/error.h"
#include "program/builder.h"
#include "program/op_info.h"
#include "program/program.h"
#include "support/error_of.h"

namespace sluice::program {
namespace {

using testing::HasSubstr;

/// A feed-forward network of two layers around one embedding.
struct Network {
  Program program;
  Builder b{program};
  TensorId table, gate, up, down, norm;

  Network() {
    table = b.weight("table", quant::Type::F32, 1, 100, 64);
    gate = b.weight("gate", quant::Type::Q8_0, 1, 96, 64);
    up = b.weight("up", quant::Type::Q8_0, 1, 96, 64);
    down = b.weight("down", quant::Type::Q8_0, 1, 64, 96);
    norm = b.weight("norm", quant::Type::F32, 1, 1, 64);
    TensorId x = b.embed(table);
    for (int32_t layer = 0; layer < 2; ++layer) {
      b.set_layer(layer);
      const TensorId h = b.rms_norm(x, norm, 1e-5f);
      x = b.matmul_add(b.gate_up(h, gate, up), down, x);
    }
    b.set_layer(-1);
    b.set_output(b.matmul(b.gather_rows(x), table));
  }
};

TEST(Verify, AcceptsWhatABuilderMakes) {
  EXPECT_EQ(error_of([] { verify(Network().program); }), "");
}

TEST(Verify, NamesTheOpWithAWrongShape) {
  Network n;
  const TensorId narrow = n.b.weight("narrow", quant::Type::F32, 1, 10, 32);
  n.b.set_layer(3);
  n.b.matmul(n.program.output(), narrow);
  EXPECT_THAT(error_of([&] { verify(n.program); }),
              HasSubstr("3.matmul: weight: narrow has shape [1, 10, 32], expected [1, 10, 100]"));
}

TEST(Verify, NamesAWeightThatCannotBeDecoded) {
  Network n;
  n.b.matmul(n.program.output(), n.b.weight("ids", quant::Type::I32, 1, 10, 100));
  EXPECT_THAT(error_of([&] { verify(n.program); }), HasSubstr("ids has type I32, which cannot be decoded"));
}

TEST(Verify, RefusesReadingWhatNobodyWrote) {
  Network n;
  n.b.rms_norm(n.b.activation("nothing", kStepRows, 1, 64), n.norm, 1e-5f);
  EXPECT_THAT(error_of([&] { verify(n.program); }), HasSubstr("nothing is read before it is written"));
}

TEST(Dump, IsOneLineAnOp) {
  EXPECT_EQ(
      dump(Network().program),
      "embed table=table[1, 100, 64]:F32 -> out=embedding[rows, 1, 64]\n"
      "0.rms_norm in=embedding[rows, 1, 64] weight=norm[1, 1, 64]:F32 -> out=normed[rows, 1, 64] | epsilon "
      "1e-05\n"
      "0.gate_up in=normed[rows, 1, 64] gate=gate[1, 96, 64]:Q8_0 up=up[1, 96, 64]:Q8_0 -> out=gated[rows, "
      "1, 96]\n"
      "0.matmul_add in=gated[rows, 1, 96] weight=down[1, 64, 96]:Q8_0 residual=embedding[rows, 1, 64] -> "
      "out=residual[rows, 1, 64]\n"
      "1.rms_norm in=residual[rows, 1, 64] weight=norm[1, 1, 64]:F32 -> out=normed[rows, 1, 64] | epsilon "
      "1e-05\n"
      "1.gate_up in=normed[rows, 1, 64] gate=gate[1, 96, 64]:Q8_0 up=up[1, 96, 64]:Q8_0 -> out=gated[rows, "
      "1, 96]\n"
      "1.matmul_add in=gated[rows, 1, 96] weight=down[1, 64, 96]:Q8_0 residual=residual[rows, 1, 64] -> "
      "out=residual[rows, 1, 64]\n"
      "gather_rows in=residual[rows, 1, 64] -> out=output_rows[outputs, 1, 64]\n"
      "matmul in=output_rows[outputs, 1, 64] weight=table[1, 100, 64]:F32 -> out=product[outputs, 1, 100]\n");
}

TEST(Legalize, ExpandsDownToPrimitivesAndKeepsTheOutput) {
  const Network n;
  const auto primitive = [](const Program&, const Op& op) { return info(op).expand == nullptr; };
  const Program legal = legalize(n.program, "test", primitive);
  std::vector<std::string> names;
  for (const Op& op : legal.ops()) names.push_back(legal.op_name(op));
  EXPECT_THAT(names, testing::ElementsAre("embed", "0.rms_norm", "0.matmul", "0.matmul", "0.silu_mul",
                                          "0.matmul", "0.add", "1.rms_norm", "1.matmul", "1.matmul",
                                          "1.silu_mul", "1.matmul", "1.add", "gather_rows", "matmul"));
  EXPECT_EQ(legal.output(), n.program.output());
  EXPECT_EQ(error_of([&] { verify(legal); }), "");
}

TEST(Legalize, NamesThePrimitiveThatABackendLacks) {
  const Network n;
  const auto no_add = [](const Program&, const Op& op) {
    return info(op).expand == nullptr && info(op).name != std::string("add");
  };
  EXPECT_EQ(error_of([&] { legalize(n.program, "toy", no_add); }), "the backend toy lacks 0.add");
}

// What mla_heads is by way of mla_values is the same list of primitives as by way of mla_query.
TEST(Legalize, TakesAnotherExpansionWhereABackendPrefersIt) {
  for (const OpCase& heads : MlaHeads::cases()) {
    Program program;
    Builder b(program);
    heads.build(b);
    program.set_output(std::get<MlaHeads>(program.ops()[0].args).out.id);
    const auto primitive = [](const Program&, const Op& op) { return info(op).expand == nullptr; };
    const auto values_too = [&](const Program& p, const Op& op) {
      return primitive(p, op) || std::holds_alternative<MlaValues>(op.args);
    };
    const auto otherwise = [](int64_t latent_rows) {
      return [latent_rows](Builder& builder, const Op& op) {
        const auto* args = std::get_if<MlaHeads>(&op.args);
        if (args != nullptr) args->expand_to_values(builder, latent_rows);
        return args != nullptr;
      };
    };
    EXPECT_EQ(dump(legalize(program, "test", primitive, otherwise(0))),
              dump(legalize(program, "test", primitive)))
        << heads.name;
    const Program legal = legalize(program, "test", values_too, otherwise(5));
    const auto& values = std::get<MlaValues>(legal.ops().back().args);
    EXPECT_EQ(error_of([&] { values.check(legal); }), "");
    EXPECT_EQ(legal[values.attend.q.id].most_rows, 5);
    EXPECT_EQ(legal[values.attend.out.id].most_rows, 5);
  }
}

/// Tensors that are both in use at some op (or within `window` ops of each other, with no op between that all
/// wait after) must not share a byte.
void expect_no_overlap(const Program& program, int window, const std::vector<bool>& all_wait_after = {}) {
  constexpr int64_t kRows = 13;
  const MemoryPlan plan = plan_memory(program, kRows, kRows, window, all_wait_after);
  const auto apart = [&](int last, int first) {  // who is in use until one from who is from the other on
    for (int op = last; op < first; ++op) {
      if (!all_wait_after.empty() && all_wait_after[static_cast<size_t>(op)]) return true;
    }
    return first > last + window;
  };
  struct Life {
    int first = 1 << 30, last = -1;
  };
  std::vector<Life> lives(program.tensors().size());
  for (int i = 0; i < static_cast<int>(program.ops().size()); ++i) {
    const Op& op = program.ops()[static_cast<size_t>(i)];
    info(op).operands(op, [&](const char*, TensorId id, bool) {
      Life& life = lives[static_cast<size_t>(program.storage(id))];
      life.first = std::min(life.first, i);
      life.last = std::max(life.last, i);
    });
  }
  const auto bytes = [&](size_t id) {
    const Tensor& t = program.tensors()[id];
    return Program::rows(t, kRows, kRows) * t.shape[1] * t.shape[2] * 4;
  };
  for (size_t a = 0; a < lives.size(); ++a) {
    if (plan.offset_bytes[a] < 0) continue;
    EXPECT_LE(plan.offset_bytes[a] + bytes(a), plan.arena_bytes);
    for (size_t b = a + 1; b < lives.size(); ++b) {
      if (plan.offset_bytes[b] < 0) continue;
      const bool together = !apart(lives[b].last, lives[a].first) && !apart(lives[a].last, lives[b].first);
      const bool overlap = plan.offset_bytes[a] < plan.offset_bytes[b] + bytes(b) &&
                           plan.offset_bytes[b] < plan.offset_bytes[a] + bytes(a);
      EXPECT_FALSE(together && overlap) << program.tensors()[a].name << " and " << program.tensors()[b].name;
    }
  }
}

TEST(PlanMemory, NothingInUseTogetherOverlaps) {
  const Network n;
  for (const int window : {0, 1, 3}) expect_no_overlap(n.program, window);
  const auto primitive = [](const Program&, const Op& op) { return info(op).expand == nullptr; };
  const Program legal = legalize(n.program, "test", primitive);
  for (const int window : {0, 1, 3}) expect_no_overlap(legal, window);
}

TEST(PlanMemory, WhatAnOpReadsLastThatAllWaitAfterIsFreeAtOnce) {
  const Network n;
  std::vector<bool> all_wait_after(n.program.ops().size());
  for (size_t i = 0; i < all_wait_after.size(); i += 2) all_wait_after[i] = true;
  expect_no_overlap(n.program, 1, all_wait_after);
  for (const int window : {3, 100}) {
    expect_no_overlap(n.program, window, all_wait_after);
    EXPECT_LT(plan_memory(n.program, 13, 13, window, all_wait_after).arena_bytes,
              plan_memory(n.program, 13, 13, window).arena_bytes);
  }
}

TEST(PlanMemory, WhatIsFilledPartByPartTakesThatManyRows) {
  const Network n;
  Program parts;
  for (Tensor tensor : n.program.tensors()) {
    if (tensor.kind == Kind::Activation && tensor.base == kNoTensor && tensor.shape[0] == kStepRows)
      tensor.most_rows = 5;
    parts.add(tensor);
  }
  for (const Op& op : n.program.ops()) parts.add(op);
  parts.set_output(n.program.output());
  expect_no_overlap(parts, 1);
  EXPECT_EQ(plan_memory(parts, 4, 1).arena_bytes, plan_memory(n.program, 4, 1).arena_bytes);
  EXPECT_EQ(plan_memory(parts, 13, 1).arena_bytes, plan_memory(n.program, 5, 1).arena_bytes);
}

TEST(PlanMemory, ReusesWhatIsNoLongerRead) {
  const Network n;
  int64_t sum = 0;
  for (const Tensor& t : n.program.tensors()) {
    if (t.kind == Kind::Activation) sum += 13 * t.shape[1] * t.shape[2] * 4;
  }
  EXPECT_LT(plan_memory(n.program, 13, 13).arena_bytes, sum);
}

TEST(Cost, CountsEveryWeightByteOnceAndTheEmbeddingRowsOnly) {
  const Network n;
  const StepShape shape{.rows = 2, .outputs = 1};
  const double q8 = 34.0 / 32;
  const double weights = 2 * (3 * 96 * 64 * q8 + 64 * 4) + 100 * 64 * 4 + 2 * 64 * 4;
  double activations = 0;  // read: norm in, gate_up in, down in and residual a layer, gather, output
  activations += 2 * (2 * 64 + 2 * 64 + 2 * 96 + 2 * 64) * 4 + 64 * 4 + 64 * 4;
  EXPECT_DOUBLE_EQ(total_cost(n.program, shape).bytes_read, weights + activations);
}

// Parts of a fused op have operands that are not there, which cost nothing.
TEST(Cost, OfAFusedOpIsNoMoreThanThatOfItsExpansion) {
  const auto primitive = [](const Program&, const Op& op) { return info(op).expand == nullptr; };
  for (const OpInfo& op : all_ops()) {
    if (op.expand == nullptr || op.across_places) continue;
    for (const OpCase& one : op.cases()) {
      Program program;
      Builder b(program);
      one.build(b);
      const StepShape shape{.rows = 1, .outputs = 1};
      const Cost fused = total_cost(program, shape),
                 simple = total_cost(legalize(program, "test", primitive), shape);
      SCOPED_TRACE(std::string(op.name) + " " + one.name);
      EXPECT_GT(fused.bytes_read, 0);
      EXPECT_LE(fused.bytes_read, simple.bytes_read * 1.001);
      EXPECT_GT(fused.bytes_written, 0);
      EXPECT_LE(fused.bytes_written, simple.bytes_written * 1.001);
      EXPECT_GE(fused.flops, 0);
    }
  }
}

TEST(Caches, AreAListAndTakeWhatEachOfThemTakes) {
  Program program;
  Builder b(program);
  const TensorId latents = b.cache(3, 96, quant::Type::F16, 32, "latents");
  b.weight("between", quant::Type::F32, 1, 8, 8);
  const TensorId keys = b.cache(2, 64, quant::Type::Q8_0, 0, "keys");
  const TensorId state = b.state("state", 5, 3, 10);
  EXPECT_EQ(program.caches(), (std::vector<TensorId>{latents, keys, state}));
  EXPECT_EQ(program.cache_index(state), 2u);
  EXPECT_TRUE(program.has_states());
  const int64_t page_of_latents = 3 * 64 * 96 * 2, page_of_keys = 2 * 64 * 80, slot = 5 * 3 * 10 * 4;
  const CacheRoom room{.pages = 7, .state_slots = 4};
  EXPECT_EQ(cache_bytes(program[latents], room), 7 * page_of_latents);
  EXPECT_EQ(cache_bytes(program[keys], room), 7 * page_of_keys);
  EXPECT_EQ(cache_bytes(program[state], room), 4 * slot);
  EXPECT_EQ(cache_bytes(program, room), 7 * (page_of_latents + page_of_keys) + 4 * slot);
  EXPECT_EQ(cache_bytes(program, quant::Type::F32, room), 7 * 64 * 4 * (3 * 96 + 2 * 64) + 4 * slot);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(cache_bytes(program, {.pages = kMost / page_of_latents}), kMost) << "both do not fit";
  EXPECT_EQ(cache_bytes(program, {.pages = 1, .state_slots = kMost}), kMost);
  // A program of other ops over the same tensors has the same caches.
  const Program legal = legalize(program, "test", [](const Program&, const Op&) { return true; });
  EXPECT_EQ(legal.caches(), program.caches());
}

TEST(Caches, OfAConvolutionIsAState) {
  const auto check = [](int64_t rows, int64_t columns, int32_t layer, bool paged) {
    Program program;
    Builder b(program);
    const TensorId kept = paged ? b.cache(2, columns, quant::Type::F32) : b.state("s", 2, rows, columns);
    const TensorId x = b.activation("x", kStepRows, 1, 16);
    b.causal_conv(x, b.weight("w", quant::Type::F32, 1, 16, 4), kept, layer);
    info(program.ops()[0]).check(program, program.ops()[0]);
  };
  EXPECT_NO_THROW(check(3, 16, 1, false));
  EXPECT_THROW(check(3, 16, 2, false), Error);
  EXPECT_THROW(check(4, 16, 0, false), Error);
  EXPECT_THROW(check(3, 15, 0, false), Error);
  EXPECT_THROW(check(3, 16, 0, true), Error);
}

TEST(StepShape, DistinctExpertsAreExpectedUnderUniformSelection) {
  // Counted: rows that select 2 of 8 at random, many times over.
  std::mt19937 random(3);
  double distinct = 0;
  constexpr int kTrials = 20000;
  for (int trial = 0; trial < kTrials; ++trial) {
    bool seen[8] = {};
    for (int row = 0; row < 3; ++row) {
      const unsigned first = random() % 8;
      unsigned second = random() % 7;
      second += second >= first ? 1 : 0;
      seen[first] = seen[second] = true;
    }
    for (const bool expert : seen) distinct += expert ? 1 : 0;
  }
  EXPECT_NEAR(StepShape{.rows = 3}.distinct_experts(8, 2), distinct / kTrials, 0.03);
}

TEST(Rope, YarnFrequenciesFollowThePaper) {
  // DeepSeek-V2-Lite: base 10000, 64 dims, factor 40 over 4096, as transformers' _compute_yarn_parameters
  // gives them (low 10, high 23): pair 0 keeps its frequency, pair 31 is stretched by 40, pair 16 lies 6/13
  // along the ramp.
  const RopeParams yarn{10000, 40, 4096, 32, 1};
  EXPECT_DOUBLE_EQ(yarn.frequency(0, 64), 1.0);
  EXPECT_NEAR(yarn.frequency(31, 64), std::pow(10000, -62.0 / 64) / 40, 1e-15);
  const double plain = std::pow(10000, -32.0 / 64), ramp = 6.0 / 13;
  EXPECT_NEAR(yarn.frequency(16, 64), plain * (1 - ramp) + plain / 40 * ramp, 1e-12);
}

}  // namespace
}  // namespace sluice::program
