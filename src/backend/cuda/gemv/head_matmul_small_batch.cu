// head_matmul of 2 to 32 rows in one launch (gemv/f16_rows.cuh): a thread block takes 64 outputs of a head.
// Four warps share the columns of 16 outputs, a chunk of 128 each, asked for before the kernel waits. Rows
// that are short contexts may come in parts (mla_heads of 2 to 8 rows), which every block puts together.
#include "backend/cuda/gemv/head_matmul_small_batch.h"

#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/gemm/gemm_dense.h"
#include "backend/cuda/gemv/f16_rows.cuh"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/int8_mma.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;
using namespace small_batch;

constexpr int kTiles = 4, kOutputs = kTiles * 16;  ///< of a thread block
constexpr int kMostChunks = kWarps / kTiles;

struct Args {
  const StepHeader* header;
  Rows<float> in, out;
  Matrix weight;
  char* codes;  ///< where results are left in codes of eight bits too (head_matmul_small_batch.h), or null
  int8_mma::TokenRows coded;
  ContextParts parts;
};

/// A lane's columns of a row's context of a head, put together of its chunks, in the order and to the bits of
/// join_chunks: which of the two does it depends on the row's neighbours. false: it was one chunk, which lies
/// among the rows.
template <int kChunks>
__device__ __forceinline__ bool join(const ContextParts& p, int heads, int row, int head,
                                     float4 (&v)[kChunks]) {
  const int lane = threadIdx.x % 32, length = p.positions[row] + 1, rows = chunk_of(length, p.most_chunks);
  const int chunks = (length + rows - 1) / rows;
  if (chunks == 1) return false;
  const int64_t first = int64_t{row} * p.most_chunks * heads + head;
  const float2 mine = lane < chunks ? __ldcg(p.weights + first + lane * heads) : float2{-INFINITY, 0};
  const float part = exp2f(mine.x - lane_max(mine.x));
  float total = 0;
  for (int i = 0; i < chunks; ++i)
    total += __shfl_sync(kWholeWarp, part, i) * __shfl_sync(kWholeWarp, mine.y, i);
  const float factor = part / total;
#pragma unroll
  for (float4& one : v) one = {0, 0, 0, 0};
#pragma unroll 2
  for (int i = 0; i < chunks; ++i) {
    const auto* const from =
        reinterpret_cast<const float4*>(p.parts + (first + int64_t{i} * heads) * kMlaRank) + lane;
    const float f = __shfl_sync(kWholeWarp, factor, i);
#pragma unroll
    for (int c = 0; c < kMlaRank / kChunkColumns; ++c) {
      const float4 one = __ldcg(from + c * 32);
      v[c].x += f * one.x, v[c].y += f * one.y, v[c].z += f * one.z, v[c].w += f * one.w;
    }
  }
  return true;
}

template <int kNTiles>
struct Shared {
  static constexpr int kTokens = kNTiles * kNTileTokens;
  alignas(16) float reduction[reduction_floats(kNTiles)];
  float scale[kTokens];
  alignas(16) char packed[kTokens * row_pitch(kMostChunks)];
};

template <quant::Type kType, int kNTiles, bool kJoins = false>
__global__ void __launch_bounds__(kThreads, 1)
    head_matmul_small_batch(const Timestamps timestamps, const Args p) {
  extern __shared__ __align__(16) char batch_shared[];
  auto& s = *reinterpret_cast<Shared<kNTiles>*>(batch_shared);
  const PdlLink pdl(timestamps);
  const int rows = p.header->rows;  // uploaded before the step's first kernel: no wait
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = warp % kTiles, chunk = warp / kTiles;
  const int head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.x) * kOutputs;
  const int columns = p.weight.columns, chunks = columns / kChunkColumns;
  Unit<kType> unit;
  if (chunk < chunks) unit.load(p.weight, p.weight.row(head, first + tile * 16), chunk);
  pdl.wait();
  constexpr int kEach = (s.kTokens + kWarps - 1) / kWarps;  // rows of a warp, asked for together
  float4 v[kEach][kMostChunks];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int of = min(warp + e * kWarps, rows - 1);
    if (kJoins && join(p.parts, p.weight.matrices, of, head, v[e])) continue;
    const float* const row = p.in(of, head);
#pragma unroll
    for (int i = 0; i < kMostChunks; ++i) {
      const int c = i * kChunkColumns + lane * 4;
      v[e][i] = c < columns ? *reinterpret_cast<const float4*>(row + c) : float4{0, 0, 0, 0};
    }
  }
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int token = warp + e * kWarps;
    if (token < s.kTokens) pack_row(v[e], chunks, s.packed + token * row_pitch(kMostChunks), s.scale + token);
  }
  __syncthreads();
  float sum[kNTiles][4] = {};
  if (chunk < chunks) unit.multiply(p.weight, s.packed, row_pitch(kMostChunks), chunk, sum);
  static_assert(s.kTokens * kTiles * 4 % 32 == 0);  // whole warps make codes
  reduce_fours<kTiles>(sum, kTiles, s.reduction, [&](int of, int token, int four, float4 all) {
    const float4 value = times(all, s.scale[token]);
    const int output = first + of * 16 + four * 4;
    if (token < rows) *reinterpret_cast<float4*>(p.out(token, head) + output) = value;
    if (p.codes == nullptr) return;
    const int column = head * p.weight.rows + output, quad = column / int8_mma::kQuad;
    char* const to = p.codes + token * p.coded.pitch;
    int8_mma::store_codes(value, to, p.coded, quad, column % int8_mma::kQuad / 32, column % 32 / 4);
  });
}

template <quant::Type kType>
void start(const Args& args, const Context& c) {
  const auto with = [&](auto kernel, size_t shared) {
    launch(c, kernel,
           {dim3(static_cast<unsigned>(args.weight.rows / kOutputs),
                 static_cast<unsigned>(args.weight.matrices)),
            dim3(kThreads), static_cast<int64_t>(shared)},
           args);
  };
  if (args.parts.parts != nullptr) return with(head_matmul_small_batch<kType, 1, true>, sizeof(Shared<1>));
  switch (n_tiles_for(c.step_rows)) {
    case 1: return with(head_matmul_small_batch<kType, 1>, sizeof(Shared<1>));
    case 2: return with(head_matmul_small_batch<kType, 2>, sizeof(Shared<2>));
    default: return with(head_matmul_small_batch<kType, 4>, sizeof(Shared<4>));
  }
}

void launch_head_matmul(const Program&, const Op& record, const Context& c) {
  const auto& op = std::get<HeadMatmul>(record.args);
  head_matmul_small_batch(c.memory.rows(op.in.id), c.memory.rows(op.out.id), c.memory.matrix(op.weight.id),
                          {}, c);
}

bool serves_product(const Tensor& weight, const Tensor& out) {
  using quant::Type;
  return in_fours(out) &&
         (weight.type == Type::Q8_0 || weight.type == Type::Q4_0 || weight.type == Type::Q4_K) &&
         weight.shape[1] % kOutputs == 0 && weight.columns() % kChunkColumns == 0 &&
         weight.columns() <= kMostChunks * kChunkColumns;
}

bool serves(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<HeadMatmul>(record.args);
  const Tensor& in = p[op.in.id];
  return sizes.rows > kNarrowRows && sizes.rows <= kMostRows && op.reduce == Reduce::Columns &&
         in.shape[0] == kStepRows && in_fours(in) && serves_product(p[op.weight.id], p[op.out.id]);
}

std::optional<FormSpec> produces(const Program& p, const Op& record, const Sizes& sizes) {
  return given_rows_codes(p, std::get<HeadMatmul>(record.args).out.id, sizes);
}

}  // namespace

void head_matmul_small_batch(const Rows<float>& in, const Rows<float>& out, const Matrix& weight,
                             const ContextParts& parts, const Context& c) {
  Args args{c.step.header, in, out, weight, nullptr, {}, parts};
  if (c.produces != nullptr)
    args.codes = c.produces->at,
    args.coded = coded_values_token(int64_t{args.weight.matrices} * args.weight.rows);
  if (args.weight.type == quant::Type::Q8_0) return start<quant::Type::Q8_0>(args, c);
  if (args.weight.type == quant::Type::Q4_K) return start<quant::Type::Q4_K>(args, c);
  start<quant::Type::Q4_0>(args, c);
}

bool serves_head_matmul_small_batch(const Tensor& weight, const Tensor& out) {
  return serves_product(weight, out);
}

std::optional<FormSpec> given_rows_codes(const Program& p, TensorId values, const Sizes& sizes) {
  const int64_t columns = p[values].heads() * p[values].columns();
  if (columns % int8_mma::kQuad != 0 || sizes.rows > kMostRows) return std::nullopt;
  return FormSpec{Form::RowsCodes, values,
                  int64_t{n_tiles_for(sizes.rows)} * kNTileTokens * coded_values_token(columns).pitch};
}

const Kernel kHeadMatmulSmallBatch{"small-batch GEMV of heads", serves, launch_head_matmul, nullptr,
                                   produces};

}  // namespace sluice::backend::cuda
