// mla_attend and attend, plainly: a thread block takes a head of a row over its whole context, in chunks of
// 64 positions (a page), with a running softmax. Right everywhere; quick only where contexts are short.
//
// A cache row holds keys and values of a head from some columns on: for latent attention both begin at 0.
#include <cuda_fp16.h>

#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/cache_row.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kChunk = kPageRows;
constexpr int kMostValues = 4 * kThreads;

struct Args {
  StepView step;
  Cache cache;
  Rows<float> q, out;
  int layer, heads_a_group, values_from;
  float scale;
  int window = 0;                // positions at the end of the context; 0: all
  const float* sinks = nullptr;  // a score a head
};

/// grid: (heads, rows). Shared memory: the query.
__global__ void __launch_bounds__(kThreads)
    attend(const Timestamps timestamps, const __grid_constant__ Args args) {
  extern __shared__ __align__(16) float query[];
  __shared__ float weights[kChunk];
  const PdlLink pdl(timestamps);
  pdl.wait();
  const int64_t row = blockIdx.y;
  if (row >= args.step.header->rows) return;
  const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32,
            group = head / args.heads_a_group;
  for (int c = threadIdx.x; c < args.q.columns; c += kThreads) query[c] = __ldcg(args.q(row, head) + c);
  const int length = __ldcg(args.step.positions + row) + 1;
  float sums[kMostValues / kThreads] = {}, largest = -INFINITY, total = 0;
  if (args.sinks != nullptr) largest = __ldg(args.sinks + head), total = 1;
  const int first = args.window > 0 ? max(0, length - args.window) : 0;
  for (int begin = first, end; begin < length; begin = end) {
    end = min(length, (begin / kChunk + 1) * kChunk);
    const int count = end - begin;
    const char* page = args.cache.row(args.layer, args.step.slot_of(row, begin));
    __syncthreads();
    for (int t = warp; t < count; t += kWarps) {
      const char* row_of_t = page + int64_t{t} * args.cache.row_bytes;
      float score = 0;
      for (int c = lane; c < args.q.columns; c += 32)
        score += query[c] * number_at(args.cache, row_of_t, group * args.q.columns + c);
      score = lane_sum(score);
      if (lane == 0) weights[t] = score * args.scale;
    }
    __syncthreads();
    float chunk_largest = largest;
    for (int t = 0; t < count; ++t) chunk_largest = fmaxf(chunk_largest, weights[t]);
    const float shrink = expf(largest - chunk_largest);
    largest = chunk_largest;
    total *= shrink;
    for (float& sum : sums) sum *= shrink;
    const int values = args.values_from + group * args.out.columns;
    for (int t = 0; t < count; ++t, page += args.cache.row_bytes) {
      const float weight = expf(weights[t] - largest);
      total += weight;
#pragma unroll
      for (int i = 0; i < kMostValues / kThreads; ++i) {
        const int c = i * kThreads + threadIdx.x;
        if (c < args.out.columns) sums[i] += weight * number_at(args.cache, page, values + c);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kMostValues / kThreads; ++i) {
    const int c = i * kThreads + threadIdx.x;
    if (c < args.out.columns) args.out(row, head)[c] = sums[i] / total;
  }
}

void start(const Program& program, const Context& context, TensorId q, TensorId cache, TensorId out,
           Args& args) {
  args.step = context.step;
  args.cache = context.memory.cache(cache);
  args.q = context.memory.rows(q), args.out = context.memory.rows(out);
  const LaunchShape shape{
      dim3(static_cast<unsigned>(args.q.heads), static_cast<unsigned>(context.rows(program[q]))),
      dim3(kThreads), args.q.columns * 4};
  launch(context, attend, shape, args);
}

void launch_mla_attend(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<MlaAttend>(record.args);
  Args args{};
  args.layer = op.cache_layer, args.heads_a_group = static_cast<int>(program[op.q.id].heads()),
  args.scale = op.scale;
  start(program, context, op.q.id, op.cache.id, op.out.id, args);
}

void launch_attend(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<Attend>(record.args);
  Args args{};
  args.layer = op.cache_layer, args.scale = op.scale;
  args.window = static_cast<int>(op.window), args.sinks = context.memory.vector(op.sinks.id);
  args.heads_a_group = static_cast<int>(program[op.q.id].heads() / op.kv_heads);
  args.values_from = static_cast<int>(op.kv_heads * program[op.q.id].columns());
  start(program, context, op.q.id, op.cache.id, op.out.id, args);
}

bool serves_mla_attend(const Program& program, const Op& record, const Sizes&) {
  return program[std::get<MlaAttend>(record.args).out.id].columns() <= kMostValues;
}
bool serves_attend(const Program& program, const Op& record, const Sizes&) {
  return program[std::get<Attend>(record.args).out.id].columns() <= kMostValues;
}

}  // namespace

const Kernel kMlaAttend{"attend, a block a head", serves_mla_attend, launch_mla_attend};
const Kernel kAttend{"attend, a block a head", serves_attend, launch_attend};

}  // namespace sluice::backend::cuda
