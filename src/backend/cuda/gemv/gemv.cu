// Products of one row (matmul, matmul_add, norm_matmul): bound by reading weights, and in the chain of a
// token by what lies between one kernel's results and the next one's products.
#include <algorithm>
#include <optional>

#include "backend/cuda/gemv/gemv.cuh"
#include "backend/cuda/gemv/gemv.h"
#include "backend/cuda/gemv/gemv_types.cuh"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/prim/launch.cuh"

namespace sluice::backend::cuda {
namespace {

struct Part {
  CodePlanes planes;
  int first_row;
  float* out;
  const float *add, *bias;
  int rows, tasks;
};

struct Args {
  Part parts[GemvProducts::kMost];
  const float *in, *norm;
  const char* form_at;
  float epsilon;
  int columns, blocks, lanes, tasks;
};

/// Where a lane's row of a task lies.
struct Place {
  int part, n;
  bool valid;
  int first_block;

  __device__ Place(const Args& args, int task) {
    part = 0;
#pragma unroll 1
    while (task >= args.parts[part].tasks) task -= args.parts[part++].tasks;
    const RowShape shape{args.blocks, args.lanes, args.parts[part].rows};
    n = shape.row_of(task);
    valid = n < shape.rows;
    first_block = (args.parts[part].first_row + (valid ? n : shape.rows - 1)) * args.blocks;
  }
};

/// Blocks of a lane at a time. Six where five would do by registers: 6,144 columns are six blocks a lane, and
/// a trip for the last one costs as much as one for all.
template <Type T>
constexpr int kPiece = at_once<T>() == 5 ? 6 : at_once<T>();

template <Type T>
__global__ void __launch_bounds__(kGemvThreads, 2)
    row_products(const Timestamps timestamps, const __grid_constant__ Args args) {
  __shared__ __align__(16) float partial[kGemvWarps];
  const PdlLink pdl(timestamps);
  using Piece = Asked<T, kPiece<T>>;
  const RowShape shape{args.blocks, args.lanes, 0};
  const int lane = shape.lane(), step = Piece::kAtOnce * args.lanes;
  int task = warp_of_launch(), b = lane;
  Place place(args, min(task, args.tasks - 1));
  Piece piece;
  if (task < args.tasks) piece.ask(args.parts[place.part].planes, place.first_block, b, shape);
  float* const norm =
      reinterpret_cast<float*>(dynamic_shared(Activations::row_bytes(args.columns, true, false)));
  if (args.norm != nullptr) fetch_norm(norm, args.norm, args.columns);
  pdl.wait();
  wait_for_copies();
  const auto addend = [&] {
    const Part& part = args.parts[place.part];
    if (!place.valid || lane != 0) return 0.0f;
    return (part.add != nullptr ? load_result(part.add + place.n) : 0.0f) +
           (part.bias != nullptr ? __ldg(part.bias + place.n) : 0.0f);
  };
  float add = 0;
  const Activations x{0, args.columns, true, false};
  float squares = 0;
  if (args.form_at != nullptr) {
    copy_quantized(x, args.form_at);
    add = addend();
    wait_for_copies();
  } else {
    squares = quantize_row(x, args.in, args.norm != nullptr ? norm : nullptr, [&] { add = addend(); });
  }
  float factor = 1;
  if (args.norm != nullptr) {
    factor = reduce_for_norm(squares, partial, args.columns, args.epsilon);
  } else {
    __syncthreads();
  }
  float sum = 0;
#pragma unroll 1
  while (task < args.tasks) {
    sum += piece.times(x, b, shape);
    b += step;
    const bool row_ends = b - lane >= args.blocks;
    float* const to = place.valid && lane == 0 && row_ends ? args.parts[place.part].out + place.n : nullptr;
    const float add_here = add;
    if (row_ends) {
      b = lane, task += warps_of_launch();
      if (task < args.tasks) place = Place(args, task), add = addend();
    }
    if (task < args.tasks) piece.ask(args.parts[place.part].planes, place.first_block, b, shape);
    if (!row_ends) continue;
    sum = lane_sum(sum, args.lanes);
    if (to != nullptr) *to = sum * factor + add_here;
    sum = 0;
  }
}

/// Of a row of so many blocks a lane has two: it asks for several rows at once.
constexpr int kBlocksOfSeveral = 64;

/// The same of a normed row of at most kBlocksOfSeveral blocks, with nothing added: all of a warp's first
/// rows are asked for before the wait. warp: of so many.
template <Type T>
__device__ __forceinline__ void multiply_normed(const Args& args, const PdlLink& pdl, int warp, int warps) {
  __shared__ __align__(16) float partial[kGemvWarps];
  constexpr int kRows = kPiece<T> / 2;
  const RowShape shape{args.blocks, 32, 0};
  const int lane = shape.lane();
  Asked<T, 2> pieces[kRows];
  const auto ask = [&](int first) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (first + i * warps >= args.tasks) break;
      const Place place(args, first + i * warps);
      pieces[i].ask(args.parts[place.part].planes, place.first_block, lane, shape);
    }
  };
  int task = warp;
  ask(task);
  float* const norm =
      reinterpret_cast<float*>(dynamic_shared(Activations::row_bytes(args.columns, true, false)));
  fetch_norm(norm, args.norm, args.columns);
  pdl.wait();
  wait_for_copies();
  const Activations x{0, args.columns, true, false};
  const float squares = quantize_row(x, args.in, norm, [] {});
  const float factor = reduce_for_norm(squares, partial, args.columns, args.epsilon);
#pragma unroll 1
  for (; task < args.tasks; task += kRows * warps) {
    float sums[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) sums[i] = pieces[i].times(x, lane, shape);
    ask(task + kRows * warps);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (task + i * warps >= args.tasks) break;
      const Place place(args, task + i * warps);
      const float sum = lane_sum(sums[i]);
      if (lane == 0) args.parts[place.part].out[place.n] = sum * factor;
    }
  }
}

template <Type T>
__global__ void __launch_bounds__(kGemvThreads, 2)
    normed_row_products(const Timestamps timestamps, const __grid_constant__ Args args) {
  const PdlLink pdl(timestamps);
  multiply_normed<T>(args, pdl, warp_of_launch(), warps_of_launch());
}

/// Of weights of two types: the first `blocks` blocks have those of the first.
template <Type T, Type U>
__global__ void __launch_bounds__(kGemvThreads, 2)
    normed_row_products_of_two(const Timestamps timestamps, const __grid_constant__ Args first,
                               const __grid_constant__ Args second, int blocks) {
  const PdlLink pdl(timestamps);
  const int block = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x) / 32;
  if (block < blocks) return multiply_normed<T>(first, pdl, warp * blocks + block, blocks * kGemvWarps);
  const int others = static_cast<int>(gridDim.x) - blocks;
  multiply_normed<U>(second, pdl, warp * others + block - blocks, others * kGemvWarps);
}

/// What a launch takes; nothing: weights of several types, or what lies at odd places.
std::optional<Args> args_of(const GemvProducts& products) {
  Args args{};
  const Matrix& first = products.parts[0].weight;
  const RowShape shape = row_shape(first);
  args.in = products.in, args.norm = products.norm, args.form_at = products.form_at,
  args.epsilon = products.epsilon;
  args.columns = first.columns, args.blocks = shape.blocks, args.lanes = shape.lanes;
  if (!is_aligned(products.in) || !is_aligned(products.norm) || first.columns % 32 != 0) return std::nullopt;
  for (int p = 0; p < products.count; ++p) {
    const Matrix& m = products.parts[p].weight;
    if (m.type != first.type || !blocks_fit_int(m)) return std::nullopt;
    args.parts[p] = {planes_from(m),        static_cast<int>(m.first_row), products.parts[p].out,
                     products.parts[p].add, products.parts[p].bias,        m.rows,
                     row_shape(m).tasks()};
    args.tasks += args.parts[p].tasks;
  }
  return args;
}
LaunchShape shape_of(const Context& context, const Args& args, int tasks) {
  return gemv_launch(
      context, tasks,
      Activations::row_bytes(args.columns, true, false) + (args.norm != nullptr ? 4 * args.columns : 0));
}
/// Blocks whose warps ask for all rows at once. One an SM leaves the next kernel's blocks room to begin.
template <Type T>
int blocks_at_once(const Args& args) {
  constexpr int kAtOnce = kGemvWarps * (kPiece<T> / 2);
  return (args.tasks + kAtOnce - 1) / kAtOnce;
}
double bytes_of(const GemvProducts& products, const Args& args) {
  const PlaneBytes row = plane_bytes(products.parts[0].weight.type, args.columns);
  return static_cast<double>(row.codes + row.high + row.scale + row.super) * args.tasks;
}
/// Whether multiply_normed takes them.
bool takes_normed(const GemvProducts& products, const Args& args) {
  bool adds = false;
  for (int p = 0; p < products.count; ++p)
    adds = adds || products.parts[p].add != nullptr || products.parts[p].bias != nullptr;
  return args.norm != nullptr && !adds && args.lanes == 32 && args.blocks <= kBlocksOfSeveral;
}

}  // namespace

bool multiply_gemv(const Context& context, const GemvProducts& products) {
  const std::optional<Args> args = args_of(products);
  if (!args) return false;
  LaunchShape shape = shape_of(context, *args, args->tasks);
  const bool several = args->tasks > static_cast<int>(shape.grid.x) * kGemvWarps;
  const bool normed = several && takes_normed(products, *args);
  return with_type(products.parts[0].weight.type, [&]<quant::Type T>() {
    if constexpr (kPiece<T> >= 4) {
      if (normed) {
        if (blocks_at_once<T>(*args) <= context.sm_count) shape.grid.x = context.sm_count;
        return launch(context, normed_row_products<T>, shape, *args);
      }
    }
    launch(context, row_products<T>, shape, *args);
  });
}

bool multiply_gemv(const Context& context, const GemvProducts& first, const GemvProducts& second) {
  const std::optional<Args> one = args_of(first), other = args_of(second);
  if (!one || !other || !takes_normed(first, *one) || !takes_normed(second, *other)) return false;
  LaunchShape shape = shape_of(context, *one, one->tasks + other->tasks);
  bool started = false;
  with_types(first.parts[0].weight.type, second.parts[0].weight.type, [&]<quant::Type T, quant::Type U>() {
    if constexpr (T != U) {
      int of_second = blocks_at_once<U>(*other);
      if (blocks_at_once<T>(*one) + of_second <= context.sm_count) {
        shape.grid.x = context.sm_count;
      } else {  // dealt out by bytes
        const double bytes = bytes_of(first, *one), others = bytes_of(second, *other);
        of_second = static_cast<int>(shape.grid.x * others / (bytes + others) + 0.5);
      }
      const int of_first = static_cast<int>(shape.grid.x) - std::max(of_second, 1);
      started = of_first > 0;
      if (started) launch(context, normed_row_products_of_two<T, U>, shape, *one, *other, of_first);
    }
  });
  return started;
}

}  // namespace sluice::backend::cuda
