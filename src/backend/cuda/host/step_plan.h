// A step's launches for a bucket of sizes, what they hand to each other, and where that lies. Made once.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "backend/cuda/host/kernel.h"

namespace sluice::backend::cuda {

/// A form that one launch gives and the next takes.
struct Passed {
  Form form;
  size_t producer, consumer;  ///< launches
  int64_t bytes;
  int64_t at = 0;                ///< in its space
  std::optional<int64_t> clear;  ///< of Zeroed: whose words the consumer makes zero
};

struct StepPlan {
  struct Launch {
    const program::Op* op;
    const Kernel* kernel;
    size_t node;                               ///< of Bound::nodes
    std::optional<size_t> consumes, produces;  ///< of `passed`
    int64_t zeroed = 0;                        ///< where its own words lie among the zeroed
  };
  std::vector<Launch> launches;
  std::vector<size_t> first;  ///< launch of each node, and how many there are
  std::vector<Passed> passed;
};

/// What all plans of an executable need together.
struct PlanMemory {
  int64_t scratch_bytes = 0;  ///< of a launch
  int64_t form_bytes =
      0;  ///< of a form in memory; there are two places, for producers of odd and even number
  int64_t flagged_slots = 0;  ///< of a launch's own
  int64_t form_slots = 0;     ///< of a form in flagged slots; two places, too
  int64_t zeroed_slots = 0;

  int64_t mailbox_slots() const { return flagged_slots + 2 * form_slots + zeroed_slots; }
  /// Scratch and forms: the former begins at byte 2 * form_bytes.
  int64_t bytes() const { return 2 * form_bytes + scratch_bytes; }
};

/// Finds what neighbours hand to each other.
void match_forms(const program::Program& program, const Sizes& sizes, StepPlan& plan);

/// Forms in zeroed slots between the same launches in all plans that have any: others lose theirs.
void keep_same_pairs(const std::vector<StepPlan*>& plans);

/// Says where everything lies.
PlanMemory place(const program::Program& program, const std::vector<std::pair<Sizes, StepPlan*>>& plans);

}  // namespace sluice::backend::cuda
