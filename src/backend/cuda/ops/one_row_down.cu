// moe_down_add of one row: a warp takes an output row through all experts, shared ones first, whose blocks
// are asked for before the kernel waits. Router weights are part of the activations' scales, so that a row is
// one long sum.
#include "backend/cuda/ops/kernels.h"
#include "backend/cuda/ops/one_row.h"
#include "backend/cuda/ops/one_row_types.cuh"

namespace sluice::backend::cuda {
namespace {

struct Args {
  CodePlanes planes, shared_planes;
  int first_row, matrix_rows, shared_row;
  const float *in, *shared_in, *weights, *residual;
  const int32_t* ids;
  float* out;
  int blocks, shared_blocks, slots, rows;  // blocks: of an expert's row
};

/// grid: any; a warp a row at a time.
template <Type Routed, Type Shared>
__global__ void __launch_bounds__(kOneRowThreads, 2)
    row_down(const Stamps stamps, const __grid_constant__ Args args) {
  const Link link(stamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, stride = warps_of_launch();
  const RowShape shape{args.blocks, 32, args.rows}, shared_shape{args.shared_blocks, 32, args.rows};
  const int first_n = warp_of_launch();
  const auto shared_first = [&](int n) { return (args.shared_row + n) * args.shared_blocks; };
  Asked<Shared, 2> shared;
  if (first_n < args.rows && args.shared_blocks > 0)
    shared.ask(args.shared_planes, shared_first(first_n), lane, shared_shape);
  link.wait();
  // A lane knows the matrix and the weight of its slot.
  const bool has_slot = lane < args.slots;
  const int expert = has_slot ? load_result(args.ids + lane) : 0;
  const float weight = has_slot ? load_result(args.weights + lane) : 0.0f;
  const auto routed_first = [&](int n, int slot) {
    const int matrix = __shfl_sync(kWholeWarp, expert, slot);
    return (args.first_row + matrix * args.matrix_rows + n) * args.blocks;
  };
  Asked<Routed, 2> asked;
  constexpr int kPiece = 32 * 2;
  const int routed_blocks = args.slots * args.blocks;
  const Activations x{0, (routed_blocks + args.shared_blocks) * 32, true, false};
  const auto source = [&](int at) {
    const int shared_at = at - routed_blocks * 4;
    return reinterpret_cast<const float4*>(shared_at < 0 ? args.in : args.shared_in) +
           2 * (shared_at < 0 ? at : shared_at);
  };
  quantize_pieces(x, x.columns / 8, nullptr, source, [&] {
    if (first_n < args.rows) asked.ask(args.planes, routed_first(first_n, 0), lane, shape);
  });
  __syncthreads();
#pragma unroll 1
  for (int row = first_n; row < args.rows; row += stride) {
    const float residual = lane == 0 ? load_result(args.residual + row) : 0.0f;
    float sum = 0;
#pragma unroll 1
    for (int at = lane; at - lane < args.shared_blocks; at += kPiece) {
      if (row != first_n || at != lane) shared.ask(args.shared_planes, shared_first(row), at, shared_shape);
      sum += shared.times(x, at, shared_shape, routed_blocks);
    }
    int slot = 0, at = lane;
    if (row != first_n) asked.ask(args.planes, routed_first(row, 0), lane, shape);
      // The next piece is asked for before this one is multiplied.
#pragma unroll 1
    while (slot < args.slots) {
      const Asked<Routed, 2> now = asked;
      const int b = at, from = slot;
      at += kPiece;
      if (at - lane >= args.blocks) at = lane, ++slot;
      if (slot < args.slots) asked.ask(args.planes, routed_first(row, slot), at, shape);
      sum += __shfl_sync(kWholeWarp, weight, from) * now.times(x, b, shape, from * args.blocks);
    }
    sum = lane_sum(sum);
    if (lane == 0) args.out[row] = sum + residual;
  }
}

}  // namespace

bool add_down_one_row(const Context& context, const OneRowDown& down) {
  const bool has_shared = down.shared_down.codes != nullptr;
  const Matrix& m = down.down;
  Args args{};
  args.planes = planes_from(m), args.first_row = static_cast<int>(m.first_row),
  args.matrix_rows = static_cast<int>(m.matrix_rows);
  args.in = down.in.data, args.weights = down.weights, args.residual = down.residual, args.ids = down.ids;
  args.out = down.out;
  args.blocks = m.columns / 32, args.slots = down.in.heads, args.rows = m.rows;
  if (has_shared) {
    args.shared_planes = planes_from(down.shared_down),
    args.shared_row = static_cast<int>(down.shared_down.first_row);
    args.shared_in = down.shared_in, args.shared_blocks = down.shared_down.columns / 32;
  }
  const int64_t shared_bytes =
      Activations::row_bytes((args.slots * args.blocks + args.shared_blocks) * 32, true, false);
  // Slots lie behind each other, and a lane of a warp knows each.
  if (down.in.head_stride != m.columns || args.slots > 32 || m.columns % 32 != 0 ||
      shared_bytes > kMostShared)
    return false;
  if (!blocks_fit_int(m) || (has_shared && !blocks_fit_int(down.shared_down))) return false;
  if (!is_aligned(args.in) || !is_aligned(args.shared_in)) return false;
  return with_types(
      m.type, has_shared ? down.shared_down.type : m.type, [&]<quant::Type Routed, quant::Type Shared>() {
        launch(context, row_down<Routed, Shared>, one_row_launch(context, args.rows, shared_bytes), args);
      });
}

}  // namespace sluice::backend::cuda
