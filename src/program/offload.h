// A model that is larger than a device's memory: routed experts of some layers at another place, everything
// else at the first (places.h says how places run).
#pragma once

#include <array>
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
  /// Of the first place's memory, for copies of the experts that are used most; 0: there are none.
  int64_t slot_bytes = 0;
  int64_t prompt_rows = 0;  ///< that steps are to have at most (Facts); 0: what the first place wants
};

/// A mixture at the second place of which the first has copies of some experts, in slots: weights of its own
/// that who runs the places fills. A row's selection is dealt out there: the second place multiplies by
/// there_ids and there_weights (-1: no expert), the first by slots and slot_weights, two inputs that are to
/// be poked: any distinct slots, of weight 0 where the expert is the second place's. Without anybody who
/// does so all is the second place's.
struct SlottedExperts {
  int32_t layer = 0;
  int64_t experts = 0, slots = 0, used = 0;                   ///< used: by a row
  TensorId ids = kNoTensor, weights = kNoTensor;              ///< of the selection, at the first place
  TensorId there_ids = kNoTensor, there_weights = kNoTensor;  ///< the same at the second
  TensorId slot_ids = kNoTensor, slot_weights = kNoTensor;    ///< at the first place
  TensorId there_sum = kNoTensor, sum = kNoTensor;            ///< of the second place's experts, and its copy
  struct Matrices {
    TensorId experts, slots;
  };
  std::array<Matrices, 3> matrices = {};  ///< gate, up, down: [experts or slots, rows, columns]
};

/// The program of both places.
struct Offloaded {
  Program program;
  std::vector<SlottedExperts> slotted = {};  ///< in the order of the list; all of offload.mixtures, or none
};
/// Where steps may stream or copies are made, the experts' weights are marked as streamed, too: their bytes
/// in the file are read again and again.
Offloaded offloaded(const Program& program, const Offload& offload);

/// How many slots each of the last `mixtures` gets of so many bytes: more than a row selects, and as many as
/// it has experts at most. Empty: that is too little, or their experts can have no copies (they have biases,
/// or the file holds them in pieces).
std::vector<int64_t> slots_of(const Program& program, size_t mixtures, int64_t bytes);

/// Whether such steps stream at all, with a first place like this.
bool streams(const Offload& offload, const Backend& first, const CompileOptions& options);
/// What each place is compiled for, and what the program is that runs streamed steps at the first.
CompileOptions options_over_places(CompileOptions options, bool streams);
CompileOptions options_of_streamed(CompileOptions options);
/// Throws Error where steps are to be batch-invariant and such steps of the backend do not run part by part.
void check_runs_parts(const Backend& backend, const CompileOptions& options);

/// Of a backend whose memory was fitted for steps of so many rows. Who wants to know asks by a dynamic_cast.
class FittedRows {
 public:
  virtual ~FittedRows() = default;
  virtual int64_t fitted_rows() const = 0;  ///< 0: any
};

/// sum += needs; the largest int64 where none holds it.
void add(MemoryNeeds& sum, const MemoryNeeds& needs);

/// What the first place takes of its memory.
MemoryNeeds offload_needs(const Backend& first, const Program& program, const Offload& offload,
                          const CompileOptions& options);

}  // namespace sluice::program
