// moe_down_add: what experts make of a row is the same bits whoever computes it.
#include <gtest/gtest.h>

#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "support/isas.h"
#include "support/op_case.h"

namespace sluice::backend::cpu {
namespace {

using namespace test;

constexpr int64_t kColumns = 200, kExperts = 7, kUsed = 3;  // the last panel of outputs is not whole

/// A step's results; the shared experts' matrix may have another type than the routed ones'.
std::vector<float> results(int64_t rows, int threads, Isa isa, bool shared) {
  TensorId out = 0;
  CaseRun run({"", rows,
               [&](Builder& b) {
                 using enum quant::Type;
                 Route route{.gating = Gating::Sigmoid, .normalize = true, .scale = 1.8f};
                 route.logits.id = b.activation("logits", kStepRows, 1, kExperts);
                 b.route(route, kUsed);
                 MoeDownAdd op{.in = {b.activation("in", kStepRows, kUsed, 256)},
                               .ids = {route.ids.id},
                               .weights = {route.weights.id},
                               .down = {b.weight("down", Q4_0, kExperts, kColumns, 256)},
                               .residual = {b.activation("residual", kStepRows, 1, kColumns)}};
                 if (shared) {
                   op.shared_in = {b.activation("shared_in", kStepRows, 1, 512)};
                   op.shared_down = {b.weight("shared_down", Q6_K, 1, kColumns, 512)};
                 }
                 out = b.moe_down_add(op);
               }},
              5);
  const auto backend = make_cpu_backend({.threads = threads, .isa = isa});
  const auto executable = run.compile(*backend);
  run.run(*executable);
  std::vector<float> values(run.elements(out));
  executable->peek(out, rows, values);
  return values;
}

TEST(MoeDownAdd, TheSameBitsHoweverTheWorkIsShared) {
  for (const Isa isa : usable_isas()) {
    for (const int64_t rows : {1, 8, 16, 31, 32, 40}) {
      for (const bool shared : {false, true}) {
        const std::vector<float> expected = results(rows, 1, isa, shared);
        for (const int threads : {2, 5, 16}) {
          EXPECT_EQ(results(rows, threads, isa, shared), expected)
              << isa_name(isa) << ", " << rows << " rows, " << threads << " threads, shared " << shared;
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::backend::cpu
