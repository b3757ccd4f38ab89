// Rings of pieces of weights that warps ask for ahead (int8_mma.cuh). Of compute capabilities 9.0 and 10.0 a
// piece is 16 rows of 512 columns, which TMA copies bring, and their scales of scales, too few bytes for a
// copy of their own, which the lanes copy; both count into the slot's barrier. Elsewhere, and where rows are
// no whole 256 columns, lanes copy all of it (LaneRing).
#pragma once

#include <type_traits>

#include "backend/cuda/host/tensor_map.h"
#include "backend/cuda/prim/int8_mma.cuh"
#include "backend/cuda/prim/tma.cuh"

namespace sluice::backend::cuda::int8_mma {

/// Of each warp's ring; a slot of it holds kMostQuads quads of 16 rows.
inline constexpr int kSlots = 2;
/// The rings of a block's warps as TMA copies fill them: all codes, all top bits, all scales. Types with more
/// bytes a piece have fewer warps, so that tokens find room, and such as need more registers.
template <quant::Type kType>
inline constexpr int kRingWarps = Weights<kType>::kWhole             ? 8
                                  : Weights<kType>::kFormat.high > 0 ? 12
                                  : by_table(kType)                  ? 14
                                                                     : 16;
/// Lines of a slot's codes, each of twice eight rows, which are a TMA copy.
constexpr int map_groups(quant::Type type) {
  return kMostQuads * kQuad / 32 * find_format(type)->codes / kMapLine;
}
template <quant::Type kType, int kOfWarps = kRingWarps<kType>>
struct Ring {
  static constexpr Format kFormat = Weights<kType>::kFormat;
  static constexpr int kWarps = kOfWarps, kThreads = kWarps * 32;
  static constexpr int kSlots = int8_mma::kSlots, kQuads = kMostQuads;  ///< of a warp; of a piece
  static constexpr int kSlotBytes = 0;
  struct Source {};  ///< maps say where pieces lie
  static constexpr int kBlocks = kMostQuads * kQuad / 32;
  static constexpr int kGroups = map_groups(kType);
  static constexpr int kCodes = kBlocks * kFormat.codes * kRows;
  static constexpr int kHighPitch = kBlocks * kFormat.high, kHigh = kHighPitch * kRows;
  static constexpr int kScalePitch = kBlocks * kFormat.scale, kScales = kScalePitch * kRows;
  static constexpr uint32_t kPiece = kCodes + kHigh + kScales;  ///< by TMA copies
  using Supers = SharedSupers<kType>;
  static constexpr bool kSuper = Weights<kType>::kSuper;
  /// Who arrives at a slot's barrier: who asks for TMA copies, and every lane when its own copy is there.
  static constexpr int kArrivals = kSuper ? 33 : 1;
  static_assert(kHigh == 0 || kHighPitch == kMapLine || kHighPitch == kMapLine / 2);
  /// Of a thread block; swizzles count from whole KB.
  static constexpr int64_t kBytes = int64_t{kWarps} * kSlots * (kPiece + Supers::kBytes) + 1024;

  char* base;
  int columns;  ///< of a row

  __device__ Ring(char* shared, const Matrix& m)
      : base(shared + (1024 - shared_address(shared) % 1024) % 1024), columns(m.columns) {}
  __device__ char* codes(int warp, int slot) const { return base + (warp * kSlots + slot) * kCodes; }
  __device__ char* high(int warp, int slot) const {
    return base + kWarps * kSlots * kCodes + (warp * kSlots + slot) * kHigh;
  }
  __device__ char* scales(int warp, int slot) const {
    return base + kWarps * kSlots * (kCodes + kHigh) + (warp * kSlots + slot) * kScales;
  }
  __device__ char* supers(int warp, int slot) const {
    return base + kWarps * kSlots * static_cast<int>(kPiece) + (warp * kSlots + slot) * Supers::kBytes;
  }

  using Codes =
      std::conditional_t<Weights<kType>::kWhole, SwizzledBytes<kMapRows * kMapLine, kRows * kMapLine>,
                         SwizzledCodes<kMapRows * kMapLine, kRows * kMapLine>>;
  /// A piece that is there, as this lane takes it.
  __device__ __forceinline__ Piece<kType, Codes, Supers> piece(int warp, int slot) const {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    return {Codes(shared_address(codes(warp, slot))), scales(warp, slot) + g * kScalePitch, kScalePitch,
            kSuper ? Supers::of(supers(warp, slot), columns / kSuperColumns) : Supers{nullptr},
            kHigh > 0 ? high(warp, slot) + g * kHighPitch : nullptr};
  }
  /// The warp asks for a piece: an item's 16 rows from row `row` of a stretch on, from `line` of 128 bytes of
  /// codes on. supers_of_row: of the row whose scales of scales are this lane's (SuperOfLane), which has
  /// `count`.
  __device__ __forceinline__ void ask(const RowPairs& map, int row, int line, const uint8_t* supers_of_row,
                                      int count, int warp, int slot, uint32_t barrier) const {
#if __CUDA_ARCH__ >= 900
    if (is_elected()) ask_planes(map, row, line, warp, slot, barrier);
    if constexpr (kSuper) {
      Supers::ask(supers_of_row, count, line, shared_address(supers(warp, slot)));
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
    }
#endif
  }
  static_assert(!kSuper || 2 * kMapLine == kSuperColumns);  // a line of codes has a scale of scales
  __device__ __forceinline__ static void fetch(const RowPairs& map) {
    fetch_map(map.codes), fetch_map(map.scales);
    if constexpr (kHigh > 0) fetch_map(map.high);
  }

 private:
  /// One lane asks for what TMA copies bring.
  __device__ __forceinline__ void ask_planes(const RowPairs& map, int row, int line, int warp, int slot,
                                             uint32_t barrier) const {
#if __CUDA_ARCH__ >= 900
    barrier_expect(barrier, kPiece);
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3, %2, %4}], [%5];" ::"r"(shared_address(codes(warp, slot))),
        "l"(&map.codes), "r"(0), "r"(row), "r"(line), "r"(barrier)
        : "memory");
    const auto copy = [&](const CUtensorMap& of, int column, char* to) {
      asm volatile(
          "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
          " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
          "l"(&of), "r"(column), "r"(row), "r"(0), "r"(barrier)
          : "memory");
    };
    copy(map.scales, line * (kScalePitch / kGroups), scales(warp, slot));
    if constexpr (kHigh > 0) copy(map.high, line * (kHighPitch / kGroups), high(warp, slot));
#endif
  }
};

/// Rings that the lanes of their warps fill, 16 rows of 256 columns a piece: on any device, of any whole
/// number of quads a row.
template <quant::Type kType, int kOfWarps, int kOfSlots>
struct LaneRing {
  using W = Weights<kType>;
  using Supers = SharedSupers<kType>;
  static constexpr int kWarps = kOfWarps, kThreads = kWarps * 32, kSlots = kOfSlots;
  static constexpr int kQuads = 2;  ///< of a piece
  static constexpr int kQuadCodes = 4 * W::kFormat.codes, kQuadHigh = 4 * W::kFormat.high;
  static constexpr int kUnits = kQuads * kQuadCodes / 16, kHighUnits = kQuads * kQuadHigh / 16;  ///< of a row
  /// Rows of top bits lie an odd number of 16 bytes apart, so that eight of them fall on different banks.
  static constexpr int kHighPitch = kHighUnits > 0 ? kHighUnits * 16 + 16 : 0;
  static constexpr int kScalePitch = kQuads * W::kQuadScales;
  static constexpr int kScalesAt = kUnits * 16 * kRows, kHighAt = kScalesAt + kScalePitch * kRows,
                       kSupersAt = kHighAt + kHighPitch * kRows;
  static constexpr int kSlotBytes = (kSupersAt + Supers::kBytes + kMapLine - 1) / kMapLine * kMapLine;
  static constexpr int64_t kBytes = int64_t{kWarps} * kSlots * kSlotBytes;  ///< of a thread block
  /// Rows that one instruction copies codes of, and how many times it does for eight rows.
  static constexpr int kAtOnce = 32 / kUnits, kTimes = 8 / kAtOnce;
  static_assert(kAtOnce * kUnits == 32 && (kHighUnits == 0 || kHighUnits == 2 || kHighUnits == 4));

  using Codes = std::conditional_t<W::kWhole, SwizzledBytes<kMapRows * kMapLine, kRows * kMapLine>,
                                   SwizzledCodes<kMapRows * kMapLine, kRows * kMapLine>>;
  using OwnPiece = Piece<kType, Codes, Supers, kHighPitch>;

  /// What a lane copies next: of 16 rows, two stretches of eight.
  struct Source {
    const uint8_t *codes[2], *high[2], *scales, *supers;
    int apart;  ///< bytes of codes of as many rows as are copied at once
  };
  /// From the first column on; first, second: the stretches' flat rows.
  __device__ __forceinline__ static Source source(const Matrix& a, int64_t first, const Matrix& b,
                                                  int64_t second) {
    const int lane = static_cast<int>(threadIdx.x) % 32, quads = a.columns / kQuad;
    const int row = quads * kQuadCodes, high = quads * kQuadHigh, own = lane / kUnits;
    const bool lower = lane >= 16;  // lane / 2 is a row
    Source s{};
    s.codes[0] = a.codes + (first + own) * row + lane % kUnits * 16;
    s.codes[1] = b.codes + (second + own) * row + lane % kUnits * 16;
    s.apart = kAtOnce * row;
    const Matrix& half = lower ? b : a;
    const int64_t of_half = (lower ? second : first) + lane / 2 % 8;
    s.scales = half.scale + (of_half * quads + lane % 2) * W::kQuadScales;
    if constexpr (kHighUnits == 4) {
      s.high[0] = a.high + (first + lane / 4) * high + lane % 4 * 16;
      s.high[1] = b.high + (second + lane / 4) * high + lane % 4 * 16;
    } else if constexpr (kHighUnits == 2) {
      s.high[0] = half.high + of_half * high + lane % 2 * 16;
    }
    if constexpr (W::kSuper) {
      const SuperOfLane super;
      s.supers = super.h == 0 ? Supers::of_row(a, first + super.g) : Supers::of_row(b, second + super.g);
    }
    return s;
  }
  /// The warp asks for the next piece, which has so many quads; piece: its number, supers: of a row.
  __device__ __forceinline__ static void ask(Source& s, int quads, int piece, int supers, uint32_t slot) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int unit = lane % kUnits, row = lane / kUnits;
    if (unit * 16 < quads * kQuadCodes) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < kTimes; ++i) {
          const int r = row + i * kAtOnce;
          const int at = unit / 8 * (kRows * kMapLine) + (8 * h + r) * kMapLine + ((unit % 8) ^ r) * 16;
          copy_codes(slot + static_cast<uint32_t>(at), s.codes[h] + i * s.apart);
        }
      }
    }
    if (lane % 2 < quads) {
      const uint32_t to =
          slot + static_cast<uint32_t>(kScalesAt + lane / 2 * kScalePitch + lane % 2 * W::kQuadScales);
      if constexpr (W::kQuadScales == 8) {
        copy_scales(to, s.scales);
      } else {
        Supers::copy_four(to, s.scales);
      }
    }
    if constexpr (kHighUnits > 0) {
      constexpr int kCopies = kRows * kHighUnits / 32, kEach = 32 / kHighUnits;
      if (lane % kHighUnits * 16 < quads * kQuadHigh) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i) {
          copy_codes(slot + static_cast<uint32_t>(kHighAt + (i * kEach + lane / kHighUnits) * kHighPitch +
                                                  lane % kHighUnits * 16),
                     s.high[i]);
          s.high[i] += kQuads * kQuadHigh;
        }
      }
    }
    if constexpr (W::kSuper) Supers::ask(s.supers, supers, piece, slot + static_cast<uint32_t>(kSupersAt));
    s.codes[0] += kQuads * kQuadCodes, s.codes[1] += kQuads * kQuadCodes, s.scales += kScalePitch;
  }
  /// A piece that is there, as this lane takes it.
  __device__ __forceinline__ static OwnPiece piece(const char* slot, int number, int supers) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    return {Codes(shared_address(slot)), slot + kScalesAt + g * kScalePitch, kScalePitch,
            W::kSuper ? Supers::of(slot + kSupersAt, supers, number) : Supers{nullptr},
            kHighUnits > 0 ? slot + kHighAt + g * kHighPitch : nullptr};
  }
};

}  // namespace sluice::backend::cuda::int8_mma
