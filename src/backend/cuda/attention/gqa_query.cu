// gqa_query: a warp has a head of a row, of queries, keys or values: one launch in the place of five. Bound
// by the way from one kernel to the next, so norms and angles are there before the products are.
#include "backend/cuda/attention/gqa_query.cuh"

#include "backend/cuda/attention/gqa.cuh"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/cache_row.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {

using namespace program;

GqaQueryArgs gqa_query_args(const Program& program, const GqaQuery& op, const Memory& memory) {
  const int64_t rotated = op.rope_columns(program);
  return {.q = memory.rows(op.q.id),
          .k = memory.rows(op.k.id),
          .v = memory.rows(op.v.id),
          .q_bias = memory.vector(op.q_bias.id),
          .k_bias = memory.vector(op.k_bias.id),
          .v_bias = memory.vector(op.v_bias.id),
          .q_norm = memory.vector(op.q_norm.id),
          .k_norm = memory.vector(op.k_norm.id),
          .factors = memory.vector(op.factors.id),
          .table = rope_table(op.rope, rotated),
          .epsilon = op.epsilon,
          .rotated = static_cast<int32_t>(rotated)};
}

namespace {

constexpr int kWarps = 4, kMostColumns = 256, kEach = kMostColumns / 32;

struct Args {
  GqaQueryArgs heads;
  Rows<float> out;
  Cache cache;
  int layer, value;
};

__global__ void __launch_bounds__(kWarps * 32)
    gqa_query(const Timestamps timestamps, StepView step, const __grid_constant__ Args args) {
  __shared__ float heads[kWarps][kMostColumns];
  const PdlLink pdl(timestamps);
  const GqaQueryArgs& h = args.heads;
  const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(blockIdx.x);
  const int columns = static_cast<int>(h.q.columns), kv_heads = static_cast<int>(h.k.heads);
  float* const head = heads[threadIdx.x / 32];
  const int q_heads = static_cast<int>(h.q.heads), value = args.value;
  int at = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32);
  const bool is_query = at < q_heads, is_value = at >= q_heads + kv_heads;
  at -= is_query ? 0 : is_value ? q_heads + kv_heads : q_heads;
  const float* const weight = is_query ? h.q_norm : h.k_norm;
  HeadNumbers<kEach> x[1], bias, norm;
  norm.ask_weight(weight, columns, lane);
  if (is_query || at < kv_heads) {
    bias.ask_bias(is_query ? h.q_bias : is_value ? h.v_bias : h.k_bias, at, is_value ? value : columns, lane);
  }
  const HeadAngles<kEach / 2> angles(h, __ldg(step.positions + row), lane);
  const int64_t slot = __ldg(step.slots + row);
  pdl.wait();
  if (row >= step.header->rows) return;
  const auto ready = [&](bool is_key) {
    const auto keys = [&](int) { return is_key; };
    make_ready(h, x, norm, norm, angles, columns, lane, keys, [&](int) { return head; });
  };
  if (is_query) {
    x[0].ask(h.q(row, at), columns, lane), x[0].add(bias);
    ready(false);
    x[0].put(args.out(row, at), columns, lane);
    return;
  }
  if (slot < 0 || at >= kv_heads) return;
  char* const to = args.cache.row(args.layer, slot);
  const auto put = [&](int first, int count) {
    x[0].put(head, count, lane);
#pragma unroll 1  // code that is run once costs its fetch
    for (int c = lane; c < count; c += 32) put_number(args.cache, to, first + c, head[c]);
  };
  if (is_value) {
    x[0].ask(h.v(row) + at * value, value, lane), x[0].add(bias);
    put(kv_heads * columns + at * value, value);
  } else {
    x[0].ask(h.k(row, at), columns, lane), x[0].add(bias);
    ready(true);
    put(at * columns, columns);
  }
}

/// A warp puts whole runs of a cache in eight bits.
bool serves(const Program& program, const Op& record, const Sizes&) {
  const auto& op = std::get<GqaQuery>(record.args);
  const int64_t columns = program[op.q.id].columns(),
                value = program[op.v.id].columns() / program[op.k.id].heads();
  return columns % kCacheRun == 0 && value % kCacheRun == 0 && std::max(columns, value) <= kMostColumns;
}

void launch_gqa_query(const Program& program, const Op& record, const Context& c) {
  const auto& op = std::get<GqaQuery>(record.args);
  make_heads(gqa_query_args(program, op, c.memory), c.memory.rows(op.out.id), c.memory.cache(op.cache.id),
             op.cache_layer, c);
}

}  // namespace

void make_heads(const GqaQueryArgs& heads, const Rows<float>& queries, const Cache& cache, int layer,
                const Context& c) {
  const Args args{heads, queries, cache, layer, heads.v.columns / heads.k.heads};
  const int all = heads.q.heads + 2 * heads.k.heads;
  const LaunchShape shape{
      dim3(static_cast<unsigned>(c.step_rows), static_cast<unsigned>((all + kWarps - 1) / kWarps)),
      dim3(kWarps * 32)};
  launch(c, gqa_query, shape, c.step, args);
}

const Kernel kGqaQuery{"gqa_query", serves, launch_gqa_query};

}  // namespace sluice::backend::cuda
