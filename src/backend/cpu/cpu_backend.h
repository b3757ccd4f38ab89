// The CPU backend: a team of threads walks the list together, one barrier an op. Weights are packed at load
// into the order in which kernels stream them (packed.h); activations are quantised once an op, and
// multiplied as integers.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "backend/cpu/isa.h"
#include "backend/cpu/pack_file.h"
#include "program/backend.h"

namespace sluice::backend {

struct CpuOptions {
  int threads = 0;    ///< 0: as many as this process may use, and one for small steps
  bool fused = true;  ///< false: fused ops run as their expansions, to measure what fusing gains
  bool repack =
      true;  ///< false: weights stay in the mapped file and are packed panel by panel as they are used
  program::Tuning tuning = {};       ///< values measured best (program/backend.h); without them built-in ones
  std::optional<cpu::Isa> isa = {};  ///< the tier of the kernels; without it chosen_isa()
  /// Weights that were packed before: only programs of its model can be compiled.
  std::shared_ptr<const cpu::PackFile> packed = {};
  /// Parts of its steps take turns with another device's, some tens of microseconds each: its threads stay
  /// awake for longer.
  bool beside_device = false;
};

/// Packs a model's weights, as this backend would at load, into a file. False: the file is there already,
/// made of the same one. Throws Error "PATH: ...".
bool write_packed(const CpuOptions& options, const program::Program& program,
                  const program::WeightBytes& weights, const cpu::PackSource& source, const std::string& path,
                  const program::Progress& progress);

std::unique_ptr<program::Backend> make_cpu_backend(const CpuOptions& options);

}  // namespace sluice::backend
