// mla_attend: every row's softmax is taken over chunks of kChunkRows positions, each by itself, and the
// chunks' results are put together in their order (a running maximum rescales them: online softmax, Milakov
// and Gimelshein 2018): those of kGroupChunks chunks first, then the groups. Chunks begin at multiples of
// kChunkRows and groups at multiples of theirs whatever the batch, so a row's bits depend neither on its
// neighbours nor on who computes what:
//   where units (some rows of one sequence: a chunk is decoded once for all their heads) can be dealt out
//              evenly, a worker takes whole ones
//   elsewhere  the workers share the chunks, and who has finished takes others'; they leave the results in
//              scratch, those of a group put together already by who has computed it from its first chunk on;
//              then each puts some heads together
// In mla_values a step of one row with one chunk goes a third way where heads can be dealt out evenly: a
// worker takes some heads from their queries to their values (attend_own_heads), and nobody meets.
#include <algorithm>
#include <cmath>

#include "backend/cpu/ops/deal.h"
#include "backend/cpu/ops/latent.h"
#include "backend/cpu/simd/attend.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

/// Rows of a unit at most: 16 rows of 20 heads make ten calls of 32 queries a chunk, beside which decoding it
/// is little.
constexpr int64_t kUnitRows = 16;
/// Decoding a chunk takes about as long as so many queries: none where it stays where it lies, 20 with AMX.
constexpr int64_t kDecodeQueries = 8;
/// Chunks whose results are put together while a core still has them: a worker leaves the others a quarter
/// of what it computes.
constexpr int64_t kGroupChunks = 4;
/// Results of chunks that a worker keeps before they are put together.
constexpr int64_t kSlots = 32;
/// Of a slot: its item's chunk was added to those before it of its group, in another slot.
constexpr int32_t kJoined = -1;

static_assert(kHalfRows == kPageRows);

/// Whether the kernels read the cache's rows as Q8Rows.
bool in_eight_bits(const Cache& cache) {
  static_assert(kQ8Run == quant::kCacheRun);
  return cache.format.type == quant::Type::Q8_0 && cache.format.coded() % kQ8Run == 0;
}
Q8Rows q8_rows(const Cache& cache, const std::byte* rows) {
  const quant::CacheRow& format = cache.format;
  return {rows, cache.row_bytes, format.coded(), format.exact_at(), format.scales_at()};
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Rows [first, last) of the step, all of one sequence; their queries are the heads of the first row, of the
/// second, ...
struct Unit {
  int64_t first = 0, last = 0, chunks = 0;
};

/// What one call computes: a unit's queries [query, query + count) over one chunk.
struct Item {
  Unit unit;
  int64_t chunk = 0, query = 0, count = 0;
};

/// A worker's scratch.
class Scratch {
 public:
  float *tile, *rows, *packed, *work, *chunk, *totals;
  int32_t* last_chunk;  // [kSlots]: a slot holds the chunks from its item's own to this one, or is kJoined

  Scratch(float* base, const AttendKernels& kernels, AttendShape shape, int64_t heads)
      : tile(base),
        rows(tile + kernels.tile_floats(shape)),
        packed(rows + kPageRows * shape.width),
        work(packed + unit_calls(heads) * kernels.packed_floats(shape)),
        chunk(work + kernels.work_floats(shape)),
        totals(chunk + (1 + kSlots + unit_calls(heads)) * result_floats(kernels, shape) + kSlots),
        last_chunk(reinterpret_cast<int32_t*>(totals - kSlots)),
        sums_stride_(kernels.sums_stride(shape)),
        result_floats_(result_floats(kernels, shape)),
        unit_queries_(unit_calls(heads) * kQueries) {}

  static int64_t floats(const AttendKernels& kernels, AttendShape shape, int64_t heads, int64_t rows) {
    return kernels.tile_floats(shape) + kPageRows * shape.width +
           unit_calls(heads) * kernels.packed_floats(shape) + kernels.work_floats(shape) +
           (1 + kSlots + unit_calls(heads)) * result_floats(kernels, shape) + kSlots + 2 * rows * heads;
  }
  /// Results for up to kQueries queries; sums begin at whole vectors.
  ChunkResult result(float* at) const { return {at, at + kQueries, at + 2 * kQueries}; }
  ChunkResult slot(int64_t index) const { return result(chunk + (1 + index) * result_floats_); }
  /// What is there of a group, of a unit's queries from `query` on.
  ChunkResult group(int64_t query) const {
    float* at = chunk + (1 + kSlots) * result_floats_;
    return {at + query, at + unit_queries_ + query, at + 2 * unit_queries_ + query * sums_stride_};
  }

 private:
  /// Calls that a unit's queries take at least.
  static int64_t unit_calls(int64_t heads) { return ceil_div(kUnitRows * heads, kQueries); }
  static int64_t result_floats(const AttendKernels& kernels, AttendShape shape) {
    return kQueries * (2 + kernels.sums_stride(shape));
  }
  int64_t sums_stride_, result_floats_, unit_queries_;
};

/// One step's attention of one layer, as one worker sees it.
class Attention {
 public:
  Attention(const Program& p, const MlaAttend& op, const Context& c)
      : op_(op),
        c_(c),
        kernels_(attend_kernels(c.isa)),
        q_(c.memory.rows(op.q.id)),
        out_(c.memory.rows(op.out.id)),
        cache_(c.memory.cache(op.cache.id)),
        shape_{cache_.format.columns, out_.columns},
        heads_(p[op.q.id].heads()),
        mine_(scratch_of(c.worker)) {}

  void run() {
    if (deal_evenly()) return whole_units();
    unit_rows_ = kUnitRows;
    batch_ = best_batch();
    shared_chunks();
  }

  /// These heads of the step's one row, which has one chunk.
  void run_heads(Slice heads) {
    const Unit unit = unit_from(0);
    decode(unit, 0);
    for (int64_t head = heads.first; head < heads.last; head += kQueries) {
      const Item item{unit, 0, head, std::min(kQueries, heads.last - head)};
      pack(unit, item.query, item.count, mine_.packed);
      const ChunkResult result = mine_.result(mine_.chunk);
      attend(item, mine_.packed, false, result);
      add_group(item, result, 0, item.count);
    }
  }

 private:
  Scratch scratch_of(int worker) const { return {c_.memory.scratch(worker), kernels_, shape_, heads_}; }
  int64_t length(int64_t row) const { return c_.input.positions[static_cast<size_t>(row)] + 1; }
  int64_t queries(const Unit& unit) const { return (unit.last - unit.first) * heads_; }
  int64_t work(const Unit& unit) const { return unit.chunks * (queries(unit) + kDecodeQueries); }

  /// Chooses the rows of units: fewer decode a chunk more often, but are dealt out more evenly. Says whether
  /// whole units keep all workers busy then.
  bool deal_evenly() {
    int64_t best_rows = kUnitRows, least = 0, all = 0;
    for (unit_rows_ = kUnitRows; unit_rows_ >= kUnitRows / 8; unit_rows_ /= 2) {
      Deal deal(c_.workers);
      for (Unit u = unit_from(0); u.first < u.last; u = unit_from(u.last)) deal.take(work(u));
      if (unit_rows_ == kUnitRows) all = deal.all();
      if (unit_rows_ == kUnitRows || deal.busiest() < least) best_rows = unit_rows_, least = deal.busiest();
    }
    unit_rows_ = best_rows;
    return least * c_.workers <= all + all / 4;
  }

  /// Queries of an item: where the chunks are few, the workers share the queries of a chunk, too, if a call
  /// of fewer costs that much less.
  int64_t best_batch() const {
    constexpr int64_t kStep = 4;
    int64_t best = kQueries, least = 0;
    for (int64_t batch = kQueries; batch > 0; batch -= kStep) {
      int64_t items = 0;
      for (Unit u = unit_from(0); u.first < u.last; u = unit_from(u.last))
        items += u.chunks * ceil_div(queries(u), batch);
      const int64_t busiest = ceil_div(items, c_.workers) * (kernels_.call_queries + batch);
      if (least == 0 || busiest < least) best = batch, least = busiest;
    }
    return best;
  }

  Unit unit_from(int64_t first) const {
    const auto sequence = [&](int64_t row) { return c_.input.sequences[static_cast<size_t>(row)]; };
    Unit unit{first, first, 0};
    while (unit.last < c_.input.rows() && unit.last < first + unit_rows_ &&
           sequence(unit.last) == sequence(first)) {
      unit.chunks = std::max(unit.chunks, ceil_div(length(unit.last++), kChunkRows));
    }
    return unit;
  }

  /// Items in order: by unit, chunk, queries. The item after one whose count is 0 is the first.
  Item next(const Item& item) const {
    if (item.count == 0) return {unit_from(0), 0, 0, std::min(batch_, queries(unit_from(0)))};
    Item after = item;
    after.query += item.count;
    if (after.query == queries(item.unit)) {
      after.query = 0;
      if (++after.chunk == item.unit.chunks) {
        after.unit = unit_from(item.unit.last);
        after.chunk = 0;
      }
    }
    after.count = std::min(batch_, queries(after.unit) - after.query);  // 0 after the last item
    return after;
  }

  /// Rows of the chunk that a query of the unit sees.
  int64_t seen(const Unit& unit, int64_t chunk, int64_t query) const {
    return std::clamp<int64_t>(length(unit.first + query / heads_) - chunk * kChunkRows, 0, kChunkRows);
  }

  /// Makes a tile of the chunk's rows, or no more than rows of bfloat16, or finds that they can stay where
  /// they lie.
  void decode(const Unit& unit, int64_t chunk) {
    int64_t longest = 0;
    for (int64_t q = 0; q < queries(unit); q += heads_) longest = std::max(longest, seen(unit, chunk, q));
    const bool rounded = cache_.format.type == quant::Type::BF16;
    const bool made_rows =
        kernels_.decode_q8_keys != nullptr && in_eight_bits(cache_) && shape_.width % kRowColumns == 0;
    in_place_ = (rounded || made_rows) && (longest == kChunkRows || kernels_.ends_in_place) &&
                queries(unit) <= kernels_.in_place_queries;
    for (int64_t first = 0; first < longest; first += kPageRows) {
      const int64_t count = std::min<int64_t>(kPageRows, longest - first);
      const std::byte* rows =
          cache_.row(op_.cache_layer, c_.input.slot_of(unit.first, chunk * kChunkRows + first));
      const uint16_t*& page = pages_[first / kPageRows];
      if (!in_place_) {
        decode_rows(kernels_, cache_, rows, shape_, first, count, mine_.rows, mine_.tile);
      } else if (rounded) {
        page = reinterpret_cast<const uint16_t*>(rows);
      } else {
        kernels_.decode_q8_keys(q8_rows(cache_, rows), shape_, first, count, mine_.tile);
        page = reinterpret_cast<const uint16_t*>(mine_.tile) + first * shape_.width;
      }
    }
  }

  /// What decode will read.
  Ahead ahead(const Unit& unit, int64_t chunk) const {
    if (chunk >= unit.chunks) return {};
    const auto page = [&](int64_t position) {
      return reinterpret_cast<const char*>(
          cache_.row(op_.cache_layer, c_.input.slot_of(unit.first, position)));
    };
    const int64_t bytes = kPageRows * cache_.row_bytes, second = chunk * kChunkRows + kPageRows;
    const char* first_page = page(chunk * kChunkRows);
    const char* second_page = second < length(unit.last - 1) ? page(second) : first_page;
    return {first_page, first_page + bytes, second_page, second_page + bytes};
  }

  void pack(const Unit& unit, int64_t query, int64_t count, float* packed) {
    const float* q[kQueries];
    for (int64_t i = 0; i < count; ++i) q[i] = q_(unit.first + (query + i) / heads_, (query + i) % heads_);
    kernels_.pack(q, count, shape_, packed);
  }

  bool last_of_chunk(const Item& item) const { return item.query + item.count == queries(item.unit); }

  /// A row that ended before the chunk takes part as if it saw one position of it; nobody asks for that.
  /// goes_on: whether the next chunk is this worker's too.
  void attend(const Item& item, const float* packed, bool goes_on, const ChunkResult& result) {
    int32_t counts[kQueries];
    for (int64_t i = 0; i < item.count; ++i) {
      counts[i] = static_cast<int32_t>(std::max<int64_t>(1, seen(item.unit, item.chunk, item.query + i)));
    }
    const Ahead next = goes_on && last_of_chunk(item) ? ahead(item.unit, item.chunk + 1) : Ahead{};
    if (in_place_) {
      kernels_.attend_pages(packed, counts, item.count, pages_, shape_, op_.scale, mine_.work, next, result);
    } else {
      kernels_.attend(packed, counts, item.count, mine_.tile, shape_, op_.scale, mine_.work, next, result);
    }
  }

  int64_t last_of_group(const Unit& unit, int64_t chunk) const {
    return std::min(unit.chunks, chunk / kGroupChunks * kGroupChunks + kGroupChunks) - 1;
  }

  /// The chunk's part of the item's queries; or, where `joins`, added to what the chunks of its group before
  /// it have left there.
  void compute(const Item& item, const float* packed, bool goes_on, const ChunkResult& result, bool joins) {
    if (!joins) return attend(item, packed, goes_on, result);
    const ChunkResult chunk = mine_.result(mine_.chunk);
    attend(item, packed, goes_on, chunk);
    join(item, result, chunk, 0, item.count);
  }

  /// Adds what comes after to a query's sums, their largest score and total.
  void merge(float* sums, float& largest, float& total, const ChunkResult& after, int64_t i) const {
    const float most = std::max(largest, after.largest[i]);
    const float before = std::exp(largest - most), now = std::exp(after.largest[i] - most);
    kernels_.merge(sums, before, after.sums + i * kernels_.sums_stride(shape_), now, shape_.rank);
    largest = most;
    total = total * before + after.total[i] * now;
  }

  /// Adds the item's chunk, for its queries [first, last), to those of its group before it.
  void join(const Item& item, const ChunkResult& group, const ChunkResult& chunk, int64_t first,
            int64_t last) const {
    for (int64_t i = first; i < last; ++i) {
      if (seen(item.unit, item.chunk, item.query + i) == 0) continue;
      merge(group.sums + i * kernels_.sums_stride(shape_), group.largest[i], group.total[i], chunk, i);
    }
  }

  /// Adds the group of the item's chunk, whole, to the groups before it.
  void add_group(const Item& item, const ChunkResult& group, int64_t first, int64_t last) {
    const int64_t begin = item.chunk / kGroupChunks * kGroupChunks;
    for (int64_t i = first; i < last; ++i) {
      const int64_t query = item.query + i;
      if (seen(item.unit, begin, query) == 0) continue;
      const int64_t row = item.unit.first + query / heads_, head = query % heads_;
      float* out = out_(row, head);
      float* total = mine_.totals + 2 * (row * heads_ + head);  // the largest score, the total
      if (begin == 0) {
        std::copy_n(group.sums + i * kernels_.sums_stride(shape_), shape_.rank, out);
        total[0] = group.largest[i];
        total[1] = group.total[i];
      } else {
        merge(out, total[0], total[1], group, i);
      }
      if ((begin + kGroupChunks) * kChunkRows < length(row)) continue;
      const float inverse = 1.0f / total[1];
      for (int64_t n = 0; n < shape_.rank; ++n) out[n] *= inverse;
    }
  }

  /// Adds a result of the item's chunk, or of its group from there to the chunk `to`, to what is there of the
  /// chunks before it.
  void fold(const Item& item, int64_t to, const ChunkResult& result, int64_t first, int64_t last) {
    const bool begins = item.chunk % kGroupChunks == 0, ends = to == last_of_group(item.unit, to);
    if (begins && ends) return add_group(item, result, first, last);
    const ChunkResult group = mine_.group(item.query);
    if (begins) {
      const int64_t stride = kernels_.sums_stride(shape_);
      std::copy(result.largest + first, result.largest + last, group.largest + first);
      std::copy(result.total + first, result.total + last, group.total + first);
      std::copy(result.sums + first * stride, result.sums + last * stride, group.sums + first * stride);
    } else {
      join(item, group, result, first, last);
    }
    if (ends) add_group(item, group, first, last);
  }

  void whole_units() {
    Deal deal(c_.workers);
    for (Unit u = unit_from(0); u.first < u.last; u = unit_from(u.last)) {
      if (deal.take(work(u)) == c_.worker) whole_unit(u);
    }
  }

  void whole_unit(const Unit& unit) {
    const int64_t all = queries(unit), packed_floats = kernels_.packed_floats(shape_);
    const auto packed = [&](int64_t query) { return mine_.packed + query / kQueries * packed_floats; };
    for (int64_t q = 0; q < all; q += kQueries) pack(unit, q, std::min(kQueries, all - q), packed(q));
    for (int64_t chunk = 0; chunk < unit.chunks; ++chunk) {
      decode(unit, chunk);
      for (int64_t q = 0; q < all; q += kQueries) {
        const Item item{unit, chunk, q, std::min(kQueries, all - q)};
        const ChunkResult group = mine_.group(q);
        compute(item, packed(q), true, group, chunk % kGroupChunks > 0);
        if (chunk == last_of_group(unit, chunk)) add_group(item, group, 0, item.count);
      }
    }
  }

  void shared_chunks() {
    int64_t items = 0;
    for (Item i = next({}); i.count > 0; i = next(i)) ++items;
    const int64_t round = c_.workers * kSlots;
    Item item = next({});
    for (int64_t begin = 0; begin < items; begin += round) {
      if (begin > 0) c_.meet();  // the slots are free again
      item = one_round(item, std::min(round, items - begin));
    }
  }

  /// The chunks of `count` items from `first` on, everybody's share and what others have left of theirs, and
  /// then their folding. Results go to the share's slots, an item's own or that of the first of its group, if
  /// the same worker has just computed it.
  Item one_round(const Item& first, int64_t count) {
    Item at = first, before;
    int64_t index = 0;
    const auto seek = [&](int64_t to) {
      if (to < index) at = first, index = 0;
      for (; index < to; ++index) at = next(at);
    };
    const auto share_of = [&](int owner) { return slice_of(count, owner, c_.workers); };
    const auto items = [&](int owner) { return share_of(owner).last - share_of(owner).first; };
    c_.stealing().each(1, items, [&](int owner, Slice piece) {
      const int64_t share = share_of(owner).first, end = share + piece.last;
      const Scratch results = scratch_of(owner);
      // The own pieces follow each other; others' are taken from the back.
      const bool own = owner == c_.worker;
      const int64_t run = own ? share : share + piece.first, run_end = own ? share_of(owner).last : end;
      for (int64_t i = share + piece.first; i < end; ++i) {
        seek(i);
        const bool same_unit = before.count > 0 && before.unit.first == at.unit.first;
        if (!same_unit || before.chunk != at.chunk) decode(at.unit, at.chunk);
        if (!same_unit || before.query != at.query) pack(at.unit, at.query, at.count, mine_.packed);
        const int64_t calls = ceil_div(queries(at.unit), batch_), begin = i - at.chunk % kGroupChunks * calls;
        const bool joins = begin < i && begin >= run;
        const int64_t slot = (joins ? begin : i) - share;
        compute(at, mine_.packed, i + 1 < run_end, results.slot(slot), joins);
        results.last_chunk[i - share] = kJoined;
        results.last_chunk[slot] = static_cast<int32_t>(at.chunk);
        before = at;
      }
    });
    c_.meet();
    if (c_.steals.taken != nullptr) c_.steals.taken[c_.worker].reset();  // for the next round
    at = first;
    for (int worker = 0; worker < c_.workers; ++worker) {
      const Scratch results = scratch_of(worker);
      for (int64_t i = 0; i < items(worker); ++i, at = next(at)) {
        if (results.last_chunk[i] == kJoined) continue;
        const Slice heads = c_.slice(at.count);
        fold(at, results.last_chunk[i], results.slot(i), heads.first, heads.last);
      }
    }
    return at;
  }

  const MlaAttend& op_;
  const Context& c_;
  const AttendKernels& kernels_;
  Rows<float> q_, out_;
  Cache cache_;
  AttendShape shape_;
  int64_t heads_;
  Scratch mine_;
  int64_t unit_rows_ = kUnitRows;  // of a unit at most
  int64_t batch_ = kQueries;       // queries of an item
  bool in_place_ = false;          // the chunk's rows are not in the tile but at pages_
  const uint16_t* pages_[2] = {};
};

void mla_attend(const Program& p, const Op& record, const Context& c) {
  attend_latent(p, std::get<MlaAttend>(record.args), c);
}

int64_t mla_attend_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  return latent_scratch(p, std::get<MlaAttend>(record.args), options);
}

}  // namespace

void decode_rows(const AttendKernels& kernels, const Cache& cache, const std::byte* rows, AttendShape shape,
                 int64_t first, int64_t count, float* floats, float* tile) {
  const quant::Type type = cache.format.type;
  const auto* numbers = reinterpret_cast<const uint16_t*>(rows);
  if (type == quant::Type::BF16) {
    // What lies behind a sequence's last row may be no number at all: a tile has zeroes there.
    kernels.decode_bf16(numbers, shape, first, count, tile);
  } else if (type == quant::Type::F16) {
    kernels.decode_f16(numbers, shape, first, count, tile);
  } else if (in_eight_bits(cache)) {
    kernels.decode_q8(q8_rows(cache, rows), shape, first, count, tile);
  } else {
    cache.decode(rows, floats, count);
    kernels.decode_f32(floats, shape, first, count, tile);
  }
}

void attend_latent(const Program& p, const MlaAttend& op, const Context& c) { Attention(p, op, c).run(); }

bool attends_own_heads(const Program& p, const MlaAttend& op, const Context& c) {
  return c.input.rows() == 1 && c.input.positions[0] < kChunkRows && p[op.q.id].heads() % c.workers == 0;
}

void attend_own_heads(const Program& p, const MlaAttend& op, const Context& c) {
  Attention(p, op, c).run_heads(c.slice(p[op.q.id].heads()));
}

int64_t latent_scratch(const Program& p, const MlaAttend& op, const CompileOptions& options) {
  const AttendShape shape{p[op.cache.id].columns(), p[op.out.id].columns()};
  int64_t floats = 0;
  for (const Isa isa : {Isa::Generic, Isa::Avx2, Isa::Avx512, Isa::Amx}) {
    if (isa > best_isa()) break;
    floats =
        std::max(floats, Scratch::floats(attend_kernels(isa), shape, p[op.q.id].heads(), options.max_rows));
  }
  return floats;
}

bool attends_in_bf16(const Program& program, TensorId cache, Isa isa) {
  if (attend_kernels(isa).attend_pages == nullptr) return false;
  const auto attends_otherwise = [cache](const Op& op) {
    const auto* attend = std::get_if<Attend>(&op.args);
    return attend != nullptr && attend->cache.id == cache;
  };
  return program[cache].columns() % kRowColumns == 0 &&
         std::none_of(program.ops().begin(), program.ops().end(), attends_otherwise);
}

const Kernel kMlaAttend{"mla_attend chunks", Share::Together, mla_attend, mla_attend_scratch};

}  // namespace sluice::backend::cpu
