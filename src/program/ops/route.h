// route: from router logits to the experts of a row and their weights.
#pragma once

#include "program/operand.h"

namespace sluice::program {

enum class Gating : uint8_t { Softmax = 1, Sigmoid = 2 };  // as GGUF's expert_gating_func numbers them

/// score = softmax or sigmoid of the logits. The `used` experts with the highest score + bias are selected,
/// among the best `groups_used` groups only when there are several: a group counts as its two best (sigmoid,
/// DeepSeek-V3) or its best (softmax, DeepSeek-V2) experts. Weights are the unbiased scores, divided by their
/// sum if `normalize`, times `scale`. Ties go to the lower index; ids are in order of falling score + bias.
/// Whatever the numbers, the ids are distinct experts of the groups in use: NaN counts as kLowest.
struct Route {
  static constexpr const char* kName = "route";
  Read logits;    // [rows, 1, experts]
  Read bias;      // [1, 1, experts], optional
  Write ids;      // [rows, 1, used], int32
  Write weights;  // [rows, 1, used]
  Gating gating = Gating::Softmax;
  bool normalize = false;
  float scale = 1.0f;
  int32_t groups = 1;
  int32_t groups_used = 1;

  /// The sum of weights is at least this before it divides them: the smallest normal binary16.
  static constexpr float kSmallestSum = 6.103515625e-5f;
  /// What a damaged file's NaN and minus infinity count as in selection: below every real score + bias, above
  /// minus infinity, which marks what must not be selected; two of them still add up to a finite number.
  static constexpr float kLowest = -1e30f;
  static float selectable(float value) { return value > kLowest ? value : kLowest; }

  template <typename F>
  void operands(F&& f) const {
    f("logits", logits), f("bias", bias), f("ids", ids), f("weights", weights);
  }
  std::string attributes() const;
  void check(const Program& p) const;
  /// Throws Error unless `used` of `experts` can be selected by this rule.
  void check_rule(int64_t experts, int64_t used) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
