// mla_attend: a tile is one page of the cache, decoded once for all the heads that a worker has; a running
// maximum rescales the sums as larger scores come (online softmax, Milakov and Gimelshein 2018). Tiles begin
// at multiples of kPageRows positions whatever the batch, so a row's sums never depend on its neighbours.
#include <algorithm>
#include <limits>

#include "backend/cpu/ops/kernels.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

/// One head's running softmax: largest score, sum of weights, and weighted sums of the values [rank].
struct Running {
  float largest, total;
  float* sums;
};

/// Adds `count` cache rows (decoded, [count][width]) to a head's result.
void attend_tile(const float* q, const float* tile, int64_t count, int64_t width, int64_t rank, float scale,
                 Running& state) {
  float weights[kPageRows];
  float largest = state.largest;
  for (int64_t t = 0; t < count; ++t) {
    weights[t] = scale * dot(q, tile + t * width, width);
    largest = std::max(largest, weights[t]);
  }
  const float correction = std::exp(state.largest - largest);  // 0 at the first tile
  state.total *= correction;
  for (int64_t i = 0; i < rank; ++i) state.sums[i] *= correction;
  for (int64_t t = 0; t < count; ++t) {
    const float weight = std::exp(weights[t] - largest);
    state.total += weight;
    const float* value = tile + t * width;
    for (int64_t i = 0; i < rank; ++i) state.sums[i] += weight * value[i];
  }
  state.largest = largest;
}

/// All of row r's context for heads [first, last). scratch: one tile, then one head state after another.
void attend_row(const Context& c, const MlaAttend& op, int64_t r, int64_t first, int64_t last) {
  const Rows<float> q = c.memory.rows(op.q.id), out = c.memory.rows(op.out.id);
  const Cache cache = c.memory.cache();
  const int64_t width = cache.columns, rank = out.columns;
  const int64_t length = c.input.positions[static_cast<size_t>(r)] + 1;
  float* tile = c.scratch();
  float* totals = tile + kPageRows * width;  // [heads][largest, total]
  for (int64_t h = first; h < last; ++h) {
    totals[2 * h] = -std::numeric_limits<float>::infinity();
    totals[2 * h + 1] = 0.0f;
    std::fill_n(out(r, h), rank, 0.0f);
  }
  for (int64_t begin = 0; begin < length; begin += kPageRows) {
    const int64_t count = std::min<int64_t>(kPageRows, length - begin);
    const std::byte* page = cache.row(op.cache_layer, c.input.slot_of(r, begin));
    cache.type->decode(page, tile, count * width);  // the rows of a page's layer follow each other
    for (int64_t h = first; h < last; ++h) {
      Running state{totals[2 * h], totals[2 * h + 1], out(r, h)};
      attend_tile(q(r, h), tile, count, width, rank, op.scale, state);
      totals[2 * h] = state.largest;
      totals[2 * h + 1] = state.total;
    }
  }
  for (int64_t h = first; h < last; ++h) {
    const float inverse = 1.0f / totals[2 * h + 1];
    for (int64_t i = 0; i < rank; ++i) out(r, h)[i] *= inverse;
  }
}

void mla_attend(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MlaAttend>(record.args);
  const int64_t rows = c.input.rows(), heads = p[op.q.id].heads();
  if (rows < c.workers) {  // few rows: the heads are shared
    const Slice mine = c.slice(heads);
    for (int64_t r = 0; r < rows; ++r) attend_row(c, op, r, mine.first, mine.last);
    return;
  }
  for (int64_t r = c.worker; r < rows; r += c.workers) attend_row(c, op, r, 0, heads);  // late rows cost more
}

int64_t mla_attend_scratch(const Program& p, const Op& record, const CompileOptions&) {
  const auto& op = std::get<MlaAttend>(record.args);
  return kPageRows * p[op.cache.id].columns() + 2 * p[op.q.id].heads();
}

}  // namespace

const Kernel kMlaAttend{"mla_attend page tiles f32", Share::Other, mla_attend, mla_attend_scratch};

}  // namespace sluice::backend::cpu
