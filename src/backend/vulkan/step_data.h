// What varies from step to step, as kernels read it: one buffer that the host writes.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/vulkan/device.h"
#include "program/backend.h"

namespace sluice::backend::vulkan {

/// A prompt, for attention: so many rows of one sequence, or more, that stand together.
inline constexpr int64_t kPromptRows = 8;

/// Where things lie in it, in words. The first words are the header of shaders/common.glsl; page tables come
/// last, of whatever length.
struct StepLayout {
  /// Cosine and sine of the angles of a step's rows, pair by pair: the host computes them in double, which
  /// not every device has.
  struct Angles {
    program::RopeParams params;
    int64_t pairs = 0;
    program::TensorId factors = program::kNoTensor;
    uint32_t at = 0;
  };
  struct Temperature {
    program::AttentionTemperature op;
    uint32_t at = 0;
  };

  StepLayout(const program::Program& program, const program::CompileOptions& options);
  /// Where the angles of so many pairs of columns are.
  uint32_t angles_at(const program::RopeParams& params, int64_t pairs, program::TensorId factors) const;
  uint32_t temperature_at(const program::AttentionTemperature& op) const;

  uint32_t tokens = 0, positions = 0, sequences = 0, slots = 0, output_rows = 0, states = 0, tables = 0;
  uint32_t prompts = 0;  ///< how many; then of each its first row, and its rows
  std::vector<Angles> angles;
  std::vector<Temperature> temperatures;
};

class StepData {
 public:
  StepData(const program::Source& source, const StepLayout& layout);
  /// Words that a step needs of it.
  int64_t words(const program::StepInput& input) const;
  void fill(const program::StepInput& input, uint32_t* to) const;

 private:
  const StepLayout& layout_;
  std::vector<std::vector<double>> frequencies_;  // by angles, [pairs]
};

}  // namespace sluice::backend::vulkan
