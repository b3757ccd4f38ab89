// Where the weights of a program lie once they are packed.
#include "backend/cpu/packed_weights.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cpu/isa.h"
#include "backend/cpu/packed.h"
#include "base/threads.h"
#include "support/op_case.h"

namespace sluice::backend::cpu {
namespace {

using namespace test;

constexpr int64_t kColumns = 96, kExperts = 3, kOutputs = 40, kPanels = 3;  // the last one is not full

/// Every panel holds the numbers of the file's rows.
void expect_rows_of_the_file(const CaseRun& run, TensorId id, const Matrix& packed) {
  const quant::TypeInfo& type = quant::type_info(packed.type);
  const int64_t row_bytes = quant::bytes_of(type, kColumns);
  const std::byte* file = run.weights()[static_cast<size_t>(id)].data();
  for (int64_t m = 0; m < packed.matrices; ++m) {
    for (int64_t r = 0; r < packed.rows; ++r, file += row_bytes) {
      std::vector<float> wanted(kColumns), got(kColumns);
      type.decode(file, wanted.data(), kColumns);
      decode_packed_row(packed.type, packed.panel(m, r / kPanelRows), r % kPanelRows, kColumns, got.data());
      ASSERT_EQ(got, wanted) << run.program()[id].name << ", matrix " << m << ", row " << r;
    }
  }
}

TEST(PackedWeights, SeveralRowsAreAskedForAtLeastAsFarAheadAsOne) {
  TensorId weight = 0;
  const CaseRun run({"", 2,
                     [&](Builder& b) {
                       weight = b.weight("w", quant::Type::Q4_0, 1, kOutputs, kColumns);
                       b.matmul(b.activation("x", kStepRows, 1, kColumns), weight);
                     }},
                    5);
  const program::Variants choice = ahead_variants(quant::Type::Q4_0);
  const Isa isa = best_isa();
  const bool zen4 = amd_family() == 25 && isa >= Isa::Avx512;
  for (const int64_t value : choice.values) {
    const program::Source source{run.program(), run.weights()};
    const program::Tuning tuning = {{choice.key, value}};
    const PackedWeights packed({&source, 1}, true);
    const WeightTable table(source, packed,
                            {matmul_kernels(isa), unpack_kernels(isa), tiled_products(isa), tuning}, 2);
    const Matrix matrix = table.matrix(weight, 0, 0);
    EXPECT_EQ(matrix.ahead(1, false).near_bytes, value);
    EXPECT_EQ(matrix.ahead(2, false).near_bytes, zen4 ? std::max<int64_t>(value, 2048) : value);
    EXPECT_GE(matrix.ahead(2, false).far_bytes, matrix.ahead(1, false).far_bytes);
    EXPECT_EQ(matrix.ahead(8, true).near_bytes, kAskNothing.near_bytes) << "it was read a moment ago";
  }
}

TEST(PackedWeights, PanelsOfAGateAndItsUpTakeTurns) {
  TensorId gate = 0, up = 0, shared_gate = 0, shared_up = 0, other = 0;
  const CaseRun run({"", 2,
                     [&](Builder& b) {
                       const auto weight = [&](quant::Type type, int64_t matrices) {
                         return b.weight("w", type, matrices, kOutputs, kColumns);
                       };
                       const TensorId x = b.activation("x", kStepRows, 1, kColumns);
                       other = weight(quant::Type::Q5_0, 1);
                       b.matmul(x, other);
                       gate = weight(quant::Type::Q4_0, kExperts), up = weight(quant::Type::Q8_0, kExperts);
                       shared_gate = weight(quant::Type::Q4_1, 1), shared_up = weight(quant::Type::Q4_0, 1);
                       MoeGateUp op{.in = {x},
                                    .ids = {b.activation("ids", kStepRows, 1, 2, quant::Type::I32)},
                                    .gate = {gate},
                                    .up = {up},
                                    .shared_gate = {shared_gate},
                                    .shared_up = {shared_up}};
                       b.moe_gate_up(op);
                     }},
                    5);
  const Isa isa = best_isa();
  const program::Source source{run.program(), run.weights()};
  const program::Tuning tuning;
  PackedWeights packed({&source, 1}, true);
  Team team(2);
  packed.load(team, {});
  const WeightTable table(source, packed,
                          {matmul_kernels(isa), unpack_kernels(isa), tiled_products(isa), tuning}, 2);
  for (const TensorId id : {gate, up, shared_gate, shared_up, other})
    expect_rows_of_the_file(run, id, table.matrix(id, 0, 0));
  const auto expect_turns = [&](TensorId one, TensorId two) {
    const Matrix g = table.matrix(one, 0, 0), u = table.matrix(two, 0, 1);
    for (int64_t m = 0; m < g.matrices; ++m) {
      for (int64_t p = 0; p < kPanels; ++p) EXPECT_EQ(g.panel(m, p) + g.panel_bytes, u.panel(m, p));
      for (int64_t p = 1; p < kPanels; ++p) EXPECT_EQ(u.panel(m, p - 1) + u.panel_bytes, g.panel(m, p));
    }
  };
  expect_turns(gate, up);
  expect_turns(shared_gate, shared_up);
  const Matrix alone = table.matrix(other, 0, 0);
  EXPECT_EQ(alone.panel(0, 0) + alone.panel_bytes, alone.panel(0, 1));
}

}  // namespace
}  // namespace sluice::backend::cpu
