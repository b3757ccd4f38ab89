// matmul_add of one row before a router: a thread block makes neighbouring elements of the row, a warp each,
// and adds their part of the router's products to its sums. So the kernel behind finds these when it begins,
// where they would cost it a trip through L2.
#include "backend/cuda/gemv/gemv.h"
#include "backend/cuda/gemv/gemv_types.cuh"
#include "backend/cuda/gemv/router_sums.cuh"
#include "backend/cuda/prim/launch.cuh"

namespace sluice::backend::cuda {
namespace {

constexpr int kOutputs = kGemvWarps;  // of a block
static_assert(kOutputs == kRoutedOutputs);

struct Args {
  CodePlanes planes;
  int first_row, blocks, columns;     // blocks: of a weight's row
  const float *in, *residual, *bias;  // bias: null, or one an output
  const char* form_at;
  float* out;
  RouterSums sums;
};

/// Shared memory: the row's activations; these columns of the router [experts][kOutputs].
__device__ inline float* router_columns(const Args& args) {
  return reinterpret_cast<float*>(dynamic_shared(Activations::row_bytes(args.columns, true, false)));
}

template <Type T>
__global__ void __launch_bounds__(kGemvThreads, 2)
    row_add_route(const Timestamps timestamps, const __grid_constant__ Args args) {
  __shared__ __align__(16) float norm[kOutputs], made[kOutputs];
  const PdlLink pdl(timestamps);
  const RowShape shape{args.blocks, 32, 0};
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first = static_cast<int>(blockIdx.x) * kOutputs, n = first + warp;
  const int first_block = (args.first_row + n) * args.blocks;
  Asked<T> piece;
  piece.ask(args.planes, first_block, lane, shape);
  fetch_router<kGemvThreads>(args.sums, router_columns(args), norm, first);
  float add = args.bias != nullptr && lane == 0 ? __ldg(args.bias + n) : 0.0f;
  pdl.wait();
  const Activations x{0, args.columns, true, false};
  const auto addend = [&] {
    if (lane == 0) add += load_result(args.residual + n);
  };
  if (args.form_at != nullptr) {
    copy_quantized(x, args.form_at);
    addend();
  } else {
    quantize_row(x, args.in, nullptr, addend);
  }
  wait_for_copies();
  __syncthreads();
  float sum = 0;
  constexpr int kStep = Asked<T>::kAtOnce * 32;
#pragma unroll 1
  for (int b = lane;;) {
    sum += piece.times(x, b, shape);
    b += kStep;
    if (b - lane >= args.blocks) break;
    piece.ask(args.planes, first_block, b, shape);
  }
  sum = lane_sum(sum);
  if (lane == 0) {
    args.out[n] = sum += add;
    made[warp] = sum * norm[warp];
  }
  __syncthreads();
  add_router_parts<kGemvThreads>(args.sums, router_columns(args), made, 1);
}

}  // namespace

bool adds_and_routes_gemv(const program::Tensor& weight, const program::Tensor& in) {
  const int64_t columns = weight.columns();
  const int64_t end = weight.offset + weight.shape[0] * weight.stride[0] + weight.shape[1] * columns;
  return weight.shape[1] % kOutputs == 0 && columns % 32 == 0 && lanes_for(static_cast<int>(columns)) == 32 &&
         end / 32 < int64_t{1} << 31 && in.offset % 4 == 0 && with_type(weight.type, [&]<quant::Type>() {});
}

bool add_and_route_gemv(const Context& context, const GemvProducts& product, const RouterSums& sums) {
  const GemvProducts::Part& part = product.parts[0];
  const Matrix& m = part.weight;
  const Args args{planes_from(m), static_cast<int>(m.first_row),
                  m.columns / 32, m.columns,
                  product.in,     part.add,
                  part.bias,      product.form_at,
                  part.out,       sums};
  return with_type(m.type, [&]<quant::Type T>() {
    launch(context, row_add_route<T>,
           {dim3(static_cast<unsigned>(m.rows / kOutputs)), dim3(kGemvThreads),
            Activations::row_bytes(m.columns, true, false) + router_columns_bytes(sums)},
           args);
  });
}

}  // namespace sluice::backend::cuda
