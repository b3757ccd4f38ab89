// norm_moe_gate_up of a few rows: a launch makes the router's logits, and beside them packs the normed rows
// for the shared experts and makes their codes of eight bits. Up to 8 rows the routed experts' launch
// (experts_small_batch.cu) selects for itself and multiplies the shared experts, too. Of more, shared experts
// have a launch between them, and a thread block that packs a row selects for it, so that the routed experts'
// launch asks for weights as soon as it finds room.
//
// A thread block takes two experts and four rows, or four and eight: the norm is a factor of a row,
// multiplied in at last. Half a megabyte of router, float32: bound by latency, so weights are asked for
// before the wait; of many rows by L2.
#include <algorithm>

#include "backend/cuda/gemm/gemm_dense.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/moe/experts_small_batch.h"
#include "backend/cuda/prim/int8_mma.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/mailbox.cuh"
#include "backend/cuda/prim/pack.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "backend/cuda/router/route.cuh"
#include "backend/cuda/router/select_small_batch.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kMostRows = 128;
constexpr int kThreads = kPackThreads, kWarps = kThreads / 32;
/// Rows and experts of a thread block: of few rows, of more.
constexpr int kSmallRows = 4, kSmallExperts = 2, kSmallMostRows = 32;
constexpr int kLargeRows = 8, kLargeExperts = 4;

/// What thread blocks that pack a row do besides: codes of eight bits for the routed experts, and the row's
/// selection, from logits that others leave on the mailbox, if nobody else does.
struct Select {
  char* codes;      ///< [rows][token.pitch]
  unsigned* taken;  ///< becomes zero
  int8_mma::TokenRows token;
  RowSelection selection;
  bool packs_alone;  ///< the launch behind selects (ExpertsSmallBatch::select_and_shared)
};

struct Args {
  const int32_t* rows;
  Select select;
  Rows<float> in;
  const float *router, *norm;
  const float* shared;      ///< null, or the router's row of the shared experts
  uint64_t* shares;         ///< where their logits go, a slot a row
  int32_t experts, blocks;  ///< thread blocks that make logits
  float epsilon;
  PackPlan packing;

  SLUICE_BOTH int logits() const { return experts + (shared != nullptr ? 1 : 0); }
};

/// A thread block' part of the logits. kHeld: of four columns, that a thread asks for before the wait.
template <int kRows, int kExperts, int kHeld>
__device__ __forceinline__ void make_logits(const Args& p, const PdlLink& pdl) {
  constexpr int kSums = kRows * kExperts, kValues = kSums + kRows;  // the rows' squares behind the sums
  __shared__ float partial[kWarps][kValues], total[kValues];
  const int block = static_cast<int>(blockIdx.x);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int across = (p.logits() + kExperts - 1) / kExperts;
  const int expert = block % across * kExperts, first = block / across * kRows, fours = p.in.columns / 4;
  const auto* const norm = reinterpret_cast<const float4*>(p.norm);
  const auto router_at = [&](int j, int c) {
    const float* const row = p.shared != nullptr && expert + j >= p.experts
                                 ? p.shared
                                 : p.router + int64_t{min(expert + j, p.experts - 1)} * p.in.columns;
    return __ldg(reinterpret_cast<const float4*>(row) + c);
  };
  float4 by[kHeld], w[kHeld][kExperts];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int c = min(static_cast<int>(threadIdx.x) + i * kThreads, fours - 1);
    by[i] = __ldg(norm + c);
#pragma unroll
    for (int j = 0; j < kExperts; ++j) w[i][j] = router_at(j, c);
  }
  pdl.wait();
  const int rows = *p.rows;
  if (first >= rows) return;
  const float4* x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) x[r] = reinterpret_cast<const float4*>(p.in(min(first + r, rows - 1)));
  float products[kSums] = {}, squares[kRows] = {};
  const auto add = [&](const float4(&v)[kRows], float4 norms, const float4(&weights)[kExperts]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      squares[r] += (v[r].x * v[r].x + v[r].y * v[r].y) + (v[r].z * v[r].z + v[r].w * v[r].w);
      const float4 n{v[r].x * norms.x, v[r].y * norms.y, v[r].z * norms.z, v[r].w * norms.w};
#pragma unroll
      for (int j = 0; j < kExperts; ++j) {
        products[r * kExperts + j] +=
            (n.x * weights[j].x + n.y * weights[j].y) + (n.z * weights[j].z + n.w * weights[j].w);
      }
    }
  };
  float4 v[kHeld][kRows];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int c = min(static_cast<int>(threadIdx.x) + i * kThreads, fours - 1);
#pragma unroll
    for (int r = 0; r < kRows; ++r) v[i][r] = __ldcg(x[r] + c);
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (static_cast<int>(threadIdx.x) + i * kThreads < fours) add(v[i], by[i], w[i]);
  }
  for (int c = static_cast<int>(threadIdx.x) + kHeld * kThreads; c < fours; c += kThreads) {
    float4 weights[kExperts];
#pragma unroll
    for (int j = 0; j < kExperts; ++j) weights[j] = router_at(j, c);
#pragma unroll
    for (int r = 0; r < kRows; ++r) v[0][r] = __ldcg(x[r] + c);
    add(v[0], __ldg(norm + c), weights);
  }
  constexpr int kLanesOfSum = 32 / kSums, kLanesOfRow = 32 / kRows;
  const float product = lane_sums(products), square = lane_sums(squares);
  if (lane % kLanesOfSum == 0) partial[warp][lane / kLanesOfSum] = product;
  if (lane % kLanesOfRow == 0) partial[warp][kSums + lane / kLanesOfRow] = square;
  __syncthreads();
  const int i = static_cast<int>(threadIdx.x);
  if (i < kValues) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += partial[w][i];
    total[i] = sum;
  }
  __syncthreads();
  if (i >= kSums) return;
  const int r = i / kExperts, e = expert + i % kExperts;
  if (first + r >= rows || e >= p.logits()) return;
  const float inverse = 1.0f / sqrtf(total[kSums + r] / static_cast<float>(p.in.columns) + p.epsilon);
  const Mailbox& mailbox = p.select.selection.mailbox;
  put_slot(e < p.experts ? mailbox.slots + kLogitsSlots + (first + r) * p.experts + e : p.shares + first + r,
           total[i] * inverse, mailbox.flag());
}

/// A row packed, coded and maybe selected for by a thread block.
__device__ __forceinline__ void pack_and_select(const Args& p, int row, const PdlLink& pdl) {
  __shared__ float bias[32 * kMostEach];
  const Select& s = p.select;
  const RowSelection& selection = s.selection;
  // A lane's are those of the experts that it selects among.
  if (threadIdx.x < 32 && !s.packs_alone && selection.bias != nullptr) {
    for (int e = static_cast<int>(threadIdx.x); e < p.experts; e += 32) bias[e] = __ldg(selection.bias + e);
  }
  pdl.wait();
  const bool there = row < *p.rows;
  char* const codes = s.codes + int64_t{row} * s.token.pitch;
  pack_slot<kWarps>(p.packing, row, [&](int quad, float4 v) {
    if (!there) return;
    int8_mma::store_codes(v, codes, s.token, quad);
  });
  if (!there) return;
  if (row == 0 && threadIdx.x == 0) *s.taken = 0;
  if (s.packs_alone) {
    __syncthreads();
    if (threadIdx.x > 0) return;
    release_writes();
    put_slot(selection.mailbox.slots + kPackedSlots + row, 0, selection.mailbox.flag());
  } else if (threadIdx.x < 32) {
    select_row(selection, row, bias, selection.mailbox.flag(), true);
  }
}

template <int kRows, int kExperts, int kHeld>
__global__ void __launch_bounds__(kThreads)
    norm_logits(const Timestamps timestamps, const __grid_constant__ Args p) {
  const PdlLink pdl(timestamps);
  const int block = static_cast<int>(blockIdx.x);
  if (block < p.blocks) return make_logits<kRows, kExperts, kHeld>(p, pdl);
  pack_and_select(p, block - p.blocks, pdl);
}

/// Whether the routed experts' launch multiplies the shared ones, too.
bool takes_shared(const Program& p, const ExpertsShape& shape, const MoeGateUp& op, const Sizes& sizes) {
  const Tensor &gate = p[op.shared_gate.id], &up = p[op.shared_up.id];
  return gate.type == up.type && takes_shared_experts(shape, gate.type, gate.shape[1], sizes);
}

bool serves(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& [norm_route, experts, shared_router] = std::get<NormMoeGateUp>(record.args);
  const Tensor &in = p[norm_route.in.id], &router = p[norm_route.router.id], &gate = p[experts.gate.id];
  const int64_t used = p[norm_route.route.ids.id].columns();
  if (sizes.rows <= kNarrowRows || sizes.rows > kMostRows || router.type != quant::Type::F32) return false;
  if (in.columns() > kHeldColumns || in.stride[0] % 4 != 0 || in.offset % 4 != 0 || router.offset % 4 != 0)
    return false;
  if (p[experts.up.id].type != gate.type || !in_lanes(route_rule(norm_route.route, router.shape[1], used)))
    return false;
  if (experts.shared_gate && !alike(p, experts.shared_gate.id, experts.shared_up.id)) return false;
  const ExpertsShape shape{gate.type, gate.shape[0], gate.shape[1], gate.shape[2], used, true};
  if (shared_router && !takes_shared(p, shape, experts, sizes)) return false;
  return serves_experts_small_batch(shape, sizes.rows, sizes.architecture);
}

struct Buffers {
  Packed packed;
  char* codes;
  unsigned* taken;
};
Buffers take(Scratch& scratch, int64_t rows, int64_t columns, const int8_mma::TokenRows& token) {
  return {take_packed(scratch, whole_groups(rows), columns), scratch.take<char>(rows * token.pitch),
          scratch.take<unsigned>(1)};
}

/// The logits' part of a launch's arguments.
Args logits_of(const NormMoeGateUp& op, const Context& context) {
  const NormRoute& route = op.route;
  const Memory& memory = context.memory;
  const Matrix router = memory.matrix(route.router.id);
  Args args{};
  args.rows = &context.step.header->rows, args.in = flat(memory.rows(route.in.id));
  args.router = reinterpret_cast<const float*>(router.codes) + router.first_row * router.columns;
  args.norm = memory.vector(route.norm.id), args.epsilon = route.epsilon;
  args.experts = router.rows, args.shared = memory.vector(op.shared_router.id);
  const int64_t rows = context.step_rows;
  args.select.selection.mailbox = context.mailbox();
  args.shares = context.mailbox().slots + shared_logits_at(rows, args.experts);
  const bool few = rows <= kSmallMostRows;
  const int64_t rows_each = few ? kSmallRows : kLargeRows, experts_each = few ? kSmallExperts : kLargeExperts;
  args.blocks = static_cast<int32_t>((args.logits() + experts_each - 1) / experts_each *
                                     ((rows + rows_each - 1) / rows_each));
  return args;
}

void launch_logits(const Args& args, int64_t blocks, const Context& context) {
  const bool few = context.step_rows <= kSmallMostRows;
  launch(context, few ? norm_logits<kSmallRows, kSmallExperts, 2> : norm_logits<kLargeRows, kLargeExperts, 1>,
         {dim3(static_cast<unsigned>(blocks)), dim3(kThreads)}, args);
}

void launch_norm_moe_small_batch(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<NormMoeGateUp>(record.args);
  const auto& [norm_route, experts, shared_router] = op;
  const Memory& memory = context.memory;
  const Rows<float> in = flat(memory.rows(norm_route.in.id));
  const Rows<int32_t> ids = memory.int_rows(norm_route.route.ids.id);
  const int64_t rows = context.step_rows;
  const int32_t* const count = &context.step.header->rows;
  Scratch scratch(context.scratch);
  const Matrix gate = memory.matrix(experts.gate.id);
  const int8_mma::TokenRows token = experts_token(gate.type, in.columns);
  const Buffers buffers = take(scratch, rows, in.columns, token);
  Args args = logits_of(op, context);
  const Mailbox mailbox = context.mailbox();
  Mailbox selected = context.produces != nullptr ? context.mailbox(*context.produces) : mailbox;
  if (context.produces == nullptr) selected.slots += kSelectionSlots;
  args.select = {buffers.codes,
                 buffers.taken,
                 token,
                 {route_rule(norm_route.route, args.experts, ids.columns),
                  memory.vector(norm_route.route.bias.id), ids, memory.rows(norm_route.route.weights.id),
                  mailbox, selected.slots, shared_router ? args.shares : nullptr},
                 false};
  Dense shared{.in = in, .out = {}, .weight = {}, .up = {}, .gated = true, .rows = rows, .count = count};
  const ExpertsShape shape{gate.type, gate.matrices, gate.rows, gate.columns, ids.columns, true};
  bool n_tiles = false, beside = false;
  if (experts.shared_gate) {
    shared.weight = memory.matrix(experts.shared_gate.id), shared.up = memory.matrix(experts.shared_up.id);
    shared.out = flat(memory.rows(experts.shared_out.id));
    beside = takes_shared(program, shape, experts, context.sizes());
    n_tiles = !beside && by_wgmma(shared);
  }
  args.select.packs_alone = beside;
  args.packing = packing_of(shared, n_tiles, buffers.packed);
  args.packing.norm = args.norm, args.packing.epsilon = norm_route.epsilon;
  const int64_t blocks = args.blocks + slots_per_matrix(rows, n_tiles);
  launch_logits(args, blocks, context);
  if (experts.shared_gate && !beside) multiply_packed(shared, n_tiles, buffers.packed, context);
  const SelectAndShared more{args.select.selection,
                             {shared.weight, shared.up, tokens_of(buffers.packed, in.columns), shared.out}};
  multiply_experts_small_batch({.weight = gate,
                                .up = memory.matrix(experts.up.id),
                                .gated = true,
                                .by_pair = false,
                                .in = in,
                                .out = memory.rows(experts.out.id),
                                .ids = ids,
                                .rows = count,
                                .coded = buffers.codes,
                                .taken = buffers.taken,
                                .selection = selected,
                                .select_and_shared = beside ? &more : nullptr},
                               context);
}

int64_t scratch_bytes(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& [route, experts, none] = std::get<NormMoeGateUp>(record.args);
  const int64_t columns = p[route.in.id].columns();
  Scratch scratch(nullptr);
  take(scratch, sizes.rows, columns, experts_token(p[experts.gate.id].type, columns));
  return scratch.bytes();
}

std::optional<FormSpec> produces(const Program& p, const Op& record, const Sizes& sizes) {
  return given_selection(p, std::get<NormMoeGateUp>(record.args).route.route.ids.id, sizes);
}
MailboxNeeds mailbox_needs(const Program& p, const Op& record, const Sizes& sizes) {
  const NormRoute& route = std::get<NormMoeGateUp>(record.args).route;
  return {.flagged = slots_of_logits(sizes.rows, p[route.router.id].shape[1])};
}

}  // namespace

std::optional<FormSpec> given_selection(const Program& p, TensorId ids, const Sizes& sizes) {
  return FormSpec{Form::SelectedExperts, ids, sizes.rows * p[ids].columns() * int64_t{sizeof(uint64_t)}};
}

void leave_logits(const NormMoeGateUp& op, const Context& context) {
  const Args args = logits_of(op, context);
  launch_logits(args, args.blocks, context);
}

const Kernel kNormMoeGateUpSmallBatch{
    "norm and router + small-batch gated GEMV of experts, which select for themselves",
    serves,
    launch_norm_moe_small_batch,
    scratch_bytes,
    produces,
    nullptr,
    mailbox_needs};

}  // namespace sluice::backend::cuda
