// Blocks of weights for kernels that multiply a few of them a thread: of a type that the kernel is compiled
// for, or of one that is known at run time only, where every thread takes the same branch. Both have the same
// functions.
#pragma once

#include "backend/cuda/gemv/gemv.cuh"

namespace sluice::backend::cuda {

/// A block of type T on its way.
template <Type T>
struct TypedRaw {
  static constexpr Type kType = T;
  /// Blocks that a lane asks for at once at most: what some 36 registers hold.
  static constexpr int kAtOnce = 36 / (Traits<T>::codes_words + Traits<T>::high_words + 1);
  Raw<T> raw;

  __device__ void load(Type, const CodePlanes& at, int block) { raw = load_block<T>(at, block); }
  __device__ float times(Type, const ActivationBlock& x) const { return multiply<T>(raw, x); }
};

/// A block of any type.
struct AnyRaw {
  static constexpr int kAtOnce = 2;
  uint32_t codes[8], high[2], scale, super;

  __device__ void load(Type type, const CodePlanes& at, int block) {
    with_blocked_type(type, [&]<Type T>() {
      const Raw<T> raw = load_block<T>(at, block);
#pragma unroll
      for (int i = 0; i < Traits<T>::codes_words; ++i) codes[i] = raw.codes[i];
#pragma unroll
      for (int i = 0; i < Traits<T>::high_words; ++i) high[i] = raw.high[i];
      scale = raw.scale, super = raw.super;
    });
  }
  __device__ float times(Type type, const ActivationBlock& x) const {
    float product = 0;
    with_blocked_type(type, [&]<Type T>() {
      Raw<T> raw{};
#pragma unroll
      for (int i = 0; i < Traits<T>::codes_words; ++i) raw.codes[i] = codes[i];
#pragma unroll
      for (int i = 0; i < Traits<T>::high_words; ++i) raw.high[i] = high[i];
      raw.scale = scale, raw.super = super;
      product = multiply<T>(raw, x);
    });
    return product;
  }
};

/// A piece of a weight row on its way; One: TypedRaw or AnyRaw.
template <typename One, int kMost = 3>
struct AskedOf {
  static constexpr int kAtOnce = One::kAtOnce < kMost ? One::kAtOnce : kMost;
  One raw[kAtOnce];

  /// Where the row ends, its last block again: a branch around a load would wait for the loads before it.
  __device__ void ask(const Matrix& m, int first, int b, const RowShape& shape) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      raw[i].load(m.type, planes_from(m), first + min(b + i * shape.lanes, shape.blocks - 1));
  }
  __device__ float times(Type type, const Activations& x, int b, const RowShape& shape) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int block = b + i * shape.lanes;
      if (block < shape.blocks) sum += raw[i].times(type, x.block(0, block));
    }
    return sum;
  }
};

/// A row of weights that some lanes multiply, kMost blocks of each lane asked for at once. One loop: code
/// that every warp runs once costs the way to it, not its instructions.
template <typename One, int kMost = 3>
struct RowAhead {
  AskedOf<One, kMost> piece;

  /// first: the row's first block.
  __device__ void ask(const Matrix& m, int first, const RowShape& shape) {
    piece.ask(m, first, shape.lane(), shape);
  }
  /// The row's product, in all of its lanes, after ask.
  __device__ float times(const Matrix& m, int first, const Activations& x, const RowShape& shape) {
    const int lane = shape.lane();
    float sum = 0;
#pragma unroll 1
    for (int b = lane;;) {
      sum += piece.times(m.type, x, b, shape);
      b += AskedOf<One, kMost>::kAtOnce * shape.lanes;
      if (b - lane >= shape.blocks) break;
      piece.ask(m, first, b, shape);
    }
    return lane_sum(sum, shape.lanes);
  }
};

/// Quantises a block of 32 columns, a lane each, to block `block` of a row of `blocks` (as activations.cuh
/// lays it out). A whole warp calls it.
__device__ inline void quantize_lanes(char* row, int blocks, int block, float value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Floats that are not negative are ordered as their bits are.
  const float largest = __uint_as_float(__reduce_max_sync(kWholeWarp, __float_as_uint(fabsf(value))));
  const float inverse = largest > 0 ? __fdividef(127.0f, largest) : 0.0f;
  uint32_t word = __float_as_uint(fmaf(value, inverse, 12582912.0f)) & 255u;
  word |= __shfl_down_sync(kWholeWarp, word, 1) << 8;
  word |= __shfl_down_sync(kWholeWarp, word, 2) << 16;  // right where lane % 4 == 0
  int sum = __dp4a(static_cast<int>(word), 0x01010101, 0);
  sum += __shfl_xor_sync(kWholeWarp, sum, 4);
  sum += __shfl_xor_sync(kWholeWarp, sum, 8);
  const int other = __shfl_xor_sync(kWholeWarp, sum, 16);
  if (lane % 4 == 0)
    reinterpret_cast<uint32_t*>(row + (lane < 16 ? 0 : blocks * 16) + block * 16)[lane / 4 % 4] = word;
  if (lane == 0) {
    reinterpret_cast<int2*>(row + blocks * 32)[block] =
        make_int2(__float_as_int(largest * (1.0f / 127.0f)), (sum & 0xffff) | other << 16);
  }
}

/// The same, to x's block.
__device__ inline void quantize_lanes(const Activations& x, int block, float value) {
  quantize_lanes(dynamic_shared(x.offset), x.columns / 32, block, value);
}

}  // namespace sluice::backend::cuda
