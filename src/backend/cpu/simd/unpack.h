// Panels to bf16, scale and all: what products of bf16 take. Of tiers that multiply such numbers.
#pragma once

#include <cstdint>

#include "backend/cpu/simd/matmul.h"

namespace sluice::backend::cpu {

/// `columns` numbers a row of a panel, whole blocks of the type: [columns / 32][kPanelRows][32] bf16, of the
/// 32 columns the even ones first.
using PanelUnpack = void (*)(const uint8_t* panel, int64_t columns, uint16_t* out, Prefetch prefetch);

/// Null for float formats.
using UnpackKernels = ByFormat<PanelUnpack>;

/// The table of a tier; null where the machine or the tier has no products of bf16.
const UnpackKernels* unpack_kernels(Isa isa);

}  // namespace sluice::backend::cpu
