// The loops that peaks are measured with, one set a tier: reading memory, and arithmetic in registers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::backend::cpu {

/// How a stretch of memory is read: hardware guesses what comes next, and likes one or the other better.
enum class ReadPattern : uint8_t {
  Plain,           ///< from front to back
  Prefetched,      ///< the same, and each cache line is asked for 1 KB ahead
  FarAhead,        ///< 4 KB ahead
  FourStreams,     ///< the four quarters side by side
  FourPrefetched,  ///< the same, and each cache line is asked for 1 KB ahead
};
/// A stretch is a multiple of this.
inline constexpr int64_t kReadMultiple = 4096;

/// Reads every byte; returns something of them all, so that no load can be left out.
using ReadLoop = uint64_t (*)(const std::byte* data, int64_t bytes, ReadPattern pattern);
uint64_t read_generic(const std::byte* data, int64_t bytes, ReadPattern pattern);
uint64_t read_avx2(const std::byte* data, int64_t bytes, ReadPattern pattern);
uint64_t read_avx512(const std::byte* data, int64_t bytes, ReadPattern pattern);

/// `rounds` times as many multiply-adds as the unit's row of the table says (peaks.cc), in chains that do not
/// wait for each other.
using MultiplyLoop = void (*)(int64_t rounds);
void f32_generic(int64_t rounds);
void f32_avx2(int64_t rounds);
void int4_avx2(int64_t rounds);  ///< codes of four bits times bytes
void int8_avx2(int64_t rounds);
void int16_avx2(int64_t rounds);
void int8_avxvnni(int64_t rounds);  ///< AVX-VNNI, which not every processor of the tier has
void f32_avx512(int64_t rounds);
void int8_avx512(int64_t rounds);
void bf16_avx512(int64_t rounds);  ///< AVX512-BF16, which not every processor of the tier has
void int8_amx(int64_t rounds);
void bf16_amx(int64_t rounds);
void f32_neon(int64_t rounds);
void int8_neon(int64_t rounds);
void int8_i8mm(int64_t rounds);

/// Chains of a loop: enough for four cycles of latency times two units (times eight tiles' worth for AMX).
inline constexpr int kChains = 12;
inline constexpr int kTileChains = 4;

}  // namespace sluice::backend::cpu
