// delta_rule: linear attention by the gated delta rule (Yang et al. 2025), whose state decays by one number a
// head, or by one a channel of the keys (Kimi Team 2025).
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// Every head has a matrix S of key columns times value columns, zero before a sequence's first row. A row
/// with query q, key k and value v makes of it
///   S' = d S,  S'' = S' + k (b (v - k S')),  out = q S''
/// where k and q are divided by their lengths, sqrt(sum of squares + 1e-6), and q by the root of the key
/// columns besides; b = sigmoid(beta); d = e^(rate * log(1 + e^(decay + bias))), of each row of S where there
/// is a decay a channel. A decay never lets S grow: rates are negative, and one that is not counts as 0.
struct DeltaRule {
  static constexpr const char* kName = "delta_rule";
  static constexpr double kEpsilon = 1e-6;
  Read q;       // [rows, key heads, key columns]
  Read k;       // [rows, key heads, key columns]
  Read v;       // [rows, heads, value columns]
  Read decay;   // [rows, .., ..]: a number a head in the heads' order, or key columns of them a head
  Read beta;    // [rows, .., ..]: a number a head
  Read rate;    // [1, 1, heads]
  Read bias;    // [1, 1, as many as a row of decay has]
  Write state;  // [layers, heads * key columns, value columns] a slot
  Write out;    // [rows, heads, value columns]
  int32_t cache_layer = 0;
  /// Which key head a head has: head % key heads, or (false) those of a key head stand together.
  bool in_turns = false;

  struct Shape {
    int64_t key_heads, heads, keys, values;  ///< keys, values: columns of a head
  };

  template <typename F>
  void operands(F&& f) const {
    f("q", q), f("k", k), f("v", v), f("decay", decay), f("beta", beta), f("rate", rate), f("bias", bias);
    f("state", state), f("out", out);
  }
  int64_t key_head(const Program& p, int64_t head) const;
  /// Whether there is a decay a channel of the keys.
  bool by_channel(const Program& p) const;
  std::string attributes() const;
  void check(const Program& p) const;
  /// Of all operands but q, k, v and out.
  void check_shapes(const Program& p, const Shape& shape) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  /// Without q, k, v and out.
  Cost cost_of_states(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
