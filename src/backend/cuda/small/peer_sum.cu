// all_reduce by GPUs that reach each other's memory: every rank writes its part into the inboxes of the
// others, and each adds up all parts in the order of ranks. One launch and one trip over the link, begun
// while the kernel before ends; the kernel behind fetches weights meanwhile.
//
// Few numbers go with their flags, four bytes of each in a word (as in prim/mailbox.cuh), many in chunks with
// a flag behind each. A flag is the exchange's number, so nothing is reset.
#include "backend/cuda/small/peer_sum.h"

#include <algorithm>

#include "backend/cuda/gemv/norm_matmul_q8.h"
#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/sync.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kThreads = 256;
constexpr int kFoursOfChunk = PeerMemory::kChunkBytes / sizeof(float4);
constexpr int kFourWords = 4 * sizeof(uint64_t);

/// Waits until there() says so; false: nobody is to wait any more.
template <typename There>
__device__ inline bool wait_for(const PeerMemory& peers, There there) {
  constexpr uint32_t kTurns = 1 << 12;  // between two looks at the host's memory
#pragma unroll 1
  for (uint32_t turn = 1; !there(); ++turn) {
    if (turn % kTurns == 0 && *peers.stop != 0) return false;
  }
  return true;
}

/// One exchange, as a thread block sees it.
struct Exchange {
  const PeerMemory& peers;
  uint32_t number;
  uint64_t begin_ns = device_ns();

  /// Behind PdlLink::wait: earlier exchanges have ended.
  __device__ explicit Exchange(const PeerMemory& memory) : peers(memory) {
    number = *static_cast<volatile uint32_t*>(&memory.state->exchanges) + 1;
  }
  /// What rank `from` sends to rank `to`: words, numbers, the flags of chunks of these.
  __device__ char* words(int to, int from) const {
    return peers.inbox[to] + (number % 2 * peers.ranks + from) * PeerMemory::kPartBytes;
  }
  __device__ float4* numbers(int to, int from) const {
    return reinterpret_cast<float4*>(words(to, from) + PeerMemory::kWordsBytes);
  }
  __device__ uint32_t* flags(int to, int from) const {
    return reinterpret_cast<uint32_t*>(words(to, from) + PeerMemory::kWordsBytes + PeerMemory::kNumbersBytes);
  }
  /// The last thread block counts the exchange.
  __device__ void end() const {
    __syncthreads();
    PeerState& state = *peers.state;
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) state.all_ns += device_ns() - begin_ns;
    if (atomicAdd(&state.blocks, 1) != gridDim.x - 1) return;
    state.blocks = 0;
    state.exchanges = number;
  }
};

__device__ inline uint64_t word(float number, uint32_t flag) {
  return uint64_t{flag} << 32 | __float_as_uint(number);
}
__device__ inline void put_words(char* at, float4 v, uint32_t flag) {
  asm volatile(
      "st.relaxed.sys.global.v2.u64 [%0], {%1, %2};\n st.relaxed.sys.global.v2.u64 [%0+16], {%3, %4};" ::"l"(
          at),
      "l"(word(v.x, flag)), "l"(word(v.y, flag)), "l"(word(v.z, flag)), "l"(word(v.w, flag))
      : "memory");
}
__device__ inline bool take_words(const PeerMemory& peers, const char* at, uint32_t flag, float4& v) {
  uint64_t w[4];
  const auto there = [&] {
    asm volatile(
        "ld.relaxed.sys.global.v2.u64 {%0, %1}, [%4];\n ld.relaxed.sys.global.v2.u64 {%2, %3}, [%4+16];"
        : "=l"(w[0]), "=l"(w[1]), "=l"(w[2]), "=l"(w[3])
        : "l"(at)
        : "memory");
    return w[0] >> 32 == flag && w[1] >> 32 == flag && w[2] >> 32 == flag && w[3] >> 32 == flag;
  };
  const bool in_time = wait_for(peers, there);
  const auto number = [&](int i) { return __uint_as_float(static_cast<uint32_t>(w[i])); };
  v = {number(0), number(1), number(2), number(3)};
  return in_time;
}

__device__ inline float4 sum_of(float4 a, float4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

/// What this rank brings.
__device__ inline float4 own(const PeerSum& sum, int64_t at) {
  if (sum.in == nullptr) return {};
  return __ldcg(reinterpret_cast<const float4*>(sum.in) + at);
}
__device__ inline float4* result(const PeerSum& sum) { return reinterpret_cast<float4*>(sum.out); }
/// How many fours of numbers there are.
__device__ inline int64_t fours_of(const PeerSum& sum) { return int64_t{*sum.rows} * sum.columns / 4; }

__global__ void __launch_bounds__(kThreads)
    peer_sum_words(const Timestamps timestamps, const __grid_constant__ PeerSum sum) {
  const PdlLink pdl(timestamps);
  const PeerMemory& peers = sum.peers;
  const int64_t fours = fours_of(sum);  // uploaded before the step's first kernel: no wait
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x, step = int64_t{gridDim.x} * kThreads;
  pdl.wait();
  const Exchange exchange(peers);
  for (int64_t at = first; at < fours; at += step) {
    const float4 v = own(sum, at);
    for (int other = 0; other < peers.ranks; ++other) {
      if (other != peers.rank)
        put_words(exchange.words(other, peers.rank) + at * kFourWords, v, exchange.number);
    }
  }
  bool goes_on = true;
  for (int64_t at = first; at < fours && goes_on; at += step) {
    float4 total{};
    for (int from = 0; from < peers.ranks && goes_on; ++from) {
      float4 v;
      if (from == peers.rank) {
        v = own(sum, at);
      } else {
        goes_on = take_words(peers, exchange.words(peers.rank, from) + at * kFourWords, exchange.number, v);
      }
      total = from == 0 ? v : sum_of(total, v);
    }
    result(sum)[at] = total;
  }
  exchange.end();
}

/// The same, a number a thread: a row's neighbours make codes together.
__global__ void __launch_bounds__(kThreads)
    peer_sum_coded(const Timestamps timestamps, const __grid_constant__ PeerSum sum,
                   const __grid_constant__ NormedQ8Rows coded) {
  const PdlLink pdl(timestamps);
  const PeerMemory& peers = sum.peers;
  const int at = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int row = at / sum.columns, element = at % sum.columns;
  const bool there = row < *sum.rows;
  const float weight = __ldg(coded.norm + element);
  pdl.wait();
  const Exchange exchange(peers);
  const float own = there && sum.in != nullptr ? load_result(sum.in + at) : 0.0f;
  for (int other = 0; other < peers.ranks && there; ++other) {
    if (other == peers.rank) continue;
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(exchange.words(other, peers.rank) + 8 * at),
                 "l"(word(own, exchange.number))
                 : "memory");
  }
  float total = 0;
  for (int from = 0; from < peers.ranks && there; ++from) {
    float part = own;
    if (from != peers.rank) {
      const char* const sent = exchange.words(peers.rank, from) + 8 * at;
      uint64_t seen = 0;
      wait_for(peers, [&] {
        asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(sent) : "memory");
        return seen >> 32 == exchange.number;
      });
      part = __uint_as_float(static_cast<uint32_t>(seen));
    }
    total = from == 0 ? part : total + part;
  }
  if (there) sum.out[at] = total;
  leave_normed(coded, row, element, total, weight, there);
  exchange.end();
}

__global__ void __launch_bounds__(kThreads)
    peer_sum_chunks(const Timestamps timestamps, const __grid_constant__ PeerSum sum) {
  const PdlLink pdl(timestamps);
  const PeerMemory& peers = sum.peers;
  const int64_t fours = fours_of(sum);
  const int chunks = static_cast<int>((fours + kFoursOfChunk - 1) / kFoursOfChunk);
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kEach = kFoursOfChunk / kThreads;
  pdl.wait();
  const Exchange exchange(peers);
  for (int chunk = static_cast<int>(blockIdx.x); chunk < chunks; chunk += static_cast<int>(gridDim.x)) {
    float4 v[kEach];
    const int64_t first = int64_t{chunk} * kFoursOfChunk + thread;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (first + i * kThreads < fours) v[i] = own(sum, first + i * kThreads);
    }
    for (int other = 0; other < peers.ranks; ++other) {
      if (other == peers.rank) continue;
      float4* const to = exchange.numbers(other, peers.rank);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (first + i * kThreads < fours) to[first + i * kThreads] = v[i];
      }
    }
    __syncthreads();
    if (thread < peers.ranks && thread != peers.rank) {
      // What the block has written is seen by who sees the flag.
      asm volatile("fence.acq_rel.sys;\n st.relaxed.sys.global.u32 [%0], %1;" ::"l"(
                       exchange.flags(thread, peers.rank) + chunk),
                   "r"(exchange.number)
                   : "memory");
    }
  }
  for (int chunk = static_cast<int>(blockIdx.x); chunk < chunks; chunk += static_cast<int>(gridDim.x)) {
    bool goes_on = true;
    if (thread < peers.ranks && thread != peers.rank) {
      const uint32_t* const flag = exchange.flags(peers.rank, thread) + chunk;
      goes_on = wait_for(peers, [&] {
        uint32_t seen;
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        return seen == exchange.number;
      });
    }
    if (__syncthreads_or(!goes_on)) break;
    const int64_t first = int64_t{chunk} * kFoursOfChunk + thread;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t at = first + i * kThreads;
      if (at >= fours) break;
      float4 total{};
      for (int from = 0; from < peers.ranks; ++from) {
        const float4 v = from == peers.rank ? own(sum, at) : __ldcg(exchange.numbers(peers.rank, from) + at);
        total = from == 0 ? v : sum_of(total, v);
      }
      result(sum)[at] = total;
    }
  }
  exchange.end();
}

template <typename... Parameters, typename... Arguments>
void start(void (*kernel)(Timestamps, Parameters...), int64_t blocks, bool uses_pdl, cudaStream_t stream,
           const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = uses_pdl ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, Timestamps{}, arguments...));
}

bool coded(const Program& program, TensorId out, const Sizes& sizes) {
  const int64_t columns = program[out].columns();
  return sizes.rows >= 2 && sizes.rows <= small_batch::kMostRows && columns % int8_mma::kQuad == 0 &&
         columns % kThreads == 0 && sizes.rows * columns * 8 <= PeerMemory::kWordsBytes;
}
std::optional<FormSpec> produces(const Program& program, const Op& record, const Sizes& sizes) {
  const TensorId out = std::get<AllReduce>(record.args).out.at(0).id;
  return coded(program, out, sizes) ? given_normed_codes(program, out, sizes) : std::nullopt;
}

}  // namespace

void enqueue_peer_sum(const PeerSum& sum, int64_t most_rows, bool uses_pdl, cudaStream_t stream) {
  const int64_t fours = most_rows * sum.columns / 4;
  const bool in_words = fours * kFourWords <= PeerMemory::kWordsBytes;
  constexpr int64_t kMostBlocks = 256;  // all are on the device at a time
  const int64_t each = in_words ? kThreads : kFoursOfChunk;
  start(in_words ? peer_sum_words : peer_sum_chunks,
        std::clamp((fours + each - 1) / each, int64_t{1}, kMostBlocks), uses_pdl, stream, sum);
}

bool serves_peer_sum(const Program& program, const AllReduce& op, const Sizes& sizes) {
  const Tensor& out = program[op.out.at(0).id];
  const int64_t columns = out.heads() * out.columns();
  return columns % 4 == 0 && sizes.rows * columns * int64_t{sizeof(float)} <= PeerMemory::kNumbersBytes;
}

void launch_peer_sum(const PeerMemory& peers, const Program& program, const AllReduce& op,
                     const Context& context) {
  const Rows<float> out = context.memory.rows(op.out[0].id);
  const Tensor& shape = program[op.out[0].id];
  const StepHeader* const header = context.step.header;
  const PeerSum sum{peers, shape.shape[0] == kOutputRows ? &header->outputs : &header->rows,
                    out.heads * out.columns, op.in.empty() ? nullptr : context.memory.rows(op.in[0].id).data,
                    out.data};
  const int64_t rows = context.rows(shape);
  const bool uses_pdl = context.uses_pdl && context.architecture >= 90;
  if (context.produces == nullptr) return enqueue_peer_sum(sum, rows, uses_pdl, context.stream);
  start(peer_sum_coded, rows * sum.columns / kThreads, uses_pdl, context.stream, sum,
        rows_for(context.produces, program, context));
}

const Kernel kPeerSum{"sum over ranks' memory", nullptr, nullptr, nullptr, produces};

}  // namespace sluice::backend::cuda
