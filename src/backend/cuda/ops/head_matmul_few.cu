// head_matmul of 2 to 32 rows in one launch (prim/few_rows.cuh): a block of threads takes 64 outputs of a
// head. Four warps share the columns of 16 outputs, a chunk of 128 each, asked for before the kernel waits.
#include "backend/cuda/memory.h"
#include "backend/cuda/ops/kernels.h"
#include "backend/cuda/ops/matmul_add_few.h"
#include "backend/cuda/ops/wide_dense.h"
#include "backend/cuda/prim/few_bytes.cuh"
#include "backend/cuda/prim/few_rows.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;
using namespace few;

constexpr int kTiles = 4, kOutputs = kTiles * 16;  ///< of a block of threads
constexpr int kMostChunks = kWarps / kTiles;

struct Args {
  const StepHeader* header;
  Rows<float> in, out;
  Matrix weight;
  char* codes;  ///< where results are left in codes of eight bits too (matmul_add_few.h), or null
  few_bytes::TokenRows coded;
};

template <int kStrips>
struct Shared {
  static constexpr int kTokens = kStrips * kStripTokens;
  float meeting[kWarps * kStrips * 4 * 32];
  float scale[kTokens];
  alignas(16) float values[kTokens][kOutputs];
  alignas(16) char packed[kTokens * row_pitch(kMostChunks)];
};

template <quant::Type kType, int kStrips>
__global__ void __launch_bounds__(kThreads, 1) head_matmul_few(const Stamps stamps, const Args p) {
  extern __shared__ __align__(16) char few_shared[];
  auto& s = *reinterpret_cast<Shared<kStrips>*>(few_shared);
  const Link link(stamps);
  const int rows = p.header->rows;  // was there before the step's first kernel began
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = warp % kTiles, chunk = warp / kTiles;
  const int head = static_cast<int>(blockIdx.y), first = static_cast<int>(blockIdx.x) * kOutputs;
  const int columns = p.weight.columns, chunks = columns / kChunkColumns;
  Unit<kType> unit;
  if (chunk < chunks) unit.load(p.weight, p.weight.row(head, first + tile * 16), chunk);
  link.wait();
  constexpr int kEach = (s.kTokens + kWarps - 1) / kWarps;  // rows of a warp, asked for together
  float4 v[kEach][kMostChunks];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const float* const row = p.in(min(warp + e * kWarps, rows - 1), head);
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
  float sum[kStrips][4] = {};
  if (chunk < chunks) unit.multiply(p.weight, s.packed, row_pitch(kMostChunks), chunk, sum);
  meet(sum, kTiles, kTiles, s.meeting, [&](int of, int output, int token, float all) {
    const float value = all * s.scale[token];
    if (token < rows) p.out(token, head)[first + of * 16 + output] = value;
    s.values[token][of * 16 + output] = value;
  });
  if (p.codes == nullptr) return;
  __syncthreads();
  constexpr int kLanes = kOutputs / 4;  // of a token
  if (static_cast<int>(threadIdx.x) >= s.kTokens * kLanes) return;
  const int token = static_cast<int>(threadIdx.x) / kLanes, four = static_cast<int>(threadIdx.x) % kLanes;
  const int column = head * p.weight.rows + first + four * 4, quad = column / few_bytes::kQuad;
  char* const to = p.codes + token * p.coded.pitch;
  few_bytes::store_codes(
      *reinterpret_cast<const float4*>(&s.values[token][four * 4]), 1.0f, to + quad * few_bytes::kQuad,
      reinterpret_cast<float*>(to + p.coded.scales) + quad * 4, column % few_bytes::kQuad / 32, four % 8);
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
  switch (strips_for(c.step_rows)) {
    case 1: return with(head_matmul_few<kType, 1>, sizeof(Shared<1>));
    case 2: return with(head_matmul_few<kType, 2>, sizeof(Shared<2>));
    default: return with(head_matmul_few<kType, 4>, sizeof(Shared<4>));
  }
}

void launch_head_matmul(const Program&, const Op& record, const Context& c) {
  const auto& op = std::get<HeadMatmul>(record.args);
  Args args{c.step.header,
            c.memory.rows(op.in.id),
            c.memory.rows(op.out.id),
            c.memory.matrix(op.weight.id),
            nullptr,
            {}};
  const int64_t columns = int64_t{args.weight.matrices} * args.weight.rows;
  if (columns % few_bytes::kQuad == 0) {
    args.codes = c.scratch,
    args.coded = few_bytes::TokenRows::of(static_cast<int>(columns / few_bytes::kQuad));
  }
  if (args.weight.type == quant::Type::Q8_0) return start<quant::Type::Q8_0>(args, c);
  start<quant::Type::Q4_0>(args, c);
}

bool serves(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<HeadMatmul>(record.args);
  const Tensor &weight = p[op.weight.id], &in = p[op.in.id];
  return sizes.rows > kNarrowRows && sizes.rows <= kMostRows && op.reduce == Reduce::Columns &&
         in.shape[0] == kStepRows && (weight.type == quant::Type::Q8_0 || weight.type == quant::Type::Q4_0) &&
         weight.shape[1] % kOutputs == 0 && weight.columns() % kChunkColumns == 0 &&
         weight.columns() <= kMostChunks * kChunkColumns && in.stride[0] % 4 == 0 && in.stride[1] % 4 == 0 &&
         in.offset % 4 == 0;
}

int64_t scratch_bytes(const Program& p, const Op& record, const Sizes& sizes) {
  const Tensor& weight = p[std::get<HeadMatmul>(record.args).weight.id];
  const auto quads = static_cast<int>(weight.shape[0] * weight.shape[1] / few_bytes::kQuad);
  return int64_t{strips_for(sizes.rows)} * kStripTokens * few_bytes::TokenRows::of(quads).pitch;
}

}  // namespace

const char* coded_values(const Program& p, TensorId in, const Context& c) {
  const auto* before = c.previous == nullptr ? nullptr : std::get_if<HeadMatmul>(&c.previous->args);
  if (before == nullptr || !serves(p, *c.previous, {c.step_rows, c.longest, c.architecture})) return nullptr;
  const Tensor &left = p[before->out.id], &wanted = p[in];
  if (p.storage(before->out.id) != p.storage(in) || left.offset != wanted.offset ||
      left.heads() * left.columns() != wanted.heads() * wanted.columns() ||
      left.heads() * left.columns() % few_bytes::kQuad != 0)
    return nullptr;
  return c.scratch;
}

const Kernel kHeadMatmulFew{"matmul of heads, packed in place", serves, launch_head_matmul, scratch_bytes};

}  // namespace sluice::backend::cuda
