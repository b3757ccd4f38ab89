#include "backend/cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace sluice::backend::cpu {
namespace {

constexpr std::string_view kNames[] = {"generic", "avx2", "avx512", "amx", "neon"};

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

#elif defined(__aarch64__)

/// What a processor has beyond ARMv8.0.
struct ArmFeatures {
  bool dot_products, i8mm;
};

#if defined(__linux__)
ArmFeatures arm_features() {
  return {(::getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0, (::getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0};
}
#elif defined(__APPLE__)
ArmFeatures arm_features() {
  const auto has = [](const char* name) {
    int value = 0;
    size_t bytes = sizeof value;
    return ::sysctlbyname(name, &value, &bytes, nullptr, 0) == 0 && value != 0;
  };
  return {has("hw.optional.arm.FEAT_DotProd"), has("hw.optional.arm.FEAT_I8MM")};
}
#else
ArmFeatures arm_features() { return {false, false}; }
#endif

Isa detect() { return arm_features().dot_products ? Isa::Neon : Isa::Generic; }

#else

Isa detect() { return Isa::Generic; }

#endif

}  // namespace

bool has_i8mm() {
#if defined(__aarch64__)
  static const bool has = arm_features().i8mm;
  return has;
#else
  return false;
#endif
}

bool has_avx_vnni() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  return best_isa() >= Isa::Avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1) != 0;
#else
  return false;
#endif
}

bool has_avx512_fp16() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  return best_isa() >= Isa::Avx512 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 23 & 1) != 0;
#else
  return false;
#endif
}

bool has_avx512_bf16() {
#if defined(__x86_64__)
  return best_isa() >= Isa::Avx512 && __builtin_cpu_supports("avx512bf16") != 0 &&
         __builtin_cpu_supports("avx512vbmi") != 0;
#else
  return false;
#endif
}

#if defined(__x86_64__)
/// As CPUID's leaf 1 has them.
static std::pair<int, int> family_and_model() {
  unsigned a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return {0, 0};
  const unsigned base = a >> 8 & 15, family = base == 15 ? base + (a >> 20 & 255) : base;
  return {static_cast<int>(family), static_cast<int>((a >> 16 & 15) << 4 | (a >> 4 & 15))};
}
#endif

int amd_family() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("amd") != 0 ? family_and_model().first : 0;
#else
  return 0;
#endif
}

bool is_emerald_rapids() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("intel") != 0 && family_and_model() == std::pair(6, 0xCF);
#else
  return false;
#endif
}

std::vector<Isa> usable_isas() {
  if (best_isa() == Isa::Neon) return {Isa::Generic, Isa::Neon};
  std::vector<Isa> list;
  for (const Isa isa : {Isa::Generic, Isa::Avx2, Isa::Avx512, Isa::Amx}) {
    if (isa <= best_isa()) list.push_back(isa);
  }
  return list;
}

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
    const std::vector<Isa> usable = usable_isas();
    if (std::find(usable.begin(), usable.end(), isa) == usable.end()) {
      throw UsageError("SLUICE_ISA=" + std::string(wanted) + ": this machine has " +
                       std::string(isa_name(best_isa())) + " at most");
    }
    return isa;
  }
  throw UsageError("SLUICE_ISA=" + std::string(wanted) + ": expected generic, avx2, avx512, amx or neon");
}

}  // namespace sluice::backend::cpu
