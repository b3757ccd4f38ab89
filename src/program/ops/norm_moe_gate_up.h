// norm_moe_gate_up: the first half of a mixture of experts: norm, router, selection, and gate, SiLU and up of
// the selected and the shared experts, so that nothing lies between the selection and the experts.
#pragma once

#include "program/operand.h"
#include "program/ops/moe_gate_up.h"
#include "program/ops/norm_route.h"

namespace sluice::program {

/// norm_route, and moe_gate_up of what it normed and selected. Scaling what goes into the shared experts'
/// last product scales what comes out, so a share of theirs that the row decides is a factor of shared_out:
/// 1 / (1 + e^-(normed * shared_router))
struct NormMoeGateUp {
  static constexpr const char* kName = "norm_moe_gate_up";
  NormRoute route;     ///< all but normed
  MoeGateUp experts;   ///< all but in and ids
  Read shared_router;  // [1, 1, inputs], optional

  template <typename F>
  void operands(F&& f) const {
    f("in", route.in), f("norm", route.norm), f("router", route.router);
    f("router_bias", route.router_bias), f("shared_router", shared_router), f("bias", route.route.bias),
        f("gate", experts.gate);
    f("up", experts.up), f("gate_bias", experts.gate_bias), f("up_bias", experts.up_bias);
    f("gate_scale", experts.gate_scale), f("up_scale", experts.up_scale);
    f("shared_gate", experts.shared_gate);
    f("shared_up", experts.shared_up), f("ids", route.route.ids), f("weights", route.route.weights);
    f("shared_out", experts.shared_out), f("out", experts.out);
  }
  std::string attributes() const {
    const std::string form = experts.attributes();
    return form.empty() ? route.attributes() : route.attributes() + " " + form;
  }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
