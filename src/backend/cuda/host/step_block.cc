#include "backend/cuda/host/step_block.h"

#include <algorithm>
#include <cstring>

#include "backend/cuda/host/cuda_check.h"

namespace sluice::backend::cuda {
namespace {

constexpr int64_t kAlign = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
int64_t aligned_ints(int64_t count) { return aligned(count * 4); }

/// Fills in the runs of a step's rows, and which of them each row is in; how many there are.
int32_t find_runs(const program::StepInput& input, Run* runs, int32_t* run_of) {
  int32_t count = 0;
  for (int64_t first = 0, end = 0; first < input.rows(); first = end) {
    end = input.end_of_sequence(first);
    const auto sequence = static_cast<size_t>(input.sequences[static_cast<size_t>(first)]);
    const program::StateSlots slots = input.states[sequence];
    runs[count] = {static_cast<int32_t>(first), static_cast<int32_t>(end), slots.from, slots.to};
    std::fill(run_of + first, run_of + end, count++);
  }
  return count;
}

/// What no page table has: no page has it, and no entry without a page, which is -1.
constexpr int32_t kNoPage = -2;

}  // namespace

StepBlock::Layout StepBlock::layout(int64_t rows, int64_t outputs) const {
  Layout l{};
  l.tokens = kAlign;
  l.positions = l.tokens + aligned_ints(rows);
  l.sequences = l.positions + aligned_ints(rows);
  l.slots = l.sequences + aligned_ints(rows);
  l.output_rows = l.slots + aligned_ints(rows);
  l.draws = l.output_rows + aligned_ints(outputs);
  l.prompts = l.draws + aligned(outputs * int64_t{sizeof(program::Draw)});
  const int64_t segments = rows >= kPromptRows ? most_segments(rows) : 0;
  l.segments = l.prompts + (segments > 0 ? aligned(sizeof(Prompts)) : 0);
  l.runs = l.segments + aligned(segments * int64_t{sizeof(Segment)});
  l.run_of = l.runs + (has_states_ ? aligned(rows * int64_t{sizeof(Run)}) : 0);
  l.bytes = l.run_of + (has_states_ ? aligned_ints(rows) : 0);
  return l;
}

StepBlock::StepBlock(int64_t max_rows, int64_t max_outputs, int64_t table_entries, int64_t mailbox_slots,
                     bool has_states)
    : has_states_(has_states),
      block_bytes_(layout(max_rows, max_outputs).bytes),
      device_(kStepSlots * block_bytes_),
      mailbox_(mailbox_slots * int64_t{sizeof(uint64_t)}) {
  if (mailbox_slots > 0) check(cudaMemset(mailbox_.data(), 0, static_cast<size_t>(mailbox_.bytes())));
  allocate_pinned(pinned_, device_.bytes());
  std::memset(pinned_, 0, static_cast<size_t>(device_.bytes()));
  if (table_entries > 0) allocate_tables(table_entries * int64_t{sizeof(int32_t)});
}
StepBlock::~StepBlock() {
  cudaFreeHost(pinned_);
  cudaFreeHost(pinned_tables_);
}

bool StepBlock::fill(const program::Step& step, int64_t rows, int64_t outputs, int64_t longest, int step_slot,
                     cudaStream_t stream) {
  const program::StepInput& input = step.input;
  const Layout l = layout(rows, outputs);
  char* const block = pinned_ + step_slot * block_bytes_;
  const int32_t runs = !has_states_ ? 0
                                    : find_runs(input, reinterpret_cast<Run*>(block + l.runs),
                                                reinterpret_cast<int32_t*>(block + l.run_of));
  const StepHeader header{static_cast<int32_t>(input.rows()), static_cast<int32_t>(input.outputs()),
                          input.pages_per_sequence, ++steps_, runs};
  std::memcpy(block, &header, sizeof header);
  const auto put = [&](int64_t at, std::span<const int32_t> values) {
    std::memcpy(block + at, values.data(), values.size_bytes());
  };
  put(l.tokens, input.tokens), put(l.positions, input.positions), put(l.sequences, input.sequences);
  put(l.slots, input.slots), put(l.output_rows, input.output_rows);
  auto* const draws = reinterpret_cast<program::Draw*>(block + l.draws);
  for (int64_t i = 0; i < input.outputs(); ++i) draws[i] = step.want(i).draw;
  prompts_alone_ = false;
  if (rows >= kPromptRows) {
    const Prompts prompts =
        find_prompts(input, header, rows, longest, reinterpret_cast<Segment*>(block + l.segments));
    std::memcpy(block + l.prompts, &prompts, sizeof prompts);
    prompts_alone_ = prompts.others.rows == 0;
  }
  return update_tables(input, step_slot, stream);
}

void StepBlock::allocate_tables(int64_t bytes) {
  tables_ = Buffer(bytes);
  cudaFreeHost(pinned_tables_);
  pinned_tables_ = nullptr;
  allocate_pinned(pinned_tables_, kStepSlots * bytes);
  known_tables_.clear();
}

// Copies from the first entry that has changed to the last one. True: the tables moved.
bool StepBlock::update_tables(const program::StepInput& input, int step_slot, cudaStream_t stream) {
  const std::span<const int32_t> tables = input.page_tables;
  const auto bytes = static_cast<int64_t>(tables.size_bytes());
  const bool moves = bytes > tables_.bytes();
  if (moves) {
    check(cudaStreamSynchronize(stream));
    allocate_tables(2 * bytes);
  }
  if (known_tables_.size() != tables.size()) known_tables_.assign(tables.size(), kNoPage);
  const size_t first =
      static_cast<size_t>(std::ranges::mismatch(known_tables_, tables).in1 - known_tables_.begin());
  if (first == tables.size()) return moves;
  size_t end = tables.size();
  while (known_tables_[end - 1] == tables[end - 1]) --end;
  const auto changed = tables.subspan(first, end - first);
  std::ranges::copy(changed, known_tables_.begin() + static_cast<std::ptrdiff_t>(first));
  const size_t at = first * sizeof(int32_t);
  char* const pinned = pinned_tables_ + step_slot * tables_.bytes() + at;
  std::memcpy(pinned, changed.data(), changed.size_bytes());
  check(cudaMemcpyAsync(tables_.data() + at, pinned, changed.size_bytes(), cudaMemcpyHostToDevice, stream));
  return moves;
}

void StepBlock::copy(int64_t rows, int64_t outputs, int step_slot, cudaStream_t stream) const {
  check(cudaMemcpyAsync(device_.data() + step_slot * block_bytes_, pinned_ + step_slot * block_bytes_,
                        static_cast<size_t>(layout(rows, outputs).bytes), cudaMemcpyHostToDevice, stream));
}

const program::Draw* StepBlock::draws(int64_t rows, int64_t outputs, int step_slot) const {
  return reinterpret_cast<const program::Draw*>(device_.data() + step_slot * block_bytes_ +
                                                layout(rows, outputs).draws);
}

StepView StepBlock::view(int64_t rows, int64_t outputs, int step_slot) const {
  const Layout l = layout(rows, outputs);
  const char* const block = device_.data() + step_slot * block_bytes_;
  const auto ints = [&](int64_t at) { return reinterpret_cast<const int32_t*>(block + at); };
  return {reinterpret_cast<const StepHeader*>(block),
          ints(l.tokens),
          ints(l.positions),
          ints(l.sequences),
          ints(l.slots),
          ints(l.output_rows),
          reinterpret_cast<const int32_t*>(tables_.data()),
          reinterpret_cast<uint64_t*>(mailbox_.data()),
          reinterpret_cast<const Prompts*>(block + l.prompts),
          reinterpret_cast<const Segment*>(block + l.segments),
          reinterpret_cast<const Run*>(block + l.runs),
          ints(l.run_of)};
}

}  // namespace sluice::backend::cuda
