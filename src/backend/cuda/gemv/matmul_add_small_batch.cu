// matmul_add of 2 to 32 rows, Q4_0 or Q4_K, whose rows are codes of eight bits already: a thread block takes
// 16 outputs, asks for their weights before it waits, and its 16 warps share the columns. A warp reads the
// codes of its columns alone, so a block reads them once, a quarter of what floats would be. Two rows are
// multiplied by the router behind, too.
//
// Up to 8 rows (dense models' down projections): Q6_K, too, and twice as many columns, of which a warp has
// two parts. They are left for the first products behind.
#include "backend/cuda/gemv/matmul_add_small_batch.h"

#include <algorithm>

#include "backend/cuda/gemv/f16_rows.cuh"
#include "backend/cuda/gemv/head_matmul_small_batch.h"
#include "backend/cuda/gemv/router_sums.cuh"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/prim/int8_mma.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda {
namespace {

using small_batch::kThreads, small_batch::kWarps;
/// Of all warps at once; where there are more columns, each has two parts of them.
constexpr int kColumnsAtOnce = kWarps * int8_mma::kMostQuads * int8_mma::kQuad;

/// What half of the down projections of Q4_K_M are.
constexpr quant::Type kDown = quant::Type::Q6_K;

struct Args {
  MatmulAddSmallBatch product;
  int32_t quads, slots;  ///< of a part at most; parts
  int8_mma::Slot slot;
  int8_mma::TokenRows token;
};

template <quant::Type kType, int kNTiles, int kParts, int kBlocks = 1>
__global__ void __launch_bounds__(kThreads, kBlocks)
    matmul_add_small_batch_kernel(const Timestamps timestamps, const __grid_constant__ Args p) {
  constexpr int kSums = kNTiles * 4, kTokens = kNTiles * kNTileTokens;
  constexpr bool kOneTile = kNTiles == 1;
  constexpr bool kHigh = int8_mma::Weights<kType>::kFormat.high > 0;
  extern __shared__ __align__(128) char batch_shared[];
  const PdlLink pdl(timestamps);
  const Matrix& weight = p.product.weight;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int output = static_cast<int>(blockIdx.x) * int8_mma::kRows;
  const int all_quads = weight.columns / int8_mma::kQuad;
  const auto first_of = [&](int part) { return (part * kWarps + warp) * p.quads; };
  const auto quads_of = [&](int part) { return max(0, min(p.quads, all_quads - first_of(part))); };
  const auto slot_of = [&](int part) { return batch_shared + (part * kWarps + warp) * p.slot.bytes; };
  float* const reduction = reinterpret_cast<float*>(batch_shared + p.slots * p.slot.bytes);
#pragma unroll
  for (int i = 0; i < 2 * kParts; ++i) {
    const int part = i / 2, h = i % 2, row = static_cast<int>(weight.row(0, output + 8 * h + lane / 4));
    const uint32_t slot = shared_address(slot_of(part));
    int8_mma::ask_rows(weight, row, all_quads, first_of(part), quads_of(part), h, p.slot, slot);
    if constexpr (kHigh)
      int8_mma::ask_high(weight, row, all_quads, first_of(part), quads_of(part), h, p.slot, slot);
  }
  const RouterSums& sums = p.product.sums;
  const NormedQ8Rows& coded = p.product.coded;
  __shared__ __align__(16) float norm[kRoutedOutputs], made[kTokens * kRoutedOutputs];
  float* const router = reduction + kNTiles * kWarps * 4 * 32;
  if (sums.slots != nullptr) fetch_router<kThreads>(sums, router, norm, output);
  commit_copies();
  uint32_t supers[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    supers[part] = int8_mma::ask_supers<kType>(weight, first_of(part),
                                               [&](int row) { return weight.row(0, output + row); });
  }
  const int element = static_cast<int>(threadIdx.x) % kRoutedOutputs;  // of the rows that are left
  const float by = kOneTile && coded.codes != nullptr ? __ldg(coded.norm + output + element) : 0.0f;
  const int rows = *p.product.rows;  // uploaded before the step's first kernel: no wait
  pdl.wait();
  // Where sums meet, warp w has sum w of every lane: of that output and row.
  const int own_row = warp / 4 * 8 + 2 * (lane % 4) + warp % 2, own = output + lane / 4 + warp / 2 % 2 * 8;
  const bool adds = warp < kSums && own_row < rows;
  float residual = adds ? load_result(p.product.residual(own_row) + own) : 0.0f;
  if (adds && p.product.bias != nullptr) residual += __ldg(p.product.bias + own);
  // Of up to 8 rows the padding reads the last one's codes again: nothing more comes from L2.
  const auto row_of = [&](int token) { return kOneTile ? min(token, rows - 1) : token; };
  float sum[kNTiles][4] = {};
  wait_copies<0>();
  __syncwarp();
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const int first = first_of(part), quads = quads_of(part);
    int8_mma::TokensAt<> at(p.product.codes, p.token, first, row_of);
    // Unrolled where there are registers for it.
    if constexpr (kOneTile && kParts == 1 && kBlocks == 1) {
      int8_mma::multiply<kType>(slot_of(part), p.slot, supers[part], first, quads, at, p.token.pitch, sum);
    } else {
#pragma unroll 1
      for (int q = 0; q < quads; ++q) {
        int8_mma::multiply_quads<kType, 1>(slot_of(part), p.slot, supers[part], first, at, p.token.pitch, sum,
                                           q);
        at.advance(1);
      }
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
    made[own_row * kRoutedOutputs + own - output] =
        sums.slots != nullptr ? value * norm[own - output] : value;
  }
  const bool leaves = kOneTile && coded.codes != nullptr;
  if (sums.slots == nullptr && !leaves) return;
  __syncthreads();
  if (leaves) {
    static_assert(kRoutedOutputs == NormedQ8Rows::kScaled);
    const int row = static_cast<int>(threadIdx.x) / kRoutedOutputs;
    if (row < kTokens)
      leave_normed(coded, row, output + element, made[row * kRoutedOutputs + element], by, row < rows);
    return;
  }
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

/// How a launch is cut; the shared memory that it takes.
int64_t plan(quant::Type type, int64_t columns, int64_t rows, Args& args) {
  const auto quads = static_cast<int>(columns / int8_mma::kQuad);
  const int most = columns <= kColumnsAtOnce ? kWarps : 2 * kWarps;
  args.quads = (quads + most - 1) / most;
  args.slots = std::max(kWarps, (quads + args.quads - 1) / args.quads);
  args.slot = int8_mma::Slot::of(args.quads, type == kDown);
  args.token = coded_values_token(columns);
  return args.slots * int64_t{args.slot.bytes} +
         small_batch::n_tiles_for(rows) * kWarps * 4 * 32 * int64_t{sizeof(float)};
}
bool is_one_tile(int64_t rows) { return rows <= kNTileTokens; }
/// Shared memory that it may take.
int64_t room(const Sizes& sizes) {
  constexpr int64_t kOwn = 1024;
  return is_one_tile(sizes.rows) && most_shared(sizes.architecture) > kMostShared ? kAllShared - kOwn
                                                                                  : kMostShared;
}

}  // namespace

bool serves_matmul_add_small_batch(const program::Tensor& weight, const Sizes& sizes) {
  Args args{};
  const int64_t columns = weight.columns();
  const bool one_tile = is_one_tile(sizes.rows);
  return (int8_mma::fits_slot(weight.type) || (one_tile && weight.type == kDown)) && sizes.rows >= 2 &&
         sizes.rows <= small_batch::kMostRows && weight.shape[1] % int8_mma::kRows == 0 &&
         columns % int8_mma::kQuad == 0 && columns <= (one_tile ? 2 : 1) * kColumnsAtOnce &&
         plan(weight.type, columns, sizes.rows, args) <= room(sizes);
}

void matmul_add_small_batch(const MatmulAddSmallBatch& product, const Context& context) {
  Args args{};
  args.product = product;
  const Matrix& weight = product.weight;
  int64_t shared = plan(weight.type, weight.columns, context.step_rows, args);
  const bool routes = product.sums.slots != nullptr;
  const bool routes_here = routes && shared + router_columns_bytes(product.sums) <= room(context.sizes());
  if (routes_here) shared += router_columns_bytes(product.sums);
  if (!routes_here) args.product.sums = {};
  const auto with = [&](auto kernel) {
    launch(context, kernel,
           {dim3(static_cast<unsigned>(weight.rows / int8_mma::kRows)), dim3(kThreads), shared}, args);
  };
  const auto start = [&]<quant::Type kType>() {
    if (weight.columns > kColumnsAtOnce) return with(matmul_add_small_batch_kernel<kType, 1, 2>);
    if constexpr (kType != kDown) {
      const int n_tiles = small_batch::n_tiles_for(context.step_rows);
      if (n_tiles == 2) return with(matmul_add_small_batch_kernel<kType, 2, 1>);
      if (n_tiles == 4) return with(matmul_add_small_batch_kernel<kType, 4, 1>);
      // More blocks than SMs: two of them at once.
      if (weight.rows > context.sm_count * int8_mma::kRows)
        return with(matmul_add_small_batch_kernel<kType, 1, 1, 2>);
    }
    with(matmul_add_small_batch_kernel<kType, 1, 1>);
  };
  switch (weight.type) {
    case quant::Type::Q4_K: start.template operator()<quant::Type::Q4_K>(); break;
    case kDown: start.template operator()<kDown>(); break;
    default: start.template operator()<quant::Type::Q4_0>();
  }
  if (routes && !routes_here) add_router_sums(product.rows, product.out, product.sums, context);
}

void add_router_sums(const int32_t* rows, const Rows<float>& made, const RouterSums& sums,
                     const Context& context) {
  launch(context, router_sums_kernel,
         {dim3(static_cast<unsigned>(sums.columns / kRoutedOutputs)), dim3(kThreads),
          router_columns_bytes(sums)},
         rows, made, sums);
}

}  // namespace sluice::backend::cuda
