// Flagged slots (host/device.h: Mailbox) by which blocks of one launch pass numbers to each other, or to the
// launch behind it: one trip through L2, where a flag behind its data would take two. Whoever reads waits for
// all blocks that write, so they must all be on the device at a time: launch no more of them than fit.
#pragma once

#include "backend/cuda/host/device.h"

namespace sluice::backend::cuda {

__device__ inline void put_slot(uint64_t* at, float number, uint32_t flag) {
  const uint64_t word = uint64_t{flag} << 32 | __float_as_uint(number);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}

/// Waits for a slot and returns its number. kAcquires: what its writer had written before release_writes is
/// seen, too, by this thread and whomever it meets then.
template <bool kAcquires = false>
__device__ inline float take_slot(const uint64_t* at, uint32_t flag) {
  uint64_t word = 0;
#pragma unroll 1
  do {
    if constexpr (kAcquires) {
      asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    } else {
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    }
  } while (static_cast<uint32_t>(word >> 32) != flag);
  return __uint_as_float(static_cast<uint32_t>(word));
}

/// Release fence: what this thread has written, and threads that it has met at a barrier, is seen by whoever
/// takes a slot that is put after it (take_slot<true>).
__device__ inline void release_writes() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/// Reads slots [count] to numbers in shared memory as they come. A whole warp calls it.
__device__ inline void take_slots(const uint64_t* slots, int count, uint32_t flag, float* numbers) {
  constexpr int kAtOnce = 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int begin = lane; begin - lane < count; begin += 32 * kAtOnce) {
    uint64_t word[kAtOnce];
    bool there = false;
#pragma unroll 1
    while (!there) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const uint64_t* at = slots + min(begin + 32 * i, count - 1);
        asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word[i]) : "l"(at) : "memory");
      }
      there = true;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) there &= static_cast<uint32_t>(word[i] >> 32) == flag;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (begin + 32 * i < count) numbers[begin + 32 * i] = __uint_as_float(static_cast<uint32_t>(word[i]));
    }
  }
  __syncwarp();
}

/// Waits for slots and takes their numbers, zero for those that are not wanted: at(i) is where slot i lies.
/// Asks again for those only that were not there: a block may take tens of thousands.
template <int kCount, typename At, typename Wanted>
__device__ inline void take_each(At at, Wanted wanted, uint32_t flag, float (&number)[kCount]) {
  uint64_t word[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) word[i] = uint64_t{wanted(i) ? ~flag : flag} << 32;
  bool all;
#pragma unroll 1
  do {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      asm volatile(
          "{\n .reg .pred p;\n .reg .b32 low, high;\n mov.b64 {low, high}, %0;\n setp.ne.u32 p, high, %2;\n"
          " @p ld.relaxed.gpu.global.u64 %0, [%1];\n}"
          : "+l"(word[i])
          : "l"(at(i)), "r"(flag)
          : "memory");
    }
    all = true;
#pragma unroll
    for (const uint64_t one : word) all &= static_cast<uint32_t>(one >> 32) == flag;
  } while (!all);
#pragma unroll
  for (int i = 0; i < kCount; ++i) number[i] = __uint_as_float(static_cast<uint32_t>(word[i]));
}

/// The same; those are not wanted whose place is null.
template <int kCount>
__device__ inline void take_each(const uint64_t* const (&at)[kCount], uint32_t flag,
                                 float (&number)[kCount]) {
  take_each([&](int i) { return at[i]; }, [&](int i) { return at[i] != nullptr; }, flag, number);
}

/// A sum to which several blocks add parts, in fixed point so that their order does not matter, and above it
/// how many have: whoever waits for all of them takes one word. Zero before the first part, and to be zero
/// again once all have taken it. Parts beyond 2^22 are held there, and so is
/// what is no number: a sum that never came to its count would be waited for without end.
inline constexpr int kCountShift = 58;
inline constexpr float kPartOne = 4294967296.0f, kMostPart = 1 << 22;  // 1 in fixed point

/// Counts as `count` parts.
__device__ inline void add_part(uint64_t* at, float part, int count) {
  const float held = fminf(fmaxf(part, -kMostPart), kMostPart);
  atomicAdd(reinterpret_cast<unsigned long long*>(at),
            (static_cast<unsigned long long>(count) << kCountShift) +
                static_cast<unsigned long long>(__float2ll_rn(held * kPartOne)));
}

/// Waits for sums of `count` parts, as take_each.
template <int kCount, typename At, typename Wanted>
__device__ inline void take_sums(At at, Wanted wanted, int count, float (&number)[kCount]) {
  uint64_t word[kCount];
  const uint64_t none = static_cast<uint64_t>(count) << kCountShift;
  // A negative sum borrows from the count.
  const auto counted = [](uint64_t one) {
    return static_cast<int>((static_cast<uint32_t>(one >> 32) + (1u << (kCountShift - 33))) >>
                            (kCountShift - 32));
  };
#pragma unroll
  for (int i = 0; i < kCount; ++i) word[i] = wanted(i) ? 0 : none;
  bool all;
#pragma unroll 1
  do {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      asm volatile("{\n .reg .pred p;\n setp.ne.s32 p, %2, %3;\n @p ld.relaxed.gpu.global.u64 %0, [%1];\n}"
                   : "+l"(word[i])
                   : "l"(at(i)), "r"(counted(word[i])), "r"(count)
                   : "memory");
    }
    all = true;
#pragma unroll
    for (const uint64_t one : word) all &= counted(one) == count;
  } while (!all);
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    number[i] = static_cast<float>(static_cast<int64_t>(word[i] << (64 - kCountShift))) *
                (1.0f / kPartOne / (1 << (64 - kCountShift)));
}

}  // namespace sluice::backend::cuda
