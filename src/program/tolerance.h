// How far two right implementations of the same ops may lie apart: for tests and for comparing backends.
#pragma once

#include <span>

#include "program/program.h"

namespace sluice::program {

/// The relative error (of the whole result, Euclidean) that this list's last result may have: sums of float32
/// products in another order differ by some units in the last place times the root of the terms; where values
/// went through a cache of binary16, by half a unit of that, and so where eight bits of a cache (the same
/// ones in both) were made halves to be multiplied.
double tolerance(const Program& program);

/// Rounds every run of 32 numbers of rows of `columns` to multiples of 1/127 of its largest: what eight bits
/// and a scale hold. A backend may quantise activations so; on such inputs a kernel's error is that of its
/// own arithmetic, and not of the format that it chose. Rows that are no whole runs stay as they are.
void round_to_eight_bits(std::span<float> values, int64_t columns);

}  // namespace sluice::program
