// attend: a tile is one page of the cache, decoded once for all the heads that a worker has; a running
// maximum rescales the sums as larger scores come (online softmax, Milakov and Gimelshein 2018). Tiles begin
// at multiples of kPageRows positions whatever the batch, so a row's sums never depend on its neighbours.
#include <algorithm>
#include <limits>

#include "backend/cpu/ops/kernels.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

/// The columns of a decoded cache row where one head's key and value begin.
struct Place {
  int64_t key, value;
};

/// One head's running softmax: its largest score and its sum of weights; the weighted sums are in out.
struct Running {
  float largest, total;
};

/// Adds `count` cache rows (decoded, [count][width]) to one head's result.
void attend_tile(const Rows<float>& q, const Rows<float>& out, int64_t row, int64_t head, const float* tile,
                 int64_t count, int64_t width, Place place, float scale, Running& state) {
  float weights[kPageRows];
  float largest = state.largest;
  for (int64_t t = 0; t < count; ++t) {
    weights[t] = scale * dot(q(row, head), tile + t * width + place.key, q.columns);
    largest = std::max(largest, weights[t]);
  }
  float* sums = out(row, head);
  const float correction = std::exp(state.largest - largest);  // 0 at the first tile
  state.total *= correction;
  for (int64_t i = 0; i < out.columns; ++i) sums[i] *= correction;
  for (int64_t t = 0; t < count; ++t) {
    const float weight = std::exp(weights[t] - largest);
    state.total += weight;
    const float* value = tile + t * width + place.value;
    for (int64_t i = 0; i < out.columns; ++i) sums[i] += weight * value[i];
  }
  state.largest = largest;
}

/// All of row r's context for heads [first, last). scratch: one tile, then one Running a head.
void attend_row(const Context& c, const Attend& op, int64_t r, int64_t first, int64_t last) {
  const Rows<float> q = c.memory.rows(op.q.id), out = c.memory.rows(op.out.id);
  const Cache cache = c.memory.cache(op.cache.id);
  const int64_t width = cache.format.columns, group = q.heads / op.kv_heads;
  const int64_t length = c.input.positions[static_cast<size_t>(r)] + 1;
  float* tile = c.scratch();
  auto* states = reinterpret_cast<Running*>(tile + kPageRows * width);
  for (int64_t h = first; h < last; ++h) {
    states[h] = {-std::numeric_limits<float>::infinity(), 0.0f};
    std::fill_n(out(r, h), out.columns, 0.0f);
  }
  for (int64_t begin = 0; begin < length; begin += kPageRows) {
    const int64_t count = std::min<int64_t>(kPageRows, length - begin);
    const std::byte* page = cache.row(op.cache_layer, c.input.slot_of(r, begin));
    cache.decode(page, tile, count);
    for (int64_t h = first; h < last; ++h) {
      const Place place{h / group * q.columns, op.kv_heads * q.columns + h / group * out.columns};
      attend_tile(q, out, r, h, tile, count, width, place, op.scale, states[h]);
    }
  }
  for (int64_t h = first; h < last; ++h) {
    const float inverse = 1.0f / states[h].total;
    for (int64_t i = 0; i < out.columns; ++i) out(r, h)[i] *= inverse;
  }
}

void attend(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<Attend>(record.args);
  const int64_t rows = c.input.rows(), heads = p[op.q.id].heads();
  if (rows < c.workers) {  // few rows: the heads are shared, a group stays together
    const Slice mine = c.slice(heads, heads / op.kv_heads);
    for (int64_t r = 0; r < rows; ++r) attend_row(c, op, r, mine.first, mine.last);
    return;
  }
  for (int64_t r = c.worker; r < rows; r += c.workers) attend_row(c, op, r, 0, heads);  // late rows cost more
}

int64_t attend_scratch(const Program& p, const Op& record, const CompileOptions&) {
  const auto& op = std::get<Attend>(record.args);
  return kPageRows * p[op.cache.id].columns() + 2 * p[op.q.id].heads();
}

}  // namespace

const Kernel kAttend{"attend page tiles f32", Share::Other, attend, attend_scratch};

}  // namespace sluice::backend::cpu
