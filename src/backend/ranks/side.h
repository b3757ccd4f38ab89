// One rank's side of a program that was cut into places: its own ops by its backend, and what ranks hand over
// between them. Sums are taken in the order of ranks, so that they are the same at every rank, and those of
// the same program over places of one process.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "backend/ranks/channel.h"
#include "program/backend.h"

namespace sluice::backend {

class Side {
 public:
  /// `whole` is the program of all places, `executable` runs this rank's side of it part by part; null: it
  /// has none. Where devices exchange by themselves its steps are whole, and run() is for nobody.
  Side(const program::Program& whole, std::unique_ptr<program::Executable> executable,
       const program::CompileOptions& options, Channel& channel);

  /// A step, at the same time at every rank. False: rank 0 gave it up, since `stop` (rank 0's; null: never)
  /// became true. Throws Error when a rank is gone.
  bool run(const program::StepInput& input, const std::atomic<bool>* stop);
  program::Executable* executable() const { return executable_.get(); }
  int64_t memory_bytes() const;

 private:
  /// An op across places.
  struct Meeting {
    const program::Op* op = nullptr;
    program::TensorId in = program::kNoTensor;  ///< this rank's
    std::vector<program::TensorId> out;         ///< this rank's
    std::vector<int64_t> columns;               ///< by rank, of what it brings
    bool is_ours = false;                       ///< of this rank's side, too
    const program::Tensor* shape = nullptr;     ///< of something that is brought
    int from = -1, to = -1;                     ///< of a copy
  };

  void add(const program::Op& op);
  /// All ranks bring what they have.
  void meet(const Meeting& meeting, const program::StepInput& input);
  /// One rank hands over what it has to another one.
  void hand_over(const Meeting& meeting, const program::StepInput& input);
  void look_at(const std::atomic<bool>* stop);
  std::span<const float> together(const Meeting& meeting, int64_t rows);

  const program::Program& whole_;
  std::unique_ptr<program::Executable> executable_;
  Channel& channel_;
  std::vector<Meeting> meetings_;
  std::vector<int64_t> counts_;
  std::vector<float> all_, out_;
  float word_ = 0;  ///< of the step that runs: not 0 once rank 0 has given it up
};

}  // namespace sluice::backend
