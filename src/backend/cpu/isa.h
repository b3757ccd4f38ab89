// The tiers of vector instructions that this backend has kernels for, and the one that this process uses.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace sluice::backend::cpu {

/// In ascending order on one architecture: a machine that has a tier has those below it (usable_isas).
enum class Isa : uint8_t {
  Generic,  ///< plain C++, any machine
  Avx2,     ///< x86-64 with AVX2, FMA and F16C
  Avx512,   ///< and AVX-512 F, BW, DQ, VL and VNNI (Ice Lake, Zen 4)
  Amx,      ///< and AMX tiles of int8 and bf16 (Sapphire Rapids)
  Neon,     ///< aarch64 with dot products of bytes (Neoverse N1, Apple M1)
};

/// "generic", "avx2", "avx512", "amx", "neon".
std::string_view isa_name(Isa isa);

/// The best tier that the processor and the operating system offer.
Isa best_isa();

/// All tiers that they offer, the generic one first.
std::vector<Isa> usable_isas();

/// Of the tier neon: whether the processor also multiplies small matrices of bytes (I8MM: Neoverse V1, Apple
/// M2).
bool has_i8mm();

/// Of the tier avx2: whether the processor also multiplies bytes to sums of 32 bits in one instruction
/// (AVX-VNNI: Alder Lake, Zen 5).
bool has_avx_vnni();

/// Of the tier avx512: whether the processor also computes with half floats (AVX512-FP16: Sapphire Rapids).
bool has_avx512_fp16();

/// Of the tier avx512: whether the processor also multiplies bfloat16 (AVX512-BF16) and shifts bits to any
/// byte (AVX512-VBMI): Zen 4, Sapphire Rapids.
bool has_avx512_bf16();

/// The family that an AMD processor says it is of (25: Zen 3 and Zen 4, 26: Zen 5); 0 of others. For what
/// processors with the same instructions do in different ways.
int amd_family();

/// Whether the processor says it is an Emerald Rapids: it has Sapphire Rapids' instructions, and wants to be
/// told of weights further ahead.
bool is_emerald_rapids();

/// The tier to use: best_isa(), or what the environment variable SLUICE_ISA names. Throws UsageError when
/// that is no tier's name, or a tier that this machine lacks.
Isa chosen_isa();

}  // namespace sluice::backend::cpu
