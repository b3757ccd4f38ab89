// One op of a Program measured by itself, warm or cold: what `sluice opbench`, `sluice tune` and the
// benchmark program of the tests measure with. The op runs in copies that each have weights of their own, so
// that a round over them streams more than any cache holds; warm copies share one.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "program/backend.h"

namespace sluice::profile {

struct OpBenchOptions {
  int64_t rows = 1;        ///< of a step: tokens of one sequence
  int64_t context = 1024;  ///< cache rows that the last of them attends to
  /// 0: warm. Otherwise cold: so many bytes of weights, or of the cache, lie between two readings of one.
  double rotate_bytes = 0;
  double seconds = 0.15;  ///< to measure for, at least
};

struct OpTiming {
  double us = 0, min_us = 0;  ///< of one call: median and least of the rounds' means
  program::Cost cost;         ///< of one call, distinct experts counted
  double limit_us = 0;        ///< what the backend's peaks allow at least; 0: not known
  double resident_bytes = 0;  ///< weights, or cache, that the calls rotated over
  int rounds = 0;
  program::BoundKernel kernel;  ///< of the op, or of its expansion's first
};

/// Bytes that one call at least reads of weights or cache for a cold figure to mean something.
inline constexpr double kColdBytes = 64 << 10;

class OpBench {
 public:
  /// weights: by TensorId of `program`; copies of the op share the bytes, and what the backend makes of them
  /// is theirs alone. The op's other inputs are random: ids of distinct experts, normal numbers.
  OpBench(program::Backend& backend, const program::Program& program, const program::Op& op,
          const program::WeightBytes& weights, const OpBenchOptions& options);

  /// One round over all copies; nanoseconds of a call, by the device's own clock.
  double round();
  /// Rounds until the time is over, at least as many as the rotation has, after one that warms up.
  OpTiming measure();

  const program::Program& program() const { return executable_->program(); }
  program::Cost cost() const;

 private:
  int copies_for(const program::Program& program, const program::Op& op) const;
  void copy_op(const program::Program& whole, const program::Op& op, const program::WeightBytes& weights);
  void fill_inputs();
  void set_ids();
  void set_step();

  program::Backend& backend_;
  OpBenchOptions options_;
  program::Program part_;  ///< the copies
  program::WeightBytes weights_;
  std::vector<program::TensorId> inputs_;
  program::TensorId ids_ = program::kNoTensor;  ///< experts that rows select
  int64_t experts_ = 0;
  int copies_ = 1;
  bool has_outputs_ = false;  ///< reads or writes rows whose logits are asked for
  double resident_bytes_ = 0;
  int64_t pages_ = 1, pages_of_step_ = 1;
  std::unique_ptr<program::Executable> executable_;
  std::mt19937_64 random_{1};
  int64_t rounds_ = 0;
  double distinct_sum_ = 0;  ///< distinct experts of all rounds
  std::vector<int32_t> expert_order_;
  std::vector<int32_t> tokens_, positions_, sequences_, slots_, page_table_, outputs_;
  std::vector<float> values_;
  program::StepTimes times_;
};

/// The shape of an op in words: its weights' shapes and types, or its activations' where it has none:
/// "2 x 64x1536x2048 Q4_0 + 2 x 1536x2048 Q5_K", "20x576".
std::string shape_text(const program::Program& program, const program::Op& op);

/// Bytes of the op's weights, whole: those of all experts.
double weight_bytes(const program::Program& program, const program::Op& op);

}  // namespace sluice::profile
