// Op and types -> dispatches: what is started for an op in steps of some size. Pure functions of the program,
// of where activations lie and of what a device can do; nothing of a device is needed for them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backend/vulkan/pipelines.h"
#include "backend/vulkan/step_data.h"
#include "program/backend.h"

namespace sluice::backend::vulkan {

/// Up to so many rows each count has a recording of its own.
inline constexpr int64_t kExactRows = 8;

/// Rows of a step up to which contexts are cut into stretches: there are workgroups enough beyond.
inline constexpr int64_t kStretchedRows = 16;

/// Of the steps that a recording is for.
struct Sizes {
  int64_t rows = 1, outputs = 1;
  int64_t longest = 1;              ///< positions that a row attends to at most
  bool logits = true, top = false;  ///< what the host is given of outputs
};

/// A weight as a shader sees it: the file's bytes, or the float32 copy that vectors have.
struct BoundWeight {
  program::TensorId id = program::kNoTensor;
  bool vector = false;
  /// Which parameter says where it begins in the buffer that it lies in, all of which is bound; -1: the
  /// weight alone is bound. Dispatches that bind the same buffers share a set of descriptors.
  int at_param = -1;
};

struct Dispatch {
  Shader shader = Shader::product;
  std::vector<uint32_t> constants, params;
  std::array<uint32_t, 3> groups = {1, 1, 1};
  std::array<BoundWeight, 4> weights = {};
  program::TensorId cache = program::kNoTensor;
  int64_t cache_layer = 0;
  bool waits = false;  ///< for the op's dispatches before it
};

/// Where activations lie, and what kernels are chosen by.
struct Layout {
  Layout(const program::Program& program, const program::CompileOptions& options, int64_t subgroup_size,
         bool dot4);

  const program::Program& program;
  program::CompileOptions options;
  int64_t subgroup_size;
  bool dot4;  ///< four bytes are multiplied at a time
  program::MemoryPlan plan;
  StepLayout step;
  int64_t scratch_at = 0;   ///< in the arena, in bytes: what an op's dispatches leave for each other
  int64_t arena_bytes = 0;  ///< with that
};

/// Stretches of a context that are attended to one beside the other.
struct Stretches {
  int64_t positions = 0, count = 1;
};
Stretches stretches(const Layout& layout, const Sizes& sizes);

/// Whether there is a kernel for the op with these types.
bool has(const program::Program& program, const program::Op& op);

/// What runs it; an op that `has` said yes to.
std::vector<Dispatch> dispatches(const Layout& layout, const program::Op& op, const Sizes& sizes);

/// Tokens of an output that are found on the device, and outputs of a step up to which they are: those of
/// more are the host's business.
inline constexpr int64_t kTop = program::kMaxTopK, kMostSorted = 64;
/// An output's pairs of a logit and a token, -1 where there is none: floats.
inline constexpr int64_t kPairsBytes = kTop * 2 * 4;

/// What finds them behind a program, and where it leaves the pairs, in floats of the arena.
struct Top {
  std::vector<Dispatch> dispatches;
  int64_t at = 0;
};
Top top_of(const Layout& layout, const Sizes& sizes);

/// Whether a weight is read as float32.
bool is_vector(const program::Tensor& tensor);

}  // namespace sluice::backend::vulkan
