// Gate and up matrices of experts as warps walk over them: what gemv_gated.cu and
// gemv_routed_kernel.cuh share.
#pragma once

#include "backend/cuda/gemv/gemv.h"
#include "backend/cuda/gemv/gemv_types.cuh"
#include "backend/cuda/gemv/rows.cuh"

namespace sluice::backend::cuda {

inline constexpr int kMostSlots = 32;  ///< experts of a row: a lane of a warp knows each

/// Gate and up matrices of some experts, or of one matrix, read side by side.
struct GatedPlanes {
  CodePlanes gate, up;
  int gate_row, up_row, gate_rows, up_rows;  ///< first flat row, and rows of a matrix in the planes
  float* out;
  int out_stride;  ///< elements a slot
  const int32_t* ids;
  int slots, rows, tasks;              ///< rows of a matrix; tasks: of a slot
  const float *gate_bias, *up_bias;    ///< null, or [matrices][rows]
  const float *gate_scale, *up_scale;  ///< null, or [matrices]
  program::Swiglu form;
};

/// Whether the two matrices can be read side by side; fills e.
inline bool take(const GemvGated::Experts& from, const RowShape& shape, GatedPlanes& e) {
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
       row_shape(from.gate).tasks(),
       from.gate_bias,
       from.up_bias,
       from.gate_scale,
       from.up_scale,
       from.form};
  return true;
}

/// The tasks that a warp takes of some experts, every `stride`-th from the first on. kRows: of a step at
/// most; of several, slots are pairs of a row and an expert, row by row, or one matrix that all rows are
/// multiplied by.
template <Type T, int kRows = 1>
struct Walk {
  static constexpr int kAtOnce = at_once<T>() / 2;
  const GatedPlanes& e;
  const RowShape shape;
  const int stride;
  int slot = 0, task, b;     // task: of the slot
  int slots;                 // of several rows; of one, what the parameters say
  int expert = 0;            // the matrix of the slot that is this lane's number
  int gate_first, up_first;  // blocks before this lane's row
  Asked<T, kAtOnce> gate, up;

  /// blocks, lanes: of a row.
  __device__ Walk(const GatedPlanes& experts, int blocks, int lanes, int first_task, int every)
      : e(experts), shape{blocks, lanes, experts.rows}, stride(every) {
    task = first_task, b = shape.lane();
    if constexpr (kRows == 1) settle();
  }
  /// Of several rows, before all else: how many slots there are.
  __device__ void set_slots(int count) { slots = count, settle(); }
  __device__ int all_slots() const {
    if constexpr (kRows == 1) return e.slots;
    return slots;
  }
  __device__ bool done() const { return slot >= all_slots(); }
  __device__ void settle() {
#pragma unroll 1
    while (task >= e.tasks && slot < all_slots()) task -= e.tasks, ++slot;
  }
  __device__ void take_ids() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (e.ids != nullptr && lane < e.slots) expert = load_result(e.ids + lane);
  }
  /// ids: in shared memory.
  __device__ void take_ids(const int32_t* ids) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < all_slots()) expert = ids[lane];
  }
  __device__ void begin() {
    begin_row();
    ask();
  }
  __device__ void begin_row() {
    const int row = min(shape.row_of(task), e.rows - 1);
    const int matrix = __shfl_sync(kWholeWarp, expert, slot);
    gate_first = (e.gate_row + matrix * e.gate_rows + row) * shape.blocks;
    up_first = (e.up_row + matrix * e.up_rows + row) * shape.blocks;
  }
  __device__ void ask() {
    if (done()) return;
    gate.ask(e.gate, gate_first, b, shape);
    up.ask(e.up, up_first, b, shape);
  }
  /// factor: of the activations; share: of what comes out. put(at, value): element `at` of out.
  template <typename Put>
  __device__ void run_to(const Activations& x, float factor, float share, Put put) {
    float gate_sum = 0, up_sum = 0;
#pragma unroll 1
    while (!done()) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int block = b + i * shape.lanes;
        if (block >= shape.blocks) break;
        const ActivationBlock in = x.block(0, block);
        gate_sum += multiply<T>(gate.raw[i], in);
        up_sum += multiply<T>(up.raw[i], in);
      }
      b += kAtOnce * shape.lanes;
      const bool row_ends = b - shape.lane() >= shape.blocks;
      const int n = shape.row_of(task), out = slot * e.out_stride + n;
      int matrix = 0;
      if constexpr (takes_biases(T) || takes_scales(T)) matrix = __shfl_sync(kWholeWarp, expert, slot);
      if (row_ends) {
        b = shape.lane(), task += stride;
        settle(), begin_row();
      }
      ask();
      if (!row_ends) continue;
      gate_sum = lane_sum(gate_sum, shape.lanes), up_sum = lane_sum(up_sum, shape.lanes);
      if (n < e.rows && shape.lane() == 0) {
        gate_sum *= factor, up_sum *= factor;
        if constexpr (takes_scales(T)) scale(matrix, gate_sum, up_sum);
        if constexpr (takes_biases(T)) {
          put(out, gated_by_form(matrix, n, gate_sum, up_sum) * share);
        } else {
          put(out, __fdividef(gate_sum, 1.0f + __expf(-gate_sum)) * (up_sum * share));
        }
      }
      gate_sum = up_sum = 0;
    }
  }
  __device__ void run(const Activations& x, float factor = 1.0f, float share = 1.0f) {
    run_to(x, factor, share, [&](int at, float value) { e.out[at] = value; });
  }
  __device__ void scale(int matrix, float& gate_sum, float& up_sum) const {
    if (e.gate_scale != nullptr) gate_sum *= __ldg(e.gate_scale + matrix);
    if (e.up_scale != nullptr) up_sum *= __ldg(e.up_scale + matrix);
  }
  /// Output n of a matrix: biases added, and the activation that program::Swiglu says.
  __device__ float gated_by_form(int matrix, int n, float gate_sum, float up_sum) const {
    const program::Swiglu& form = e.form;
    if (e.gate_bias != nullptr) {
      gate_sum += __ldg(e.gate_bias + matrix * e.rows + n);
      up_sum += __ldg(e.up_bias + matrix * e.rows + n);
    }
    gate_sum = fminf(gate_sum, form.limit), up_sum = fminf(fmaxf(up_sum, -form.limit), form.limit);
    return __fdividef(gate_sum, 1.0f + __expf(-form.alpha * gate_sum)) * (up_sum + form.shift);
  }
  /// Of several rows, `used` slots each, whose activations lie one behind another in x. factor_of(row);
  /// put(row, at, value): element `at` of a row of out.
  template <typename FactorOf, typename Put>
  __device__ void run_rows_to(const Activations& x, int used, FactorOf factor_of, Put put) {
    float gate_sum = 0, up_sum = 0;
#pragma unroll 1
    while (!done()) {
      const int row = part_of<kRows>(slot, used);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int block = b + i * shape.lanes;
        if (block >= shape.blocks) break;
        const ActivationBlock in = x.block(0, row * shape.blocks + block);
        gate_sum += multiply<T>(gate.raw[i], in);
        up_sum += multiply<T>(up.raw[i], in);
      }
      b += kAtOnce * shape.lanes;
      const bool row_ends = b - shape.lane() >= shape.blocks;
      const int n = shape.row_of(task), out = (slot - row * used) * e.out_stride + n;
      if (row_ends) {
        b = shape.lane(), task += stride;
        settle(), begin_row();
      }
      ask();
      if (!row_ends) continue;
      const float value = gated(gate_sum, up_sum, factor_of(row));
      if (n < e.rows && shape.lane() == 0) put(row, out, value);
      gate_sum = up_sum = 0;
    }
  }
  __device__ void run_rows(const Activations& x, const float (&factors)[kRows], int used,
                           int64_t row_stride) {
    run_rows_to(
        x, used, [&](int row) { return of_row(factors, row); },
        [&](int row, int at, float value) { e.out[row * row_stride + at] = value; });
  }
  /// One matrix, and all rows.
  __device__ void run_all(const Activations& x, const float (&factors)[kRows], const float (&shares)[kRows],
                          int rows, int64_t row_stride) {
    float gate_sum[kRows] = {}, up_sum[kRows] = {};
#pragma unroll 1
    while (!done()) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int block = b + i * shape.lanes;
        if (block >= shape.blocks) break;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const ActivationBlock in = x.block(0, r * shape.blocks + block);
          gate_sum[r] += multiply<T>(gate.raw[i], in);
          up_sum[r] += multiply<T>(up.raw[i], in);
        }
      }
      b += kAtOnce * shape.lanes;
      const bool row_ends = b - shape.lane() >= shape.blocks;
      const int n = shape.row_of(task);
      if (row_ends) {
        b = shape.lane(), task += stride;
        settle(), begin_row();
      }
      ask();
      if (!row_ends) continue;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (r < rows) {
          const float value = gated(gate_sum[r], up_sum[r], factors[r], shares[r]);
          if (n < e.rows && shape.lane() == 0) e.out[r * row_stride + n] = value;
        }
        gate_sum[r] = up_sum[r] = 0;
      }
    }
  }
  /// A number of each row, that of one.
  __device__ static float of_row(const float (&all)[kRows], int row) {
    float one = all[0];
#pragma unroll
    for (int r = 1; r < kRows; ++r) one = row == r ? all[r] : one;
    return one;
  }
  /// An element that the lanes of its row have made together.
  __device__ float gated(float gate_sum, float up_sum, float factor, float share = 1.0f) const {
    gate_sum = lane_sum(gate_sum, shape.lanes) * factor, up_sum = lane_sum(up_sum, shape.lanes) * factor;
    return __fdividef(gate_sum, 1.0f + __expf(-gate_sum)) * (up_sum * share);
  }
};

namespace gated {

struct Args {
  GatedPlanes shared, routed;
  const float *in, *norm;
  float epsilon;
  int columns, blocks, lanes;
  int shared_warps;  ///< of the launch
};

/// Starts the kernel (gemv_gated_kernel.cuh) for routed experts of type Routed and a shared or dense
/// matrix of this type. False: files do not mix these.
template <Type Routed>
bool launch_gated(const Context& context, Type shared, const Args& args, const LaunchShape& shape);

}  // namespace gated

}  // namespace sluice::backend::cuda
