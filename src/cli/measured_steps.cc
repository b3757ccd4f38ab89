#include "cli/measured_steps.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace sluice::cli {
namespace {

/// More than any cache of the processors of today but the largest servers' holds.
constexpr double kLeastStepBytes = 256e6;
constexpr double kTurnBytes = 128e6;  // some milliseconds
constexpr double kReadShare = 0.125;

/// What serving asks of an output.
constexpr program::Want kWant{.logits = false, .top = true, .drawn = true};

}  // namespace

ReadTurns::ReadTurns(program::Backend& backend, double step_bytes) {
  if (step_bytes < kLeastStepBytes) return;
  probe_ = backend.bandwidth_probe();
  turn_steps_ = std::max<int64_t>(1, std::llround(kTurnBytes / (kReadShare * step_bytes)));
  turn_bytes_ = std::llround(kReadShare * step_bytes * static_cast<double>(turn_steps_));
}

void ReadTurns::after_step() {
  if (probe_ == nullptr || ++steps_ % turn_steps_ != 0) return;
  probe_->read(turn_bytes_);
}

MeasuredSteps::MeasuredSteps(program::Executable& executable, int64_t max_rows, int32_t sequences,
                             int64_t context, uint64_t seed)
    : executable_(executable),
      max_rows_(max_rows),
      seed_(seed),
      vocabulary_(static_cast<uint64_t>(executable.program()[executable.program().output()].columns())),
      pool_(static_cast<int32_t>(pages(sequences, context))),
      batch_(max_rows, sequences, static_cast<int32_t>(engine::KvPool::pages_for(context))),
      ahead_(max_rows, sequences, static_cast<int32_t>(engine::KvPool::pages_for(context))),
      filled_(static_cast<size_t>(sequences), 0) {
  for (int32_t sequence = 0; sequence < sequences; ++sequence) {
    std::vector<int32_t> table;
    CHECK(pool_.reserve(table, context));
    for (engine::Batch* batch : {&batch_, &ahead_}) batch->set_pages(sequence, table);
  }
}

// SplitMix64 (Steele, Lea and Flood 2014) of the place: uniform, and the same whatever was computed before.
int32_t MeasuredSteps::token(int32_t sequence, int64_t position) const {
  uint64_t z = seed_ + 0x9E3779B97F4A7C15u *
                           (static_cast<uint64_t>(sequence) << 32 | static_cast<uint64_t>(position + 1));
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<int32_t>((z ^ (z >> 31)) % vocabulary_);
}

int64_t MeasuredSteps::step() {
  program::Step step = batch_.step();
  step.timed = times_ != nullptr;
  const int64_t begin = now_ns();
  program::run_step(executable_, step);
  const int64_t ns = now_ns() - begin;
  if (times_ != nullptr) executable_.fetch_times(*times_);
  if (turns_ != nullptr) turns_->after_step();
  return ns;
}

void MeasuredSteps::computed(int32_t sequence, int64_t position, int64_t rows) {
  int64_t& filled = filled_[static_cast<size_t>(sequence)];
  if (position <= filled) filled = std::max(filled, position + rows);
}

int64_t MeasuredSteps::prompt_step(int32_t sequence, int64_t position, int64_t rows) {
  batch_.clear();
  for (int64_t at = position; at < position + rows; ++at) {
    if (at + 1 < position + rows) {
      batch_.add(token(sequence, at), static_cast<int32_t>(at), sequence, false);
    } else {
      batch_.add(token(sequence, at), static_cast<int32_t>(at), sequence, kWant);
    }
  }
  computed(sequence, position, rows);
  return step();
}

void MeasuredSteps::add_tokens(int64_t position, int32_t sequences) {
  batch_.clear();
  for (int32_t sequence = 0; sequence < sequences; ++sequence) {
    batch_.add(token(sequence, position), static_cast<int32_t>(position), sequence, kWant);
    computed(sequence, position, 1);
  }
}

int64_t MeasuredSteps::decode_step(int64_t position, int32_t sequences) {
  add_tokens(position, sequences);
  return step();
}

int64_t MeasuredSteps::decode_steps(int64_t position, int32_t sequences, int64_t steps) {
  int64_t ns = 0;
  if (executable_.facts().steps_in_flight < 2 || times_ != nullptr) {
    for (int64_t i = 0; i < steps; ++i) ns += decode_step(position + i, sequences);
    return ns;
  }
  std::optional<program::Ticket> before;
  const int64_t begin = now_ns();
  for (int64_t i = 0; i < steps; ++i) {
    add_tokens(position + i, sequences);
    const program::Ticket ticket = executable_.submit(batch_.step());
    if (before) executable_.collect(*before);
    before = ticket;
    std::swap(batch_, ahead_);
  }
  if (before) executable_.collect(*before);
  return now_ns() - begin;
}

int64_t MeasuredSteps::prompt(int64_t position, int64_t tokens) {
  int64_t ns = 0;
  for (int64_t done = 0; done < tokens; done += max_rows_) {
    ns += prompt_step(position + done, std::min(max_rows_, tokens - done));
  }
  return ns;
}

void MeasuredSteps::fill(int64_t depth, int32_t sequences,
                         const std::function<void(int64_t, int64_t)>& progress) {
  program::StepTimes* const times = std::exchange(times_, nullptr);
  ReadTurns* const turns = std::exchange(turns_, nullptr);
  for (int32_t sequence = 0; sequence < sequences; ++sequence) {
    for (int64_t at = filled_[static_cast<size_t>(sequence)]; at < depth;
         at = filled_[static_cast<size_t>(sequence)]) {
      if (progress) progress(sequence * depth + at, sequences * depth);
      prompt_step(sequence, at, std::min(max_rows_, depth - at));
    }
  }
  if (progress) progress(sequences * depth, sequences * depth);
  times_ = times;
  turns_ = turns;
}

}  // namespace sluice::cli
