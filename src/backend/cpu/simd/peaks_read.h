// The reading loop, for vectors of any width. Included by one file a tier, whose Vector lies in an anonymous
// namespace: every tier gets a copy of its own.
#pragma once

#include "backend/cpu/simd/peaks_loops.h"

namespace sluice::backend::cpu {

/// kAheadBytes: of prefetching, 0 for none. Vector: kBytes; join(data) takes kBytes in; fold() gives a number
/// of all that was taken in.
template <typename Vector, int kAheadBytes, int kStreams>
uint64_t read_streams(const std::byte* data, int64_t bytes) {
  constexpr int64_t kLine = 64, kPerStep = 4;  // lines
  Vector sums[kPerStep];
  const int64_t part = bytes / kStreams;
  for (int64_t at = 0; at < part; at += kPerStep * kLine) {
    for (int64_t stream = 0; stream < kStreams; ++stream) {
      const std::byte* from = data + stream * part + at;
      for (int64_t k = 0; k < kPerStep; ++k) {
        if (kAheadBytes > 0) __builtin_prefetch(from + kAheadBytes + k * kLine);
        for (int64_t i = 0; i < kLine; i += Vector::kBytes) sums[k].join(from + k * kLine + i);
      }
    }
  }
  return sums[0].fold() | sums[1].fold() | sums[2].fold() | sums[3].fold();
}

template <typename Vector>
uint64_t read_as(const std::byte* data, int64_t bytes, ReadPattern pattern) {
  switch (pattern) {
    case ReadPattern::Prefetched: return read_streams<Vector, 1024, 1>(data, bytes);
    case ReadPattern::FarAhead: return read_streams<Vector, 4096, 1>(data, bytes);
    case ReadPattern::FourStreams: return read_streams<Vector, 0, 4>(data, bytes);
    case ReadPattern::FourPrefetched: return read_streams<Vector, 1024, 4>(data, bytes);
    default: return read_streams<Vector, 0, 1>(data, bytes);
  }
}

}  // namespace sluice::backend::cpu
