// Grouped attention on tensor cores: which kernels a step takes (attention/gqa.cuh). Steps of few rows take
// gqa_split_kv; steps of more rows that, for rows of short stretches, and a kernel of tiles for the others.
#include <numbers>

#include "backend/cuda/attention/gqa.cuh"
#include "backend/cuda/gemm/gemm_parts.h"
#include "backend/cuda/gemv/head_matmul_small_batch.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

/// Neither a window nor sinks, which the tiles of wgmma do not know.
bool sees_all(const Attend& op) { return op.window == 0 && !op.sinks; }

/// Whether kernels have this shape of a head of queries, keys and values, in a group of so many.
bool known(int64_t columns, int64_t value, int64_t heads, bool coded, const Sizes& sizes) {
  const bool narrow = columns == 64 || columns == 128 || (!coded && (columns == 80 || columns == 96));
  // Two pages of 256 columns want more shared memory than most devices have.
  const bool wide = columns == 256 && !coded && most_shared(sizes.architecture) > kMostShared;
  return (narrow || wide) && columns == value && heads <= kGroupQueries;
}

bool is_coded(const Program& p, TensorId cache) { return p[cache].cache_row().type == quant::Type::Q8_0; }

bool serves(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<Attend>(record.args);
  const Tensor& q = p[op.q.id];
  return known(q.columns(), p[op.out.id].columns(), q.heads() / op.kv_heads, is_coded(p, op.cache.id),
               sizes) &&
         sizes.rows <= kMostAttending && op.scale > 0;
}

/// Of so many columns a launch of its own makes heads ready: a block that attends would make a group's one
/// after another.
constexpr int64_t kMadeApart = 256;

/// Beside its pieces of 128 columns a block has no room for new rows on most devices.
bool serves_made(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<GqaAttend>(record.args);
  const Tensor& q = p[op.query.q.id];
  const int64_t columns = q.columns();
  const bool coded = is_coded(p, op.query.cache.id);
  const bool fits = coded || columns == 64 || most_shared(sizes.architecture) > kMostShared;
  const GqaQuery& query = op.query;
  const bool biased = query.q_bias || query.k_bias || query.v_bias;
  const bool made = fits && (columns == 64 || columns == 128) && (!biased || columns <= kMostBiased) &&
                    sizes.rows <= kMadeRows;
  // Fours of a gate are read at once.
  const bool aligned = !op.gate || (p[op.gate.id].offset % 4 == 0 && p[op.gate.id].stride[1] % 4 == 0);
  return (made || (columns == kMadeApart && sizes.rows <= kSplitKvRows)) && aligned && op.scale > 0 &&
         known(columns, p[op.out.id].columns(), q.heads() / op.kv_heads(p), coded, sizes);
}

/// Rows whose context may be split, and into how many chunks at most.
struct Split {
  int32_t rows, chunks;
};
/// Two thread blocks an SM where each has some pages, otherwise one: two leave no room for the next kernel's
/// to begin beside them (H100, 8 groups, one row: 16 chunks of 4,096 positions 10.2 us, 32 13.4).
Split split_of(const Attend& op, const Sizes& sizes) {
  constexpr int64_t kLeastPages = 4;
  const int64_t seen = op.window > 0 ? std::min(sizes.longest, op.window + kPageRows - 1) : sizes.longest;
  const int64_t pages = std::max<int64_t>(1, (seen + kPageRows - 1) / kPageRows);
  const bool few = sizes.rows <= kSplitKvRows;
  int64_t room = few ? 2 * sizes.sm_count / (sizes.rows * op.kv_heads) : kPrefillChunks;
  if (few && pages <= (kLeastPages - 1) * room) room /= 2;
  return {static_cast<int32_t>(few ? sizes.rows : std::min<int64_t>(sizes.rows, kPrefillSplitRows)),
          static_cast<int32_t>(std::clamp<int64_t>(std::min(room, pages), 1, kAttendChunks))};
}

/// The same of rows of one sequence: a thread block an SM, which tiles and groups share.
Split split_together(const Program& p, const Attend& op, const Sizes& sizes) {
  const int64_t tile_rows = kTileQueries / (p[op.q.id].heads() / op.kv_heads);
  const int64_t tiles = (sizes.rows + tile_rows - 1) / tile_rows;
  const int64_t pages = std::max<int64_t>(1, (sizes.longest + kPageRows - 1) / kPageRows);
  return {static_cast<int32_t>(sizes.rows),
          static_cast<int32_t>(std::clamp<int64_t>(sizes.sm_count / (op.kv_heads * tiles), 1,
                                                   std::min<int64_t>(pages, kAttendChunks)))};
}
/// Whether tiles of wgmma know the op.
bool wgmma_serves(const Program& p, const Attend& op) {
  const int64_t columns = p[op.q.id].columns();
  return sees_all(op) && has_wgmma() && (columns == 64 || columns == 128);
}

int64_t weights_bytes(const Split& split, int64_t heads) {
  return (split.rows * split.chunks * heads * static_cast<int64_t>(sizeof(float2)) + 255) / 256 * 256;
}

int64_t scratch_of(const Program& p, const Attend& op, const Sizes& sizes) {
  const int64_t heads = p[op.q.id].heads();
  const auto bytes = [&](const Split& split) {
    return split.chunks == 1
               ? 0
               : weights_bytes(split, heads) + split.rows * split.chunks * heads * p[op.q.id].columns() * 4;
  };
  return std::max(bytes(split_of(op, sizes)), bytes(split_together(p, op, sizes)));
}
int64_t scratch_bytes(const Program& p, const Op& record, const Sizes& sizes) {
  return scratch_of(p, std::get<Attend>(record.args), sizes);
}
/// Queries that a launch of its own makes ready come first.
int64_t queries_bytes(const Program& p, const GqaAttend& op, int64_t rows) {
  const Tensor& q = p[op.query.q.id];
  return rows * q.heads() * q.columns() * int64_t{sizeof(float)};
}
int64_t scratch_bytes_made(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<GqaAttend>(record.args);
  return queries_bytes(p, op, sizes.rows) + scratch_of(p, op.attend(p, op.query.q.id), sizes);
}

/// scratch: what scratch_of asks for.
AttendArgs attend_args(const Program& p, const Attend& op, const Context& c, char* scratch) {
  const Split together = split_together(p, op, c.sizes());
  AttendArgs args{};
  args.together = c.one_sequence && together.chunks > 1 && op.window == 0;
  const Split split = args.together ? together : split_of(op, c.sizes());
  args.step = c.step;
  args.cache = c.memory.cache(op.cache.id);
  args.q = c.memory.rows(op.q.id), args.out = c.memory.rows(op.out.id);
  args.layer = op.cache_layer, args.groups = static_cast<int32_t>(op.kv_heads);
  args.heads_a_group = static_cast<int32_t>(p[op.q.id].heads() / op.kv_heads);
  args.window = static_cast<int32_t>(op.window), args.sinks = c.memory.vector(op.sinks.id);
  args.scale_log2 = op.scale * std::numbers::log2e_v<float>;
  args.few = args.together || c.step_rows <= kSplitKvRows;
  args.split = split.rows, args.chunks = split.chunks;
  args.weights = reinterpret_cast<float2*>(scratch);
  args.parts = reinterpret_cast<float*>(scratch + weights_bytes(split, args.q.heads));
  if (args.chunks <= kJoinedChunks && !args.together)
    args.arrived = reinterpret_cast<unsigned long long*>(c.zeroed);
  if (c.produces != nullptr)
    args.codes = c.produces->at, args.coded = coded_values_token(int64_t{args.out.heads} * args.out.columns);
  return args;
}

/// Results of 2 to 32 rows in codes, of heads of whole blocks.
std::optional<FormSpec> codes_of(const Program& p, TensorId out, const Sizes& sizes) {
  const bool few = sizes.rows > 1 && sizes.rows <= kSplitKvRows;
  return few && p[out].columns() % 32 == 0 ? given_rows_codes(p, out, sizes) : std::nullopt;
}
std::optional<FormSpec> produces(const Program& p, const Op& record, const Sizes& sizes) {
  return codes_of(p, std::get<Attend>(record.args).out.id, sizes);
}
std::optional<FormSpec> produces_made(const Program& p, const Op& record, const Sizes& sizes) {
  return codes_of(p, std::get<GqaAttend>(record.args).out.id, sizes);
}

void attend_stretches(const Program& p, const Attend& op, const AttendArgs& args, const Context& c) {
  wgmma_serves(p, op) ? attend_wgmma(args, c) : attend_tiles(args, c);
  if (args.together) join_split_kv(args, c);
}

void launch_groups(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<Attend>(record.args);
  const AttendArgs args = attend_args(p, op, c, c.scratch);
  if (!args.together && (args.few || !c.prompts_alone)) gqa_split_kv(args, c);
  if (args.together || !args.few) attend_stretches(p, op, args, c);
}

void launch_made(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<GqaAttend>(record.args);
  const Attend attend = op.attend(p, op.query.q.id);
  AttendArgs args = attend_args(p, attend, c, c.scratch + queries_bytes(p, op, c.step_rows));
  if (op.gate) args.gate = c.memory.rows(op.gate.id);
  const GqaQueryArgs heads = gqa_query_args(p, op.query, c.memory);
  if (args.q.columns != kMadeApart && !args.together) return gqa_split_kv(args, heads, c);
  const int64_t row = int64_t{args.q.heads} * args.q.columns;
  args.q = {reinterpret_cast<float*>(c.scratch), row, args.q.columns, args.q.heads, args.q.columns};
  make_heads(heads, args.q, args.cache, args.layer, c);
  args.together ? attend_stretches(p, attend, args, c) : gqa_split_kv(args, c);
}

/// A word a row whose context may be split, and group, which every launch leaves zero.
MailboxNeeds arrivals_of(const Attend& op, const Sizes& sizes) {
  return {.zeroed = split_of(op, sizes).rows * op.kv_heads};
}
MailboxNeeds arrivals(const Program&, const Op& record, const Sizes& sizes) {
  return arrivals_of(std::get<Attend>(record.args), sizes);
}
MailboxNeeds arrivals_made(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<GqaAttend>(record.args);
  return arrivals_of(op.attend(p, op.query.q.id), sizes);
}

}  // namespace

const Kernel kAttendGqa{
    "attend on tensor cores", serves, launch_groups, scratch_bytes, produces, nullptr, arrivals};
const Kernel kGqaAttend{"queries, keys and attend on tensor cores",
                        serves_made,
                        launch_made,
                        scratch_bytes_made,
                        produces_made,
                        nullptr,
                        arrivals_made};

}  // namespace sluice::backend::cuda
