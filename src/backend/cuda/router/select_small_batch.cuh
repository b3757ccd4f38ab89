// The selection of a row's experts from logits that a launch leaves on the mailbox
// (moe/norm_moe_gate_up_small_batch.cu), by the warp that needs it or for others.
#pragma once

#include "backend/cuda/moe/experts_small_batch.h"

namespace sluice::backend::cuda {

/// A whole warp selects for a row and its lane k gets the k-th expert. bias: s.bias in shared memory. leaves:
/// in memory and on the mailbox, too. flag: the mailbox's.
__device__ __forceinline__ int select_row(const RowSelection& s, int row, const float* bias, uint32_t flag,
                                          bool leaves) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int id = 0;
  with_experts_of_lane(s.rule.experts, [&]<int kEach>() {
    const uint64_t* const logits = s.mailbox.slots + kLogitsSlots + row * s.rule.experts;
    float scores[kEach], weight = 0;
    take_each([&](int i) { return logits + min(lane + 32 * i, s.rule.experts - 1); },
              [](int) { return true; }, flag, scores);
    route_lanes(s.rule, scores, s.bias != nullptr ? bias : nullptr, id, weight);
    if (!leaves || lane >= s.rule.used) return;
    s.ids(row)[lane] = id, s.weights(row)[lane] = weight;
    put_slot(s.selected + row * s.rule.used + lane, __int_as_float(id), flag);
  });
  return id;
}

}  // namespace sluice::backend::cuda
