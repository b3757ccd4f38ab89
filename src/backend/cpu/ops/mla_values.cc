// mla_values: rows attend in latent space (mla_attend.cc), but for long stretches of one sequence's rows at
// the step's end (answers come first in a step): for these the keys and values of every head are made of the
// cache's latents, some hundred rows at a time, and attended to at once. A worker takes a head of a stretch,
// or of a part of its rows, and needs nobody else.
//
// Which way a row goes depends on its own stretch alone: how many rows it has and at what depth. Those in
// latent space go some hundred at a time, so that their queries and results there, which are the largest
// activations of all, take no more memory than so many rows want.
#include <algorithm>
#include <limits>
#include <vector>

#include "backend/cpu/ops/latent.h"
#include "backend/cpu/ops/mla_values.h"
#include "backend/cpu/ops/rotation.h"
#include "backend/cpu/ops/stretches.h"
#include "backend/cpu/simd/expanded.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

static_assert(kExpandedRows == kPageRows && kExpandedKeys % kPageRows == 0);

constexpr int64_t kPages = kExpandedKeys / kPageRows;

/// Rows of a stretch at least: fewer leave blocks of queries half empty.
constexpr int64_t kStretchRows = 128;

/// Rows that are in latent space at a time: enough for whole tiles and for many workers.
constexpr int64_t kLatentRows = 512;

ExpandedShape shape_of(const Program& p, const MlaValues& op) {
  const int64_t rank = p[op.attend.out.id].columns();
  return {rank, p[op.queries.in.id].columns(), p[op.attend.cache.id].columns() - rank,
          p[op.values.out.id].columns()};
}

bool fits(const ExpandedShape& shape) {
  return shape.rank % 32 == 0 && shape.nope % 32 == 0 && shape.rope % 32 == 0 && shape.value % 16 == 0;
}

/// A worker's scratch: the right sides that a head's weights are, those that its keys and values are, its
/// queries, the angles by which all rows rotate, and what kernels work with.
template <typename Number>
struct ValuesScratch {
  Number *k_b, *v_b, *keys, *values, *queries, *unpacked;
  float *angles, *rotated, *tiles, *rows, *work, *largest, *total, *sums;
  int64_t tile_floats, floats;

  ValuesScratch(float* base, const AttendKernels& kernels, const ExpandedShape& s, int64_t most_rows) {
    ScratchParts parts(base);
    const int64_t all_rows = (most_rows + kExpandedRows - 1) / kExpandedRows * kExpandedRows;
    const AttendShape latent{s.rank + s.rope, s.rank};
    k_b = parts.numbers<Number>(s.rank * s.nope);
    v_b = parts.numbers<Number>(s.rank * s.value);
    keys = parts.numbers<Number>(kExpandedKeys * s.key());
    values = parts.numbers<Number>(kExpandedKeys * s.value);
    queries = parts.numbers<Number>(all_rows * s.key());
    unpacked = parts.numbers<Number>(kPanelRows * std::max(s.rank, s.nope));
    angles = parts.floats(most_rows * s.rope);
    rotated = parts.floats(s.rope);
    tile_floats = std::max(kernels.tile_floats(latent), kPageRows * latent.width);
    tiles = parts.floats(kPages * tile_floats);
    rows = parts.floats(kPageRows * latent.width);
    work = parts.floats(kExpandedRows * (std::max({kExpandedKeys, s.nope, s.value}) + kExpandedKeys / 2));
    largest = parts.floats(all_rows);
    total = parts.floats(all_rows);
    // Not where results go: there a head's rows lie whole kilobytes apart, which caches put in few places.
    sums = parts.floats(all_rows * s.value);
    floats = parts.taken();
  }
};

/// One step's stretches of one layer, as one worker sees them.
template <typename Number>
class Expanded {
 public:
  Expanded(const Program& p, const MlaValues& op, const Context& c)
      : op_(op),
        c_(c),
        kernels_(expanded_kernels<Number>(c.isa)),
        tiles_(attend_kernels(c.isa)),
        shape_(shape_of(p, op)),
        rotation_(p, op.turn, c),
        heads_(p[op.attend.q.id].heads()),
        cache_(c.memory.cache(op.attend.cache.id)),
        k_b_(c.matrix(op.queries.weight.id, 0)),
        v_b_(c.matrix(op.values.weight.id, 1)),
        scratch_(c.scratch(), tiles_, shape_, c.input.rows()) {}

  /// Rows of the step before its stretches.
  int64_t others() const {
    const bool can =
        !c_.memory.batch_invariant() && kernels_ != nullptr && fits(shape_) && unpacks(k_b_) && unpacks(v_b_);
    return can ? rows_before_stretches(c_.input, [&](const Stretch& s) { return pays(s); }) : c_.input.rows();
  }

  /// The rows from `begin` on.
  void run(int64_t begin) {
    if (begin == c_.input.rows()) return;
    for (int64_t row = begin; row < c_.input.rows(); ++row) {
      rotation_.angles(static_cast<int32_t>(position(row)), angles(row));
    }
    kernels_->begin();
    const Cut cut{heads_, kExpandedRows, c_.input.rows(), kMostParts};
    deal_stretches(
        c_, begin, cut, [&](const Stretch& piece) { return work(piece); },
        [&](const Stretch& piece, int64_t head) { attend(piece, head); });
    kernels_->end();
  }

 private:
  static constexpr int64_t kMostParts = 8;
  static constexpr bool kIsFloat = std::is_same_v<Number, float>;

  float* angles(int64_t row) const { return scratch_.angles + row * shape_.rope; }
  int64_t position(int64_t row) const { return position_of(c_.input, row); }
  int64_t length(const Stretch& s) const { return length_of(c_.input, s); }
  /// Multiply-adds of one head.
  int64_t work(const Stretch& s) const {
    return attended(c_.input, s) * (shape_.key() + shape_.value) +
           length(s) * shape_.rank * (shape_.nope + shape_.value);
  }
  bool pays(const Stretch& s) const {
    const int64_t latent = attended(c_.input, s) * (2 * shape_.rank + shape_.rope) +
                           s.rows() * shape_.rank * (shape_.nope + shape_.value);
    return s.rows() >= kStretchRows && work(s) <= latent;
  }

  static bool unpacks(const Matrix& weight) {
    if constexpr (kIsFloat) return weight.numbers != nullptr;
    return weight.unpack != nullptr;
  }
  /// For each panel of a head: body(panel), with its numbers in scratch.
  template <typename Body>
  void each_panel(const Matrix& weight, int64_t head, Body body) {
    for (int64_t panel = 0; panel < weight.panels(); ++panel) {
      const uint8_t* packed = weight.panel(head, panel);
      if constexpr (kIsFloat) {
        weight.numbers(packed, weight.columns, scratch_.unpacked);
      } else {
        weight.unpack(packed, weight.columns, scratch_.unpacked, weight.prefetch);
      }
      body(panel);
    }
  }
  void unpack_weights(int64_t head) {
    each_panel(k_b_, head,
               [&](int64_t panel) { kernels_->k_panel(scratch_.unpacked, panel, shape_, scratch_.k_b); });
    each_panel(v_b_, head,
               [&](int64_t panel) { kernels_->v_panel(scratch_.unpacked, panel, shape_, scratch_.v_b); });
  }

  /// `count` cache rows of a page as numbers; `tile` has room for a page.
  const Number* numbers(const std::byte* rows, int64_t count, float* tile) {
    const AttendShape latent{shape_.rank + shape_.rope, shape_.rank};
    if constexpr (kIsFloat) {
      if (cache_.format.type == quant::Type::F16) {
        kernels_->from_halves(reinterpret_cast<const uint16_t*>(rows), count * latent.width, tile);
      } else {
        cache_.decode(rows, tile, count);
      }
      if (kernels_->prepare != nullptr) kernels_->prepare(tile, latent.width, count, shape_);
    } else {
      if (cache_.format.type == quant::Type::BF16) return reinterpret_cast<const uint16_t*>(rows);
      decode_rows(tiles_, cache_, rows, latent, 0, count, scratch_.rows, tile);
    }
    return reinterpret_cast<const Number*>(tile);
  }

  /// Keys and values of the positions from `begin` on, to the stretch's end at most.
  void expand(const Stretch& s, int64_t begin) {
    const int64_t end = std::min(begin + kExpandedKeys, length(s));
    const int64_t width = shape_.rank + shape_.rope;
    const Number* pages[kPages];
    for (int64_t at = begin; at < end; at += kPageRows) {
      const int64_t count = std::min<int64_t>(kPageRows, end - at), page = (at - begin) / kPageRows;
      const std::byte* rows = cache_.row(op_.attend.cache_layer, c_.input.slot_of(s.first, at));
      pages[page] = numbers(rows, count, scratch_.tiles + page * scratch_.tile_floats);
    }
    kernels_->expand(pages, width, end - begin, scratch_.k_b, scratch_.v_b, shape_, scratch_.work,
                     scratch_.keys, scratch_.values);
  }

  void attend(const Stretch& s, int64_t head) {
    const Rows<float> in = c_.memory.rows(op_.queries.in.id), rope_in = c_.memory.rows(op_.turn.in.id),
                      out = c_.memory.rows(op_.values.out.id);
    unpack_weights(head);
    for (int64_t i = 0; i < s.rows(); ++i) {
      const int64_t row = s.first + i;
      rotation_.rotate(rope_in(row, head), angles(row), scratch_.rotated);
      kernels_->query(in(row, head), scratch_.rotated, shape_, scratch_.queries + i * shape_.key());
    }
    std::fill_n(scratch_.largest, s.rows(), -std::numeric_limits<float>::infinity());
    std::fill_n(scratch_.total, s.rows(), 0.0f);
    for (int64_t begin = 0; begin < length(s); begin += kExpandedKeys) {
      expand(s, begin);
      for (int64_t first = 0; first < s.rows(); first += kExpandedRows) {
        const int64_t rows = std::min(kExpandedRows, s.rows() - first);
        int32_t counts[kExpandedRows];
        for (int64_t i = 0; i < rows; ++i) {
          const int64_t row = s.first + first + i;
          counts[i] = static_cast<int32_t>(std::clamp<int64_t>(position(row) + 1 - begin, 0, kExpandedKeys));
        }
        if (counts[rows - 1] == 0) continue;
        kernels_->attend(scratch_.queries + first * shape_.key(), counts, rows, scratch_.keys,
                         scratch_.values, shape_, op_.attend.scale, scratch_.work, scratch_.largest + first,
                         scratch_.total + first, scratch_.sums + first * shape_.value);
      }
    }
    for (int64_t i = 0; i < s.rows(); ++i) {
      const float inverse = 1.0f / scratch_.total[i];
      const float* sums = scratch_.sums + i * shape_.value;
      float* values = out(s.first + i, head);
      for (int64_t n = 0; n < shape_.value; ++n) values[n] = sums[n] * inverse;
    }
  }

  const MlaValues& op_;
  const Context& c_;
  const ExpandedKernels<Number>* kernels_;
  const AttendKernels& tiles_;
  ExpandedShape shape_;
  Rotation rotation_;
  int64_t heads_;
  Cache cache_;
  Matrix k_b_, v_b_;
  ValuesScratch<Number> scratch_;
};

/// The queries' rotary columns of a step's rows, shared by heads of rows.
void rotate_queries(const Program& p, const Rope& op, const Context& c, const Rows<float>& in) {
  const Rows<float> out = c.memory.rows(op.out.id);
  const Rotation rotation(p, op, c);
  const Slice mine = c.slice(c.input.rows() * out.heads);
  for (int64_t i = mine.first; i < mine.last; ++i) {
    const int64_t row = i / out.heads, head = i % out.heads;
    if (i == mine.first || head == 0)
      rotation.angles(c.input.positions[static_cast<size_t>(row)], c.scratch());
    rotation.rotate(in(row, head), c.scratch(), out(row, head));
  }
}

/// Rows of the step, kLatentRows at most, in latent space.
void latent_values(const Program& p, const MlaValues& op, const Context& step, Slice rows) {
  const StepInput input = step.input.part(rows.first, rows.last);
  const Context c{step.memory, input, step.worker, step.workers, step.isa, step.team};
  const auto rows_of = [&](TensorId id) { return c.memory.rows(id).from(rows.first); };
  // Where there were rows before these, others may still be at their values.
  const bool own_heads = rows.first == 0 && attends_own_heads(p, op.attend, c);
  rotate_queries(p, op.turn, c, rows_of(op.turn.in.id));
  multiply_heads(op.queries, c, input.rows(), rows_of(op.queries.in.id), c.memory.rows(op.queries.out.id));
  if (own_heads) {
    attend_own_heads(p, op.attend, c);
  } else {
    c.meet();
    // Of the op's parts these alone: it has one count of what was taken.
    Context sharing = c;
    sharing.steals = step.steals;
    attend_latent(p, op.attend, sharing);
    c.meet();
  }
  multiply_heads(op.values, c, input.rows(), c.memory.rows(op.values.in.id), rows_of(op.values.out.id));
}

template <typename Number>
void attend_values(const Program& p, const MlaValues& op, const Context& c) {
  Expanded<Number> expanded(p, op, c);
  const int64_t others = expanded.others();
  for (int64_t first = 0; first < others; first += kLatentRows) {
    latent_values(p, op, c, {first, std::min(others, first + kLatentRows)});
  }
  expanded.run(others);
}

void mla_values(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MlaValues>(record.args);
  (expanded_kernels<float>(c.isa) != nullptr ? attend_values<float> : attend_values<uint16_t>)(p, op, c);
}

int64_t values_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  const auto& op = std::get<MlaValues>(record.args);
  CompileOptions latent = options;
  latent.max_rows = std::min(latent.max_rows, kLatentRows);
  int64_t floats =
      std::max({p[op.turn.in.id].columns(), multiply_heads_scratch(p, op.queries, latent),
                latent_scratch(p, op.attend, latent), multiply_heads_scratch(p, op.values, latent)});
  const ExpandedShape shape = shape_of(p, op);
  if (!fits(shape)) return floats;
  for (const Isa isa : {Isa::Avx2, Isa::Avx512, Isa::Amx, Isa::Neon}) {
    const auto take = [&](const auto* kernels, auto number) {
      if (isa > best_isa() || kernels == nullptr) return;
      const ValuesScratch<decltype(number)> scratch(nullptr, attend_kernels(isa), shape, options.max_rows);
      floats = std::max(floats, scratch.floats);
    };
    take(expanded_kernels<uint16_t>(isa), uint16_t{});
    take(expanded_kernels<float>(isa), float{});
  }
  return floats;
}

int64_t expands_from(const Program& program, const Op& record, Isa isa) {
  const auto& op = std::get<MlaValues>(record.args);
  const auto unpacks = [&](Read weight) {
    const quant::Type type = program[weight.id].type;
    if (expanded_kernels<float>(isa) != nullptr)
      return product_of(matmul_kernels(isa), type).numbers != nullptr;
    return expanded_kernels<uint16_t>(isa) != nullptr && panel_unpack(unpack_kernels(isa), type) != nullptr;
  };
  const bool can = fits(shape_of(program, op)) && unpacks(op.queries.weight) && unpacks(op.values.weight);
  return can ? kStretchRows : 0;
}

}  // namespace

bool expand_to_values(Builder& b, const Op& op) {
  const auto* heads = std::get_if<MlaHeads>(&op.args);
  if (heads == nullptr || heads->query.k_b_reduce != Reduce::Columns) return false;
  heads->expand_to_values(b, kLatentRows);
  return true;
}

const Kernel kMlaValues{"mla_values chunks", Share::Together, mla_values, values_scratch, true, expands_from};

}  // namespace sluice::backend::cpu
