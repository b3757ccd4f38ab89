// attention_temperature: queries weigh more the further they stand behind the context that a model began with
// (Llama 4's scaling, which Mistral's models have too).
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// out = in * (1 + beta * ln(1 + floor(position / length)))
struct AttentionTemperature {
  static constexpr const char* kName = "attention_temperature";
  Read in;    // [rows, heads, columns]
  Write out;  // [rows, heads, columns]
  double beta = 0;
  double length = 1;

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("out", out);
  }
  /// What a row at this position is multiplied by.
  float factor(int32_t position) const;
  std::string attributes() const;
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
