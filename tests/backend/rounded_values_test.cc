// Activations that stay bf16 between ops on tiles: which do, and that no result changes by it.
#include "backend/cpu/rounded_values.h"

#include <gtest/gtest.h>

#include <limits>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/simd/unpack.h"
#include "support/op_case.h"

namespace sluice::backend::cpu {
namespace {

using namespace test;

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int64_t kColumns = 96, kWide = 3072 + 32, kExperts = 4, kUsed = 2;  // kWide goes in blocks

struct Ids {
  TensorId normed, a, gated, sum, shared, of_experts, out;
};

/// A norm that a product and a gated network read, and experts behind them. `others`: someone else reads each
/// of the values that would stay rounded.
OpCase op_case(int64_t rows, Ids& ids, bool others) {
  return {"", rows, [&ids, others](Builder& b) {
            const auto weight = [&](quant::Type type, int64_t matrices, int64_t outputs, int64_t inputs) {
              return b.weight("w", type, matrices, outputs, inputs);
            };
            const auto q4 = quant::Type::Q4_0, q8 = quant::Type::Q8_0, f32 = quant::Type::F32;
            const TensorId x = b.activation("x", kStepRows, 1, kColumns);
            ids.normed = b.rms_norm(x, weight(f32, 1, 1, kColumns), 1e-5f);
            ids.a = b.matmul(ids.normed, weight(q8, 1, 40, kColumns));
            ids.gated = b.gate_up(ids.normed, weight(q4, 1, kWide, kColumns), weight(q4, 1, kWide, kColumns));
            ids.sum = b.matmul_add(ids.gated, weight(q4, 1, kColumns, kWide), x);
            const TensorId selected = b.activation("ids", kStepRows, 1, kUsed, quant::Type::I32);
            MoeGateUp up{.in = {ids.sum},
                         .ids = {selected},
                         .gate = {weight(q4, kExperts, 64, kColumns)},
                         .up = {weight(q4, kExperts, 64, kColumns)},
                         .shared_gate = {weight(q8, 1, 128, kColumns)},
                         .shared_up = {weight(q8, 1, 128, kColumns)}};
            b.moe_gate_up(up);
            ids.of_experts = up.out.id, ids.shared = up.shared_out.id;
            ids.out = b.moe_down_add({.in = {ids.of_experts},
                                      .ids = {selected},
                                      .weights = {b.activation("weights", kStepRows, 1, kUsed)},
                                      .down = {weight(q4, kExperts, kColumns, 64)},
                                      .shared_in = {ids.shared},
                                      .shared_down = {weight(q8, 1, kColumns, 128)},
                                      .residual = {ids.sum}});
            if (!others) return;
            for (const TensorId id : {ids.normed, ids.gated, ids.shared, ids.of_experts}) b.silu_mul(id, id);
          }};
}

std::vector<int64_t> from_of(const CaseRun& run, bool tiles) {
  const Isa isa = best_isa();
  const program::Source source{run.program(), run.weights()};
  const program::Tuning tuning;
  const PackedWeights packed({&source, 1}, true);
  const WeightTable table(source, packed,
                          {matmul_kernels(isa), unpack_kernels(isa), tiled_products(isa), tuning}, 1);
  return rounded_from(run.program(), table, tiles);
}

TEST(RoundedValues, AreThoseThatOnlyProductsOnTilesRead) {
  if (unpack_kernels(best_isa()) == nullptr) GTEST_SKIP() << "this machine has no AVX-512 with BF16 and VBMI";
  Ids ids{};
  const CaseRun run(op_case(1, ids, false), 3);
  const std::vector<int64_t> from = from_of(run, true);
  const auto of = [&](TensorId id) { return from[static_cast<size_t>(id)]; };
  EXPECT_EQ(of(ids.normed), kLeastRounded);
  EXPECT_EQ(of(ids.gated), kLeastRounded);
  EXPECT_EQ(of(ids.shared), kLeastRounded);
  EXPECT_EQ(of(ids.of_experts), 16 * kExperts / kUsed);  // else not all experts' last groups would fit
  EXPECT_EQ(of(ids.a), kNever);                          // a result
  EXPECT_EQ(of(ids.sum), kNever);                        // a residual
  for (const int64_t rows : from_of(run, false)) EXPECT_EQ(rows, kNever);
}

TEST(RoundedValues, AreNoneWhereOthersReadThem) {
  Ids ids{};
  const CaseRun run(op_case(1, ids, true), 3);
  for (const int64_t rows : from_of(run, true)) EXPECT_EQ(rows, kNever);
}

/// Results of the first product and of the last op.
std::vector<float> results(int64_t rows, int threads, bool others) {
  Ids ids{};
  CaseRun run(op_case(rows, ids, others), 3);
  const auto backend = make_cpu_backend({.threads = threads, .isa = Isa::Amx});
  const auto executable = run.compile(*backend);
  std::vector<float> selected;
  for (int64_t r = 0; r < rows; ++r) {  // the first expert has half of the rows, the last one nearly none
    selected.push_back(r % 2 == 0 ? 0.0f : 1.0f);
    selected.push_back(r == 5 ? 3.0f : 2.0f);
  }
  for (size_t i = 0; i < run.program().tensors().size(); ++i) {
    if (run.program().tensors()[i].type == quant::Type::I32)
      executable->poke(static_cast<TensorId>(i), rows, selected);
  }
  run.run(*executable);
  std::vector<float> a(run.elements(ids.a)), out(run.elements(ids.out));
  executable->peek(ids.a, rows, a);
  executable->peek(ids.out, rows, out);
  a.insert(a.end(), out.begin(), out.end());
  return a;
}

TEST(RoundedValues, ChangeNoResult) {
  if (best_isa() != Isa::Amx) GTEST_SKIP() << "this machine has no AMX";
  for (const int64_t rows : {31, 32, 49, 70, 240, 600}) {
    const std::vector<float> expected = results(rows, 1, true);
    for (const int threads : {1, 2, 4, 5})
      EXPECT_EQ(results(rows, threads, false), expected) << rows << " rows";
  }
}

}  // namespace
}  // namespace sluice::backend::cpu
