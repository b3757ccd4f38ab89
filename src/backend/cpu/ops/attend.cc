// attend: a tile is one page of the cache, decoded once for all the heads that a worker has; a running
// maximum rescales the sums as larger scores come (online softmax, Milakov and Gimelshein 2018). Tiles end at
// multiples of kPageRows positions whatever the batch, so a row's sums never depend on its neighbours.
//
// Stretches of one sequence's rows at the step's end go over keys and values that are arranged once for many
// of them and for all heads of a group (simd/expanded.h). A worker takes a group of a part of a stretch.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "backend/cpu/ops/kernels.h"
#include "backend/cpu/ops/stretches.h"
#include "backend/cpu/simd/expanded.h"
#include "backend/cpu/simd/grouped.h"
#include "backend/cpu/simd/small.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

static_assert(kGroupedRows == kPageRows && kExpandedRows == kPageRows && kExpandedKeys % kPageRows == 0);

/// Rows of a stretch at least: more than a step drafts, whose texts are to be those of single rows.
constexpr int64_t kArrangedRows = 32;
/// Queries of a piece at most: their sums stay in the second-level cache.
constexpr int64_t kPieceQueries = 1024;

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

ExpandedShape shape_of(const Program& p, const Attend& op) {
  return {0, 0, p[op.q.id].columns(), p[op.out.id].columns()};
}

/// Whether stretches can go over arranged keys and values, on whatever tier.
bool can_arrange(const Program& p, const Attend& op) {
  const ExpandedShape shape = shape_of(p, op);
  return op.window == 0 && shape.rope % 32 == 0 && shape.value % 32 == 0 &&
         p[op.q.id].heads() / op.kv_heads <= kPieceQueries;
}

/// A worker's scratch: keys and values arranged, and the pages that they come from; a piece's queries and
/// what they have so far; what kernels work with.
template <typename Number>
struct StretchScratch {
  Number *keys, *values, *queries, *pages;
  float *decoded, *work, *largest, *total, *sums;
  int64_t floats;

  /// width: of a cache row.
  StretchScratch(float* base, const ExpandedShape& s, int64_t width) {
    ScratchParts parts(base);
    keys = parts.numbers<Number>(kExpandedKeys * s.key());
    values = parts.numbers<Number>(kExpandedKeys * s.value);
    queries = parts.numbers<Number>(kPieceQueries * s.key());
    pages = parts.numbers<Number>(kExpandedKeys * (s.key() + s.value));
    decoded = parts.floats(width);
    work = parts.floats(kExpandedRows * (std::max(kExpandedKeys, s.value) + kExpandedKeys / 2));
    largest = parts.floats(kPieceQueries);
    total = parts.floats(kPieceQueries);
    sums = parts.floats(kPieceQueries * s.value);
    floats = parts.taken();
  }
};

/// One step's stretches of one layer, as one worker sees them.
template <typename Number>
class Arranged {
 public:
  Arranged(const Program& p, const Attend& op, const Context& c)
      : c_(c),
        op_(op),
        kernels_(arranging_kernels<Number>(c.isa)),
        q_(c.memory.rows(op.q.id)),
        out_(c.memory.rows(op.out.id)),
        cache_(c.memory.cache(op.cache.id)),
        group_(q_.heads / op.kv_heads),
        shape_(shape_of(p, op)),
        can_(can_arrange(p, op)),
        scratch_(c.scratch(), shape_, cache_.format.columns) {}

  /// Rows of the step before its stretches.
  int64_t others() const {
    const bool can = can_ && kernels_ != nullptr && !c_.memory.batch_invariant();
    return can ? rows_before_stretches(c_.input, [](const Stretch& s) { return s.rows() >= kArrangedRows; })
               : c_.input.rows();
  }

  /// The rows from `begin` on.
  void run(int64_t begin) const {
    if (begin == c_.input.rows()) return;
    constexpr int64_t kMostParts = 16;
    const Cut cut{op_.kv_heads, std::max<int64_t>(1, kExpandedRows / group_), kPieceQueries / group_,
                  kMostParts};
    kernels_->begin();
    deal_stretches(
        c_, begin, cut, [&](const Stretch& piece) { return work(piece); },
        [&](const Stretch& piece, int64_t g) { attend(piece, g); });
    kernels_->end();
  }

 private:
  /// What a piece costs in multiply-adds: to arrange a number is reckoned as kArranged of them.
  int64_t work(const Stretch& s) const {
    constexpr int64_t kArranged = 32;
    return (attended(c_.input, s) * group_ + length_of(c_.input, s) * kArranged) *
           (shape_.key() + shape_.value);
  }

  /// The group's keys and values of `count` cache rows of a page, as numbers.
  void take_page(const std::byte* rows, int64_t count, int64_t g, Number* out) const {
    const int64_t key = shape_.key(), value = shape_.value;
    const int64_t keys_at = g * key, values_at = op_.kv_heads * key + g * value;
    const GroupedKernels& halves = grouped_kernels(c_.isa);
    for (int64_t t = 0; t < count; ++t, rows += cache_.row_bytes, out += key + value) {
      if (cache_.format.type == quant::Type::F16) {
        const auto* from = reinterpret_cast<const uint16_t*>(rows);
        halves.from_f16(from + keys_at, key, scratch_.decoded + keys_at);
        halves.from_f16(from + values_at, value, scratch_.decoded + values_at);
      } else {
        cache_.decode(rows, scratch_.decoded, 1);
      }
      if constexpr (std::is_same_v<Number, float>) {
        std::copy_n(scratch_.decoded + keys_at, key, out);
        std::copy_n(scratch_.decoded + values_at, value, out + key);
      } else {
        kernels_->query(nullptr, scratch_.decoded + keys_at, {0, 0, key, 0}, out);
        kernels_->query(nullptr, scratch_.decoded + values_at, {0, 0, value, 0}, out + key);
      }
    }
  }

  /// Keys and values of the positions from `begin` on, to the stretch's end at most.
  void arrange(const Stretch& s, int64_t g, int64_t begin) const {
    const int64_t end = std::min(begin + kExpandedKeys, length_of(c_.input, s));
    const int64_t width = shape_.key() + shape_.value;
    const Number* pages[kExpandedKeys / kPageRows];
    for (int64_t at = begin; at < end; at += kPageRows) {
      Number* const page = scratch_.pages + (at - begin) * width;
      take_page(cache_.row(op_.cache_layer, c_.input.slot_of(s.first, at)),
                std::min<int64_t>(kPageRows, end - at), g, page);
      pages[(at - begin) / kPageRows] = page;
    }
    kernels_->arrange(pages, width, shape_.key(), end - begin, shape_, scratch_.keys, scratch_.values);
  }

  /// All heads of group g. Queries are the piece's rows, and of each the group's heads.
  void attend(const Stretch& s, int64_t g) const {
    const int64_t queries = s.rows() * group_, key = shape_.key();
    const auto row_of = [&](int64_t query) { return s.first + query / group_; };
    const auto head_of = [&](int64_t query) { return g * group_ + query % group_; };
    for (int64_t i = 0; i < queries; ++i)
      kernels_->query(nullptr, q_(row_of(i), head_of(i)), shape_, scratch_.queries + i * key);
    std::fill_n(scratch_.largest, queries, -std::numeric_limits<float>::infinity());
    std::fill_n(scratch_.total, queries, 0.0f);
    for (int64_t begin = 0; begin < length_of(c_.input, s); begin += kExpandedKeys) {
      arrange(s, g, begin);
      for (int64_t first = 0; first < queries; first += kExpandedRows) {
        const int64_t count = std::min(kExpandedRows, queries - first);
        int32_t counts[kExpandedRows];
        for (int64_t i = 0; i < count; ++i) {
          const int64_t seen = position_of(c_.input, row_of(first + i)) + 1 - begin;
          counts[i] = static_cast<int32_t>(std::clamp<int64_t>(seen, 0, kExpandedKeys));
        }
        if (counts[count - 1] == 0) continue;
        kernels_->attend(scratch_.queries + first * key, counts, count, scratch_.keys, scratch_.values,
                         shape_, op_.scale, scratch_.work, scratch_.largest + first, scratch_.total + first,
                         scratch_.sums + first * shape_.value);
      }
    }
    const float* sinks = nullptr;  // [heads]
    if (op_.sinks) {
      c_.memory.weight(op_.sinks.id).decode_row(0, 0, scratch_.work);
      sinks = scratch_.work;
    }
    for (int64_t i = 0; i < queries; ++i) {
      float total = scratch_.total[i];
      if (sinks != nullptr) total += std::exp(sinks[head_of(i)] - scratch_.largest[i] / kernels_->power);
      const float inverse = 1.0f / total;
      const float* sums = scratch_.sums + i * shape_.value;
      float* values = out_(row_of(i), head_of(i));
      for (int64_t n = 0; n < shape_.value; ++n) values[n] = sums[n] * inverse;
    }
  }

  const Context& c_;
  const Attend& op_;
  const ExpandedKernels<Number>* kernels_;
  Rows<float> q_, out_;
  Cache cache_;
  int64_t group_;
  ExpandedShape shape_;
  bool can_;
  StretchScratch<Number> scratch_;
};

/// Rows that attend one by one.
void attend_rows(const Program& p, const Attend& op, const Context& c, int64_t rows) {
  const int64_t heads = p[op.q.id].heads();
  const Attending attending(c, op);
  if (rows < c.workers) {  // few rows: the heads are shared, a group stays together
    const Slice mine = c.slice(heads, heads / op.kv_heads);
    for (int64_t r = 0; r < rows; ++r) attending.row(r, mine.first, mine.last);
    return;
  }
  for (int64_t r = c.worker; r < rows; r += c.workers) attending.row(r, 0, heads);  // late rows cost more
}

template <typename Number>
void attend_all(const Program& p, const Attend& op, const Context& c) {
  const Arranged<Number> arranged(p, op, c);
  const int64_t others = arranged.others();
  attend_rows(p, op, c, others);
  arranged.run(others);
}

void attend(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<Attend>(record.args);
  (arranging_kernels<float>(c.isa) != nullptr ? attend_all<float> : attend_all<uint16_t>)(p, op, c);
}

int64_t attend_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  const auto& op = std::get<Attend>(record.args);
  const int64_t floats = Attending::floats(p, op);
  if (options.max_rows < kArrangedRows || !can_arrange(p, op)) return floats;
  return std::max(floats, StretchScratch<float>(nullptr, shape_of(p, op), p[op.cache.id].columns()).floats);
}

int64_t arranges_from(const Program& p, const Op& record, Isa isa) {
  const bool can = can_arrange(p, std::get<Attend>(record.args)) &&
                   (arranging_kernels<float>(isa) != nullptr || arranging_kernels<uint16_t>(isa) != nullptr);
  return can ? kArrangedRows : 0;
}

}  // namespace

const Kernel kAttend{"attend page tiles f32", Share::Other, attend, attend_scratch, false, arranges_from};

}  // namespace sluice::backend::cpu
