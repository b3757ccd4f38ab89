// Room for copies of experts (program/offload.h).
#pragma once

#include <cstdint>

#include "program/offload.h"

namespace sluice::test {

/// Bytes that give every one of the last mixtures so many slots.
inline int64_t bytes_for(const program::Program& program, size_t mixtures, int64_t slots) {
  const auto all = program::routed_experts(program);
  int64_t bytes = 0;
  const auto of_all = program::slots_of(program, mixtures, int64_t{1} << 40);  // all experts
  for (size_t i = 0; i < mixtures; ++i) bytes += all[all.size() - mixtures + i].bytes / of_all[i] * slots;
  return bytes;
}

/// The least that each of them may have: one more than a row selects.
inline int64_t fewest_slots(const program::Program& program, size_t mixtures) {
  int64_t fewest = 1;
  while (program::slots_of(program, mixtures, bytes_for(program, mixtures, fewest)).empty()) ++fewest;
  return fewest;
}

}  // namespace sluice::test
