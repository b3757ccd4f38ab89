// What a backend would run and take, chosen of types and shapes alone: a value that can be printed. Nothing
// is loaded for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"

namespace sluice::program {

/// The kernel that an op is bound to, and where its definition stands.
struct BoundKernel {
  std::string name;
  std::string file;  ///< from src/ on
  int line = 0;
  /// Functions of the device that a launcher starts, where it is not the kernel itself: their definitions
  /// stand in that file's folder or in the folder prim beside it.
  std::vector<std::string> functions = {};
};

/// A weight as kernels read it.
struct PackedWeight {
  TensorId tensor = kNoTensor;  ///< of Binding::program
  std::string layout;           ///< "panels of 16 rows"
  int64_t bytes = 0;            ///< of memory that is held for it
};

/// All weights as their file has them; views have no bytes of their own.
std::vector<PackedWeight> weights_in_file(const Program& program);

/// The sum of their bytes.
int64_t bytes_of(const std::vector<PackedWeight>& weights);

/// Memory that an executable takes when all of it is in use.
struct MemoryNeeds {
  int64_t weights_bytes = 0;  ///< the file's as they lie there, or what a backend makes of them
  int64_t cache_bytes = 0;
  int64_t scratch_bytes = 0;  ///< activations, and what kernels compute in
};

struct Binding {
  Program program;                    ///< as the backend runs it: legalized
  std::vector<BoundKernel> kernels;   ///< by op
  std::vector<PackedWeight> weights;  ///< those that steps read whole, each once
  MemoryNeeds needs;                  ///< weights_bytes: the sum of `weights`
};

}  // namespace sluice::program
