#include "backend/cpu/isa.h"

#include <cstdlib>
#include <string>

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sluice::backend::cpu {
namespace {

constexpr std::string_view kNames[] = {"generic", "avx2", "avx512", "amx"};

#if defined(__x86_64__)

bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
}

/// CPUID leaf 7, EDX: bit 22 AMX-BF16, 24 AMX-TILE, 25 AMX-INT8. Linux hands out the tile registers on
/// request only (arch_prctl ARCH_REQ_XCOMP_PERM, feature 18, tile data), to the process for all its threads
/// to come.
bool has_amx() {
  unsigned a, b, c, d;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kNeeded = 1u << 22 | 1u << 24 | 1u << 25;
  if ((d & kNeeded) != kNeeded) return false;
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vbmi")) return false;
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Isa detect() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) return Isa::Generic;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512vnni")) {
    return Isa::Avx2;
  }
  return has_amx() ? Isa::Amx : Isa::Avx512;
}

#else

Isa detect() { return Isa::Generic; }

#endif

}  // namespace

std::string_view isa_name(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

Isa best_isa() {
  static const Isa best = detect();
  return best;
}

Isa chosen_isa() {
  const char* wanted = std::getenv("SLUICE_ISA");
  if (wanted == nullptr || *wanted == '\0') return best_isa();
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] != wanted) continue;
    const auto isa = static_cast<Isa>(i);
    if (isa > best_isa()) {
      throw UsageError("SLUICE_ISA=" + std::string(wanted) + ": this machine has " +
                       std::string(isa_name(best_isa())) + " at most");
    }
    return isa;
  }
  throw UsageError("SLUICE_ISA=" + std::string(wanted) + ": expected generic, avx2, avx512 or amx");
}

}  // namespace sluice::backend::cpu
