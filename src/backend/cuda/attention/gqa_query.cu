// gqa_query: a warp has a head of a row, of queries, keys or values: one launch in the place of five. Bound
// by the way from one kernel to the next.
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/cache_row.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/rope.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kWarps = 4, kMostColumns = 256;

struct Args {
  Rows<float> q, k, v, out;
  const float *q_norm, *k_norm, *factors;
  Cache cache;
  RopeTable table;
  float epsilon;
  int layer, rotated, value;
};

/// The head of a row, normed and rotated, in a warp's shared memory.
__device__ inline void make_ready(const Args& args, const float* x, const float* norm, int position, int lane,
                                  float* head) {
  const int columns = static_cast<int>(args.q.columns), half = args.rotated / 2;
  float squares = 0;
  for (int c = lane; c < columns; c += 32) {
    head[c] = __ldcg(x + c);
    squares += head[c] * head[c];
  }
  if (norm != nullptr) {
    const float inverse = 1.0f / sqrtf(lane_sum(squares) / static_cast<float>(columns) + args.epsilon);
    for (int c = lane; c < columns; c += 32) head[c] *= inverse * __ldg(norm + c);
  }
  __syncwarp();
  for (int i = lane; i < half; i += 32) {
    const SinCos sin_cos = args.table.sin_cos(position, i, args.factors);
    const int first = args.table.first(i), second = args.table.second(i, half);
    const float a = head[first], b = head[second];
    head[first] = a * sin_cos.cosine - b * sin_cos.sine;
    head[second] = a * sin_cos.sine + b * sin_cos.cosine;
  }
  __syncwarp();
}

__global__ void __launch_bounds__(kWarps * 32)
    gqa_query(const Timestamps timestamps, StepView step, const __grid_constant__ Args args) {
  __shared__ float heads[kWarps][kMostColumns];
  const PdlLink pdl(timestamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(blockIdx.x);
  const int columns = static_cast<int>(args.q.columns), kv_heads = static_cast<int>(args.k.heads);
  float* const head = heads[threadIdx.x / 32];
  int at = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32);
  pdl.wait();
  if (row >= step.header->rows) return;
  const int position = __ldcg(step.positions + row);
  if (at < args.q.heads) {
    make_ready(args, args.q(row, at), args.q_norm, position, lane, head);
    for (int c = lane; c < columns; c += 32) args.out(row, at)[c] = head[c];
    return;
  }
  at -= static_cast<int>(args.q.heads);
  const int64_t slot = __ldcg(step.slots + row);
  if (slot < 0 || at >= 2 * kv_heads) return;
  char* const to = args.cache.row(args.layer, slot);
  if (at < kv_heads) {
    make_ready(args, args.k(row, at), args.k_norm, position, lane, head);
    for (int c = lane; c < columns; c += 32) put_number(args.cache, to, at * columns + c, head[c]);
  } else {
    const int first = (at - kv_heads) * args.value;
    for (int c = lane; c < args.value; c += 32)
      put_number(args.cache, to, kv_heads * columns + first + c, __ldcg(args.v(row) + first + c));
  }
}

/// A warp puts whole runs of a cache in eight bits.
bool serves(const Program& program, const Op& record, const Sizes&) {
  const auto& op = std::get<GqaQuery>(record.args);
  const int64_t columns = program[op.q.id].columns(),
                value = program[op.v.id].columns() / program[op.k.id].heads();
  return columns % kCacheRun == 0 && value % kCacheRun == 0 && columns <= kMostColumns &&
         op.rope_columns(program) <= 2 * RopeTable::kMostPairs;
}

void launch_gqa_query(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<GqaQuery>(record.args);
  const int64_t kv_heads = program[op.k.id].heads(), all = program[op.q.id].heads() + 2 * kv_heads;
  const int64_t rotated = op.rope_columns(program);
  const Args args{.q = c.memory.rows(op.q.id),
                  .k = c.memory.rows(op.k.id),
                  .v = c.memory.rows(op.v.id),
                  .out = c.memory.rows(op.out.id),
                  .q_norm = c.memory.vector(op.q_norm.id),
                  .k_norm = c.memory.vector(op.k_norm.id),
                  .factors = c.memory.vector(op.factors.id),
                  .cache = c.memory.cache(op.cache.id),
                  .table = rope_table(op.rope, rotated),
                  .epsilon = op.epsilon,
                  .layer = op.cache_layer,
                  .rotated = static_cast<int>(rotated),
                  .value = static_cast<int>(program[op.v.id].columns() / kv_heads)};
  const LaunchShape shape{
      dim3(static_cast<unsigned>(c.step_rows), static_cast<unsigned>((all + kWarps - 1) / kWarps)),
      dim3(kWarps * 32)};
  launch(c, gqa_query, shape, c.step, args);
}

}  // namespace

const Kernel kGqaQuery{"gqa_query", serves, launch_gqa_query};

}  // namespace sluice::backend::cuda
