// norm_matmul of 2 to 32 rows that the op before has left in codes of eight bits (ops/coded_rows.h), Q4_0 or
// Q4_K: a block of threads takes 16 outputs, asks for their weights before it waits, and its 16 warps share
// the columns. What it waits for is launches and the way of the rows, so that nothing is between: where rows
// are packed first, that is a launch of its own or every block's work.
#include "backend/cuda/ops/coded_rows.h"

#include "backend/cuda/memory.h"
#include "backend/cuda/ops/wide_dense.h"
#include "backend/cuda/prim/few_bytes.cuh"
#include "backend/cuda/prim/few_rows.cuh"
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
#if __CUDA_ARCH__ >= 900
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
#endif
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
  if (sizes.rows <= kNarrowRows || sizes.rows > few::kMostRows || sizes.architecture < 90) return false;
  for (const Read weight : {op.a, op.b, op.c}) {
    if (!weight) continue;
    const Tensor& w = p[weight.id];
    if (w.type != p[op.a.id].type || !few_bytes::fits_slot(w.type) || w.shape[1] % few_bytes::kRows != 0 ||
        w.columns() % few_bytes::kQuad != 0 || w.columns() > kMostColumns)
      return false;
  }
  return true;
}
bool is_same(const Program& p, TensorId a, TensorId b) {
  return p.storage(a) == p.storage(b) && p[a].offset == p[b].offset && p[a].columns() == p[b].columns();
}

}  // namespace

CodedRows rows_for_next(const Program& p, TensorId made, const Context& c) {
  const auto* const op = c.next == nullptr ? nullptr : std::get_if<NormMatmul>(&c.next->args);
  if (op == nullptr || !is_same(p, op->in.id, made) || !takes_coded(p, *op, c.sizes())) return {};
  const int64_t columns = p[made].columns();
  return {c.scratch, coded_token(columns),
          reinterpret_cast<float*>(c.scratch + codes_bytes(c.step_rows, columns)),
          c.memory.vector(op->norm.id)};
}

int64_t coded_rows_bytes(int64_t rows, int64_t columns) {
  return codes_bytes(rows, columns) + columns / CodedRows::kScaled * few::kMostRows * int64_t{sizeof(float)};
}

bool norm_matmul_coded(const Program& p, const NormMatmul& op, const Context& c) {
  const auto* const before = c.previous == nullptr ? nullptr : std::get_if<MoeDownAdd>(&c.previous->args);
  if (before == nullptr || !is_same(p, op.in.id, before->out.id) || !takes_coded(p, op, c.sizes()) ||
      !leaves_coded_rows(p, *before, c.sizes()))
    return false;
  const int64_t columns = p[op.in.id].columns();
  Args args{};
  args.rows = &c.step.header->rows, args.epsilon = op.epsilon;
  args.in = {c.scratch, coded_token(columns),
             reinterpret_cast<float*>(c.scratch + codes_bytes(c.step_rows, columns)), nullptr};
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
  return true;
}

}  // namespace sluice::backend::cuda
