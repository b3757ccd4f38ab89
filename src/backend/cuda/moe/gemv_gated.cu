// Gated products of one row (gate_up, norm_gate_up, moe_gate_up): gemv_gated_kernel.cuh, but a dense matrix
// alone goes through shared memory where there is TMA (9.0) and room: a thread block an SM asks for all of
// its rows before it waits. That saves registers rather than time: it leaves each SM room for one block of
// the next kernel, so that those behind begin evenly.
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/moe/gemv_gated.cuh"
#include "backend/cuda/prim/mma.cuh"

namespace sluice::backend::cuda {

using namespace gated;

namespace {

/// A dense gate and up through shared memory, in slots of a row a warp.
struct StagedArgs {
  const uint8_t* planes[2][4];  ///< of gate and up, from their first rows on
  int row_bytes[4], at[4];      ///< of a plane; at: in a slot's side, gate's or up's
  int side_bytes, slots_at;     ///< slots_at: in shared memory
  float* out;
  const float *in, *norm;
  float epsilon;
  int columns, blocks, rows;
};

constexpr int64_t kStatic = 1024;  ///< of shared memory, at most
constexpr int kMostStaged = 16;    ///< slots: rows of a warp, which half of its lanes have
constexpr int kResident = 2;       ///< blocks of a lane: of 2,048 columns, all

template <Type T>
__global__ void __launch_bounds__(kGemvThreads, 2)
    row_gated_staged(const Timestamps timestamps, const __grid_constant__ StagedArgs args) {
#if __CUDA_ARCH__ >= 900
  __shared__ __align__(16) float partial[kGemvWarps];
  __shared__ uint64_t barriers[kMostStaged];
  const PdlLink pdl(timestamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first = static_cast<int>(static_cast<int64_t>(args.rows) * blockIdx.x / gridDim.x);
  const int count = static_cast<int>(static_cast<int64_t>(args.rows) * (blockIdx.x + 1) / gridDim.x) - first;
  const int slots = (count + kGemvWarps - 1) / kGemvWarps;
  const uint32_t barrier = shared_address(barriers), stage = shared_address(dynamic_shared(args.slots_at));
  if (warp == 0) {
    if (lane == 0) {
      const int bytes = 2 * (args.row_bytes[0] + args.row_bytes[1] + args.row_bytes[2] + args.row_bytes[3]);
      for (int i = 0; i < slots; ++i) barrier_init(barrier + 8 * i, 1);
      barrier_init_fence();
      for (int i = 0; i < slots; ++i)
        barrier_expect(barrier + 8 * i,
                       static_cast<uint32_t>(bytes * min(kGemvWarps, count - i * kGemvWarps)));
    }
    __syncwarp();
    const int side = lane / 4, plane = lane % 4;
    if (side < 2 && args.row_bytes[plane] > 0) {
      const int bytes = args.row_bytes[plane];
      const uint8_t* from = args.planes[side][plane] + int64_t{first} * bytes;
      uint32_t to = stage + static_cast<uint32_t>(side * args.side_bytes + args.at[plane]);
#pragma unroll 1
      for (int i = 0; i < slots; ++i) {
        copy_bulk(to, from, static_cast<uint32_t>(bytes * min(kGemvWarps, count - i * kGemvWarps)),
                  barrier + 8 * i);
        from += bytes * kGemvWarps, to += static_cast<uint32_t>(2 * args.side_bytes);
      }
    }
  }
  const Activations x{0, args.columns, true, false};
  float* const norm =
      reinterpret_cast<float*>(dynamic_shared(Activations::row_bytes(args.columns, true, false)));
  if (args.norm != nullptr) fetch_norm(norm, args.norm, args.columns);
  pdl.wait();
  wait_for_copies();
  const float squares = quantize_row(x, args.in, args.norm != nullptr ? norm : nullptr, [] {});
  float factor = 1;
  if (args.norm != nullptr) {
    factor = reduce_for_norm(squares, partial, args.columns, args.epsilon);
  } else {
    __syncthreads();
  }
  // What a lane has of a row this short it has once for all of its warp's rows.
  const bool keeps = args.blocks == 32 * kResident;
  ActivationBlock kept[kResident];
  if (keeps) {
#pragma unroll
    for (int k = 0; k < kResident; ++k) kept[k] = x.block(0, lane + 32 * k);
  }
  float mine = 0;  // lane i: gate of the warp's row i, lane 16 + i: up
#pragma unroll 1
  for (int i = 0, n = warp; n < count; ++i, n += kGemvWarps) {
    barrier_wait(barrier + 8 * i, 0);
    const uint8_t* const slot =
        reinterpret_cast<const uint8_t*>(dynamic_shared(args.slots_at)) + 2 * i * args.side_bytes;
    const CodePlanes gate{slot + args.at[0], slot + args.at[1], slot + args.at[2], slot + args.at[3]};
    const uint8_t* const other = slot + args.side_bytes;
    const CodePlanes up{other + args.at[0], other + args.at[1], other + args.at[2], other + args.at[3]};
    float gate_sum = 0, up_sum = 0;
    const auto add = [&](int b, const ActivationBlock& in) {
      gate_sum += multiply<T>(load_block<T>(gate, warp * args.blocks + b, FromShared{}), in);
      up_sum += multiply<T>(load_block<T>(up, warp * args.blocks + b, FromShared{}), in);
    };
    if (keeps) {
#pragma unroll
      for (int k = 0; k < kResident; ++k) add(lane + 32 * k, kept[k]);
    } else {
#pragma unroll 2
      for (int b = lane; b < args.blocks; b += 32) add(b, x.block(0, b));
    }
    // Either half of the warp has one of the sums.
    const bool first_half = lane < 16;
    float sum = first_half ? gate_sum : up_sum;
    sum += __shfl_xor_sync(kWholeWarp, first_half ? up_sum : gate_sum, 16);
    sum = lane_sum(sum, 16);
    if (lane % 16 == i) mine = sum;
  }
  mine *= factor;
  const float up = __shfl_down_sync(kWholeWarp, mine, 16);
  const int n = warp + lane * kGemvWarps;
  if (lane < 16 && n < count) args.out[first + n] = __fdividef(mine, 1.0f + __expf(-mine)) * up;
#endif
}

/// False: it does not fit.
bool gate_staged(const Context& context, const GemvGated& gated) {
  const GemvGated::Experts& e = gated.shared;
  if (context.architecture < 90 || e.gate.codes == nullptr || gated.routed.gate.codes != nullptr)
    return false;
  if (e.up.type != e.gate.type || e.up.rows != e.gate.rows || e.slots != 1 || e.ids != nullptr) return false;
  if (lanes_for(e.gate.columns) != 32 || e.gate.columns % 256 != 0) return false;
  const Format* format = find_format(e.gate.type);
  if (format == nullptr) return false;
  StagedArgs args{};
  const quant::Type type = e.gate.type;
  const PlaneBytes row = plane_bytes(type, e.gate.columns);
  const int64_t bytes[4] = {row.codes, row.high, row.scale, row.super};
  int64_t all = 0;
  for (int i = 0; i < 4; ++i) {
    if (bytes[i] % 16 != 0) return false;
    args.row_bytes[i] = static_cast<int>(bytes[i]);
    args.at[i] = static_cast<int>(all);
    all += bytes[i] * kGemvWarps;
  }
  args.side_bytes = static_cast<int>(all);
  args.slots_at =
      Activations::row_bytes(e.gate.columns, true, false) + (gated.norm != nullptr ? 4 * e.gate.columns : 0);
  const int grid = std::min(context.sm_count, e.gate.rows);
  const int slots = ((e.gate.rows + grid - 1) / grid + kGemvWarps - 1) / kGemvWarps;
  const int64_t shared = args.slots_at + int64_t{2} * slots * args.side_bytes;
  if (slots > kMostStaged || shared + kStatic > most_shared(context.architecture)) return false;
  for (const Matrix* m : {&e.gate, &e.up}) {
    const uint8_t* const planes[4] = {m->codes, m->high, m->scale, m->super};
    for (int i = 0; i < 4; ++i) args.planes[m == &e.up][i] = planes[i] + m->first_row * bytes[i];
  }
  args.out = e.out.data, args.in = gated.in, args.norm = gated.norm, args.epsilon = gated.epsilon;
  args.columns = e.gate.columns, args.blocks = e.gate.columns / 32, args.rows = e.gate.rows;
  return with_type(type, [&]<quant::Type T>() {
    launch(context, row_gated_staged<T>, {dim3(static_cast<unsigned>(grid)), dim3(kGemvThreads), shared},
           args);
  });
}

}  // namespace

bool gate_gemv(const Context& context, const GemvGated& gated) {
  const Matrix& first = gated.routed.gate.codes != nullptr ? gated.routed.gate : gated.shared.gate;
  const Matrix& second = gated.shared.gate.codes != nullptr ? gated.shared.gate : first;
  if (!is_aligned(gated.in) || !is_aligned(gated.norm) || first.columns % 32 != 0) return false;
  if (gate_staged(context, gated)) return true;
  const RowShape shape = row_shape(first);
  Args args{};
  args.in = gated.in, args.norm = gated.norm, args.epsilon = gated.epsilon;
  args.columns = first.columns, args.blocks = shape.blocks, args.lanes = shape.lanes;
  if (gated.routed.slots > kMostSlots) return false;
  if (!take(gated.routed, shape, args.routed) || !take(gated.shared, shape, args.shared)) return false;
  const int tasks = args.shared.slots * args.shared.tasks + args.routed.slots * args.routed.tasks;
  const LaunchShape launched = gemv_launch(context, tasks,
                                           Activations::row_bytes(args.columns, true, false) +
                                               (args.norm != nullptr ? int64_t{4} * args.columns : 0));
  // Warps by work; where there are both kinds, each has some.
  const int64_t warps = int64_t{launched.grid.x} * kGemvWarps;
  const int64_t shared_tasks = args.shared.slots * args.shared.tasks;
  args.shared_warps = static_cast<int>((warps * shared_tasks + tasks - 1) / tasks);
  if (shared_tasks < tasks) args.shared_warps = std::min(args.shared_warps, static_cast<int>(warps) - 1);
  bool there = false;
  with_type(first.type, [&]<quant::Type Routed>() {
    there = launch_gated<Routed>(context, second.type, args, launched);
  });
  return there;
}

bool gates_gemv(quant::Type type) {
  return with_type(type, [&]<quant::Type>() {});
}

}  // namespace sluice::backend::cuda
