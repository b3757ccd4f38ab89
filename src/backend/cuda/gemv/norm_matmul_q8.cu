// norm_matmul of 2 to 32 rows that the op before has left in codes of eight bits (gemv/norm_matmul_q8.h),
// Q4_0 or Q4_K (beside Q6_K): a thread block takes 16 outputs, or 32 where blocks would be more than SMs,
// asks for their weights before it waits, and its 16 warps share the columns. What it waits for is launches
// and the way of the rows, so that nothing is between: where rows are packed first, that is a launch of its
// own or every block's work.
#include "backend/cuda/gemv/norm_matmul_q8.h"

#include "backend/cuda/gemm/gemm_dense.h"
#include "backend/cuda/gemv/f16_rows.cuh"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/int8_mma.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;
using small_batch::kThreads, small_batch::kWarps;

constexpr int kMostColumns = kWarps * int8_mma::kMostQuads * int8_mma::kQuad;
constexpr int kScalesOfQuad = int8_mma::kQuad / NormedQ8Rows::kScaled;

struct Args {
  struct Product {
    Matrix weight;
    Rows<float> out;
  };
  Product product[NormMatmul::kMostProducts];
  int32_t ends[NormMatmul::kMostProducts];  ///< thread blocks before the end of each
  const int32_t* rows;
  NormedQ8Rows in;
  float epsilon;
  int32_t quads;  ///< of a warp at most
  int8_mma::Slot slot;
};

/// A thread block takes kTiles tiles of 16 outputs, whose warps share the columns. Nothing is packed, so a
/// warp reads the codes of its own columns alone.
template <quant::Type kType, int kTiles, int kNTiles>
__device__ __forceinline__ void multiply_tiles(const Args& p, const PdlLink& pdl,
                                               const Args::Product& product, int first_output) {
  constexpr int kTokens = kNTiles * kNTileTokens;
  constexpr bool kHigh = int8_mma::Weights<kType>::kFormat.high > 0;
  extern __shared__ __align__(128) char coded_shared[];
  __shared__ float squares[kWarps][kTokens];
  const Matrix& weight = product.weight;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int output = first_output + warp % kTiles * int8_mma::kRows;
  const int columns = weight.columns, all_quads = columns / int8_mma::kQuad;
  const int first_quad = warp / kTiles * p.quads;
  const int quads = output < weight.rows ? max(0, min(p.quads, all_quads - first_quad)) : 0;
  char* const slot = coded_shared + warp * p.slot.bytes;
  float* const reduction = reinterpret_cast<float*>(coded_shared + kWarps * p.slot.bytes);
  const auto row_of = [&](int row) { return weight.row(0, min(output + row, weight.rows - 1)); };
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const auto row = static_cast<int>(row_of(8 * h + lane / 4));
    int8_mma::ask_rows(weight, row, all_quads, first_quad, quads, h, p.slot, shared_address(slot));
    if constexpr (kHigh)
      int8_mma::ask_high(weight, row, all_quads, first_quad, quads, h, p.slot, shared_address(slot));
  }
  commit_copies();
  const uint32_t supers = int8_mma::ask_supers<kType>(weight, first_quad, row_of);
  const int rows = *p.rows;  // uploaded before the step's first kernel: no wait
  pdl.wait();
  // A thread adds squares of a token, those of every so many columns.
  const int token_of_squares = static_cast<int>(threadIdx.x) % kTokens;
  float all_squares = 0;
#pragma unroll 4
  for (int part = static_cast<int>(threadIdx.x) / kTokens; part < columns / NormedQ8Rows::kScaled;
       part += kThreads / kTokens)
    all_squares += load_result(p.in.squares + part * small_batch::kMostRows + token_of_squares);
  float sum[kNTiles][4] = {};
  // Of up to 8 rows the padding reads the last one's codes again: nothing more comes from L2.
  int8_mma::TokensAt<true> at(p.in.codes, p.in.token, first_quad,
                              [&](int token) { return kNTiles == 1 ? min(token, rows - 1) : token; });
  wait_copies<0>();
  __syncwarp();
#pragma unroll 1
  for (int q = 0; q < quads; ++q) {
    int8_mma::multiply_quads<kType, 1, true>(slot, p.slot, supers, first_quad, at, p.in.token.pitch, sum, q);
    at.advance(1);
  }
#pragma unroll
  for (int step = 16; step >= kTokens; step /= 2)
    all_squares += __shfl_xor_sync(kWholeWarp, all_squares, step);
  if (lane < kTokens) squares[warp][token_of_squares] = all_squares;
  const int tiles = min(kTiles, (weight.rows - first_output) / int8_mma::kRows);
  small_batch::reduce_fours<kTiles>(
      sum, tiles, reduction, [&](int tile, int row, int four, const float4& value) {
        if (row >= rows) return;
        float all = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) all += squares[w][row];
        const float norm = sqrtf(all / static_cast<float>(columns) + p.epsilon);
        float* const to = product.out(row) + first_output + tile * int8_mma::kRows + 4 * four;
        to[0] = value.x / norm, to[1] = value.y / norm, to[2] = value.z / norm, to[3] = value.w / norm;
      });
}

/// Products of kType and of kOther.
template <quant::Type kType, quant::Type kOther, int kTiles, int kNTiles>
__global__ void __launch_bounds__(kThreads, kTiles)
    norm_matmul_q8_kernel(const Timestamps timestamps, const __grid_constant__ Args p) {
  const PdlLink pdl(timestamps);
  const int block = static_cast<int>(blockIdx.x);
  int which = 0;
  while (block >= p.ends[which]) ++which;
  const Args::Product& product = p.product[which];
  const int first_output = (block - (which > 0 ? p.ends[which - 1] : 0)) * kTiles * int8_mma::kRows;
  if constexpr (kOther != kType)
    if (product.weight.type == kOther)
      return multiply_tiles<kOther, kTiles, kNTiles>(p, pdl, product, first_output);
  multiply_tiles<kType, kTiles, kNTiles>(p, pdl, product, first_output);
}

/// What rows of so many columns take of scratch.
int8_mma::TokenRows coded_token(int64_t columns) {
  return int8_mma::TokenRows::of(static_cast<int>(columns / int8_mma::kQuad), true, kScalesOfQuad);
}
int64_t codes_bytes(int64_t rows, int64_t columns) {
  return int64_t{small_batch::n_tiles_for(rows)} * kNTileTokens * coded_token(columns).pitch;
}

/// What values are in every other layer of Q4_K_M, whose other products are Q4_K.
constexpr quant::Type kValues = quant::Type::Q6_K;

/// How a launch is cut.
struct Plan {
  bool mixed = false;  ///< products are of kValues, too
  int32_t tiles = 1;   ///< of a block
  int32_t quads;       ///< of a warp at most
  int8_mma::Slot slot;
  int64_t bytes;  ///< of shared memory
};
Plan plan_of(const Program& p, const NormMatmul& op, const Sizes& sizes) {
  Plan plan;
  int64_t outputs = 0;
  for (const auto& [weight, out] : op.products()) {
    if (!weight) continue;
    outputs += p[weight.id].shape[1];
    plan.mixed = plan.mixed || p[weight.id].type != p[op.a.id].type;
  }
  const int64_t columns = p[op.in.id].columns();
  // A tile a block, as long as all blocks are at work at once.
  if (outputs > int64_t{sizes.sm_count} * int8_mma::kRows) plan.tiles = 2;
  const auto quads = static_cast<int32_t>(columns / int8_mma::kQuad);
  plan.quads = (quads * plan.tiles + kWarps - 1) / kWarps;
  plan.slot = int8_mma::Slot::of(plan.quads, plan.mixed);
  plan.bytes = kWarps * int64_t{plan.slot.bytes} +
               small_batch::reduction_floats(small_batch::n_tiles_for(sizes.rows)) * int64_t{sizeof(float)};
  return plan;
}

/// Whether norm_matmul may take its rows in codes.
bool takes_q8(const Program& p, const NormMatmul& op, const Sizes& sizes) {
  if (sizes.rows <= kNarrowRows || sizes.rows > small_batch::kMostRows) return false;
  const quant::Type first = p[op.a.id].type;
  if (!int8_mma::fits_slot(first)) return false;
  for (const auto& [weight, out] : op.products()) {
    if (!weight) continue;
    const Tensor& w = p[weight.id];
    const bool known = w.type == first || (w.type == kValues && first == quant::Type::Q4_K);
    if (!known || w.shape[1] % int8_mma::kRows != 0 || w.columns() % int8_mma::kQuad != 0 ||
        w.columns() > kMostColumns)
      return false;
  }
  const Plan plan = plan_of(p, op, sizes);
  // Every block reads all rows: of more than 8 the GEMM is sooner (H200, 5,120 outputs of 2,048 columns, 32
  // rows: 36 us for 16).
  if (plan.tiles > 1 && (sizes.rows > kNTileTokens || p[op.in.id].columns() > kMostColumns / 2)) return false;
  constexpr int64_t kSquares = 2 * kWarps * small_batch::kMostRows * int64_t{sizeof(float)};
  return plan.bytes + kSquares <= most_shared(sizes.architecture);
}
/// Where they lie: codes, then sums of squares.
NormedQ8Rows q8_rows_at(char* at, int64_t rows, int64_t columns, const float* norm) {
  Scratch scratch(at);
  char* const codes = scratch.take<char>(codes_bytes(rows, columns));
  return {codes, coded_token(columns),
          scratch.take<float>(columns / NormedQ8Rows::kScaled * small_batch::kMostRows), norm};
}

}  // namespace

std::optional<FormSpec> given_normed_codes(const Program& p, TensorId made, const Sizes& sizes) {
  const int64_t columns = p[made].columns();
  Scratch scratch(nullptr);
  scratch.take<char>(codes_bytes(sizes.rows, columns));
  scratch.take<float>(columns / NormedQ8Rows::kScaled * small_batch::kMostRows);
  return FormSpec{Form::NormedCodes, made, scratch.bytes()};
}

NormedQ8Rows rows_for(const FormBuffer* form, const Program& p, const Context& c) {
  if (form == nullptr) return {};
  const auto& op = std::get<NormMatmul>(form->other->args);
  return q8_rows_at(form->at, c.step_rows, p[op.in.id].columns(), c.memory.vector(op.norm.id));
}

std::optional<FormSpec> takes_q8_rows(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormMatmul>(record.args);
  if (!takes_q8(p, op, sizes)) return std::nullopt;
  return given_normed_codes(p, op.in.id, sizes);
}

void norm_matmul_q8(const Program& p, const NormMatmul& op, const Context& c) {
  const Plan plan = plan_of(p, op, c.sizes());
  const int32_t of_block = plan.tiles * int8_mma::kRows;
  Args args{};
  args.rows = &c.step.header->rows, args.epsilon = op.epsilon;
  args.in = q8_rows_at(c.consumes->at, c.step_rows, p[op.in.id].columns(), nullptr);
  args.quads = plan.quads, args.slot = plan.slot;
  int32_t blocks = 0, i = 0;
  for (const auto& [weight, out] : op.products()) {
    if (weight) {
      args.product[i] = {c.memory.matrix(weight.id), flat(c.memory.rows(out.id))};
      blocks += (args.product[i].weight.rows + of_block - 1) / of_block;
    }
    args.ends[i++] = blocks;
  }
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(kThreads), plan.bytes};
  const auto of_types = [&]<quant::Type kType, quant::Type kOther>() {
    const int n_tiles = small_batch::n_tiles_for(c.step_rows);
    launch(c,
           plan.tiles > 1 ? norm_matmul_q8_kernel<kType, kOther, 2, 1>
           : n_tiles == 1 ? norm_matmul_q8_kernel<kType, kOther, 1, 1>
           : n_tiles == 2 ? norm_matmul_q8_kernel<kType, kOther, 1, 2>
                          : norm_matmul_q8_kernel<kType, kOther, 1, 4>,
           shape, args);
  };
  if (plan.mixed) return of_types.template operator()<quant::Type::Q4_K, kValues>();
  if (p[op.a.id].type == quant::Type::Q4_K)
    return of_types.template operator()<quant::Type::Q4_K, quant::Type::Q4_K>();
  of_types.template operator()<quant::Type::Q4_0, quant::Type::Q4_0>();
}

}  // namespace sluice::backend::cuda
