#include "backend/cuda/step_block.h"

#include <algorithm>
#include <cstring>

#include "backend/cuda/cuda_check.h"

namespace sluice::backend::cuda {
namespace {

constexpr int64_t kAlign = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
int64_t aligned_ints(int64_t count) { return aligned(count * 4); }

}  // namespace

StepBlock::Layout StepBlock::layout(int64_t rows, int64_t outputs) {
  Layout l{};
  l.tokens = kAlign;
  l.positions = l.tokens + aligned_ints(rows);
  l.sequences = l.positions + aligned_ints(rows);
  l.slots = l.sequences + aligned_ints(rows);
  l.output_rows = l.slots + aligned_ints(rows);
  l.prompts = l.output_rows + aligned_ints(outputs);
  const int64_t segments = rows >= kPromptRows ? most_segments(rows) : 0;
  l.segments = l.prompts + (segments > 0 ? aligned(sizeof(Prompts)) : 0);
  l.bytes = l.segments + aligned(segments * int64_t{sizeof(Segment)});
  return l;
}

StepBlock::StepBlock(int64_t max_rows, int64_t max_outputs)
    : device_(layout(max_rows, max_outputs).bytes), board_(kBoardWords * int64_t{sizeof(uint64_t)}) {
  check(cudaMemset(board_.data(), 0, static_cast<size_t>(board_.bytes())));
  allocate_pinned(pinned_, device_.bytes());
  std::memset(pinned_, 0, static_cast<size_t>(device_.bytes()));
}
StepBlock::~StepBlock() { cudaFreeHost(pinned_); }

bool StepBlock::fill(const program::StepInput& input, int64_t rows, int64_t outputs, int64_t longest,
                     cudaStream_t stream) {
  const Layout l = layout(rows, outputs);
  const StepHeader header{static_cast<int32_t>(input.rows()), static_cast<int32_t>(input.outputs()),
                          input.pages_per_sequence, ++steps_};
  std::memcpy(pinned_, &header, sizeof header);
  const auto put = [&](int64_t at, std::span<const int32_t> values) {
    std::memcpy(pinned_ + at, values.data(), values.size_bytes());
  };
  put(l.tokens, input.tokens), put(l.positions, input.positions), put(l.sequences, input.sequences);
  put(l.slots, input.slots), put(l.output_rows, input.output_rows);
  prompts_alone_ = false;
  if (rows >= kPromptRows) {
    const Prompts prompts =
        find_prompts(input, header, rows, longest, reinterpret_cast<Segment*>(pinned_ + l.segments));
    std::memcpy(pinned_ + l.prompts, &prompts, sizeof prompts);
    prompts_alone_ = prompts.others.rows == 0;
  }

  if (std::ranges::equal(known_tables_, input.page_tables)) return false;
  const auto bytes = static_cast<int64_t>(input.page_tables.size_bytes());
  const bool moves = bytes > tables_.bytes();
  if (moves) tables_ = Buffer(2 * bytes);
  known_tables_.assign(input.page_tables.begin(), input.page_tables.end());
  check(cudaMemcpyAsync(tables_.data(), known_tables_.data(), static_cast<size_t>(bytes),
                        cudaMemcpyHostToDevice, stream));
  return moves;
}

void StepBlock::copy(int64_t rows, int64_t outputs, cudaStream_t stream) const {
  check(cudaMemcpyAsync(device_.data(), pinned_, static_cast<size_t>(layout(rows, outputs).bytes),
                        cudaMemcpyHostToDevice, stream));
}

StepView StepBlock::view(int64_t rows, int64_t outputs) const {
  const Layout l = layout(rows, outputs);
  const auto ints = [&](int64_t at) { return reinterpret_cast<const int32_t*>(device_.data() + at); };
  return {reinterpret_cast<const StepHeader*>(device_.data()),
          ints(l.tokens),
          ints(l.positions),
          ints(l.sequences),
          ints(l.slots),
          ints(l.output_rows),
          reinterpret_cast<const int32_t*>(tables_.data()),
          reinterpret_cast<uint64_t*>(board_.data()),
          reinterpret_cast<const Prompts*>(device_.data() + l.prompts),
          reinterpret_cast<const Segment*>(device_.data() + l.segments)};
}

}  // namespace sluice::backend::cuda
