// Activations that stay bf16 between ops. Products on tiles round their rows to bf16, in groups
// (TileKernels::round): a value that nothing else reads is left in that form by the op that makes it, in its
// place in the arena. It is half as many bytes, nobody rounds it twice, and the numbers are the same.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/packed_weights.h"
#include "program/program.h"

namespace sluice::backend::cpu {

/// Rows of a step at least: with fewer, a worker's share of them would be less than a group.
inline constexpr int64_t kLeastRounded = 32;

/// By TensorId: from how many rows of a step on that activation is kept as rows of bf16; the largest int64
/// where it never is. tiles: whether the tier has any.
///
/// An activation of experts is kept by expert: for each that was selected, in the order of their ids, whole
/// groups of the rows that selected it.
std::vector<int64_t> rounded_from(const program::Program& program, const WeightTable& table, bool tiles);

}  // namespace sluice::backend::cpu
