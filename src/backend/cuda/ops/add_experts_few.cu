// The end of moe_down_add of 2 to 32 rows in one launch: the shared experts' down projection, and its sum
// with the routed experts' results and the residual. A block of threads takes 16 outputs: it asks for their
// weights before it waits, makes all rows halves for itself (prim/few_rows.cuh), and its warps share the
// columns, a chunk of 128 each. Bound by latency: what is to be added is asked for together with the rows.
#include "backend/cuda/ops/add_experts_few.h"

#include "backend/cuda/prim/few_rows.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda {
namespace {

using namespace few;

constexpr int kOutputs = 16;  ///< of a block of threads
constexpr int kMostChunks = kWarps;
constexpr int kMostUsed = 8;

template <int kStrips>
struct Shared {
  static constexpr int kTokens = kStrips * kStripTokens;
  float meeting[kWarps * kStrips * 4 * 32];
  float scale[kTokens];
  alignas(16) char packed[kTokens * row_pitch(kMostChunks)];
};

template <quant::Type kType, int kStrips>
__global__ void __launch_bounds__(kThreads, 1)
    add_experts_few_kernel(const Stamps stamps, const __grid_constant__ AddExperts p) {
#if __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
  extern __shared__ __align__(16) char few_shared[];
  auto& s = *reinterpret_cast<Shared<kStrips>*>(few_shared);
  const Link link(stamps);
  const int rows = *p.rows;  // was there before the step's first kernel began
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first = static_cast<int>(blockIdx.x) * kOutputs;
  const int columns = p.down.columns, chunks = columns / kChunkColumns, used = p.ids.columns;
  Unit<kType> unit;
  if (warp < chunks) unit.load(p.down, p.down.row(0, first), warp);
  link.wait();

  // What this thread adds up at last: where sums meet, warp w has sum w of every lane.
  const int own_token = warp / 4 * kStripTokens + 2 * (lane % 4) + warp % 2;
  const int own_output = first + lane / 4 + warp / 2 % 2 * 8;
  const bool adds = warp < kStrips * 4 && own_token < rows;
  float each[kMostUsed], weight[kMostUsed], residual = 0;
  int id[kMostUsed];
  if (adds) {
#pragma unroll
    for (int k = 0; k < kMostUsed; ++k) {
      if (k >= used) break;
      each[k] = load_result(p.each + (int64_t{own_token} * used + k) * p.out.columns + own_output);
      id[k] = load_result(p.ids(own_token) + k), weight[k] = load_result(p.weights(own_token) + k);
    }
    residual = load_result(p.residual(own_token) + own_output);
  }
  for (int token = warp; token < rows; token += kWarps) {
    float4 v[kMostChunks];
    const float* const row = p.in(token);
#pragma unroll
    for (int i = 0; i < kMostChunks; ++i) {
      const int c = i * kChunkColumns + lane * 4;
      v[i] = c < columns ? __ldcg(reinterpret_cast<const float4*>(row + c)) : float4{0, 0, 0, 0};
    }
    pack_row(v, chunks, s.packed + token * row_pitch(kMostChunks), s.scale + token);
  }
  __syncthreads();
  float sum[kStrips][4] = {};
  if (warp < chunks) unit.multiply(p.down, s.packed, row_pitch(kMostChunks), warp, sum);
  meet(sum, 1, 1, s.meeting, [&](int, int, int token, float all) {
    if (!adds) return;
    float value = residual + all * s.scale[token];
    for (int i = 0; i < used; ++i) {
#pragma unroll
      for (int k = 0; k < kMostUsed; ++k) {
        if (k >= used) break;
        int rank = 0;
#pragma unroll
        for (int other = 0; other < kMostUsed; ++other) rank += other < used && id[other] < id[k] ? 1 : 0;
        if (rank == i) value += weight[k] * each[k];
      }
    }
    p.out(token)[own_output] = value;
  });
#endif
}

template <quant::Type kType>
void start(const AddExperts& sum, const Context& c) {
  const auto with = [&](auto kernel, size_t shared) {
    launch(
        c, kernel,
        {dim3(static_cast<unsigned>(sum.down.rows / kOutputs)), dim3(kThreads), static_cast<int64_t>(shared)},
        sum);
  };
  if (c.step_rows <= kStripTokens) return with(add_experts_few_kernel<kType, 1>, sizeof(Shared<1>));
  with(add_experts_few_kernel<kType, 4>, sizeof(Shared<4>));
}

}  // namespace

bool serves_add_experts_few(quant::Type type, int64_t outputs, int64_t columns, int64_t used, int64_t rows,
                            int architecture) {
  return (architecture == 90 || architecture == 100) &&
         (type == quant::Type::Q6_K || type == quant::Type::Q4_0) && rows >= 2 && rows <= kMostRows &&
         used <= kMostUsed && outputs % kOutputs == 0 && columns % kChunkColumns == 0 &&
         columns <= kMostChunks * kChunkColumns;
}

void add_experts_few(const AddExperts& sum, const Context& context) {
  if (sum.down.type == quant::Type::Q6_K) return start<quant::Type::Q6_K>(sum, context);
  start<quant::Type::Q4_0>(sum, context);
}

}  // namespace sluice::backend::cuda
