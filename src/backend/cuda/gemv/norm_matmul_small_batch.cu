// norm_matmul of 2 to 8 rows, Q4_0 or Q4_K, in one launch: a thread block takes 16 outputs, asks for their
// weights before it waits, makes all rows codes of eight bits for itself (32 under a scale), and its 16 warps
// share the columns. What these products wait for is launches and the way of the rows, not bytes. The norm's
// factor multiplies the products, so that a row is read once.
//
// Every block reads all rows: of more than 8 they are packed once (gemm/gemm_ops.cu). Rows that come in codes
// are not packed at all (gemv/norm_matmul_q8.cu).
//
// An output matrix waits for bytes: a launch makes the rows codes (gemv/code_rows.cu), and the kernel of
// experts with few tokens (moe/experts_small_batch.cu) takes the matrix for the only expert that there is. 16
// outputs of 2,048 columns take 1,500 to 3,400 instructions of a warp, products of halves
// (gemm/gemm_stream.cuh) up to 4,900.
#include "backend/cuda/gemm/gemm_dense.h"
#include "backend/cuda/gemv/code_rows.h"
#include "backend/cuda/gemv/norm_matmul_q8.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/moe/experts_small_batch.h"
#include "backend/cuda/prim/int8_mma.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {

namespace {

using namespace program;

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kMostRows = 8, kTokens = 8, kSums = 4;
constexpr int kAtOnce = 4;  ///< quads of a row that a warp takes at a time
constexpr int kMostColumns = kWarps * int8_mma::kMostQuads * int8_mma::kQuad;
constexpr int kMostParts = kMostColumns / int8_mma::kQuad / kAtOnce;

struct Args {
  struct Product {
    Matrix weight;
    Rows<float> out;
  };
  const int32_t* rows;
  Rows<float> in;
  const float* norm;
  float epsilon;
  Product product[NormMatmul::kMostProducts];
  int32_t ends[NormMatmul::kMostProducts];  ///< thread blocks before the end of each
  int32_t quads;                            ///< of a warp at most
  int8_mma::Slot slot;
  int8_mma::TokenRows token;
};

template <quant::Type kType>
__global__ void __launch_bounds__(kThreads)
    norm_matmul_small_batch(const Timestamps timestamps, const __grid_constant__ Args p) {
  using int8_mma::kQuad;
  extern __shared__ __align__(128) char rows_shared[];
  __shared__ float squares[kTokens][kMostParts];
  const PdlLink pdl(timestamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int block = static_cast<int>(blockIdx.x);
  int which = 0;
  while (block >= p.ends[which]) ++which;
  const Args::Product& product = p.product[which];
  const int output = (block - (which > 0 ? p.ends[which - 1] : 0)) * int8_mma::kRows;
  const int all_quads = p.in.columns / kQuad, first_quad = warp * p.quads;
  const int quads = max(0, min(p.quads, all_quads - first_quad));
  char* const slot = rows_shared + warp * p.slot.bytes;
  char* const tokens = rows_shared + kWarps * p.slot.bytes;
  float* const reduction = reinterpret_cast<float*>(tokens + kTokens * p.token.pitch);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    int8_mma::ask_rows(product.weight, static_cast<int>(product.weight.row(0, output + 8 * h + lane / 4)),
                       all_quads, first_quad, quads, h, p.slot, shared_address(slot));
  }
  commit_copies();
  const uint32_t supers = int8_mma::ask_supers<kType>(
      product.weight, first_quad, [&](int row) { return product.weight.row(0, output + row); });
  const int parts = (all_quads + kAtOnce - 1) / kAtOnce;
  float4 by[kAtOnce];
  int of_part = -1;
  const auto quad_of = [&](int part, int i) { return min(part * kAtOnce + i, all_quads - 1); };
  const auto take_norm = [&](int part) {
    if (part == of_part) return;
    of_part = part;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      by[i] = __ldg(reinterpret_cast<const float4*>(p.norm + quad_of(part, i) * kQuad) + lane);
  };
  take_norm(warp % parts);
  pdl.wait();
  const int rows = *p.rows;
  for (int task = warp; task < rows * parts; task += kWarps) {
    const int r = task / parts, part = task - r * parts;
    float4 x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      x[i] = __ldcg(reinterpret_cast<const float4*>(p.in(r) + quad_of(part, i) * kQuad) + lane);
    take_norm(part);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool there = part * kAtOnce + i < all_quads;
      const float square = (x[i].x * x[i].x + x[i].y * x[i].y) + (x[i].z * x[i].z + x[i].w * x[i].w);
      sum += there ? square : 0.0f;
      x[i].x *= by[i].x, x[i].y *= by[i].y, x[i].z *= by[i].z, x[i].w *= by[i].w;
    }
    sum = lane_sum(sum);
    if (lane == 0) squares[r][part] = sum;
    char* const to = tokens + r * p.token.pitch;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int quad = quad_of(part, i);
      int8_mma::store_codes(x[i], to, p.token, quad);
    }
  }
  wait_copies<0>();
  __syncthreads();
  float sum[1][4] = {};
  int8_mma::multiply<kType>(slot, p.slot, supers, first_quad, quads, {tokens, p.token, first_quad},
                            p.token.pitch, sum);
#pragma unroll
  for (int i = 0; i < kSums; ++i) reduction[(warp * kSums + i) * 32 + lane] = sum[0][i];
  __syncthreads();
  // Sum i of lane l lies at 32 i + l: i / 2 says which of two outputs, i % 2 which row.
  const int i = static_cast<int>(threadIdx.x), of = i / 32, r = 2 * (lane % 4) + of % 2;
  if (of >= kSums || r >= rows) return;
  float value = 0, all = 0;
#pragma unroll
  for (int k = 0; k < kWarps; ++k) value += reduction[k * kSums * 32 + i];
  for (int part = 0; part < parts; ++part) all += squares[r][part];
  product.out(r)[output + lane / 4 + of / 2 * 8] =
      value / sqrtf(all / static_cast<float>(p.in.columns) + p.epsilon);
}

/// Sizes of a launch over so many columns, and the shared memory that it takes.
int64_t plan(quant::Type type, int64_t columns, Args& args) {
  const auto quads = static_cast<int>(columns / int8_mma::kQuad);
  args.quads = (quads + kWarps - 1) / kWarps;
  args.slot = int8_mma::Slot::of(args.quads),
  args.token = int8_mma::TokenRows::of(quads, int8_mma::has_minimums(type));
  return kWarps * args.slot.bytes + kTokens * args.token.pitch + kWarps * kSums * 32 * 4;
}

bool serves_weight(const Program& p, TensorId in, TensorId weight, quant::Type type, const Sizes& sizes) {
  const Tensor &x = p[in], &w = p[weight];
  Args args{};
  return w.type == type && int8_mma::fits_slot(type) && w.shape[1] % int8_mma::kRows == 0 &&
         w.shape[0] == 1 && w.columns() % int8_mma::kQuad == 0 && w.columns() <= kMostColumns &&
         x.stride[0] % 4 == 0 && x.offset % 4 == 0 &&
         plan(type, w.columns(), args) + int64_t{sizeof(float)} * kTokens * kMostParts <=
             most_shared(sizes.architecture);
}

/// Outputs an SM of a matrix that is taken for an expert, at least: 16 for each of 16 warps.
constexpr int64_t kOutputsOfExpert = 256;

/// Whether the one weight is taken for an expert. Of Q6_K and of tables that is no gain: 16 outputs of 2,048
/// columns take 4,000 to 5,000 instructions.
bool is_as_expert(const Program& p, const NormMatmul& op, const Sizes& sizes) {
  const Tensor &x = p[op.in.id], &w = p[op.a.id];
  return !op.b && !op.c && !op.d && w.type != quant::Type::Q6_K && !int8_mma::by_table(w.type) &&
         w.shape[1] >= kOutputsOfExpert * sizes.sm_count && x.stride[0] % 4 == 0 && x.offset % 4 == 0 &&
         x.columns() <= kNormedInCodes &&
         serves_experts_small_batch({w.type, 1, w.shape[1], w.columns(), 1, false}, sizes.rows,
                                    sizes.architecture);
}
void launch_as_expert(const Program& p, const NormMatmul& op, const Context& c) {
  const Matrix weight = c.memory.matrix(op.a.id);
  const CodeRows rows{count_of(p, op.in.id, c.step),
                      flat(c.memory.rows(op.in.id)),
                      c.scratch,
                      experts_token(weight.type, weight.columns),
                      c.memory.vector(op.norm.id),
                      op.epsilon};
  code_rows(rows, c);
  multiply_experts_small_batch({.weight = weight,
                                .up = {},
                                .gated = false,
                                .by_pair = false,
                                .in = rows.in,
                                .out = flat(c.memory.rows(op.out_a.id)),
                                .ids = {nullptr, 0, 0, 1, 1},
                                .rows = rows.rows,
                                .coded = rows.codes},
                               c);
}
int64_t scratch_bytes(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormMatmul>(record.args);
  const Tensor& weight = p[op.a.id];
  return is_as_expert(p, op, sizes) ? sizes.rows * experts_token(weight.type, weight.columns()).pitch : 0;
}

bool serves_norm_matmul(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormMatmul>(record.args);
  if (sizes.rows <= kNarrowRows || sizes.rows > kMostRows) return false;
  if (is_as_expert(p, op, sizes)) return true;
  int64_t blocks = 0;
  for (const auto& [weight, out] : op.products()) {
    if (weight && !serves_weight(p, op.in.id, weight.id, p[op.a.id].type, sizes)) return false;
    if (weight) blocks += p[weight.id].shape[1] / int8_mma::kRows;
  }
  // Every block makes codes of all rows: with more blocks than SMs the GEMM, which makes them once, is sooner
  // (8 rows, Qwen3-30B-A3B's queries and keys on an H200: 16.5 us and 10.1).
  return blocks <= sizes.sm_count;
}
void launch_norm_matmul(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<NormMatmul>(record.args);
  if (c.consumes != nullptr) return norm_matmul_q8(p, op, c);
  if (is_as_expert(p, op, c.sizes())) return launch_as_expert(p, op, c);
  Args args{};
  args.rows = count_of(p, op.in.id, c.step), args.in = flat(c.memory.rows(op.in.id));
  args.norm = c.memory.vector(op.norm.id), args.epsilon = op.epsilon;
  int32_t blocks = 0, i = 0;
  for (const auto& [weight, out] : op.products()) {
    if (weight) {
      args.product[i] = {c.memory.matrix(weight.id), flat(c.memory.rows(out.id))};
      blocks += args.product[i].weight.rows / int8_mma::kRows;
    }
    args.ends[i++] = blocks;
  }
  const quant::Type type = args.product[0].weight.type;
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                          plan(type, args.in.columns, args)};
  if (type == quant::Type::Q4_K) return launch(c, norm_matmul_small_batch<quant::Type::Q4_K>, shape, args);
  launch(c, norm_matmul_small_batch<quant::Type::Q4_0>, shape, args);
}

}  // namespace

const Kernel kNormMatmulSmallBatch{"small-batch GEMV of normed rows",
                                   serves_norm_matmul,
                                   launch_norm_matmul,
                                   scratch_bytes,
                                   nullptr,
                                   takes_q8_rows};

}  // namespace sluice::backend::cuda
