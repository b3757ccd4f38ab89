// How a row of the cache (what one token leaves in one layer) holds its numbers: in binary16 as they come, or
// most of them in eight bits. Knows numbers and bytes alone: what they mean is nobody's business here.
//
// Q8_0 in a cache is ggml's Q8_0 (runs of 32 signed bytes under a binary16 scale), but its last numbers may
// stay binary16, and it is laid out for readers of 16 bytes at a time: codes, binary16 numbers, scales, each
// part filled up to 16 bytes. A row of 512 + 64 numbers is 512 + 128 + 32 = 672 bytes; in binary16 it is
// 1,152.
#pragma once

#include "quant/types.h"

namespace sluice::quant {

/// Numbers of a row under one scale; the last run may be shorter.
inline constexpr int64_t kCacheRun = 32;

/// The format of a cache's rows.
struct CacheRow {
  Type type = Type::F16;  ///< F16, Q8_0; BF16 where kernels multiply it, F32 for references
  int64_t columns = 0;
  int64_t exact = 0;  ///< of Q8_0: the last columns, which are binary16

  static constexpr int64_t whole_units(int64_t bytes) { return (bytes + 15) / 16 * 16; }
  /// Columns in eight bits; where the numbers behind them and the scales begin, in bytes.
  constexpr int64_t coded() const { return columns - exact; }
  constexpr int64_t exact_at() const { return whole_units(coded()); }
  constexpr int64_t scales_at() const { return exact_at() + whole_units(2 * exact); }
  constexpr int64_t q8_bytes() const {
    return scales_at() + whole_units((coded() + kCacheRun - 1) / kCacheRun * 2);
  }
  int64_t bytes() const;

  /// One row. Of a run in eight bits the scale is its largest magnitude / 127, rounded up to binary16, so
  /// that no code is beyond 127; codes are the nearest whole multiples of it, halves to even. NaN and what no
  /// scale holds (beyond 8.3e6) become some number or NaN.
  void encode(const float* in, std::byte* out) const;
  void decode(const std::byte* in, float* out) const;
};

/// Whether a cache may be of this type.
bool is_cache_type(Type type);

}  // namespace sluice::quant
