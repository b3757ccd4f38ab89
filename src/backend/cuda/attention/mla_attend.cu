// mla_attend on tensor cores: which of the kernels, and their scratch.
#include <algorithm>
#include <numbers>

#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/gemm/gemm_parts.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/host/scratch.h"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

/// What chunks of contexts have before they are put together.
struct Chunks {
  float2* weights;
  float* parts;
};
Chunks take_chunks(Scratch& scratch, int64_t rows, int64_t heads, int most) {
  const int64_t all = rows * most * heads;
  return {scratch.take<float2>(all), scratch.take<float>(all * kMlaRank)};
}

bool serves_sm80(const Program& p, const Op& record, const Sizes&) {
  const auto& op = std::get<MlaAttend>(record.args);
  const quant::CacheRow row = p[op.cache.id].cache_row();
  return p[op.q.id].columns() == kMlaWidth && p[op.out.id].columns() == kMlaRank &&
         (row.type == quant::Type::F16 || row.coded() == kMlaRank);
}
/// Two pages and their neighbours take 227 KB of shared memory, which compute capabilities 9.0 and 10.0 have.
bool serves_sm90(const Program& p, const Op& record, const Sizes& sizes) {
  return most_shared(sizes.architecture) > kMostShared && serves_sm80(p, record, sizes);
}

constexpr quant::CacheRow kQ8{quant::Type::Q8_0, kMlaWidth, kMlaWidth - kMlaRank};
static_assert(kQ8.q8_bytes() == kMlaQ8Bytes && kQ8.exact_at() == kMlaQ8Exact &&
              kQ8.scales_at() == kMlaQ8Scales);

int64_t scratch_bytes(const Program& p, const Op& record, const Sizes& sizes) {
  const int64_t heads = p[std::get<MlaAttend>(record.args).q.id].heads();
  int64_t bytes = 0;
  const auto reserve = [&](int64_t rows, int most) {
    Scratch scratch(nullptr);
    take_chunks(scratch, rows, heads, most);
    bytes = std::max(bytes, scratch.bytes());
  };
  for (int64_t rows = 1; rows <= std::min(sizes.rows, kSplitRows); ++rows)
    reserve(rows, most_chunks(rows, sizes.sm_count));
  reserve(sizes.rows, most_chunks(sizes.rows, sizes.sm_count));
  // Of one sequence. More rows have one chunk, which needs none.
  for (int64_t rows = 2; rows <= sizes.rows; ++rows) {
    const int most = most_chunks_together(rows, heads, sizes.sm_count, kMlaTileQueries);
    if (most == 1) break;
    reserve(rows, most);
  }
  return bytes;
}

/// tile_queries: those that rows of one sequence have together; 0: they have no kernel for that.
MlaArgs attend_args(const Program& p, const MlaAttend& op, const Context& c, int tile_queries) {
  Scratch scratch(c.scratch);
  const int64_t heads = p[op.q.id].heads();
  const int chunks_together =
      tile_queries > 0 ? most_chunks_together(c.step_rows, heads, c.sm_count, tile_queries) : 1;
  const bool together = c.one_sequence && chunks_together > 1;
  const int most = together ? chunks_together : most_chunks(c.step_rows, c.sm_count);
  const Chunks chunks = take_chunks(scratch, c.step_rows, heads, most);
  return {c.step,
          c.memory.cache(op.cache.id),
          c.memory.rows(op.q.id),
          c.memory.rows(op.out.id),
          op.cache_layer,
          op.scale * std::numbers::log2e_v<float>,
          most,
          chunks.weights,
          chunks.parts,
          together};
}
void launch_sm90(const Program& p, const Op& record, const Context& c) {
  const MlaArgs args = attend_args(p, std::get<MlaAttend>(record.args), c, has_wgmma() ? kMlaTileQueries : 0);
  if (args.together) {
    attend_together(args, c);
    return join_chunks(args, c);
  }
  if (c.step_rows <= kSplitRows) return attend_split(args, c);
  has_wgmma() ? mla_attend_prefill(args, c) : mla_attend_sm80(args, c);
}
void launch_sm80(const Program& p, const Op& record, const Context& c) {
  mla_attend_sm80(attend_args(p, std::get<MlaAttend>(record.args), c, kSmallTileQueries), c);
}

}  // namespace

const Kernel kMlaAttendSm90{"mla_attend on tensor cores", serves_sm90, launch_sm90, scratch_bytes};
const Kernel kMlaAttendSm80{"mla_attend on tensor cores, half pages", serves_sm80, launch_sm80,
                            scratch_bytes};

}  // namespace sluice::backend::cuda
