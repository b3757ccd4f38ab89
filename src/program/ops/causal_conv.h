// causal_conv: a short convolution over a sequence's rows, each column by itself.
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out[r, c] = the sum over k < taps of weight[c, k] * in[r - taps + 1 + k, c]: a row and those before it in
/// its sequence, with zeros before the first (Gu and Dao 2023, Mamba, section 3.4). The rows before a step's
/// own come from the state, the last taps - 1 of them. What goes out may pass through silu, x / (1 + e^-x).
struct CausalConv {
  static constexpr const char* kName = "causal_conv";
  Read in;      // [rows, 1, columns]
  Read weight;  // [1, columns, taps]
  Write state;  // [layers, taps - 1, columns] a slot
  Write out;    // [rows, 1, columns]
  int32_t cache_layer = 0;
  bool silu = false;

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("weight", weight), f("state", state), f("out", out);
  }
  std::string attributes() const;
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
