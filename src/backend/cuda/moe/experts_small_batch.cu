// Products of experts' weights with few tokens each, on int8 tensor cores (experts_small_batch.cuh,
// experts_resident.cuh; types: prim/int8_weights.cuh).
//
// What few tokens cost is reading weights: everything else has to hide behind that. So no launch goes before
// this one to order or to pack: every thread block counts the step's pairs for itself, takes an equal stretch
// of all items (16 outputs, or 8 gates and their ups, times a tile of tokens) and makes its tiles' tokens
// codes of eight bits, 32 under a scale, in shared memory, or finds them coded. Its warps take items in turn.
// Each has its own ring of copies (TMA copies; cp.async where rows are no whole pairs of quads or the device
// has none), and waits for nobody but where tiles change. Beside a down projection the last warps, which have
// the fewest items, pack what the launch behind multiplies. Gates and ups of up to 32 rows have kernels of
// their own (multiply_resident_rows), whose warps take items from all; of up to 8 rows they multiply the
// shared experts, too, while the routed ones' first weights are on their way.
//
// An element's sum depends on nothing but its weights and its token.
#include "backend/cuda/moe/experts_small_batch.h"

#include <algorithm>

#include "backend/cuda/host/kernels.h"
#include "backend/cuda/moe/experts_resident.cuh"

namespace sluice::backend::cuda {
namespace {

using namespace experts;

/// Tokens of a tile: about twice what an expert has on average, so that hardly any expert needs two; all that
/// a single one has.
int tokens_for(int64_t pairs, int64_t experts) {
  if (experts == 1) return pairs <= 8 ? 8 : pairs <= 16 ? 16 : 0;
  const int64_t average = (pairs + experts - 1) / experts;
  return average <= 4 ? 8 : average <= 12 ? 16 : 0;
}

/// Whether a thread block has as much shared memory as 9.0 and 10.0 have, and TMA.
bool is_large(int architecture) { return most_shared(architecture) > kMostShared; }

/// TMA copies want whole pairs of quads, and rows of whole 16 bytes in every plane.
Fill fill_of(const ExpertsShape& shape, int architecture) {
  if (!is_large(architecture)) return Fill::LanesOfSmall;
  const bool whole =
      shape.columns % (2 * kQuad) == 0 && shape.columns / 32 * find_format(shape.type)->scale % 16 == 0;
  return whole ? Fill::Maps : Fill::Lanes;
}

/// Bytes of the rings of a thread block.
int64_t rings_bytes(quant::Type type, Fill fill) {
  return int8_mma::with_type(type, [&]<quant::Type kType>() {
    return fill == Fill::Maps    ? RingOf<kType, Fill::Maps>::kBytes
           : fill == Fill::Lanes ? RingOf<kType, Fill::Lanes>::kBytes
                                 : RingOf<kType, Fill::LanesOfSmall>::kBytes;
  });
}

int64_t resident_rings_bytes(quant::Type type) {
  return int8_mma::with_type(type, [&]<quant::Type kType>() { return ResidentRing<kType, false>::kBytes; });
}

/// Whether every thread block has room for all rows and their lists.
bool keeps_rows(const ExpertsShape& shape, int64_t rows, int architecture) {
  const int64_t pairs = rows * shape.used;
  if (fill_of(shape, architecture) != Fill::Maps || tokens_for(pairs, shape.experts) > 8) return false;
  const int64_t token = experts_token(shape.type, shape.columns).pitch;
  return shape.gated && rows <= kRowsResident && pairs <= kPairsResident &&
         std::min(pairs, pairs / 8 + shape.experts) <= kTilesResident && shape.columns > kMostQuads * kQuad &&
         resident_rings_bytes(shape.type) + rows * token <= kResidentShared;
}

/// The launch's sizes; false: something does not fit. tokens: as many as are wanted, and fewer where there is
/// less room.
bool plan(const ExpertsShape& shape, int architecture, int& tokens, Args& args) {
  args.across = Divisor::of(
      static_cast<int32_t>(shape.outputs / (shape.gated ? int8_mma::kRows / 2 : int8_mma::kRows)));
  args.per_row = Divisor::of(static_cast<int32_t>(shape.used));
  args.token = experts_token(shape.type, shape.columns);
  const int64_t room = (is_large(architecture) ? kAllShared : kMostShared) - kOwnShared;
  const int64_t rings = rings_bytes(shape.type, fill_of(shape, architecture));
  if (rings + int64_t{tokens} * args.token.pitch > room) tokens = 8;
  const int64_t tile = int64_t{tokens} * args.token.pitch;
  args.buffers = rings + kMostBuffers * tile <= room ? kMostBuffers : 1;
  const int64_t tiles = shape.experts == 1 ? 2 : kMostTiles;     // at most
  const int64_t most = tiles * args.across.by * args.across.by;  // that Divisor sees
  return rings + args.buffers * tile <= room && most < int64_t{1} << 32;
}

}  // namespace

int8_mma::TokenRows experts_token(quant::Type type, int64_t columns) {
  return int8_mma::TokenRows::of(static_cast<int>(columns / kQuad), int8_mma::has_minimums(type));
}

bool serves_experts_small_batch(const ExpertsShape& shape, int64_t rows, int architecture) {
  const int64_t pairs = rows * shape.used;
  int tokens = tokens_for(pairs, shape.experts);
  if (!int8_mma::fits_ring(shape.type) || rows < 2) return false;
  if (shape.columns % kQuad != 0 || shape.outputs % (shape.gated ? 8 : 16) != 0) return false;
  if (pairs > kMostPairs || shape.experts > kMostExperts || tokens == 0) return false;
  Args args{};
  return plan(shape, architecture, tokens, args);
}

bool takes_shared_experts(const ExpertsShape& shape, quant::Type type, int64_t outputs, const Sizes& sizes) {
  return keeps_rows(shape, sizes.rows, sizes.architecture) && keeps_with(shape.type, type) &&
         small_batch::serves_gate_up(type, outputs, shape.columns, sizes.rows, sizes.sm_count);
}

void multiply_experts_small_batch(const ExpertsSmallBatch& product, const Context& context) {
  const Matrix& weight = product.weight;
  const ExpertsShape shape{weight.type,    weight.matrices,     weight.rows,
                           weight.columns, product.ids.columns, product.gated};
  const int64_t pairs = context.step_rows * shape.used;
  int tokens = tokens_for(pairs, shape.experts);
  Args args{};
  plan(shape, context.architecture, tokens, args);
  args.weight = weight, args.up = product.up;
  args.in = product.in, args.out = product.out, args.ids = product.ids, args.rows = product.rows;
  args.by_pair = product.by_pair ? 1 : 0;
  args.selection = product.selection, args.coded = product.coded, args.beside = product.beside;
  const Fill fill = fill_of(shape, context.architecture);
  if (fill == Fill::Maps)
    args.map = product.gated ? map_row_pairs(weight, product.up, int8_mma::map_groups(weight.type))
                             : map_row_pairs(weight, int8_mma::map_groups(weight.type));
  if (keeps_rows(shape, context.step_rows, context.architecture) && product.taken != nullptr) {
    const ResidentArgs kept{args.map,     weight,      product.up, product.out,   product.rows,
                            args.per_row, args.across, args.token, product.coded, product.selection,
                            product.taken};
    return int8_mma::with_type(weight.type, [&]<quant::Type kType>() {
      start_resident<kType>(kept, product.select_and_shared, context);
    });
  }
  const int64_t items = (pairs / tokens + std::min<int64_t>(shape.experts, pairs)) * args.across.by;
  const ExpertsLaunch how{product.gated, fill, tokens,
                          static_cast<unsigned>(std::min<int64_t>(context.sm_count, items))};
  int8_mma::with_type(weight.type, [&]<quant::Type kType>() { start_experts<kType>(how, args, context); });
}

}  // namespace sluice::backend::cuda
