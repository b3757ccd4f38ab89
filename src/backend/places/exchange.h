// What goes from place to place: the ops across places, done in the host's memory between two parts of a
// step. Devices that can reach each other will do it by themselves (NCCL); this is what any two can do.
#pragma once

#include <memory>
#include <vector>

#include "program/backend.h"

namespace sluice::backend::places {

/// By place; null where nothing runs.
using Executables = std::vector<std::unique_ptr<program::Executable>>;

class Exchange {
 public:
  /// For steps of so many rows.
  Exchange(const program::Program& program, const program::CompileOptions& options);

  /// Reads the op's inputs where they are, and writes its results where they are to be.
  void run(const program::Op& op, const program::StepInput& input, const Executables& executables);
  /// Copies from one place to another: they are read together.
  void run_copies(std::span<const program::Op* const> copies, const program::StepInput& input,
                  const Executables& executables);
  /// The halves of it: what was read may be changed before it is written. No more copies than have room
  /// together.
  std::span<const program::Executable::Peek> read_copies(std::span<const program::Op* const> copies,
                                                         const program::StepInput& input,
                                                         const Executables& executables);
  void write_copies(std::span<const program::Op* const> copies, const Executables& executables);
  int64_t bytes() const { return static_cast<int64_t>((in_.size() + out_.size()) * sizeof(float)); }

 private:
  static program::TensorId source(const program::Op& copy);
  size_t values(const program::Op& copy, const program::StepInput& input) const;
  bool have_room(std::span<const program::Op* const> copies, const program::StepInput& input) const;
  /// The activation's rows at a step, without gaps.
  std::span<float> read(program::TensorId id, const program::StepInput& input,
                        const Executables& executables);
  void write(program::TensorId id, const program::StepInput& input, const Executables& executables);

  const program::Program& program_;
  std::vector<float> in_, out_;
  std::vector<program::Executable::Peek> peeks_;
};

}  // namespace sluice::backend::places
