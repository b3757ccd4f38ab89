// A Program bound to a device and memory, and how it is stepped.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/binding.h"
#include "program/page_copier.h"
#include "program/program.h"
#include "program/step.h"

namespace sluice::program {

/// When every worker of a device (a thread, a stream) began and ended its part of every op of one step, in
/// nanoseconds of one clock. Executable::fetch_times reuses its memory from step to step.
struct StepTimes {
  struct Part {
    int64_t begin_ns = 0, end_ns = 0;
  };
  int64_t begin_ns = 0, end_ns = 0;  ///< the whole step: handing it over and its results included
  int workers = 0;                   ///< that took part in this step
  std::vector<Part> parts;           ///< [workers][ops], in the order of program().ops()
};

/// What suits a backend, and which of it its executables can do: nobody asks for a backend's name.
struct Facts {
  /// Steps that are submitted and not collected, at most: they run one after the other. With 2 the tokens
  /// that they draw may be rows of the next one (following()).
  int steps_in_flight = 1;
  /// What outputs give where it is wanted; otherwise they give their logits.
  bool top = false, drawn = false, hidden = false, verified = false;
  /// Rows of a step aside that suit it, or that it was compiled for (CompileOptions::aside_rows); 0: no step
  /// pauses.
  int64_t aside_rows = 0;
  /// Rows of answers and their drafts in a step at most, up to which a further one costs little time; 1:
  /// drafts do not pay.
  int64_t draft_rows = 8;
  /// Rows of prompts that are a good deal of its speed in serving, whatever the model; 0: as many as the
  /// model's experts are worth.
  int64_t prompt_rows = 0;
  /// The same for a prompt that is read alone and deep, whose context costs something once a step; 0: no more
  /// than for others.
  int64_t deep_rows = 0;
  /// Milliseconds that answers may wait for a step with rows of prompts, as steps of its speed go.
  double itl_ms = 1000;
  /// Whether a step runs part by part (Executable::run_part): it can be one place of several.
  bool parts = false;
  /// Whether that and hidden_rows hold for batch-invariant executables, too
  /// (CompileOptions::batch_invariant).
  bool invariant_parts = false;
  /// Whether programs may begin with hidden states and leave some (Program::hidden_in, hidden_out).
  bool hidden_rows = false;
  /// Whether programs may have streamed weights (Tensor::streamed), and share caches
  /// (CompileOptions::caches_of).
  bool streams = false;
  /// Of an executable: from so many rows of a step on its weights are streamed; 0: never.
  int64_t stream_rows = 0;
};

/// Names a step that was submitted.
enum class Ticket : uint64_t {};

/// A Program bound to a device and memory. A step allocates nothing and cannot fail on input: who fills Step
/// keeps its promises (program/step.h).
class Executable {
 public:
  virtual ~Executable() = default;
  virtual Facts facts() const { return {}; }
  /// Hands a step over. What it points to stays as it is until it is collected. May return at once, or when
  /// it has run. Of several in flight only the last one's outputs may want logits or hidden states, and while
  /// there is one nothing is called but submit() and collect().
  virtual Ticket submit(const Step& step) = 0;
  /// Waits for a step's end: that of the one that was submitted first.
  virtual StepResult collect(Ticket ticket) = 0;
  /// When each op ran in the last step that was collected, if it was timed. Nothing is run otherwise for
  /// that: no op waits for another's end only to be timed. Apart from collect(), so that a step that is
  /// measured from outside does not take longer for it.
  virtual void fetch_times(StepTimes& /*times*/) {}
  /// Runs a part of program() (program/places.h) for a step's rows. Parts of a step are run in their order,
  /// all with the same rows; between two of them, peek() and poke() read and write what the op across places
  /// reads and writes here. Of backends whose facts say so.
  virtual void run_part(const Step& step, size_t part);
  /// Copies of an activation's rows, heads and columns without gaps, for tests, comparisons and what places
  /// hand over: what the last step left there (only inputs and results of the list and expert ids are sure to
  /// be whole), or what the next one finds.
  virtual void peek(TensorId id, int64_t rows, std::span<float> values) = 0;
  virtual void poke(TensorId id, int64_t rows, std::span<const float> values) = 0;
  /// A row of one activation that becomes a row of another.
  struct RowCopy {
    int64_t from, to;
  };
  /// Copies rows of an activation of `from`, as its last step that was submitted leaves them, to this
  /// program's hidden_in(), one after the other; `from` may be this executable, and that activation its own.
  /// May be called while steps of `from` are in flight. Of backends whose facts say that they hand on hidden
  /// states, and of executables that were compiled beside each other (CompileOptions::beside).
  virtual void take_rows(Executable& from, TensorId id, std::span<const RowCopy> rows);
  /// What copies pages and states from and to the host's memory, this executable's own; null: nothing does.
  /// Of the copier alone calls may be made while steps are in flight.
  virtual PageCopier* copier() { return nullptr; }
  /// Several of them at once, which may wait for the device once.
  struct Peek {
    TensorId id;
    int64_t rows;
    std::span<float> values;
  };
  virtual void peek_all(std::span<const Peek> peeks) {
    for (const Peek& one : peeks) peek(one.id, one.rows, one.values);
  }
  /// The Program as this backend runs it: legalized.
  virtual const Program& program() const = 0;
  /// The kernel that each op is bound to, by index into program().ops().
  virtual std::vector<BoundKernel> bound() const = 0;
  /// The same for steps of so many rows, none with a longer context than this: which kernel runs may depend
  /// on both.
  virtual std::vector<BoundKernel> bound_for(int64_t /*rows*/, int64_t /*context*/) const { return bound(); }
  /// Activations, cache and tables; weights are their WeightSet's.
  virtual int64_t memory_bytes() const = 0;
};

/// Submits a step and collects it.
inline StepResult run_step(Executable& executable, const Step& step) {
  return executable.collect(executable.submit(step));
}

/// Runs a step whose outputs' logits are wanted, and copies them [outputs, vocabulary].
void run_logits(Executable& executable, const StepInput& input, std::span<float> logits);

}  // namespace sluice::program
