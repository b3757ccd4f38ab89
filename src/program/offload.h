// A model that is larger than a device's memory: routed experts of some layers at another place, everything
// else at the first (places.h says how places run).
#pragma once

#include <vector>

#include "program/backend.h"

namespace sluice::program {

/// What offload_experts may move, in the order of the layers: one of each mixture of experts.
struct RoutedExperts {
  int32_t layer;
  int64_t bytes;  ///< of their weights
};
std::vector<RoutedExperts> routed_experts(const Program& program);

/// The same computation with the routed experts of the last `count` mixtures at place 1: the first place
/// norms and routes, the second multiplies the selected experts while the first multiplies the shared ones,
/// and their sum comes back. Tensors of `program` keep their ids.
Program offload_experts(const Program& program, size_t count);

/// The same computation at one place, with the routed experts of the last `count` mixtures streamed
/// (Tensor::streamed). Ids stay as they are.
Program stream_experts(const Program& program, size_t count);

/// Offload::stream_rows: never.
inline constexpr int64_t kNeverStream = -1;

/// A model of which one place runs everything but the routed experts of the last mixtures.
struct Offload {
  size_t mixtures = 0;
  int64_t bytes = 0;  ///< of the first place's memory at most
  /// From so many rows of a step on the experts come to the first place, layer by layer, and it runs all of
  /// the step; 0: from where that is sooner, by the time that steps take when it is compiled.
  int64_t stream_rows = kNeverStream;
};

/// The program of both places. Where steps may stream, the experts' weights are marked as streamed, too:
/// their bytes in the file are read again and again.
Program offloaded(const Program& program, const Offload& offload);

/// Whether such steps stream at all, with a first place like this.
bool streams(const Offload& offload, const Backend& first, const CompileOptions& options);
/// What each place is compiled for, and what the program is that runs streamed steps at the first.
CompileOptions options_over_places(CompileOptions options, bool streams);
CompileOptions options_of_streamed(CompileOptions options);

/// What the first place takes of its memory.
MemoryNeeds offload_needs(const Backend& first, const Program& program, const Offload& offload,
                          const CompileOptions& options);

}  // namespace sluice::program
