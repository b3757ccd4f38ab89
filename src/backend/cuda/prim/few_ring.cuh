// Rings of pieces of weights that warps ask for ahead (few_bytes.cuh): a piece is 16 rows of 512 columns,
// which tensor copies bring, and their scales of scales, too few bytes for a copy of their own, which the
// lanes copy. Both count into the slot's barrier.
#pragma once

#include <type_traits>

#include "backend/cuda/prim/few_bytes.cuh"
#include "backend/cuda/prim/tensor_copy.cuh"
#include "backend/cuda/tensor_map.h"

namespace sluice::backend::cuda::few_bytes {

/// Of each warp's ring; a slot of it holds kMostQuads quads of 16 rows.
inline constexpr int kSlots = 2;
/// The rings of a block's warps as tensor copies fill them: all codes, all top bits, all scales. Types with
/// more bytes a piece have fewer warps, so that tokens find room, and such as need more registers.
template <quant::Type kType>
inline constexpr int kRingWarps = Weights<kType>::kWhole             ? 8
                                  : Weights<kType>::kFormat.high > 0 ? 12
                                  : by_table(kType)                  ? 14
                                                                     : 16;
/// Lines of a slot's codes, each of twice eight rows, which are a tensor copy.
constexpr int map_groups(quant::Type type) {
  return kMostQuads * kQuad / 32 * find_format(type)->codes / kMapLine;
}
template <quant::Type kType, int kOfWarps = kRingWarps<kType>>
struct Ring {
  static constexpr Format kFormat = Weights<kType>::kFormat;
  static constexpr int kWarps = kOfWarps, kThreads = kWarps * 32;
  static constexpr int kBlocks = kMostQuads * kQuad / 32;
  static constexpr int kGroups = map_groups(kType);
  static constexpr int kCodes = kBlocks * kFormat.codes * kRows;
  static constexpr int kHighPitch = kBlocks * kFormat.high, kHigh = kHighPitch * kRows;
  static constexpr int kScalePitch = kBlocks * kFormat.scale, kScales = kScalePitch * kRows;
  static constexpr uint32_t kPiece = kCodes + kHigh + kScales;  ///< by tensor copies
  using Supers = SharedSupers<kType>;
  static constexpr bool kSuper = Weights<kType>::kSuper;
  /// Who arrives at a slot's barrier: who asks for tensor copies, and every lane when its own copy is there.
  static constexpr int kArrivals = kSuper ? 33 : 1;
  static_assert(kHigh == 0 || kHighPitch == kMapLine || kHighPitch == kMapLine / 2);
  /// Of a block of threads; swizzles count from whole KB.
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
  /// One lane asks for what tensor copies bring.
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

}  // namespace sluice::backend::cuda::few_bytes
