// matmul_add of 2 to 32 rows, Q4_0 or Q4_K, whose rows are codes of eight bits already: a block of threads
// takes 16 outputs, asks for their weights before it waits, and its 16 warps share the columns. A warp reads
// the codes of its columns alone, so a block reads them once, a quarter of what floats would be.
#include "backend/cuda/gemv/matmul_add_small_batch.h"

#include "backend/cuda/gemv/f16_rows.cuh"
#include "backend/cuda/gemv/head_matmul_small_batch.h"
#include "backend/cuda/prim/int8_mma.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda {
namespace {

using few::kThreads, few::kWarps;
constexpr int kMostColumns = kWarps * few_bytes::kMostQuads * few_bytes::kQuad;

struct Args {
  MatmulAddFew product;
  int32_t quads;  ///< of a warp at most
  few_bytes::Slot slot;
  few_bytes::TokenRows token;
};

template <quant::Type kType, int kStrips>
__global__ void __launch_bounds__(kThreads, 1)
    matmul_add_few_kernel(const Stamps stamps, const __grid_constant__ Args p) {
  constexpr int kSums = kStrips * 4;
  extern __shared__ __align__(128) char few_shared[];
  const Link link(stamps);
  const Matrix& weight = p.product.weight;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int output = static_cast<int>(blockIdx.x) * few_bytes::kRows;
  const int all_quads = weight.columns / few_bytes::kQuad, first_quad = warp * p.quads;
  const int quads = max(0, min(p.quads, all_quads - first_quad));
  char* const slot = few_shared + warp * p.slot.bytes;
  float* const meeting = reinterpret_cast<float*>(few_shared + kWarps * p.slot.bytes);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    few_bytes::ask_rows(weight, static_cast<int>(weight.row(0, output + 8 * h + lane / 4)), all_quads,
                        first_quad, quads, h, p.slot, shared_address(slot));
  }
  commit_copies();
  const uint32_t supers =
      few_bytes::ask_supers<kType>(weight, first_quad, [&](int row) { return weight.row(0, output + row); });
  const int rows = *p.product.rows;  // was there before the step's first kernel began
  link.wait();
  // Where sums meet, warp w has sum w of every lane: of that output and row.
  const int own_row = warp / 4 * 8 + 2 * (lane % 4) + warp % 2, own = output + lane / 4 + warp / 2 % 2 * 8;
  const bool adds = warp < kSums && own_row < rows;
  const float residual = adds ? load_result(p.product.residual(own_row) + own) : 0.0f;
  float sum[kStrips][4] = {};
  few_bytes::TokensAt<> at(p.product.codes, p.token, first_quad);
  wait_copies<0>();
  __syncwarp();
  if constexpr (kStrips == 1) {
    few_bytes::multiply<kType>(slot, p.slot, supers, first_quad, quads, at, p.token.pitch, sum);
  } else {
#pragma unroll 1
    for (int q = 0; q < quads; ++q) {
      few_bytes::multiply_quads<kType, 1>(slot, p.slot, supers, first_quad, at, p.token.pitch, sum, q);
      at.advance(1);
    }
  }
#pragma unroll
  for (int i = 0; i < kSums; ++i) meeting[(warp * kSums + i) * 32 + lane] = sum[i / 4][i % 4];
  __syncthreads();
  if (!adds) return;
  float value = residual;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) value += meeting[(w * kSums + warp) * 32 + lane];
  p.product.out(own_row)[own] = value;
}

int64_t plan(int64_t columns, int64_t rows, Args& args) {
  const auto quads = static_cast<int>(columns / few_bytes::kQuad);
  args.quads = (quads + kWarps - 1) / kWarps;
  args.slot = few_bytes::Slot::of(args.quads), args.token = coded_values_token(columns);
  return kWarps * args.slot.bytes + few::strips_for(rows) * kWarps * 4 * 32 * int64_t{sizeof(float)};
}

}  // namespace

bool serves_matmul_add_few(const program::Tensor& weight, const Sizes& sizes) {
  Args args{};
  const int64_t columns = weight.columns();
  return few_bytes::fits_slot(weight.type) && sizes.rows >= 2 && sizes.rows <= few::kMostRows &&
         weight.shape[1] % few_bytes::kRows == 0 && columns % few_bytes::kQuad == 0 &&
         columns <= kMostColumns && plan(columns, sizes.rows, args) <= 99 * 1024;
}

void matmul_add_few(const MatmulAddFew& product, const Context& context) {
  Args args{};
  args.product = product;
  const int64_t shared = plan(product.weight.columns, context.step_rows, args);
  const auto start = [&]<quant::Type kType>() {
    const int strips = few::strips_for(context.step_rows);
    launch(context,
           strips == 1   ? matmul_add_few_kernel<kType, 1>
           : strips == 2 ? matmul_add_few_kernel<kType, 2>
                         : matmul_add_few_kernel<kType, 4>,
           {dim3(static_cast<unsigned>(product.weight.rows / few_bytes::kRows)), dim3(kThreads), shared},
           args);
  };
  if (product.weight.type == quant::Type::Q4_K) return start.template operator()<quant::Type::Q4_K>();
  start.template operator()<quant::Type::Q4_0>();
}

}  // namespace sluice::backend::cuda
