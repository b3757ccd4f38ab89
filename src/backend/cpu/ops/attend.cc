// attend: a tile is one page of the cache, decoded once for all the heads that a worker has; a running
// maximum rescales the sums as larger scores come (online softmax, Milakov and Gimelshein 2018). Tiles end at
// multiples of kPageRows positions whatever the batch, so a row's sums never depend on its neighbours.
#include <algorithm>
#include <limits>

#include "backend/cpu/ops/kernels.h"
#include "backend/cpu/simd/grouped.h"
#include "backend/cpu/simd/small.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

static_assert(kGroupedRows == kPageRows);

/// One head's running softmax: its largest score and its sum of weights; the weighted sums are in out.
struct Running {
  float largest, total;
};

/// What a worker attends with, in its scratch.
class Attending {
 public:
  /// Of tile, Runnings and sinks.
  static int64_t floats(const Program& p, const Attend& op) {
    return kPageRows * p[op.cache.id].columns() + 3 * p[op.q.id].heads();
  }

  Attending(const Context& c, const Attend& op)
      : c_(c),
        op_(op),
        q_(c.memory.rows(op.q.id)),
        out_(c.memory.rows(op.out.id)),
        cache_(c.memory.cache(op.cache.id)),
        group_(q_.heads / op.kv_heads),
        tile_(c.scratch()),
        states_(reinterpret_cast<Running*>(tile_ + kPageRows * cache_.format.columns)) {
    if (!op.sinks) return;
    sinks_ = reinterpret_cast<float*>(states_ + q_.heads);
    c.memory.weight(op.sinks.id).decode_row(0, 0, sinks_);
  }

  /// All of row r's context for heads [first, last), whole groups.
  void row(int64_t r, int64_t first, int64_t last) const {
    if (first == last) return;
    const int64_t length = c_.input.positions[static_cast<size_t>(r)] + 1;
    for (int64_t h = first; h < last; ++h) {
      states_[h] = {-std::numeric_limits<float>::infinity(), 0.0f};
      if (sinks_ != nullptr) states_[h] = {sinks_[h], 1.0f};
      std::fill_n(out_(r, h), out_.columns, 0.0f);
    }
    for (int64_t begin = op_.first(length - 1), end; begin < length; begin = end) {
      end = std::min<int64_t>(length, (begin / kPageRows + 1) * kPageRows);
      decode(cache_.row(op_.cache_layer, c_.input.slot_of(r, begin)), end - begin, first / group_,
             last / group_);
      for (int64_t h = first; h < last; ++h) attend_tile(r, h, end - begin);
    }
    for (int64_t h = first; h < last; ++h) {
      const float inverse = 1.0f / states_[h].total;
      for (int64_t i = 0; i < out_.columns; ++i) out_(r, h)[i] *= inverse;
    }
  }

 private:
  /// Cache rows to the tile: keys and values of these groups at least.
  void decode(const std::byte* rows, int64_t count, int64_t first, int64_t last) const {
    const int64_t width = cache_.format.columns;
    if (cache_.format.type != quant::Type::F16) return cache_.decode(rows, tile_, count);
    const int64_t keys = op_.kv_heads * q_.columns;
    for (int64_t t = 0; t < count; ++t) {
      const auto* from = reinterpret_cast<const uint16_t*>(rows + t * cache_.row_bytes);
      float* to = tile_ + t * width;
      const auto part = [&](int64_t begin, int64_t end) {
        kernels_.from_f16(from + begin, end - begin, to + begin);
      };
      part(first * q_.columns, last * q_.columns);
      part(keys + first * out_.columns, keys + last * out_.columns);
    }
  }

  /// Adds the tile's first rows to one head's result.
  void attend_tile(int64_t r, int64_t h, int64_t count) const {
    const int64_t width = cache_.format.columns, g = h / group_;
    alignas(64) float weights[kPageRows];
    kernels_.scores(q_(r, h), {tile_ + g * q_.columns, width, count, q_.columns}, op_.scale, weights);
    Running& state = states_[h];
    float largest = state.largest;
    for (int64_t t = 0; t < count; ++t) largest = std::max(largest, weights[t]);
    const float correction = std::exp(state.largest - largest);  // 0 at the first tile without a sink
    for (int64_t t = 0; t < count; ++t) weights[t] -= largest;
    small_kernels(c_.isa).exp(weights, count, weights);
    float total = state.total * correction;
    for (int64_t t = 0; t < count; ++t) total += weights[t];
    const float* values = tile_ + op_.kv_heads * q_.columns + g * out_.columns;
    kernels_.weigh(weights, {values, width, count, out_.columns}, correction, out_(r, h));
    state = {largest, total};
  }

  const Context& c_;
  const Attend& op_;
  const GroupedKernels& kernels_ = grouped_kernels(c_.isa);
  Rows<float> q_, out_;
  Cache cache_;
  int64_t group_;
  float* tile_;
  Running* states_;         // [heads]
  float* sinks_ = nullptr;  // [heads], or null
};

void attend(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<Attend>(record.args);
  const int64_t rows = c.input.rows(), heads = p[op.q.id].heads();
  const Attending attending(c, op);
  if (rows < c.workers) {  // few rows: the heads are shared, a group stays together
    const Slice mine = c.slice(heads, heads / op.kv_heads);
    for (int64_t r = 0; r < rows; ++r) attending.row(r, mine.first, mine.last);
    return;
  }
  for (int64_t r = c.worker; r < rows; r += c.workers) attending.row(r, 0, heads);  // late rows cost more
}

int64_t attend_scratch(const Program& p, const Op& record, const CompileOptions&) {
  return Attending::floats(p, std::get<Attend>(record.args));
}

}  // namespace

const Kernel kAttend{"attend page tiles f32", Share::Other, attend, attend_scratch};

}  // namespace sluice::backend::cpu
