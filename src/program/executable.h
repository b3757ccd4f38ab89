// A Program bound to a device and memory, and how it is stepped.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"
#include "program/step.h"

namespace sluice::program {

/// When every worker of a device (a thread, a stream) began and ended its part of every op of one step, in
/// nanoseconds of one clock. Made by run_timed, which reuses its memory from step to step.
struct StepTimes {
  struct Part {
    int64_t begin_ns = 0, end_ns = 0;
  };
  int64_t begin_ns = 0, end_ns = 0;  ///< the whole step: handing it over and its results included
  int workers = 0;                   ///< that took part in this step
  std::vector<Part> parts;           ///< [workers][ops], in the order of program().ops()
};

/// The kernel that an op is bound to, and where its definition stands.
struct BoundKernel {
  std::string name;
  std::string file;  ///< from src/ on
  int line = 0;
  /// Functions of the device that a launcher starts, where it is not the kernel itself: their definitions
  /// stand in that file's folder or in the folder prim beside it.
  std::vector<std::string> functions = {};
};

/// A Program bound to a device and memory. A step allocates nothing and cannot fail on input: who fills
/// StepInput keeps its promises (program/step.h).
class Executable {
 public:
  virtual ~Executable() = default;
  virtual void run(const StepInput& input, StepOutput& output) = 0;
  /// Whether run() can give the likeliest tokens of a row in place of its logits, which spares bringing them
  /// from the device.
  virtual bool finds_likeliest() const { return false; }
  /// Rows that a step may have that runs while another one is paused; 0: none does, and none pauses.
  virtual int64_t aside_rows() const { return 0; }
  /// Whether steps can be handed over ahead: begin() returns at once, end() waits for the step that began
  /// first and gives its outputs' likeliest tokens [output rows, kLikeliest], and the tokens that following()
  /// stands for [output rows], which rounding may make others than an exact draw's. Two steps at most have
  /// begun and not ended; they run one after the other, as run() would run them. While one has, nothing else
  /// is called but these two.
  virtual bool runs_ahead() const { return false; }
  virtual void begin(const StepInput& /*input*/) {}
  virtual void end(std::span<Likely> /*likeliest*/, std::span<int32_t> /*drawn*/) {}
  /// Memory of the executable's own that run() fills quickest: logits that begin there are not copied once
  /// more. May be empty, or less than all rows of outputs need.
  virtual std::span<float> logits_memory() { return {}; }
  /// The same, and when each op ran. Nothing is run otherwise than in run(): no op waits for another's end
  /// only to be timed.
  virtual void run_timed(const StepInput& input, StepOutput& output, StepTimes& times) = 0;
  /// Brings what run_timed left with the device into `times`, which is whole only then: apart from it, so
  /// that a step that is measured from outside does not take longer for it.
  virtual void fetch_times(StepTimes& /*times*/) {}
  /// Copies of an activation's rows, heads and columns without gaps, for tests and comparisons: what the last
  /// step left there (only inputs and results of the list and expert ids are sure to be whole), or what the
  /// next one finds.
  virtual void peek(TensorId id, int64_t rows, std::span<float> values) = 0;
  virtual void poke(TensorId id, int64_t rows, std::span<const float> values) = 0;
  /// The Program as this backend runs it: legalized.
  virtual const Program& program() const = 0;
  /// The kernel that each op is bound to, by index into program().ops().
  virtual std::vector<BoundKernel> bound() const = 0;
  /// The same for steps of so many rows, none with a longer context than this: which kernel runs may depend
  /// on both.
  virtual std::vector<BoundKernel> bound_for(int64_t /*rows*/, int64_t /*context*/) const { return bound(); }
  /// Activations, cache and tables; weights belong to the file.
  virtual int64_t memory_bytes() const = 0;
  /// Whether a step that gives likeliest tokens keeps its logits, so that fetch_logits can bring those of
  /// some outputs afterwards: [outputs, vocabulary], outputs by their numbers, which ascend.
  virtual bool keeps_logits() const { return false; }
  virtual void fetch_logits(std::span<const int32_t> /*outputs*/, std::span<float> /*logits*/) {}
};

}  // namespace sluice::program
