// What answers may go on with: looked up, or predicted by the model's own block, whichever promises more, and
// as much of it as is worth its time.
#include <algorithm>

#include "base/clock.h"
#include "engine/batcher.h"

namespace sluice::engine {

// Says what answers may go on with, as far as it is worth its time.
void Batcher::draft() {
  if (!choose_drafts(0)) return;
  asks_.clear();
  for (auto draft = drafts_.begin(); Sequence * sequence : scheduler_.running()) {
    if (!may_draft(*sequence)) continue;
    Job& job = job_of(sequence);
    sequence->drafted = draft->length;
    // At no cost, but another token each: rows of the same one would be sent to the same experts.
    if (job.request.accepts && !predictor_)
      for (int64_t i = 0; i < draft->length; ++i) job.prediction.add(any_token(std::ssize(job.tokens) + i));
    if (draft->predicted && draft->length > 0) asks_.push_back({&job, &job.prediction, sequence->drafted});
    ++draft;
  }
  if (!asks_.empty()) predict();
}

// The drafts that are still to be made. A round that is quicker than was known is believed at once, one that
// takes longer may have been held up.
void Batcher::predict() {
  constexpr double kForget = 0.1, kHeldUp = 1.3;
  const int64_t begin = now_ns();
  const int64_t rounds = predictor_->predict(asks_, scheduler_.running());
  const double seconds = 1e-9 * static_cast<double>(now_ns() - begin);
  predicting_seconds_ += seconds;
  for (const TokenPredictor::Ask& ask : asks_)
    job_of(ask.sequence).drafted = std::ssize(ask.prediction->found());
  if (options_.timeless || rounds == 0) return;
  const double each = seconds / static_cast<double>(rounds), known = round_seconds_;
  round_seconds_ =
      known == 0 || each < known ? each : known + kForget * (std::min(each, kHeldUp * known) - known);
}

// A step's hidden states go to the model's block, if anybody's drafts may come from there.
void Batcher::hand_on(const Planned& step) {
  const auto drafts = [](const Sequence* sequence) {
    return static_cast<const Job*>(sequence)->request.use_drafts;
  };
  if (!predictor_ || handed_on_ || !std::ranges::any_of(scheduler_.running(), drafts)) return;
  predictor_->take(step.batch.input(), scheduler_.running());
  handed_on_ = true;
}

void Batcher::follow() {
  if (handed_on_) predictor_->follow(scheduler_.running());
  handed_on_ = false;
}

int32_t Batcher::any_token(int64_t number) const {
  constexpr uint64_t kStride = 2654435761;  // of Fibonacci hashing: neighbours lie far from each other
  return static_cast<int32_t>(static_cast<uint64_t>(number) * kStride % vocabulary_);
}

bool Batcher::may_draft(const Sequence& sequence) { return !sequence.in_long_step && !sequence.rests; }

// Looks up what running answers go on with behind `unknown` tokens that are still to come, and how much of it
// is worth having rows: a draft each. False: nothing is.
bool Batcher::choose_drafts(size_t unknown) {
  const std::span<Sequence* const> running = scheduler_.running();
  const int64_t rows = std::min({options_.draft_tokens + 1, options_.max_rows, facts_.draft_rows});
  int64_t certain = 0;
  for (const Sequence* sequence : running) certain += may_draft(*sequence) ? 1 + sequence->replayed : 0;
  if (certain >= rows) return false;
  drafts_.clear();
  for (Sequence* sequence : running) {
    if (!may_draft(*sequence)) continue;
    if (sequence->reads()) return false;
    Job& job = job_of(sequence);
    Draft& draft = drafts_.emplace_back();
    draft.rows += sequence->replayed;
    if (!job.request.use_drafts) continue;
    find_draft(job, draft, unknown);
  }
  constexpr double kStale = 0.995;  // a step without a round: some day it looks worth a try again
  round_seconds_ *= kStale;
  draft_pace_.choose(drafts_, rows, has_states_, round_seconds_);
  return std::ranges::any_of(drafts_, [](const Draft& draft) { return draft.length > 0; });
}

// Of what is looked up and what could be predicted, whichever should bring more tokens. Nothing is predicted
// before all tokens are known, but that it could be is a reason to wait for them.
void Batcher::find_draft(Job& job, Draft& draft, size_t unknown) {
  int64_t room = options_.context - std::ssize(job.tokens);
  if (job.request.max_tokens > 0)
    room = std::min(room, job.request.max_tokens - job.result.generated_tokens - 1);
  room = std::max(int64_t{0}, room - static_cast<int64_t>(unknown));
  const auto most = [room](std::span<const double> chances) {
    return chances.first(std::min(chances.size(), static_cast<size_t>(room)));
  };
  const auto expected = [](std::span<const double> chances) {
    double tokens = 0, all = 1;
    for (const double chance : chances) tokens += all *= chance;
    return tokens;
  };
  if (job.request.accepts && !predictor_) {  // anything, at no cost
    job.predicted = true;
    job.prediction.learn(job.tokens);
    draft.chances = most(job.prediction.chances());
    return;
  }
  job.predicted = false;
  if (options_.look_up) {
    job.lookup.look(job.tokens);
    const auto chances = job.lookup.chances();
    draft.chances = most(chances.subspan(std::min(chances.size(), unknown)));
  }
  if (!predictor_) return;
  job.prediction.learn(job.tokens);
  const auto chances = most(job.prediction.chances());
  if ((unknown == 0 && !predictor_->ready(job)) || expected(chances) <= expected(draft.chances)) return;
  draft.chances = chances;
  draft.predicted = true;
  job.predicted = unknown == 0;
}

}  // namespace sluice::engine
