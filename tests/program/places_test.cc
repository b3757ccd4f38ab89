// Programs cut into places: where the cuts lie, what each place runs, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>

#include "base/error.h"
#include "program/binding.h"
#include "program/builder.h"
#include "program/op_info.h"
#include "program/places.h"
#include "support/error_of.h"

namespace sluice::program {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// One dense layer and one of experts, as models build them, without attention.
struct TwoLayers {
  static constexpr int64_t kDim = 256, kWidth = 1280, kExpertWidth = 96, kExperts = 8, kUsed = 2,
                           kVocabulary = 100;
  Program program;
  Builder b{program};

  explicit TwoLayers(quant::Type down = quant::Type::Q4_K) {
    using quant::Type;
    const TensorId norm = b.weight("norm", Type::F32, 1, 1, kDim);
    TensorId x = b.embed(b.weight("table", Type::Q8_0, 1, kVocabulary, kDim));
    b.set_layer(0);
    const TensorId gated = b.norm_gate_up(x, norm, 1e-5f, b.weight("gate", Type::Q4_0, 1, kWidth, kDim),
                                          b.weight("up", Type::Q4_0, 1, kWidth, kDim));
    x = b.matmul_add(gated, b.weight("down", down, 1, kDim, kWidth), x);
    b.set_layer(1);
    NormMoeGateUp up;
    up.route = {.in = {x}, .norm = {norm}, .router = {b.weight("router", Type::F32, 1, kExperts, kDim)}};
    // As files hold them where they are fused: each expert's gate, then its up.
    const TensorId both = b.weight("gate_up", Type::Q4_0, kExperts, 2 * kExpertWidth, kDim);
    up.experts.gate.id = b.weight_view(both, "expert_gate", kExperts, kExpertWidth, 0, 2 * kExpertWidth);
    up.experts.up.id =
        b.weight_view(both, "expert_up", kExperts, kExpertWidth, kExpertWidth, 2 * kExpertWidth);
    up.experts.shared_gate.id = b.weight("shared_gate", Type::Q4_0, 1, 64, kDim);
    up.experts.shared_up.id = b.weight("shared_up", Type::Q4_0, 1, 64, kDim);
    b.norm_moe_gate_up(up, kUsed);
    x = b.moe_down_add({.in = {up.experts.out.id},
                        .ids = {up.route.route.ids.id},
                        .weights = {up.route.route.weights.id},
                        .down = {b.weight("expert_down", Type::Q5_0, kExperts, kDim, kExpertWidth)},
                        .shared_in = {up.experts.shared_out.id},
                        .shared_down = {b.weight("shared_down", Type::Q8_0, 1, kDim, 64)},
                        .residual = {x}});
    b.set_layer(-1);
    b.set_output(
        b.norm_matmul(b.gather_rows(x), norm, 1e-5f, b.weight("output", Type::Q6_K, 1, kVocabulary, kDim)));
  }
};

Program cut(const TwoLayers& network, std::vector<double> shares) {
  Program out = split(network.program, shares);
  verify(out);
  return out;
}

/// By place, [first row, rows, first column, columns] of the views of a weight's first matrix.
using Views = std::map<int32_t, std::array<int64_t, 4>>;
Views views_of(const Program& program, const std::string& name) {
  Views views;
  for (const Op& op : program.ops()) {
    info(op).operands(op, [&](const char*, TensorId id, bool) {
      const Tensor& t = program[id];
      if (t.kind != Kind::Weight || t.name != name || t.base == kNoTensor) return;
      const int64_t columns = program[t.base].columns();
      views[t.place] = {t.offset / columns, t.shape[1], t.offset % columns, t.columns()};
    });
  }
  return views;
}

TEST(Split, CutsInnerColumnsBetweenBlocksOfTheTypeBehindThem) {
  const TwoLayers network;
  // 1280 columns are 5 blocks of Q4_K; 96 are 3 of Q5_0; 100 rows of the vocabulary go by 32.
  const Program two = cut(network, {1, 1});
  EXPECT_EQ(views_of(two, "gate"), (Views{{0, {0, 768, 0, 256}}, {1, {768, 512, 0, 256}}}));
  EXPECT_EQ(views_of(two, "down"), (Views{{0, {0, 256, 0, 768}}, {1, {0, 256, 768, 512}}}));
  EXPECT_EQ(views_of(two, "expert_down"), (Views{{0, {0, 256, 0, 64}}, {1, {0, 256, 64, 32}}}));
  EXPECT_EQ(views_of(two, "expert_gate"), (Views{{0, {0, 64, 0, 256}}, {1, {64, 32, 0, 256}}}));
  EXPECT_EQ(views_of(two, "expert_up"), (Views{{0, {96, 64, 0, 256}}, {1, {160, 32, 0, 256}}}));
  EXPECT_EQ(views_of(two, "shared_down"), (Views{{0, {0, 256, 0, 32}}, {1, {0, 256, 32, 32}}}));
  EXPECT_EQ(views_of(two, "output"), (Views{{0, {0, 64, 0, 256}}, {1, {64, 36, 0, 256}}}));
  EXPECT_EQ(views_of(two, "table").size(), 1u) << "rows of it are copied";
  // Where blocks are shorter, the shares are met better.
  EXPECT_EQ(views_of(cut(TwoLayers(quant::Type::Q8_0), {1, 1}), "down"),
            (Views{{0, {0, 256, 0, 640}}, {1, {0, 256, 640, 640}}}));
}

TEST(Split, GivesAPlaceLessThanABlockNothing) {
  const TwoLayers network;
  const Program three = cut(network, {8, 1, 3});
  EXPECT_EQ(views_of(three, "down"),
            (Views{{0, {0, 256, 0, 768}}, {1, {0, 256, 768, 256}}, {2, {0, 256, 1024, 256}}}));
  EXPECT_EQ(views_of(three, "expert_down"), (Views{{0, {0, 256, 0, 64}}, {2, {0, 256, 64, 32}}}));
  EXPECT_EQ(views_of(three, "shared_down"), (Views{{0, {0, 256, 0, 32}}, {2, {0, 256, 32, 32}}}))
      << "the shared experts go with the others";
  for (const std::vector<double>& shares : {std::vector<double>{0, 1}, {1, 1e-9}}) {
    const Program one = cut(network, shares);
    const size_t none = shares[0] == 0 ? 0 : 1;
    EXPECT_TRUE(program_at(one, static_cast<int32_t>(none)).ops().empty());
    EXPECT_THAT(dump(one), Not(HasSubstr("all_reduce"))) << "nobody to add up with";
  }
}

TEST(Split, AddsTheResidualOnce) {
  const TwoLayers network;
  const std::string text = dump(cut(network, {1, 1}));
  EXPECT_THAT(text, HasSubstr("embed@0 table=table[1, 100, 256]:Q8_0 -> out=embedding[rows, 1, 256]\n"
                              "copy in=embedding[rows, 1, 256]@0 -> out=embedding[rows, 1, 256]@1\n"));
  EXPECT_THAT(text, HasSubstr("0.matmul_add@0 in=gated[rows, 1, 768] weight=down[1, 256, 768]:Q4_K "
                              "residual=embedding[rows, 1, 256] -> out=partial[rows, 1, 256]\n"));
  EXPECT_THAT(text, HasSubstr("0.matmul_add@1 in=gated[rows, 1, 512] weight=down[1, 256, 512]:Q4_K -> "
                              "out=partial[rows, 1, 256]\n"
                              "0.all_reduce in=partial[rows, 1, 256]@0 in=partial[rows, 1, 256]@1 -> "
                              "out=residual[rows, 1, 256]@0 out=residual[rows, 1, 256]@1\n"));
  EXPECT_THAT(text,
              testing::EndsWith("all_gather in=product[outputs, 1, 64]@0 in=product[outputs, 1, 36]@1 -> "
                                "out=logits[outputs, 1, 100]@0\n"));
}

TEST(Split, ReadsTheTableEverywhereWhereThatIsWanted) {
  const TwoLayers network;
  const Program two = split(network.program, std::vector<double>{1, 1}, Tables::Everywhere);
  EXPECT_NO_THROW(verify(two));
  EXPECT_EQ(views_of(two, "table"), (Views{{0, {0, 100, 0, 256}}, {1, {0, 100, 0, 256}}}));
  EXPECT_THAT(dump(two), Not(HasSubstr("copy")));
  EXPECT_EQ(parts(program_at(two, 1)).size(), 4u) << "two all_reduces, all_gather";
}

TEST(Split, KeepsTheFilesTensorsAndTheirBytes) {
  const TwoLayers network;
  const Program two = cut(network, {1, 1});
  for (size_t i = 0; i < network.program.tensors().size(); ++i)
    EXPECT_EQ(two.tensors()[i].name, network.program.tensors()[i].name);
  EXPECT_EQ(bytes_of(weights_in_file(two)), bytes_of(weights_in_file(network.program)));
}

TEST(Split, CostsOfWeightsAddUp) {
  const TwoLayers network;
  const StepShape shape{.rows = 3, .outputs = 2, .selected = 4};
  const auto flops = [&](const Program& program) {
    double sum = 0;
    for (const Op& op : program.ops()) {
      const std::string name = info(op).name;
      // Routers and norms are everywhere, sums of places come to what one place has.
      if (name.starts_with("norm") || name == "add" || name == "all_reduce") continue;
      sum += info(op).cost(program, op, shape).flops;
    }
    return sum;
  };
  const double columns = TwoLayers::kWidth + TwoLayers::kUsed * TwoLayers::kExpertWidth + 64;
  EXPECT_NEAR(flops(cut(network, {1, 2})), 3 * 2 * TwoLayers::kDim * columns,
              3 * 3 * 2 * TwoLayers::kDim * 2);
}

TEST(Places, RunTheirPartsBetweenTheOpsAcross) {
  const Program two = cut(TwoLayers{}, {1, 1});
  const Program first = program_at(two, 0), second = program_at(two, 1);
  // copy, two all_reduces, all_gather.
  ASSERT_EQ(parts(first).size(), 5u);
  ASSERT_EQ(parts(second).size(), 5u);
  EXPECT_EQ(parts(first)[0].count(), 1);   // embed
  EXPECT_EQ(parts(second)[0].count(), 0);  // waits for its rows
  EXPECT_EQ(parts(second)[1].count(), 2);  // gate and up, down
  EXPECT_EQ(parts(second)[4].count(), 0);
  EXPECT_EQ(first.output(), two.output());
  EXPECT_EQ(second.output(), kNoTensor);
  EXPECT_THAT(dump(second),
              HasSubstr("0.all_reduce in=partial[rows, 1, 256]@1 -> out=residual[rows, 1, 256]@1\n"));
  // What is handed over lies in the arena from the op that makes it to the one that takes it, no longer.
  EXPECT_LT(plan_memory(second, 8, 8).arena_bytes, plan_memory(TwoLayers{}.program, 8, 8).arena_bytes);
}

TEST(Stretches, BeginWithWhatIsBroughtAndLeaveWhatIsTakenAway) {
  const Program dealt = deal_layers(TwoLayers{}.program, 2);
  for (const int32_t place : {0, 1}) {
    const Program side = program_at(dealt, place);
    const std::vector<Program> list = stretches(side);
    ASSERT_EQ(list.size(), 3u) << "two copies: there and back";
    size_t ops = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      EXPECT_EQ(static_cast<int64_t>(list[i].ops().size()), parts(side)[i].count());
      ops += list[i].ops().size();
      for (const Op& op : list[i].ops()) EXPECT_EQ(op.place, 0);
      EXPECT_EQ(list[i].output(), place == 0 && i == 2 ? side.output() : kNoTensor);
    }
    EXPECT_EQ(ops + 2, side.ops().size());
    // The first layer's place begins with tokens, and its end with what the other one gave back.
    for (size_t i = 0; i < list.size(); ++i) {
      const std::vector<TensorId> begins_with = inputs(list[i]);
      const bool is_brought = i == (place == 0 ? 2 : 1);
      ASSERT_EQ(begins_with.size(), is_brought ? 1 : 0) << place << " " << i;
      if (!is_brought) continue;
      const auto& copy = std::get<Copy>(side.ops()[static_cast<size_t>(parts(side)[i - 1].last)].args);
      EXPECT_EQ(begins_with[0], copy.out.id);
    }
  }
}

TEST(Stretches, RefuseWhatOneNeedsOfAnother) {
  Program side;
  Builder b(side);
  const TensorId x = b.embed(b.weight("table", quant::Type::F32, 1, 10, 256));
  const auto with = [&](bool before, bool behind) {
    Program program = side;
    Builder on(program);
    if (before) on.silu_mul(x, x);
    program.add(Op{.args = Copy{.in = {x}}});
    if (behind) on.silu_mul(x, x);
    return error_of([&] { stretches(program); });
  };
  EXPECT_EQ(with(false, false), "");
  EXPECT_EQ(with(true, false), "embedding is read where it is made and taken away");
  EXPECT_EQ(with(false, true), "embedding is read behind what other places do, too");
}

TEST(Split, RefusesByName) {
  const TwoLayers network;
  const auto refusal = [&](std::vector<double> shares) {
    return error_of([&] { split(network.program, shares); });
  };
  EXPECT_THAT(refusal({}), HasSubstr("0 places: expected 1 to 64"));
  EXPECT_THAT(refusal(std::vector<double>(65, 1.0)), HasSubstr("65 places: expected 1 to 64"));
  for (const double bad :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    EXPECT_THAT(refusal({1, bad}), HasSubstr("shares of places: expected numbers"));
  EXPECT_THAT(refusal({0, 0}), HasSubstr("a sum above 0"));
  EXPECT_THAT(refusal({1e308, 1e308}), HasSubstr("shares of places: expected numbers"));
  TwoLayers other;
  other.b.set_layer(2);
  other.b.sigmoid_mul(other.program.output(), other.program.output());
  EXPECT_EQ(error_of([&] {
              split(other.program, std::vector<double>{1, 1});
            }),
            "2.sigmoid_mul cannot be cut into places");
}

TEST(Verify, RefusesWhatLiesAtAnotherPlaceOrIsNoPart) {
  Program program;
  Builder b(program);
  const TensorId weight = b.weight("weight", quant::Type::Q4_K, 1, 8, 512);
  const TensorId x = b.embed(b.weight("table", quant::Type::F32, 1, 10, 256));
  const TensorId half = b.weight_part(weight, {0, 1}, {0, 8}, {256, 512});
  Program good = program;
  Builder(good).set_output(Builder(good).matmul(x, half));
  EXPECT_EQ(error_of([&] { verify(good); }), "");

  Program elsewhere = program;
  Builder at_one(elsewhere);
  at_one.set_place(1);
  at_one.set_output(at_one.matmul(x, half));
  EXPECT_EQ(error_of([&] { verify(elsewhere); }), "matmul: in: embedding is at place 0, not 1");

  for (const int64_t offset : {int64_t{128}, 8 * int64_t{512}}) {
    Program shifted = program;
    Tensor part = shifted[half];
    part.offset = offset;
    Builder on(shifted);
    on.set_output(on.matmul(x, shifted.add(part)));
    EXPECT_EQ(error_of([&] { verify(shifted); }),
              offset == 128
                  ? "matmul: weight: columns from 128 on, of 256: expected whole blocks of 256 columns"
                  : "matmul: weight is no part of weight");
  }
}

}  // namespace
}  // namespace sluice::program
