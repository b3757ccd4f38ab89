// Gated products of one row (gate_up, moe_gate_up): the shared or dense matrix first, whose first blocks are
// asked for before the kernel waits; then the experts that were selected, whose ids are read here: nothing is
// gathered.
#include "backend/cuda/ops/kernels.h"
#include "backend/cuda/ops/one_row.h"
#include "backend/cuda/ops/one_row_types.cuh"

namespace sluice::backend::cuda {
namespace {

struct Experts {
  CodePlanes gate, up;
  int gate_row, up_row, gate_rows, up_rows;  ///< first flat row, and rows of a matrix in the planes
  float* out;
  int out_stride;  ///< elements a slot
  const int32_t* ids;
  int slots, rows, tasks;  ///< rows of a matrix; tasks: of a slot
};

struct Args {
  Experts shared, routed;
  const float* in;
  int columns, blocks, lanes;
  int shared_warps;  ///< of the launch
};

/// The tasks that a warp takes of some experts, every `stride`-th from the first on.
template <Type T>
struct Walk {
  static constexpr int kAtOnce = at_once<T>() / 2;
  const Args& args;
  const Experts& e;
  const RowShape shape;
  const int stride;
  int slot = 0, task, b;     // task: of the slot
  int expert = 0;            // the matrix of the slot that is this lane's number
  int gate_first, up_first;  // blocks before this lane's row
  Asked<T, kAtOnce> gate, up;

  __device__ Walk(const Args& all, const Experts& experts, int first_task, int every)
      : args(all), e(experts), shape{all.blocks, all.lanes, experts.rows}, stride(every) {
    task = first_task, b = shape.lane();
    settle();
  }
  __device__ bool done() const { return slot >= e.slots; }
  __device__ void settle() {
#pragma unroll 1
    while (task >= e.tasks && slot < e.slots) task -= e.tasks, ++slot;
  }
  __device__ void take_ids() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (e.ids != nullptr && lane < e.slots) expert = load_result(e.ids + lane);
  }
  __device__ void begin() {
    begin_row();
    ask();
  }
  __device__ void begin_row() {
    const int row = min(shape.row_of(task), e.rows - 1);
    const int matrix = __shfl_sync(kWholeWarp, expert, slot);
    gate_first = (e.gate_row + matrix * e.gate_rows + row) * args.blocks;
    up_first = (e.up_row + matrix * e.up_rows + row) * args.blocks;
  }
  __device__ void ask() {
    if (done()) return;
    gate.ask(e.gate, gate_first, b, shape);
    up.ask(e.up, up_first, b, shape);
  }
  __device__ void run(const Activations& x) {
    float gate_sum = 0, up_sum = 0;
#pragma unroll 1
    while (!done()) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int block = b + i * shape.lanes;
        if (block >= shape.blocks) break;
        const ActivationBlock in = x.block(0, block);
        gate_sum += multiply<T>(unpack_codes<T>(gate.raw[i]), unpack_scales<T>(gate.raw[i]), in);
        up_sum += multiply<T>(unpack_codes<T>(up.raw[i]), unpack_scales<T>(up.raw[i]), in);
      }
      b += kAtOnce * shape.lanes;
      const bool row_ends = b - shape.lane() >= args.blocks;
      const int n = shape.row_of(task), out = slot * e.out_stride + n;
      if (row_ends) {
        b = shape.lane(), task += stride;
        settle(), begin_row();
      }
      ask();
      if (!row_ends) continue;
      gate_sum = lane_sum(gate_sum, shape.lanes), up_sum = lane_sum(up_sum, shape.lanes);
      if (n < e.rows && shape.lane() == 0)
        e.out[out] = __fdividef(gate_sum, 1.0f + __expf(-gate_sum)) * up_sum;
      gate_sum = up_sum = 0;
    }
  }
};

/// A warp takes rows of the shared matrix or of experts, never both.
template <Type Routed, Type Shared>
__global__ void __launch_bounds__(kOneRowThreads, 2)
    row_gated(const Stamps stamps, const __grid_constant__ Args args) {
  const Link link(stamps);
  const int warp = warp_of_launch();
  const Activations x{0, args.columns, true, false};
  if (warp < args.shared_warps) {
    Walk<Shared> walk(args, args.shared, warp, args.shared_warps);
    walk.begin();
    link.wait();
    quantize_row(x, args.in, nullptr, [] {});
    __syncthreads();
    walk.run(x);
  } else {
    Walk<Routed> walk(args, args.routed, warp - args.shared_warps, warps_of_launch() - args.shared_warps);
    link.wait();
    walk.take_ids();
    quantize_row(x, args.in, nullptr, [&] { walk.begin(); });
    __syncthreads();
    walk.run(x);
  }
}

/// Whether the two matrices can be read side by side; fills e.
bool take(const OneRowGated::Experts& from, const RowShape& shape, Experts& e) {
  if (from.gate.codes == nullptr) return true;
  if (from.up.codes == nullptr || from.gate.type != from.up.type) return false;
  if (from.up.rows != from.gate.rows || from.gate.columns != shape.blocks * 32) return false;
  if (!blocks_fit_int(from.gate) || !blocks_fit_int(from.up)) return false;
  e = {planes_from(from.gate),
       planes_from(from.up),
       static_cast<int>(from.gate.first_row),
       static_cast<int>(from.up.first_row),
       static_cast<int>(from.gate.matrix_rows),
       static_cast<int>(from.up.matrix_rows),
       from.out.data,
       static_cast<int>(from.out.head_stride),
       from.ids,
       from.slots,
       from.gate.rows,
       row_shape(from.gate).tasks()};
  return true;
}

}  // namespace

bool gate_one_row(const Context& context, const OneRowGated& gated) {
  const Matrix& first = gated.routed.gate.codes != nullptr ? gated.routed.gate : gated.shared.gate;
  const Matrix& second = gated.shared.gate.codes != nullptr ? gated.shared.gate : first;
  if (!is_aligned(gated.in) || first.columns % 32 != 0) return false;
  const RowShape shape = row_shape(first);
  Args args{};
  args.in = gated.in, args.columns = first.columns, args.blocks = shape.blocks, args.lanes = shape.lanes;
  if (gated.routed.slots > 32) return false;  // a lane of a warp knows each
  if (!take(gated.routed, shape, args.routed) || !take(gated.shared, shape, args.shared)) return false;
  const int tasks = args.shared.slots * args.shared.tasks + args.routed.slots * args.routed.tasks;
  const LaunchShape launched =
      one_row_launch(context, tasks, Activations::row_bytes(args.columns, true, false));
  // Warps by work; where there are both kinds, each has some.
  const int64_t warps = int64_t{launched.grid.x} * kOneRowWarps;
  const int64_t shared_tasks = args.shared.slots * args.shared.tasks;
  args.shared_warps = static_cast<int>((warps * shared_tasks + tasks - 1) / tasks);
  if (shared_tasks < tasks) args.shared_warps = std::min(args.shared_warps, static_cast<int>(warps) - 1);
  return with_types(first.type, second.type, [&]<quant::Type Routed, quant::Type Shared>() {
    launch(context, row_gated<Routed, Shared>, launched, args);
  });
}

}  // namespace sluice::backend::cuda
