// delta_net: a gated delta net behind its products (Yang et al. 2025): convolution, delta rule, gated norm.
#pragma once

#include "program/operand.h"
#include "program/ops/causal_conv.h"
#include "program/ops/delta_rule.h"
#include "program/ops/gated_norm.h"

namespace sluice::program {

/// causal_conv of rows that hold queries, keys and values, delta_rule of what comes out, gated_norm of that
struct DeltaNet {
  static constexpr const char* kName = "delta_net";
  CausalConv conv;  ///< all but out; in: [rows, 1, columns of q, of k and of v]
  DeltaRule rule;   ///< all but q, k, v and out
  GatedNorm norm;   ///< all but in

  /// Heads and columns of the delta rule, as the operands' shapes say.
  DeltaRule::Shape shape(const Program& p) const;

  template <typename F>
  void operands(F&& f) const {
    f("in", conv.in), f("conv", conv.weight), f("decay", rule.decay), f("beta", rule.beta);
    f("rate", rule.rate), f("bias", rule.bias), f("norm", norm.weight), f("gate", norm.gate);
    f("rows", conv.state), f("state", rule.state), f("out", norm.out);
  }
  std::string attributes() const { return rule.attributes() + " " + norm.attributes(); }
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void expand(Builder& b) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
