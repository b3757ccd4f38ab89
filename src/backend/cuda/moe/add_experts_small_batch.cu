// The end of moe_down_add of 2 to 32 rows in one launch: the shared experts' down projection, and its sum
// with the routed experts' results and the residual. A thread block takes 16 outputs: it asks for their
// weights before it waits, and its warps share the columns, a chunk of 128 each, whose tokens, packed by the
// launch before, they take as operands from where they lie. Bound by latency: what is to be added is asked
// for together with the tokens. For the norm_matmul behind, the sums are left in codes, too
// (gemv/norm_matmul_q8.h).
#include "backend/cuda/moe/add_experts_small_batch.h"

#include "backend/cuda/gemv/f16_rows.cuh"
#include "backend/cuda/prim/int8_mma.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda {
namespace {

using namespace small_batch;

constexpr int kOutputs = 16;  ///< of a thread block
constexpr int kMostChunks = kWarps;
constexpr int kMostUsed = 8;

/// What a thread adds up: an output of a token.
struct Addends {
  int token, output;
  bool there;
  float each[kMostUsed], weight[kMostUsed], residual = 0, scale = 0, norm;

  __device__ __forceinline__ Addends(const AddExperts& p, int first, int rows)
      : token(static_cast<int>(threadIdx.x) / kOutputs),
        output(first + static_cast<int>(threadIdx.x) % kOutputs),
        there(token < rows),
        norm(there && p.coded.codes != nullptr ? __ldg(p.coded.norm + output) : 0.0f) {}
  __device__ __forceinline__ void ask(const AddExperts& p, bool scaled) {
    if (!there) return;
    const int used = p.weights.columns;
#pragma unroll
    for (int k = 0; k < kMostUsed; ++k) {
      if (k >= used) break;
      each[k] = load_result(p.each + (int64_t{token} * used + k) * p.out.columns + output);
      weight[k] = load_result(p.weights(token) + k);
    }
    residual = load_result(p.residual(token) + output);
    if (scaled) scale = load_result(p.tokens.scale + token);
  }
  /// shared: the product with the shared experts, without its scale.
  __device__ __forceinline__ void leave(const AddExperts& p, float shared) const {
    float value = 0;
    if (there) {
      value = residual + shared * scale;
#pragma unroll
      for (int k = 0; k < kMostUsed; ++k) {
        if (k >= p.weights.columns) break;
        value += weight[k] * each[k];
      }
      p.out(token)[output] = value;
    }
    static_assert(kOutputs == NormedQ8Rows::kScaled);
    if (p.coded.codes != nullptr) leave_normed(p.coded, token, output, value, norm, there);
  }
};

template <quant::Type kType, int kNTiles>
__global__ void __launch_bounds__(kThreads, 1)
    add_experts_small_batch_kernel(const Timestamps timestamps, const __grid_constant__ AddExperts p) {
  __shared__ float reduction[reduction_floats(kNTiles)];
  const PdlLink pdl(timestamps);
  const int rows = *p.rows;  // uploaded before the step's first kernel: no wait
  const int warp = static_cast<int>(threadIdx.x) / 32, first = static_cast<int>(blockIdx.x) * kOutputs;
  const int chunks = p.down.columns / kChunkColumns;
  Unit<kType> unit;
  if (warp < chunks) unit.load(p.down, p.down.row(0, first), warp);
  pdl.wait();

  uint4 tokens[4][kNTiles];
  if (warp < chunks) {
    const auto* const packed = reinterpret_cast<const char*>(p.tokens.data);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int n = 0; n < kNTiles; ++n)
        tokens[j][n] = Unit<kType>::token_at(packed, chunks * kChunkColumns * 2, warp, j, n);
    }
  }
  Addends own(p, first, rows);
  own.ask(p, true);
  float sum[kNTiles][4] = {};
  if (warp < chunks) unit.multiply(p.down, sum, [&](int j, int n) { return tokens[j][n]; });
  own.leave(p, reduce_all(sum, reduction));
}

/// Where there are no shared experts.
__global__ void __launch_bounds__(kThreads)
    add_routed_small_batch_kernel(const Timestamps timestamps, const __grid_constant__ AddExperts p) {
  const PdlLink pdl(timestamps);
  Addends own(p, static_cast<int>(blockIdx.x) * kOutputs, *p.rows);
  pdl.wait();
  own.ask(p, false);
  own.leave(p, 0);
}

template <quant::Type kType>
void start(const AddExperts& sum, const Context& c) {
  const int n_tiles = n_tiles_for(c.step_rows);
  launch(c,
         n_tiles == 1   ? add_experts_small_batch_kernel<kType, 1>
         : n_tiles == 2 ? add_experts_small_batch_kernel<kType, 2>
                        : add_experts_small_batch_kernel<kType, 4>,
         {dim3(static_cast<unsigned>(sum.down.rows / kOutputs)), dim3(kThreads)}, sum);
}

}  // namespace

bool serves_add_routed_small_batch(int64_t outputs, int64_t used, int64_t rows) {
  return rows >= 2 && rows <= kMostRows && used <= kMostUsed && outputs % kOutputs == 0;
}
bool serves_add_experts_small_batch(quant::Type type, int64_t outputs, int64_t columns, int64_t used,
                                    int64_t rows) {
  return int8_mma::fits_ring(type) && serves_add_routed_small_batch(outputs, used, rows) &&
         columns % kChunkColumns == 0 && columns <= kMostChunks * kChunkColumns;
}

void add_experts_small_batch(const AddExperts& sum, const Context& context) {
  if (sum.down.codes == nullptr) {
    const auto threads = static_cast<unsigned>(n_tiles_for(context.step_rows) * kNTileTokens * kOutputs);
    return launch(context, add_routed_small_batch_kernel,
                  {dim3(static_cast<unsigned>(sum.out.columns / kOutputs)), dim3(threads)}, sum);
  }
  int8_mma::with_type(sum.down.type, [&]<quant::Type kType>() { start<kType>(sum, context); });
}

}  // namespace sluice::backend::cuda
