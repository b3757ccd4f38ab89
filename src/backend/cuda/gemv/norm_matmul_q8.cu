// norm_matmul of 2 to 32 rows that the op before has left in codes of eight bits (gemv/norm_matmul_q8.h),
// Q4_0 or Q4_K: a block of threads takes 16 outputs, asks for their weights before it waits, and its 16 warps
// share the columns. What it waits for is launches and the way of the rows, so that nothing is between: where
// rows are packed first, that is a launch of its own or every block's work.
#include "backend/cuda/gemv/norm_matmul_q8.h"

#include "backend/cuda/gemm/gemm_dense.h"
#include "backend/cuda/gemv/f16_rows.cuh"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/int8_mma.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;
using few::kThreads, few::kWarps;

constexpr int kMostColumns = kWarps * few_bytes::kMostQuads * few_bytes::kQuad;
constexpr int kScalesOfQuad = few_bytes::kQuad / CodedRows::kScaled;

struct Args {
  struct Product {
    Matrix weight;
    Rows<float> out;
  };
  Product product[3];
  int32_t ends[3];  ///< blocks of threads before the end of each
  const int32_t* rows;
  CodedRows in;
  float epsilon;
  int32_t quads;  ///< of a warp at most
  few_bytes::Slot slot;
};

/// A block of threads takes 16 outputs, its warps share the columns. Nothing is packed, so a warp reads the
/// codes of its own columns alone.
template <quant::Type kType, int kStrips>
__global__ void __launch_bounds__(kThreads)
    norm_matmul_coded_kernel(const Stamps stamps, const __grid_constant__ Args p) {
  constexpr int kTokens = kStrips * kStripTokens;
  extern __shared__ __align__(128) char coded_shared[];
  __shared__ float squares[kWarps][kTokens];
  const Link link(stamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int block = static_cast<int>(blockIdx.x), which = block < p.ends[0] ? 0 : block < p.ends[1] ? 1 : 2;
  const Args::Product& product = p.product[which];
  const int output = (block - (which > 0 ? p.ends[which - 1] : 0)) * few_bytes::kRows;
  const int columns = product.weight.columns, all_quads = columns / few_bytes::kQuad;
  const int first_quad = warp * p.quads, quads = max(0, min(p.quads, all_quads - first_quad));
  char* const slot = coded_shared + warp * p.slot.bytes;
  float* const meeting = reinterpret_cast<float*>(coded_shared + kWarps * p.slot.bytes);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    few_bytes::ask_rows(product.weight, static_cast<int>(product.weight.row(0, output + 8 * h + lane / 4)),
                        all_quads, first_quad, quads, h, p.slot, shared_address(slot));
  }
  commit_copies();
  const uint32_t supers = few_bytes::ask_supers<kType>(
      product.weight, first_quad, [&](int row) { return product.weight.row(0, output + row); });
  const int rows = *p.rows;  // was there before the step's first kernel began
  link.wait();
  // A thread adds squares of a token, those of every so many columns.
  const int token_of_squares = static_cast<int>(threadIdx.x) % kTokens;
  float all_squares = 0;
#pragma unroll 4
  for (int part = static_cast<int>(threadIdx.x) / kTokens; part < columns / CodedRows::kScaled;
       part += kThreads / kTokens)
    all_squares += load_result(p.in.squares + part * few::kMostRows + token_of_squares);
  float sum[kStrips][4] = {};
  few_bytes::TokensAt<true> at(p.in.codes, p.in.token, first_quad);
  wait_copies<0>();
  __syncwarp();
#pragma unroll 1
  for (int q = 0; q < quads; ++q) {
    few_bytes::multiply_quads<kType, 1, true>(slot, p.slot, supers, first_quad, at, p.in.token.pitch, sum, q);
    at.advance(1);
  }
#pragma unroll
  for (int step = 16; step >= kTokens; step /= 2)
    all_squares += __shfl_xor_sync(kWholeWarp, all_squares, step);
  if (lane < kTokens) squares[warp][token_of_squares] = all_squares;
  const float value = few::meet_all(sum, meeting);
  const int row = static_cast<int>(threadIdx.x) / few_bytes::kRows;
  if (row >= min(rows, kTokens)) return;
  float all = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) all += squares[w][row];
  product.out(row)[output + static_cast<int>(threadIdx.x) % few_bytes::kRows] =
      value / sqrtf(all / static_cast<float>(columns) + p.epsilon);
}

/// What rows of so many columns take of scratch.
few_bytes::TokenRows coded_token(int64_t columns) {
  return few_bytes::TokenRows::of(static_cast<int>(columns / few_bytes::kQuad), true, kScalesOfQuad);
}
int64_t codes_bytes(int64_t rows, int64_t columns) {
  return int64_t{few::strips_for(rows)} * kStripTokens * coded_token(columns).pitch;
}

/// Whether norm_matmul may take its rows in codes.
bool takes_coded(const Program& p, const NormMatmul& op, const Sizes& sizes) {
  if (sizes.rows <= kNarrowRows || sizes.rows > few::kMostRows) return false;
  for (const Read weight : {op.a, op.b, op.c}) {
    if (!weight) continue;
    const Tensor& w = p[weight.id];
    if (w.type != p[op.a.id].type || !few_bytes::fits_slot(w.type) || w.shape[1] % few_bytes::kRows != 0 ||
        w.columns() % few_bytes::kQuad != 0 || w.columns() > kMostColumns)
      return false;
  }
  return true;
}
/// Where they lie: codes, then sums of squares.
CodedRows coded_rows_at(char* at, int64_t rows, int64_t columns, const float* norm) {
  Scratch scratch(at);
  char* const codes = scratch.take<char>(codes_bytes(rows, columns));
  return {codes, coded_token(columns), scratch.take<float>(columns / CodedRows::kScaled * few::kMostRows),
          norm};
}

}  // namespace

std::optional<Handed> given_normed_codes(const Program& p, TensorId made, const Sizes& sizes) {
  const int64_t columns = p[made].columns();
  Scratch scratch(nullptr);
  scratch.take<char>(codes_bytes(sizes.rows, columns));
  scratch.take<float>(columns / CodedRows::kScaled * few::kMostRows);
  return Handed{Form::NormedCodes, made, scratch.bytes()};
}

CodedRows rows_for(const Handover* form, const Program& p, const Context& c) {
  if (form == nullptr) return {};
  const auto& op = std::get<NormMatmul>(form->other->args);
  return coded_rows_at(form->at, c.step_rows, p[op.in.id].columns(), c.memory.vector(op.norm.id));
}

std::optional<Handed> takes_coded_rows(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormMatmul>(record.args);
  if (!takes_coded(p, op, sizes)) return std::nullopt;
  return given_normed_codes(p, op.in.id, sizes);
}

void norm_matmul_coded(const Program& p, const NormMatmul& op, const Context& c) {
  const int64_t columns = p[op.in.id].columns();
  Args args{};
  args.rows = &c.step.header->rows, args.epsilon = op.epsilon;
  args.in = coded_rows_at(c.takes->at, c.step_rows, columns, nullptr);
  int32_t blocks = 0, i = 0;
  for (const auto& [weight, out] : {std::pair{op.a, op.out_a}, {op.b, op.out_b}, {op.c, op.out_c}}) {
    if (weight) {
      args.product[i] = {c.memory.matrix(weight.id), flat(c.memory.rows(out.id))};
      blocks += args.product[i].weight.rows / few_bytes::kRows;
    }
    args.ends[i++] = blocks;
  }
  const auto quads = static_cast<int>(columns / few_bytes::kQuad);
  args.quads = (quads + kWarps - 1) / kWarps, args.slot = few_bytes::Slot::of(args.quads);
  const auto start = [&]<quant::Type kType>() {
    const int strips = few::strips_for(c.step_rows);
    launch(c,
           strips == 1   ? norm_matmul_coded_kernel<kType, 1>
           : strips == 2 ? norm_matmul_coded_kernel<kType, 2>
                         : norm_matmul_coded_kernel<kType, 4>,
           {dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
            kWarps * args.slot.bytes + few::meeting_floats(strips) * int64_t{sizeof(float)}},
           args);
  };
  if (p[op.a.id].type == quant::Type::Q4_K) {
    start.template operator()<quant::Type::Q4_K>();
  } else {
    start.template operator()<quant::Type::Q4_0>();
  }
}

}  // namespace sluice::backend::cuda
