// norm_route: the norm before a mixture of experts, its router and the selection.
#pragma once

#include "program/operand.h"
#include "program/ops/route.h"

namespace sluice::program {

/// normed = rms_norm(in, norm); route (ops/route.h) of matmul(normed, router) + router_bias
struct NormRoute {
  static constexpr const char* kName = "norm_route";
  Read in;           // [rows, 1, inputs]
  Read norm;         // [1, 1, inputs]
  Read router;       // [1, experts, inputs]
  Read router_bias;  // [1, 1, experts], optional
  Write normed;      // [rows, 1, inputs]
  Route route;       ///< all but the logits
  float epsilon = 1e-5f;

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("norm", norm), f("router", router), f("router_bias", router_bias), f("bias", route.bias);
    f("normed", normed), f("ids", route.ids), f("weights", route.weights);
  }
  std::string attributes() const { return route.attributes(); }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
