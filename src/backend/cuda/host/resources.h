// What kernels take of an SM: registers, shared memory, and how many blocks fit. Asked of the driver for the
// launches that an op is made of, by its own launcher, without starting anything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice::backend::cuda {

/// One launch of one kernel.
struct LaunchResources {
  std::string function;  ///< "row_products"; "": the driver does not tell
  int64_t blocks = 0;
  int threads = 0;            ///< a block
  int registers = 0;          ///< a thread
  int64_t shared_bytes = 0;   ///< a block: what the kernel declares and what the launch asks for
  int64_t spilled_bytes = 0;  ///< a thread: registers and arrays that went to memory
  int blocks_at_once = 0;     ///< on an SM
  double occupancy = 0;       ///< of an SM's threads

  /// "gated, 264 blocks of 256 threads, 64 registers, 23.4 KB shared, 2 blocks an SM (25 % of its threads)".
  std::string text() const;
};

/// Where launches are told to in place of being started (Context::log).
class LaunchLog {
 public:
  /// kernel: as the launch names it, its limit of shared memory raised already. Throws Error where the driver
  /// knows nothing of it.
  void add(const void* kernel, int64_t blocks, int threads, int64_t shared_bytes);
  const std::vector<LaunchResources>& list() const { return list_; }

 private:
  std::vector<LaunchResources> list_;
};

/// A function's own name in a demangled one: "row_products" of
/// "void sluice::(anonymous namespace)::row_products<(sluice::Type)2>(sluice::Timestamps)".
std::string own_name(const std::string& demangled);

}  // namespace sluice::backend::cuda
