// A model that is larger than a GPU's memory: how many of its mixtures of experts the CPU's memory keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cli/cli11.h"
#include "model/model.h"
#include "program/backend.h"
#include "program/offload.h"

namespace sluice::cli {

/// How a GPU and the CPU share a model that one has no room for.
struct GpuShare {
  int64_t bytes = 0;        ///< of the GPU's memory at most; 0: what is free less a margin
  int64_t stream_rows = 0;  ///< program::Offload's
  /// Mixtures beyond those that must leave, whose room is for copies of the experts that are used most; -1:
  /// half as many as must.
  int64_t cache_mixtures = -1;
};

/// Adds --gpu-memory, --stream-from and --expert-cache.
void add_gpu_memory_option(CLI::App& command, GpuShare& share);

/// "10.2GiB", "8G" (powers of 1,024), "12GB" (powers of 1,000) or bytes. Throws UsageError for anything else.
int64_t memory_size_of(const std::string& text);

/// What a model is fitted for.
struct Fit {
  GpuShare share = {};
  int64_t context = 0;  ///< tokens; 0: some thousand
  int64_t outputs = 1;  ///< of a step
  /// Of a step at most; 0: as the backend wants them. Fewer, where experts have room to stream only so.
  int64_t rows = 0;
  bool warm = true;  ///< with the graphs of all steps of serving; false: what runs has steps of few sizes
};

/// What it is fitted for.
program::CompileOptions fitted_options(const program::Backend& gpu, int64_t model_context, const Fit& fit);

/// Rows of a step: as many as are wanted, and no more than were fitted where a GPU and the CPU share the
/// model.
int64_t rows_with_room(const program::Backend& backend, int64_t wanted);

/// How a model is shared between a GPU and the CPU.
struct Fitted {
  size_t mixtures = 0;      ///< mixtures whose routed experts the CPU has
  size_t all_mixtures = 0;  ///< of the model
  int64_t bytes = 0;        ///< of the GPU's memory at most
  int64_t moved_bytes = 0;  ///< weights in the CPU's memory
  int64_t stream_rows = 0;  ///< program::Offload's: never, where there is no room for it
  int64_t rows = 0;         ///< of a step at most
  int64_t slot_bytes = 0;   ///< for copies of the experts that are used most
  int64_t slots = 0;        ///< experts that they hold

  program::Offload offload() const;
  /// "GPU memory: 10.95 GB; experts of 24 of 46 layers, 8.9 GB, are computed by the CPU".
  std::string text() const;
};
/// cpu_bytes: of the CPU's memory, what is available: experts that are streamed lie there twice, packed for
/// the CPU and as pages of the file. Throws Error where even the CPU's help is not enough.
Fitted fit_to(const program::Backend& gpu, const model::Model& model, const Fit& fit,
              int64_t cpu_bytes = kUnknownMemory);
/// The same for the layers of a model of this context that one rank has, its side (program/places.h).
Fitted fit_side_to(const program::Backend& gpu, const program::Program& side, int64_t model_context,
                   const Fit& fit, int64_t cpu_bytes = kUnknownMemory);

}  // namespace sluice::cli
