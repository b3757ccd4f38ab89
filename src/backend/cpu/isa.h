// The tiers of vector instructions that this backend has kernels for, and the one that this process uses.
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice::backend::cpu {

/// In ascending order on one architecture: a machine that has a tier has those below it.
enum class Isa : uint8_t {
  Generic,  ///< plain C++, any machine
  Avx2,     ///< x86-64 with AVX2, FMA and F16C
  Avx512,   ///< and AVX-512 F, BW, DQ, VL and VNNI (Ice Lake, Zen 4)
  Amx,      ///< and AMX tiles of int8 and bf16 (Sapphire Rapids)
};

/// "generic", "avx2", "avx512", "amx".
std::string_view isa_name(Isa isa);

/// The best tier that the processor and the operating system offer.
Isa best_isa();

/// The tier to use: best_isa(), or what the environment variable SLUICE_ISA names. Throws UsageError when
/// that is no tier's name, or a tier that this machine lacks.
Isa chosen_isa();

}  // namespace sluice::backend::cpu
