// moe_down_add of two rows by the plan of one (gemv_down.cu): a thread block takes 16 outputs, and two warps
// share one. The second asks for the row of every pair's expert, to shared memory, as soon as the selection
// is known; all threads quantise the inputs meanwhile. Then either warp multiplies a row of the step with its
// experts. The shared experts are the first warp's, whose blocks serve both rows. For the norm_matmul behind,
// the sums are left in codes, too (gemv/norm_matmul_q8.h).
#include "backend/cuda/gemv/norm_matmul_q8.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/host/residual.h"
#include "backend/cuda/moe/experts_small_batch.h"
#include "backend/cuda/moe/gemv_down.cuh"
#include "backend/cuda/moe/gemv_mixture.cuh"
#include "backend/cuda/prim/mailbox.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;
using namespace gemv_down;

constexpr int kRows = RouterSums::kRows;
static_assert(kRows == 2, "one for either warp");

struct Args {
  CodePlanes planes, shared_planes;
  Stage stage;  // a warp's rows
  int first_row, matrix_rows, shared_row;
  const int32_t* rows;
  Rows<float> in, shared_in, weights, residual, out;
  Rows<int32_t> ids;
  Mailbox selected;  // slots null: in ids
  NormedQ8Rows coded;
  int blocks, shared_blocks, used, outputs;  // blocks: of an expert's row
  int staged;                                // where stages begin
};

template <Type Routed, Type Shared>
__global__ void __launch_bounds__(kThreads, 1)
    rows_down(const Timestamps timestamps, const __grid_constant__ Args args) {
  __shared__ float others[kOutputs], made[kRows][kOutputs];
  const PdlLink pdl(timestamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int half = warp / kOutputs, own = warp % kOutputs;
  const bool fetches = half == 1;
  const int n = min(static_cast<int>(blockIdx.x) * kOutputs + own, args.outputs - 1);  // the last one's again
  const RowShape shared_shape{args.shared_blocks, 32, args.outputs};
  const int shared_first = (args.shared_row + n) * args.shared_blocks;
  const int rows = *args.rows, pairs = rows * args.used;  // uploaded before the step's first kernel: no wait
  Asked<Shared, 2> shared;
  if (!fetches && args.shared_blocks > 0) shared.ask(args.shared_planes, shared_first, lane, shared_shape);
  int expert = 0;  // of pair `lane`
  uint8_t* const stage = reinterpret_cast<uint8_t*>(dynamic_shared(args.staged)) + own * args.stage.bytes;
  const auto fetch = [&] {
    copy_rows(stage, args.stage, args.planes, pairs, [&](int pair) {
      return args.first_row + __shfl_sync(kWholeWarp, expert, pair) * args.matrix_rows + n;
    });
  };
  const bool early = args.selected.slots != nullptr;
  if (fetches && early) {
    // Weights depend on nothing but the selection.
    if (lane < pairs) expert = __float_as_int(take_slot(args.selected.slots + lane, args.selected.flag()));
    __syncwarp();
    fetch();
  }
  pdl.wait();
  if (fetches && !early) {
    const int row = part_of<kRows>(lane, args.used);
    if (lane < pairs) expert = load_result(args.ids(row) + lane - row * args.used);
    __syncwarp();
    fetch();
  }
  const float residual = !fetches && lane < rows ? load_result(args.residual(lane) + n) : 0.0f;
  const float norm = args.coded.codes != nullptr
                         ? __ldg(args.coded.norm + blockIdx.x * kOutputs + threadIdx.x % kOutputs)
                         : 0.0f;

  // A row's inputs: of its experts, then of the shared ones.
  const int routed_blocks = args.used * args.blocks, of_row = routed_blocks + args.shared_blocks;
  const Activations x{0, kRows * of_row * 32, true, false};
  const auto weight_of = [&](int weighted) {
    const int row = part_of<kRows>(weighted, routed_blocks);
    return load_result(args.weights(row) + (weighted - row * routed_blocks) / args.blocks);
  };
  int weighted = static_cast<int>(threadIdx.x);  // a block of the experts' activations
  float weight = weighted < rows * routed_blocks ? weight_of(weighted) : 0.0f;
  quantize_all<kThreads>(
      x, rows * of_row * 4,
      [&](int at) {
        const int row = part_of<kRows>(at, of_row * 4), in_row = at - row * of_row * 4;
        const int shared_at = in_row - routed_blocks * 4;
        return shared_at < 0 ? reinterpret_cast<const float4*>(args.in(row)) + 2 * in_row
                             : reinterpret_cast<const float4*>(args.shared_in(row)) + 2 * shared_at;
      },
      [](int, float(&)[8]) {});
  __syncthreads();
  // An expert's weight becomes part of its activations' scales, so that a row is one long sum.
#pragma unroll 1
  while (weighted < rows * routed_blocks) {
    x.scale(weighted + part_of<kRows>(weighted, routed_blocks) * args.shared_blocks) *= weight;
    weighted += kThreads;
    if (weighted < rows * routed_blocks) weight = weight_of(weighted);
  }
  float sum[kRows] = {};
  if (!fetches) {
#pragma unroll 1
    for (int at = lane; at - lane < args.shared_blocks; at += 64) {
      if (at != lane) shared.ask(args.shared_planes, shared_first, at, shared_shape);
#pragma unroll
      for (int r = 0; r < kRows; ++r) sum[r] += shared.times(x, at, shared_shape, r * of_row + routed_blocks);
    }
  } else {
    wait_for_copies();
  }
  __syncthreads();
  const CodePlanes staged = args.stage.planes(stage);
  float routed = 0;
  if (half < rows) {
#pragma unroll 2
    for (int b = lane; b < routed_blocks; b += 32)
      routed += multiply<Routed>(load_block<Routed>(staged, half * routed_blocks + b, FromShared{}),
                                 x.block(0, half * of_row + b));
  }
  if (!fetches) {
    sum[0] += routed;
  } else {
    routed = lane_sum(routed);
    if (lane == 0) others[own] = routed;
  }
#pragma unroll
  for (float& one : sum) one = lane_sum(one);
  __syncthreads();
  if (!fetches && lane < rows) {
    const float value = (lane == 0 ? sum[0] : sum[1] + others[own]) + residual;
    args.out(lane)[n] = value;
    made[lane][own] = value;
  }
  if (args.coded.codes == nullptr) return;
  static_assert(kOutputs == NormedQ8Rows::kScaled);
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x) / kOutputs,
            element = static_cast<int>(threadIdx.x) % kOutputs;
  if (row >= kRows) return;
  leave_normed(args.coded, row, static_cast<int>(blockIdx.x) * kOutputs + element, made[row][element], norm,
               row < rows);
}

/// How the kernel lies in shared memory.
struct Plan {
  int staged;
  Stage stage;

  int64_t bytes() const { return staged + int64_t{kOutputs} * stage.bytes; }
};
Plan plan_of(const Program& program, const MoeDownAdd& op) {
  const Tensor& down = program[op.down.id];
  const int64_t used = program[op.ids.id].columns();
  const int64_t of_row = used * down.columns() + (op.shared_in ? program[op.shared_down.id].columns() : 0);
  return {Activations::row_bytes(static_cast<int>(kRows * of_row), true, false),
          Stage::of(plane_bytes(down.type, down.columns()), static_cast<int>(kRows * used))};
}

/// The types that are compiled.
template <typename Start>
bool with_compiled_types(quant::Type routed, quant::Type shared, Start&& start) {
  return with_down_types(routed, shared, [&]<quant::Type Routed, quant::Type Shared>() {
    constexpr bool kCompiled = Routed == Type::Q4_0 || Routed == Type::Q4_1 || Routed == Type::Q4_K ||
                               Routed == Type::Q6_K || Routed == Type::Q5_0 || Routed == Type::Q8_0;
    if constexpr (kCompiled) start.template operator()<Routed, Shared>();
  });
}
bool is_compiled(quant::Type routed, quant::Type shared) {
  bool there = false;
  with_compiled_types(routed, shared, [&]<quant::Type, quant::Type>() { there = true; });
  return there;
}

bool serves(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  const Tensor &in = program[op.in.id], &down = program[op.down.id];
  const int64_t used = program[op.ids.id].columns();
  if (sizes.rows != kRows || kRows * used > 32) return false;
  if (sizes.architecture < 90 || most_shared(sizes.architecture) <= kMostShared) return false;
  const auto in_eights = [](const Tensor& t) { return t.stride[0] % 4 == 0 && t.offset % 4 == 0; };
  const auto blocks_fit = [&](TensorId id) {
    return program.elements(program.storage(id), {}) / 32 < double{1u << 31};
  };
  if (down.columns() % 32 != 0 || in.stride[1] != in.columns() || !in_eights(in) || !blocks_fit(op.down.id))
    return false;
  if (op.shared_in && (!in_eights(program[op.shared_in.id]) || !blocks_fit(op.shared_down.id) ||
                       program[op.shared_down.id].columns() % 32 != 0))
    return false;
  constexpr int64_t kOwn = 1024;  // kOwn: beside what is asked for at launch
  return is_compiled(down.type, program[op.shared_in ? op.shared_down.id : op.down.id].type) &&
         Stage::takes(plane_bytes(down.type, down.columns())) &&
         plan_of(program, op).bytes() <= kAllShared - kOwn;
}

void launch_rows_down(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  const Memory& memory = context.memory;
  const Matrix down = memory.matrix(op.down.id);
  const Plan plan = plan_of(program, op);
  Args args{};
  args.planes = planes_from(down), args.first_row = static_cast<int>(down.first_row),
  args.matrix_rows = static_cast<int>(down.matrix_rows);
  args.stage = plan.stage, args.staged = plan.staged;
  args.rows = &context.step.header->rows;
  args.in = memory.rows(op.in.id), args.weights = memory.rows(op.weights.id);
  args.residual = residual_rows(memory, op.residual.id, op.out.id), args.out = memory.rows(op.out.id);
  args.ids = memory.int_rows(op.ids.id);
  args.blocks = down.columns / 32, args.used = static_cast<int>(program[op.ids.id].columns());
  args.outputs = down.rows;
  quant::Type shared_type = down.type;
  if (op.shared_in) {
    const Matrix shared = memory.matrix(op.shared_down.id);
    args.shared_planes = planes_from(shared), args.shared_row = static_cast<int>(shared.first_row);
    args.shared_in = memory.rows(op.shared_in.id), args.shared_blocks = shared.columns / 32;
    shared_type = shared.type;
  }
  if (context.consumes != nullptr) args.selected = context.mailbox(*context.consumes);
  args.coded = rows_for(context.produces, program, context);
  with_compiled_types(down.type, shared_type, [&]<quant::Type Routed, quant::Type Shared>() {
    const LaunchShape shape{dim3(static_cast<unsigned>((args.outputs + kOutputs - 1) / kOutputs)),
                            dim3(kThreads), plan.bytes()};
    launch(context, rows_down<Routed, Shared>, shape, args);
  });
}

std::optional<FormSpec> consumes(const Program& program, const Op& record, const Sizes& sizes) {
  return mixture::given_to_down(program, std::get<MoeDownAdd>(record.args).ids.id, sizes);
}
std::optional<FormSpec> produces(const Program& program, const Op& record, const Sizes& sizes) {
  const TensorId out = std::get<MoeDownAdd>(record.args).out.id;
  return program[out].columns() % int8_mma::kQuad == 0 ? given_normed_codes(program, out, sizes)
                                                       : std::nullopt;
}

}  // namespace

const Kernel kMoeDownAddRows{
    "gemv of experts, summed, of two rows", serves, launch_rows_down, nullptr, produces, consumes};

}  // namespace sluice::backend::cuda
