// Long stretches of prompts in a step: rows whose sequence's context is worth expanding
// (attention/mla_heads_prefill.cu). Found by the host when a step's data is laid out, so that kernels need
// not look for them, layer by layer.
#pragma once

#include "backend/cuda/host/device.h"

namespace sluice::program {
struct StepInput;
}

namespace sluice::backend::cuda {

/// Rows of a step from which on stretches are looked for: fewer hardly save what their context costs.
inline constexpr int64_t kPromptRows = 1024;
inline constexpr int kSegmentRows = 256;  ///< of a stretch at least
/// Positions that are expanded, and rows that attend, together.
inline constexpr int kExpandTile = 128;

/// Consecutive rows of a sequence, and where its context lies among the expanded positions.
struct Segment {
  int32_t first_row, rows, position, length;  ///< position: of the first row; length: the last row's context
  int32_t offset;                             ///< of its position 0, whole tiles
  int32_t first_tile;                         ///< of its tiles of kExpandTile rows, counted through
};

struct Prompts {
  StepHeader others;  ///< the step's, but of the rows that are in no segment: those before all others
  int32_t segments, positions, tiles;  ///< how many, in all
};

/// Segments of a step at most, and positions of their contexts: the longest one, and beginnings of several.
constexpr int64_t most_segments(int64_t rows) { return rows / kSegmentRows; }
constexpr int64_t most_expanded(int64_t rows, int64_t longest) {
  return (longest + 2 * rows + kExpandTile - 1) / kExpandTile * kExpandTile;
}

/// Fills `segments` (room for most_segments) for a step of this bucket. A stretch is one if expanding its
/// context is less work than attending in latent space, which depends on its own length and depth alone.
/// Answers come first in a step, so stretches are taken from the end, as long as there is room.
Prompts find_prompts(const program::StepInput& input, const StepHeader& header, int64_t rows, int64_t longest,
                     Segment* segments);

}  // namespace sluice::backend::cuda
