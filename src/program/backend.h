// What the engine asks of a device, and what a device gets. Backends implement this and are strangers to each
// other.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace sluice::program {

/// Bytes of each weight, by TensorId of the tensor that stores it; empty for everything else. The bytes
/// belong to the mapped file and outlive every executable.
using WeightBytes = std::vector<std::span<const std::byte>>;

struct CompileOptions {
  int64_t max_rows = 512;    ///< rows a step at most
  int64_t max_outputs = 1;   ///< logits rows a step at most
  int64_t cache_pages = 16;  ///< pages of kPageRows rows in the latent cache
  bool bind_only = false;    ///< choose kernels but load no weights: for inspection, nothing can run
};

/// A Program bound to a device and memory. A step allocates nothing and cannot fail on input: who fills
/// StepInput keeps its promises (program/step.h).
class Executable {
 public:
  virtual ~Executable() = default;
  virtual void run(const StepInput& input, StepOutput& output) = 0;
  /// The same, and nanoseconds of every op from its predecessor's end to its own, by index into
  /// program().ops().
  virtual void run_timed(const StepInput& input, StepOutput& output, std::span<int64_t> op_ns) = 0;
  /// Copies of an activation's rows, heads and columns without gaps, for tests and comparisons: what the last
  /// step left there (only inputs and results of the list are sure to be whole), or what the next one finds.
  virtual void peek(TensorId id, int64_t rows, std::span<float> values) = 0;
  virtual void poke(TensorId id, int64_t rows, std::span<const float> values) = 0;
  /// The Program as this backend runs it: legalized.
  virtual const Program& program() const = 0;
  /// The kernel that each op is bound to, by index into program().ops().
  virtual std::vector<std::string> bound() const = 0;
  /// Activations, cache and tables; weights belong to the file.
  virtual int64_t memory_bytes() const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  /// Whether there is a kernel for this op with these types.
  virtual bool has(const Program& program, const Op& op) const = 0;
  virtual std::unique_ptr<Executable> compile(const Program& program, const WeightBytes& weights,
                                              const CompileOptions& options) = 0;
};

}  // namespace sluice::program
