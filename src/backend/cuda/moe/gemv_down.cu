// moe_down_add of one row. Two warps share an output row. As soon as the experts are known the second asks
// for the row of each of them, all at once, to shared memory: before the kernel waits, where the one before
// leaves the selection on its mailbox. Meanwhile the first, with its like of the thread block, quantises the
// inputs and multiplies the shared experts, whose blocks it has asked for before. Then both multiply, half of
// the experts' blocks each.
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/moe/gemv_down.cuh"
#include "backend/cuda/prim/mailbox.cuh"

namespace sluice::backend::cuda {

using namespace gemv_down;

namespace {

struct Args {
  CodePlanes planes, shared_planes;
  Stage stage;  // a warp's rows
  int first_row, matrix_rows, shared_row;
  const float *in, *shared_in, *weights, *residual, *bias;
  const int32_t* ids;
  float* out;
  Mailbox selected;
  int blocks, shared_blocks, slots, rows;  // blocks: of an expert's row
  int at_once, staged;                     // experts' rows in a warp's stage; where stages begin
};

template <Type Routed, Type Shared>
__global__ void __launch_bounds__(kThreads, 1)
    row_down(const Timestamps timestamps, const __grid_constant__ Args args) {
  constexpr bool kBiased = takes_biases(Routed);
  __shared__ float others[kOutputs];
  const PdlLink pdl(timestamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const bool fetches = warp >= kOutputs;
  const int own = warp % kOutputs;
  const int n = min(static_cast<int>(blockIdx.x) * kOutputs + own, args.rows - 1);  // the last one's again
  const RowShape shared_shape{args.shared_blocks, 32, args.rows};
  const int shared_first = (args.shared_row + n) * args.shared_blocks;
  Asked<Shared, 2> shared;
  if (!fetches && args.shared_blocks > 0) shared.ask(args.shared_planes, shared_first, lane, shared_shape);
  int expert = 0;  // of slot `lane`
  const bool early = args.selected.slots != nullptr;
  uint8_t* const stage = reinterpret_cast<uint8_t*>(dynamic_shared(args.staged)) + own * args.stage.bytes;
  const auto fetch = [&](int first, int count) {
    copy_rows(stage, args.stage, args.planes, count, [&](int i) {
      return args.first_row + __shfl_sync(kWholeWarp, expert, first + i) * args.matrix_rows + n;
    });
  };
  if (fetches && early) {
    // Weights depend on nothing but the selection.
    if (lane < args.slots)
      expert = __float_as_int(take_slot(args.selected.slots + lane, args.selected.flag()));
    __syncwarp();
    fetch(0, min(args.at_once, args.slots));
  }
  pdl.wait();
  if (fetches && !early && lane < args.slots) expert = load_result(args.ids + lane);
  float bias = 0;
  if (kBiased && fetches && args.bias != nullptr && lane < args.slots)
    bias = load_result(args.weights + lane) * __ldg(args.bias + expert * args.rows + n);
  const float residual = lane == 0 ? load_result(args.residual + n) : 0.0f;
  const int routed_blocks = args.slots * args.blocks;
  const Activations x{0, (routed_blocks + args.shared_blocks) * 32, true, false};
  float sum = 0;
#pragma unroll 1
  for (int first = 0; first < args.slots; first += args.at_once) {
    const int count = min(args.at_once, args.slots - first);
    if (fetches) {
      if (first != 0 || !early) fetch(first, count);
      wait_for_copies();
    } else if (first == 0) {
      const auto weight_of = [&](int b) { return load_result(args.weights + b / args.blocks); };
      int weighted = static_cast<int>(threadIdx.x);  // a block of activations
      float weight = weighted < routed_blocks ? weight_of(weighted) : 0.0f;
      quantize_eights<kHalf>(
          x, x.columns / 8, nullptr,
          [&](int at) {
            const int shared_at = at - routed_blocks * 4;
            return reinterpret_cast<const float4*>(shared_at < 0 ? args.in : args.shared_in) +
                   2 * (shared_at < 0 ? at : shared_at);
          },
          [] {});
      asm volatile("bar.sync 1, %0;" ::"n"(kHalf) : "memory");  // those that quantise
      // An expert's weight becomes part of its activations' scales, so that a row is one long sum.
#pragma unroll 1
      while (weighted < routed_blocks) {
        x.scale(weighted) *= weight;
        weighted += kHalf;
        if (weighted < routed_blocks) weight = weight_of(weighted);
      }
#pragma unroll 1
      for (int at = lane; at - lane < args.shared_blocks; at += 64) {
        if (at != lane) shared.ask(args.shared_planes, shared_first, at, shared_shape);
        sum += shared.times(x, at, shared_shape, routed_blocks);
      }
    }
    __syncthreads();
    // Whole turns of a warp to either.
    const int blocks = count * args.blocks, middle = (blocks / 2 + 31) / 32 * 32;
    const int begin = fetches ? middle : 0, end = fetches ? blocks : min(middle, blocks);
    const CodePlanes staged = args.stage.planes(stage);
#pragma unroll 2
    for (int b = begin + lane; b < end; b += 32)
      sum +=
          multiply<Routed>(load_block<Routed>(staged, b, FromShared{}), x.block(0, first * args.blocks + b));
    if (first + count < args.slots) __syncthreads();  // before stages are written again
  }
  if constexpr (kBiased) sum += bias;
  sum = lane_sum(sum);
  if (fetches && lane == 0) others[own] = sum;
  __syncthreads();
  if (!fetches && lane == 0) args.out[n] = sum + others[own] + residual;
}

}  // namespace

bool add_down_gemv(const Context& context, const GemvDown& down) {
  const bool has_shared = down.shared_down.codes != nullptr;
  const Matrix& m = down.down;
  Args args{};
  args.planes = planes_from(m), args.first_row = static_cast<int>(m.first_row),
  args.matrix_rows = static_cast<int>(m.matrix_rows);
  args.bias = down.bias;
  args.in = down.in.data, args.weights = down.weights, args.residual = down.residual, args.ids = down.ids;
  args.out = down.out, args.selected = down.selected;
  args.blocks = m.columns / 32, args.slots = down.in.heads, args.rows = m.rows;
  if (has_shared) {
    args.shared_planes = planes_from(down.shared_down),
    args.shared_row = static_cast<int>(down.shared_down.first_row);
    args.shared_in = down.shared_in, args.shared_blocks = down.shared_down.columns / 32;
  }
  const PlaneBytes bytes = plane_bytes(m.type, m.columns);
  args.staged = Activations::row_bytes((args.slots * args.blocks + args.shared_blocks) * 32, true, false);
  const int room =
      (static_cast<int>(most_shared(context.architecture)) - args.staged) / kOutputs - Stage::kPadding;
  args.at_once = std::min(args.slots, room / Stage::row_bytes(bytes));
  args.stage = Stage::of(bytes, args.at_once);
  if (!Stage::takes(bytes) || (down.bias != nullptr && !takes_biases(m.type))) return false;
  // Slots lie behind each other, and a lane of a warp knows each.
  if (down.in.head_stride != m.columns || args.slots > 32 || m.columns % 32 != 0 || args.at_once <= 0)
    return false;
  if (!blocks_fit_int(m) || (has_shared && !blocks_fit_int(down.shared_down))) return false;
  if (!is_aligned(args.in) || !is_aligned(args.shared_in)) return false;
  const auto start = [&]<quant::Type Routed, quant::Type Shared>() {
    const LaunchShape shape{dim3(static_cast<unsigned>((args.rows + kOutputs - 1) / kOutputs)),
                            dim3(kThreads), args.staged + kOutputs * args.stage.bytes};
    launch(context, row_down<Routed, Shared>, shape, args);
  };
  return with_down_types(m.type, has_shared ? down.shared_down.type : m.type, start);
}

}  // namespace sluice::backend::cuda
