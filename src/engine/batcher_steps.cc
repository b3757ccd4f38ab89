// The ways of stepping: whole, a long step and those aside, and ahead of the one that runs. What they do with
// a step's parts stands in batcher.cc.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "engine/batcher.h"

namespace sluice::engine {
namespace {

/// The one sequence that has more than a row, or 0.
RequestId only_reader(std::span<const Chunk> chunks) {
  RequestId reader = 0;
  for (const Chunk& chunk : chunks) {
    if (chunk.answers()) continue;
    if (reader != 0) return 0;
    reader = chunk.sequence->id;
  }
  return reader;
}

double seconds_of(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

}  // namespace

bool Batcher::step(const std::atomic<bool>* stop, const std::atomic<bool>* pause) {
  if (keeper_) keeper_->advance(scheduler_.running().empty() ? 0 : step_seconds_);
  const int64_t begin = now_ns();
  if (!scheduler_.long_step() && !take_ahead() && !plan_step()) {
    last_end_ns_ = 0;
    return false;
  }
  if (scheduler_.long_step()) {
    step_long(stop, pause);
  } else {
    step_whole(stop, begin);
  }
  return true;
}

// Fills the step that the scheduler plans, a long one or not. False: there is nothing to do.
bool Batcher::plan_step() {
  pace_draws();
  draft();
  const std::span<const Chunk> chunks = scheduler_.plan();
  if (chunks.empty()) return false;
  begin_admitted();
  reads_ = only_reader(chunks);
  fill(scheduler_.long_step() ? long_ : current_, chunks);
  long_.ns = 0;
  return true;
}

// ------------------------------------------------------------------------------- drivers: whole, long, aside

void Batcher::step_whole(const std::atomic<bool>* stop, int64_t begin_ns) {
  // Answers wait for one step that is given up, but not for one after the other.
  const bool answers = std::ranges::any_of(current_.chunks, &Chunk::answers);
  const bool again = gave_up_behind_ == totals_.steps_total;
  if (!current_.ticket) submit(current_, again && answers ? nullptr : stop);
  // A step ahead leaves other hidden states, and where there may be one no step is given up.
  if (facts_.steps_in_flight > 1) hand_on(current_);
  begin_ahead();
  const program::StepResult result = collect(current_);
  reads_ = kNotPlanned;
  const int64_t end = now_ns();
  // From end to end: drawing the tokens of the step before is part of what its answers wait for.
  const double seconds = seconds_of(end - (last_end_ns_ > 0 ? last_end_ns_ : begin_ns));
  step_seconds_ = seconds_of(end - begin_ns);
  last_end_ns_ = end;
  if (result.stopped) {
    gave_up_behind_ = totals_.steps_total;
    return;
  }
  hand_on(current_);
  for (Output& output : ahead_.outputs) output.assumed = result.outputs[output.drawn_from].drawn;
  totals_.step_seconds_total += seconds;
  scheduler_.computed(seconds);
  count(current_);
  observe(current_, seconds);
  take_tokens(current_.outputs, result, end);
  follow();
  if (scheduler_.running().empty()) drop_ahead();
}

// A step aside, if anybody needs one, and then some of the long step.
void Batcher::step_long(const std::atomic<bool>* stop, const std::atomic<bool>* pause) {
  const double aside = step_aside();
  program::Step step = long_.batch.step();
  step.turn = long_.ns > 0 ? program::Turn::Resumed : program::Turn::Whole;
  step.stop = stop;
  step.pause = pause;
  const int64_t begin = now_ns();
  if (aside > 0) {
    const auto share = static_cast<int64_t>(scheduler_.long_step_seconds(aside) * 1e9);
    step.pause_ns = begin + std::max(int64_t{0}, share - long_.late_ns);
  }
  const program::StepResult result = program::run_step(executable_, step);
  last_end_ns_ = now_ns();
  totals_.step_seconds_total += seconds_of(last_end_ns_ - begin);
  long_.ns += last_end_ns_ - begin;
  if (result.stopped) return give_up_long();
  if (!result.paused) return end_long(result, last_end_ns_);
  // It pauses between ops, and an op of many rows takes a while.
  if (last_end_ns_ > step.pause_ns)
    long_.late_ns = std::max(last_end_ns_ - step.pause_ns, long_.late_ns * 7 / 8);
}

// The seconds that it took; 0: nobody needs one.
double Batcher::step_aside() {
  pace_draws();
  draft();
  const std::span<const Chunk> chunks = scheduler_.plan_aside();
  begin_admitted();
  if (chunks.empty()) return 0;
  const int64_t begin = now_ns();
  fill(current_, chunks);
  program::Step step = current_.batch.step();
  step.turn = program::Turn::Aside;
  const program::StepResult result = program::run_step(executable_, step);
  const int64_t end = now_ns();
  hand_on(current_);
  const double seconds = seconds_of(end - begin);
  predicting_seconds_ = 0;  // it was before that
  step_seconds_ = seconds;
  totals_.step_seconds_total += seconds;
  scheduler_.computed_aside(seconds);
  count(current_);
  observe(current_, seconds);
  take_tokens(current_.outputs, result, end);
  follow();
  return seconds;
}

void Batcher::end_long(const program::StepResult& result, int64_t time_ns) {
  hand_on(long_);
  scheduler_.computed(seconds_of(long_.ns));
  observe(long_, seconds_of(long_.ns));
  reads_ = kNotPlanned;
  count(long_);
  finish_cancelled();
  take_tokens(long_.outputs, result, time_ns);
  follow();
}

void Batcher::give_up_long() {
  scheduler_.end_long_step();
  reads_ = kNotPlanned;
  finish_cancelled();
}

// Those of the long step that has just ended.
void Batcher::finish_cancelled() {
  for (const Chunk& chunk : long_.chunks)
    if (job_of(chunk.sequence).cancelled) finish(job_of(chunk.sequence), Finish::Cancelled);
  long_.chunks = {};
}

// --------------------------------------------------------------------------------------------- driver: ahead

// The step ahead becomes the one that runs, if its rows are still what running sequences need: some may have
// ended. False: there is none, or it was of no use and is forgotten.
bool Batcher::take_ahead() {
  if (!ahead_.ticket) return false;
  const std::span<const Chunk> chunks = scheduler_.plan_only_answers();
  if (chunks.empty() || !matches(ahead_, chunks)) {
    drop_ahead();
    return false;
  }
  std::swap(current_, ahead_);
  ahead_.outputs.clear();
  current_.chunks = chunks;
  return true;
}

// Whether a step ahead has all of these rows, with the tokens that were drawn for them; then its outputs are
// theirs and nobody else's.
bool Batcher::matches(Planned& ahead, std::span<const Chunk> chunks) {
  auto output = ahead.outputs.begin();
  for (const Chunk& chunk : chunks) {
    for (; output != ahead.outputs.end() && output->job != chunk.sequence; ++output) output->job = nullptr;
    if (output == ahead.outputs.end() || output->position != chunk.first ||
        output->assumed != chunk.sequence->tokens.back())
      return false;
    (output++)->assumed = -1;
  }
  for (; output != ahead.outputs.end(); ++output) output->job = nullptr;
  return true;
}

// Submits the step after the one that runs, if the executable can draw all of its tokens and there are pages
// for them. Where drafts would pay behind those tokens, they are waited for.
void Batcher::begin_ahead() {
  const auto follows = [this](const Chunk& chunk) {
    return chunk.rows == 1 && chunk.drafts == 0 && chunk.last() && top_suffices(job_of(chunk.sequence));
  };
  // Who waits for nothing but the next plan does not wait for ever.
  const bool full = std::ssize(scheduler_.running()) == options_.max_sequences;
  const bool waits = scheduler_.waiting() > scheduler_.coming();
  if (facts_.steps_in_flight < 2 || (waits && !full) || scheduler_.owes() ||
      !std::ranges::all_of(current_.chunks, follows) || choose_drafts(1))
    return;
  ahead_.outputs.clear();
  ahead_.batch.clear();
  size_t output = 0;
  for (const Chunk& chunk : current_.chunks) {
    Job& job = job_of(chunk.sequence);
    while (current_.outputs[output].job != &job) ++output;
    if (!job.writes_on(options_.context)) continue;
    if (!scheduler_.make_room_ahead(job)) return ahead_.outputs.clear();
    ahead_.outputs.push_back({&job, chunk.first + 1, -1, output});
    ahead_.batch.set_pages(job.place, job.pages.pages);
    if (has_states_) ahead_.batch.set_state(job.place, {job.pages.state.to, job.pages.ahead});
    ahead_.batch.add(program::following(static_cast<int32_t>(output)), static_cast<int32_t>(chunk.first + 1),
                     job.place, want_of(job, 1));
  }
  if (!ahead_.outputs.empty()) submit(ahead_);
}

// Waits for the step ahead, if there is one, and forgets it.
void Batcher::drop_ahead() {
  ahead_.outputs.clear();
  if (ahead_.ticket) collect(ahead_);
}

}  // namespace sluice::engine
