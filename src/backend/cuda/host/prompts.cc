#include "backend/cuda/host/prompts.h"

#include "program/step.h"

namespace sluice::backend::cuda {
namespace {

/// Rows that make up for each position before them. Latent space costs a row and position 2 x 1,088 FLOP a
/// head, expanded columns 2 x 512 (heads of 192 + 64 and 256 columns); expanding a position 2 x 512 x 448.
/// That is 398; narrower heads have more to gain.
constexpr int64_t kRowsWorth = 400;

bool worth_expanding(int64_t position, int64_t rows) {
  return rows >= kSegmentRows && rows * (position + rows / 2) >= kRowsWorth * position;
}

}  // namespace

Prompts find_prompts(const program::StepInput& input, const StepHeader& header, int64_t rows, int64_t longest,
                     Segment* segments) {
  Prompts prompts{header, 0, 0, 0};
  const auto begins = [&](size_t r) {
    return r == 0 || input.sequences[r] != input.sequences[r - 1] ||
           input.positions[r] != input.positions[r - 1] + 1;
  };
  while (prompts.others.rows > 0) {
    const int32_t end = prompts.others.rows;
    int32_t first = end - 1;
    while (!begins(static_cast<size_t>(first))) --first;
    const int32_t position = input.positions[static_cast<size_t>(first)], count = end - first;
    const int32_t length = position + count;
    const int32_t whole = (length + kExpandTile - 1) / kExpandTile * kExpandTile;
    if (!worth_expanding(position, count) || prompts.positions + whole > most_expanded(rows, longest)) break;
    segments[prompts.segments++] = {first, count, position, length, prompts.positions, prompts.tiles};
    prompts.positions += whole;
    prompts.tiles += (count + kExpandTile - 1) / kExpandTile;
    prompts.others.rows = first;
  }
  return prompts;
}

}  // namespace sluice::backend::cuda
