// matmul_add of 2 to 32 rows, Q4_0 or Q4_K, whose rows are codes of eight bits already: a thread block takes
// 16 outputs, asks for their weights before it waits, and its 16 warps share the columns. A warp reads the
// codes of its columns alone, so a block reads them once, a quarter of what floats would be. Two rows
// are multiplied by the router behind, too.
#include "backend/cuda/gemv/matmul_add_small_batch.h"

#include "backend/cuda/gemv/f16_rows.cuh"
#include "backend/cuda/gemv/head_matmul_small_batch.h"
#include "backend/cuda/gemv/router_sums.cuh"
#include "backend/cuda/prim/int8_mma.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda {
namespace {

using small_batch::kThreads, small_batch::kWarps;
constexpr int kMostColumns = kWarps * int8_mma::kMostQuads * int8_mma::kQuad;

struct Args {
  MatmulAddSmallBatch product;
  int32_t quads;  ///< of a warp at most
  int8_mma::Slot slot;
  int8_mma::TokenRows token;
};

template <quant::Type kType, int kNTiles>
__global__ void __launch_bounds__(kThreads, 1)
    matmul_add_small_batch_kernel(const Timestamps timestamps, const __grid_constant__ Args p) {
  constexpr int kSums = kNTiles * 4;
  extern __shared__ __align__(128) char batch_shared[];
  const PdlLink pdl(timestamps);
  const Matrix& weight = p.product.weight;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int output = static_cast<int>(blockIdx.x) * int8_mma::kRows;
  const int all_quads = weight.columns / int8_mma::kQuad, first_quad = warp * p.quads;
  const int quads = max(0, min(p.quads, all_quads - first_quad));
  char* const slot = batch_shared + warp * p.slot.bytes;
  float* const reduction = reinterpret_cast<float*>(batch_shared + kWarps * p.slot.bytes);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    int8_mma::ask_rows(weight, static_cast<int>(weight.row(0, output + 8 * h + lane / 4)), all_quads,
                       first_quad, quads, h, p.slot, shared_address(slot));
  }
  const RouterSums& sums = p.product.sums;
  __shared__ __align__(16) float norm[kRoutedOutputs], made[RouterSums::kRows * kRoutedOutputs];
  float* const router = reduction + kNTiles * kWarps * 4 * 32;
  if (sums.slots != nullptr) fetch_router<kThreads>(sums, router, norm, output);
  commit_copies();
  const uint32_t supers =
      int8_mma::ask_supers<kType>(weight, first_quad, [&](int row) { return weight.row(0, output + row); });
  const int rows = *p.product.rows;  // uploaded before the step's first kernel: no wait
  pdl.wait();
  // Where sums meet, warp w has sum w of every lane: of that output and row.
  const int own_row = warp / 4 * 8 + 2 * (lane % 4) + warp % 2, own = output + lane / 4 + warp / 2 % 2 * 8;
  const bool adds = warp < kSums && own_row < rows;
  const float residual = adds ? load_result(p.product.residual(own_row) + own) : 0.0f;
  float sum[kNTiles][4] = {};
  int8_mma::TokensAt<> at(p.product.codes, p.token, first_quad);
  wait_copies<0>();
  __syncwarp();
  if constexpr (kNTiles == 1) {
    int8_mma::multiply<kType>(slot, p.slot, supers, first_quad, quads, at, p.token.pitch, sum);
  } else {
#pragma unroll 1
    for (int q = 0; q < quads; ++q) {
      int8_mma::multiply_quads<kType, 1>(slot, p.slot, supers, first_quad, at, p.token.pitch, sum, q);
      at.advance(1);
    }
  }
#pragma unroll
  for (int i = 0; i < kSums; ++i) reduction[(warp * kSums + i) * 32 + lane] = sum[i / 4][i % 4];
  __syncthreads();
  if (adds) {
    float value = residual;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) value += reduction[(w * kSums + warp) * 32 + lane];
    p.product.out(own_row)[own] = value;
    if (sums.slots != nullptr) made[own_row * kRoutedOutputs + own - output] = value * norm[own - output];
  }
  if (sums.slots == nullptr) return;
  __syncthreads();
  add_router_parts<kThreads>(sums, router, made, rows);
}

__global__ void __launch_bounds__(kThreads)
    router_sums_kernel(const Timestamps timestamps, const int32_t* all_rows, const Rows<float> in,
                       const __grid_constant__ RouterSums sums) {
  __shared__ __align__(16) float norm[kRoutedOutputs], made[RouterSums::kRows * kRoutedOutputs];
  const PdlLink pdl(timestamps);
  const int first = static_cast<int>(blockIdx.x) * kRoutedOutputs, i = static_cast<int>(threadIdx.x);
  float* const router = reinterpret_cast<float*>(dynamic_shared(0));
  fetch_router<kThreads>(sums, router, norm, first);
  const int rows = *all_rows;
  pdl.wait();
  wait_for_copies();
  __syncthreads();
  if (i < rows * kRoutedOutputs)
    made[i] = load_result(in(i / kRoutedOutputs) + first + i % kRoutedOutputs) * norm[i % kRoutedOutputs];
  __syncthreads();
  add_router_parts<kThreads>(sums, router, made, rows);
}

int64_t plan(int64_t columns, int64_t rows, Args& args) {
  const auto quads = static_cast<int>(columns / int8_mma::kQuad);
  args.quads = (quads + kWarps - 1) / kWarps;
  args.slot = int8_mma::Slot::of(args.quads), args.token = coded_values_token(columns);
  return kWarps * args.slot.bytes + small_batch::n_tiles_for(rows) * kWarps * 4 * 32 * int64_t{sizeof(float)};
}

}  // namespace

bool serves_matmul_add_small_batch(const program::Tensor& weight, const Sizes& sizes) {
  Args args{};
  const int64_t columns = weight.columns();
  return int8_mma::fits_slot(weight.type) && sizes.rows >= 2 && sizes.rows <= small_batch::kMostRows &&
         weight.shape[1] % int8_mma::kRows == 0 && columns % int8_mma::kQuad == 0 &&
         columns <= kMostColumns && plan(columns, sizes.rows, args) <= 99 * 1024;
}

void matmul_add_small_batch(const MatmulAddSmallBatch& product, const Context& context) {
  Args args{};
  args.product = product;
  int64_t shared = plan(product.weight.columns, context.step_rows, args);
  if (product.sums.slots != nullptr) shared += router_columns_bytes(product.sums);
  const auto start = [&]<quant::Type kType>() {
    const int n_tiles = small_batch::n_tiles_for(context.step_rows);
    launch(context,
           n_tiles == 1   ? matmul_add_small_batch_kernel<kType, 1>
           : n_tiles == 2 ? matmul_add_small_batch_kernel<kType, 2>
                          : matmul_add_small_batch_kernel<kType, 4>,
           {dim3(static_cast<unsigned>(product.weight.rows / int8_mma::kRows)), dim3(kThreads), shared},
           args);
  };
  if (product.weight.type == quant::Type::Q4_K) return start.template operator()<quant::Type::Q4_K>();
  start.template operator()<quant::Type::Q4_0>();
}

void add_router_sums(const int32_t* rows, const Rows<float>& made, const RouterSums& sums,
                     const Context& context) {
  launch(context, router_sums_kernel,
         {dim3(static_cast<unsigned>(sums.columns / kRoutedOutputs)), dim3(kThreads),
          router_columns_bytes(sums)},
         rows, made, sums);
}

}  // namespace sluice::backend::cuda
