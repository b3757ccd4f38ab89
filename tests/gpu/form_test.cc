// Every form that a kernel leaves for the one behind it: with another op between them, which nothing is left
// across, results are the same.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "backend/ref/ref_backend.h"
#include "support/cuda.h"
#include "support/op_agreement.h"

namespace sluice::test {
namespace {

using quant::Type;

/// Of the error's norm in the result's. Rows and values are quantised to eight bits two or three times on the
/// way, with a neighbour or without, and each time is off by 0.6% or less where numbers are normal ones.
constexpr double kTolerance = 0.02;
/// What a form in codes adds where a plain producer leaves halves or floats.
constexpr double kOneQuantization = 0.008;

struct Param {
  const char* form;  ///< as it is printed
  const char* test;
  int64_t rows;
  int pairs;  ///< of launches that hand it over
  /// Emits giver and taker; between() is called between them.
  std::function<void(Builder& b, const std::function<void()>& between)> build;

  friend void PrintTo(const Param& param, std::ostream* out) { *out << param.test; }
};

class CudaForms : public testing::TestWithParam<Param> {};

OpCase case_of(const Param& param, bool apart) {
  return {param.test, param.rows, [param, apart](Builder& b) {
            int count = 0;
            param.build(b, [&] {
              if (!apart) return;
              const auto one = [&](const char* name) {
                return b.activation(fmt::format("{} {}", name, count), kStepRows, 1, 64);
              };
              b.silu_mul(one("unrelated gate"), one("unrelated up"));
              ++count;
            });
          }};
}

int told(const Executable& executable, int64_t rows, const std::string& what) {
  int count = 0;
  for (const BoundKernel& kernel : executable.bound_for(rows, 1))
    count += kernel.name.find(what) != std::string::npos ? 1 : 0;
  return count;
}

double error_of(CaseRun& run, Executable& judge, Executable& tested, TensorId id) {
  const auto expected = run_and_peek(run, judge, id), actual = run_and_peek(run, tested, id);
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(expected[i] - actual[i], 2);
    norm += std::pow(expected[i], 2);
  }
  EXPECT_GT(norm, 0);
  return std::sqrt(error / norm);
}

TensorId named(const CaseRun& run, const std::string& name) {
  for (const TensorId id : run.results())
    if (run.program()[id].name == name) return id;
  throw std::logic_error("no result " + name);
}

TEST_P(CudaForms, GiveWhatAPlainProducerGives) {
  CUDA_OR_SKIP(cuda);
  const Param& param = GetParam();
  CaseRun joined(case_of(param, false), 7), apart(case_of(param, true), 7);
  const auto judge = joined.compile(*backend::make_ref_backend());
  const auto handed = joined.compile(cuda), plain = apart.compile(cuda);
  for (const char* verb : {"produces", "consumes"}) {
    const std::string text = fmt::format("({} {})", verb, param.form);
    EXPECT_EQ(told(*handed, param.rows, text), param.pairs) << text;
    EXPECT_EQ(told(*plain, param.rows, text), 0) << text;
  }
  const auto judge_apart = apart.compile(*backend::make_ref_backend());
  for (const TensorId id : apart.results()) {
    const double error = error_of(apart, *judge_apart, *plain, id);
    EXPECT_LE(error, kTolerance) << apart.program()[id].name;
    // The same tensor's name: the program without the op between has fewer.
    const TensorId same = named(joined, apart.program()[id].name);
    for (int step = 0; step < 3; ++step)  // what is handed over in one step does not reach the next
      EXPECT_LE(error_of(joined, *judge, *handed, same), std::hypot(error, kOneQuantization))
          << apart.program()[id].name;
  }
}

constexpr int64_t kColumns = 2048, kInner = 256, kExperts = 64, kUsed = 4;

/// Values of a whole first half of a layer, and attention's output.
void row_codes(Builder& b, const std::function<void()>& between) {
  for (const OpInfo& op : all_ops()) {
    if (op.name == std::string_view("norm_mla_heads")) op.cases().front().build(b);
  }
  const TensorId out = std::get<NormMlaHeads>(b.program().ops().back().args).heads.out.id;
  const Tensor& values = b.program()[out];
  const int64_t columns = values.heads() * values.columns();
  between();
  b.matmul_add(b.flatten(out), b.weight("output", Type::Q4_0, 1, kColumns, columns),
               b.activation("residual", kStepRows, 1, kColumns));
}

void rows_codes(Builder& b, const std::function<void()>& between) {
  const TensorId values = b.activation("values", kStepRows, 20, 256);
  b.head_matmul(b.activation("context", kStepRows, 20, 512), b.weight("v_b", Type::Q8_0, 20, 256, 512),
                Reduce::Columns, values);
  between();
  b.matmul_add(b.flatten(values), b.weight("output", Type::Q4_0, 1, kColumns, 20 * 256),
               b.activation("residual", kStepRows, 1, kColumns));
}

MoeDownAdd down_of(Builder& b, TensorId in, TensorId ids, TensorId weights, const std::string& name,
                   bool shared = true) {
  MoeDownAdd down;
  down.in.id = in, down.ids.id = ids, down.weights.id = weights;
  down.down.id = b.weight("down" + name, Type::Q4_0, kExperts, kColumns, kInner);
  if (shared) {
    down.shared_in.id = b.activation("shared_x" + name, kStepRows, 1, kInner);
    down.shared_down.id = b.weight("shared_down" + name, Type::Q6_K, 1, kColumns, kInner);
  }
  down.residual.id = b.activation("down residual" + name, kStepRows, 1, kColumns);
  return down;
}

Route routed(Builder& b) {
  Route route{.gating = Gating::Sigmoid, .normalize = true, .scale = 1.8f};
  route.logits.id = b.activation("logits", kStepRows, 1, kExperts);
  b.route(route, kUsed);
  return route;
}

void normed_codes(Builder& b, const std::function<void()>& between, bool shared) {
  const Route route = routed(b);
  MoeDownAdd down =
      down_of(b, b.activation("x", kStepRows, kUsed, kInner), route.ids.id, route.weights.id, "", shared);
  NormMatmul op;
  op.in.id = b.moe_down_add(down);
  between();
  op.norm.id = b.weight("norm", Type::F32, 1, 1, kColumns);
  op.a.id = b.weight("a", Type::Q4_0, 1, 192, kColumns);
  op.out_a.id = b.activation("out a", kStepRows, 1, 192);
  b.emit(op);
}
void normed_codes_of_all(Builder& b, const std::function<void()>& between) { normed_codes(b, between, true); }
void normed_codes_of_routed(Builder& b, const std::function<void()>& between) {
  normed_codes(b, between, false);
}

/// The down projection of a dense layer and the next one's first products, Q4_K_M with Q6_K in both. Runs of
/// random Q4_K weights are often nearly constant, so that few sums make most of a product: rows of 512
/// columns would be off by 0.6 +- 0.1%, of 2,048 by 0.6 +- 0.05%.
void normed_codes_of_dense(Builder& b, const std::function<void()>& between) {
  NormMatmul op;
  op.in.id = b.matmul_add(b.activation("gated", kStepRows, 1, 12288),
                          b.weight("down", Type::Q6_K, 1, kColumns, 12288),
                          b.activation("down residual", kStepRows, 1, kColumns));
  between();
  op.norm.id = b.weight("norm", Type::F32, 1, 1, kColumns);
  op.a.id = b.weight("a", Type::Q4_K, 1, 4608, kColumns);
  op.b.id = b.weight("b", Type::Q6_K, 1, 192, kColumns);
  op.out_a.id = b.activation("out a", kStepRows, 1, 4608);
  op.out_b.id = b.activation("out b", kStepRows, 1, 192);
  b.emit(op);
}

void expert_order(Builder& b, const std::function<void()>& between) {
  const Route route = routed(b);
  MoeGateUp op;
  op.in.id = b.activation("x", kStepRows, 1, kColumns);
  op.ids = {route.ids.id};
  op.gate.id = b.weight("gate", Type::Q4_0, kExperts, kInner, kColumns);
  op.up.id = b.weight("up", Type::Q4_0, kExperts, kInner, kColumns);
  op.out.id = b.activation("gated", kStepRows, kUsed, kInner);
  b.emit(op);
  between();
  MoeDownAdd down = down_of(b, op.out.id, route.ids.id, route.weights.id, "");
  b.moe_down_add(down);
}

/// A router and its experts, of a row that `in` is.
NormMoeGateUp gate_up_of(Builder& b, TensorId in, const std::string& name, Type type = Type::Q4_0,
                         int64_t inner = kInner, int64_t used = kUsed, int64_t experts = kExperts) {
  NormMoeGateUp op;
  op.route = {.in = {in},
              .norm = {b.weight("norm" + name, Type::F32, 1, 1, kColumns)},
              .router = {b.weight("router" + name, Type::F32, 1, experts, kColumns)},
              .route = {.gating = Gating::Sigmoid, .normalize = true, .scale = 1.8f}};
  op.route.route.ids.id = b.activation("ids" + name, kStepRows, 1, used, Type::I32);
  op.route.route.weights.id = b.activation("weights" + name, kStepRows, 1, used);
  op.experts.gate.id = b.weight("gate" + name, type, experts, inner, kColumns);
  op.experts.up.id = b.weight("up" + name, type, experts, inner, kColumns);
  op.experts.out.id = b.activation("gated" + name, kStepRows, used, inner);
  return op;
}

void selected_experts(Builder& b, const std::function<void()>& between) {
  const NormMoeGateUp op = gate_up_of(b, b.activation("x", kStepRows, 1, kColumns), "");
  b.emit(op);
  between();
  MoeDownAdd down = down_of(b, op.experts.out.id, op.route.route.ids.id, op.route.route.weights.id, "");
  b.moe_down_add(down);
}

/// Two layers whose mixtures have sums of their routers and are large enough for one launch each. Types: of
/// gates, downs, shared gates, shared downs; `shared`: columns of the shared experts, or 0.
struct Mixture {
  Type gate = Type::Q4_0, down = Type::Q4_0, shared_gate = Type::Q4_0, shared_down = Type::Q4_0;
  int64_t used = kUsed, inner = 1088, shared = 0, experts = 12;
  Gating gating = Gating::Sigmoid;
  bool normed = false;  ///< a norm_matmul is behind
};
void experts_sum(Builder& b, const std::function<void()>& between, const Mixture& mixture) {
  for (const std::string name : {" 0", " 1"}) {
    const TensorId row = b.matmul_add(b.activation("in" + name, kStepRows, 1, 4096),
                                      b.weight("w" + name, Type::Q4_0, 1, kColumns, 4096),
                                      b.activation("residual" + name, kStepRows, 1, kColumns));
    NormMoeGateUp op = gate_up_of(b, row, name, mixture.gate, mixture.inner, mixture.used, mixture.experts);
    op.route.route.gating = mixture.gating;
    if (mixture.shared > 0) {
      op.experts.shared_gate.id =
          b.weight("shared_gate" + name, mixture.shared_gate, 1, mixture.shared, kColumns);
      op.experts.shared_up.id =
          b.weight("shared_up" + name, mixture.shared_gate, 1, mixture.shared, kColumns);
      op.experts.shared_out.id = b.activation("shared_gated" + name, kStepRows, 1, mixture.shared);
      op.shared_router.id = b.weight("shared_router" + name, Type::F32, 1, 1, kColumns);
    }
    b.emit(op);
    between();
    MoeDownAdd down;
    down.in.id = op.experts.out.id, down.ids.id = op.route.route.ids.id;
    down.weights.id = op.route.route.weights.id;
    down.down.id = b.weight("down" + name, mixture.down, mixture.experts, kColumns, mixture.inner);
    if (mixture.shared > 0) {
      down.shared_in.id = op.experts.shared_out.id;
      down.shared_down.id = b.weight("shared_down" + name, mixture.shared_down, 1, kColumns, mixture.shared);
    }
    down.residual.id = row;
    const TensorId sum = b.moe_down_add(down);
    if (!mixture.normed) continue;
    NormMatmul behind;
    behind.in.id = sum;
    behind.norm.id = b.weight("norm behind" + name, Type::F32, 1, 1, kColumns);
    behind.a.id = b.weight("a" + name, Type::Q4_0, 1, 192, kColumns);
    behind.out_a.id = b.activation("out a" + name, kStepRows, 1, 192);
    b.emit(behind);
  }
}
auto experts_sum_of(const Mixture& mixture) {
  return [mixture](Builder& b, const std::function<void()>& between) { experts_sum(b, between, mixture); };
}

/// Two layers: words that nobody else makes zero are not handed over.
void router_sums(Builder& b, const std::function<void()>& between) {
  for (const std::string name : {" 0", " 1"}) {
    const TensorId row = b.matmul_add(b.activation("in" + name, kStepRows, 1, 4096),
                                      b.weight("w" + name, Type::Q4_0, 1, kColumns, 4096),
                                      b.activation("residual" + name, kStepRows, 1, kColumns));
    between();
    b.emit(gate_up_of(b, row, name));
  }
}

/// The same with a logit more, which shared experts are scaled by.
void router_sums_with_share(Builder& b, const std::function<void()>& between) {
  for (const std::string name : {" 0", " 1"}) {
    const TensorId row = b.matmul_add(b.activation("in" + name, kStepRows, 1, 4096),
                                      b.weight("w" + name, Type::Q4_0, 1, kColumns, 4096),
                                      b.activation("residual" + name, kStepRows, 1, kColumns));
    between();
    NormMoeGateUp op = gate_up_of(b, row, name);
    constexpr int64_t kShared = 4096;  // so many that their mean error varies little
    op.experts.shared_gate.id = b.weight("shared_gate" + name, Type::Q4_0, 1, kShared, kColumns);
    op.experts.shared_up.id = b.weight("shared_up" + name, Type::Q4_0, 1, kShared, kColumns);
    op.experts.shared_out.id = b.activation("shared_gated" + name, kStepRows, 1, kShared);
    op.shared_router.id = b.weight("shared_router" + name, Type::F32, 1, 1, kColumns);
    b.emit(op);
  }
}

/// The same of rows that come in codes to what makes the routed ones.
void router_sums_of_codes(Builder& b, const std::function<void()>& between) {
  for (const std::string name : {" 0", " 1"}) {
    const TensorId values = b.activation("values" + name, kStepRows, 20, 256);
    b.head_matmul(b.activation("context" + name, kStepRows, 20, 512),
                  b.weight("v_b" + name, Type::Q8_0, 20, 256, 512), Reduce::Columns, values);
    const TensorId row =
        b.matmul_add(b.flatten(values), b.weight("output" + name, Type::Q4_0, 1, kColumns, 20 * 256),
                     b.activation("residual" + name, kStepRows, 1, kColumns));
    between();
    b.emit(gate_up_of(b, row, name));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, CudaForms,
    testing::Values(Param{"a row in codes", "RowCodes", 1, 1, row_codes},
                    Param{"rows in codes", "RowsCodes", 5, 1, rows_codes},
                    Param{"rows in codes", "RowsCodesOfTwoRows", 2, 1, row_codes},
                    Param{"rows for a norm in codes", "NormedCodes", 5, 1, normed_codes_of_all},
                    Param{"rows for a norm in codes", "NormedCodesOfRouted", 5, 1, normed_codes_of_routed},
                    Param{"rows for a norm in codes", "NormedCodesOfTwoRows", 2, 1, normed_codes_of_all},
                    Param{"rows for a norm in codes", "NormedCodesOfDense", 8, 1, normed_codes_of_dense},
                    Param{"rows for a norm in codes", "NormedCodesOfTwoDense", 2, 1, normed_codes_of_dense},
                    Param{"order of experts", "ExpertOrder", 300, 1, expert_order},
                    Param{"selected experts", "SelectedExpertsOfARow", 1, 1, selected_experts},
                    Param{"selected experts", "SelectedExpertsOfRows", 5, 1, selected_experts},
                    Param{"selected experts", "SelectedExpertsOfTwoRows", 2, 1, selected_experts},
                    Param{"sum of experts", "ExpertsSum", 1, 2, experts_sum_of({})},
                    Param{"sum of experts", "ExpertsSumWithShare", 1, 2,
                          experts_sum_of({Type::Q4_K, Type::Q6_K, Type::Q4_K, Type::Q6_K, 4, 1536, 1536})},
                    Param{"sum of experts", "ExpertsSumOfHalves", 1, 2,
                          experts_sum_of({.gate = Type::Q4_K,
                                          .down = Type::Q6_K,
                                          .used = 8,
                                          .inner = 768,
                                          .gating = Gating::Softmax})},
                    Param{"sum of experts", "ExpertsSumOfManyTypes", 1, 2,
                          experts_sum_of({Type::Q4_0, Type::Q4_1, Type::Q5_K, Type::Q6_K, 4, 1536, 1536})},
                    Param{"sum of experts", "ExpertsSumOfTwoRows", 2, 2, experts_sum_of({.normed = true})},
                    Param{"sum of experts", "ExpertsSumWithShareOfTwoRows", 2, 2,
                          experts_sum_of({.gate = Type::Q4_K,
                                          .down = Type::Q6_K,
                                          .shared_gate = Type::Q4_K,
                                          .shared_down = Type::Q6_K,
                                          .inner = 1536,
                                          .shared = 1536,
                                          .normed = true})},
                    Param{"sum of experts", "ExpertsSumOfHalvesOfTwoRows", 2, 2,
                          experts_sum_of({.gate = Type::Q4_K,
                                          .down = Type::Q6_K,
                                          .used = 8,
                                          .inner = 768,
                                          .gating = Gating::Softmax,
                                          .normed = true})},
                    Param{"sums of the router", "RouterSums", 1, 2, router_sums},
                    Param{"sums of the router", "RouterSumsWithShare", 1, 2, router_sums_with_share},
                    Param{"sums of the router", "RouterSumsOfTwoRows", 2, 2, router_sums},
                    Param{"sums of the router", "RouterSumsWithShareOfTwoRows", 2, 2, router_sums_with_share},
                    Param{"sums of the router", "RouterSumsOfTwoRowsInCodes", 2, 2, router_sums_of_codes}),
    [](const testing::TestParamInfo<Param>& param) { return param.param.test; });

}  // namespace
}  // namespace sluice::test
