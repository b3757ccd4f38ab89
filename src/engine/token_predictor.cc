#include "engine/token_predictor.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "engine/kv_pool.h"

namespace sluice::engine {

void Prediction::learn(std::span<const int32_t> tokens) {
  constexpr double kWeight = 0.05;       // of one token
  constexpr double kForget = 1.0 / 256;  // a step without a draft: some day it looks worth a try again
  if (count_ == 0)
    for (size_t i = 0; i < chances_.size(); ++i) chances_[i] += kForget * (kHoped[i] - chances_[i]);
  for (size_t i = 0; i < found().size() && behind_ + i < tokens.size(); ++i) {
    const bool right = tokens[behind_ + i] == found_[i];
    chances_[i] += kWeight * ((right ? 1.0 : 0.0) - chances_[i]);
    if (!right) break;
  }
  behind_ = tokens.size();
  count_ = 0;
}

TokenPredictor::TokenPredictor(program::Executable& trunk, program::Executable& block, int64_t max_rows,
                               int32_t max_sequences, int64_t context, size_t vocabulary)
    : trunk_(trunk),
      block_(block),
      finds_top_(block.facts().top),
      max_rows_(static_cast<size_t>(max_rows)),
      vocabulary_(vocabulary),
      batch_(max_rows, max_sequences, static_cast<int32_t>(KvPool::pages_for(context))),
      by_place_(static_cast<size_t>(max_sequences)) {
  CHECK(
      trunk.program().hidden_out() != program::kNoTensor && block.program().hidden_in() != program::kNoTensor,
      "programs that hand on no hidden states");
  rows_.reserve(max_rows_);
  copies_.reserve(max_rows_);
  asked_.reserve(static_cast<size_t>(max_sequences));
}

void TokenPredictor::take(const program::StepInput& input, std::span<Sequence* const> running) {
  CHECK(known_ == rows_.size(), "{} rows of a step whose tokens nobody drew", rows_.size() - known_);
  if (rows_.size() + input.tokens.size() > max_rows_) {
    know(running);
    drop_stale();
    if (rows_.size() + input.tokens.size() > max_rows_) compute({});
  }
  copies_.clear();
  for (size_t r = 0; r < input.tokens.size(); ++r) {
    copies_.push_back({static_cast<int64_t>(r), std::ssize(rows_)});
    rows_.push_back({0, input.sequences[r], input.positions[r], input.tokens[r]});
  }
  block_.take_rows(trunk_, trunk_.program().hidden_out(), copies_);
}

void TokenPredictor::know(std::span<Sequence* const> running) {
  std::ranges::fill(by_place_, nullptr);
  for (const Sequence* sequence : running) by_place_[static_cast<size_t>(sequence->place)] = sequence;
}

void TokenPredictor::follow(std::span<Sequence* const> running) {
  know(running);
  for (; known_ < rows_.size(); ++known_) {
    Row& row = rows_[known_];
    const Sequence* sequence = by_place_[static_cast<size_t>(row.place)];
    const auto at = static_cast<size_t>(row.position);
    const bool right = sequence != nullptr && at + 1 < sequence->tokens.size() &&
                       row.position < sequence->pages.rows &&
                       (row.token < 0 || sequence->tokens[at] == row.token);  // below 0: it was drawn there
    if (!right) continue;
    row.id = sequence->id;
    row.token = sequence->tokens[at + 1];
    replace(row);
  }
  while (!rows_.empty() && rows_.back().id == 0) rows_.pop_back();
  known_ = rows_.size();
}

// A row that is computed again, as those of a sequence that had to give way, takes the place of the one
// before.
void TokenPredictor::replace(const Row& row) {
  for (size_t before = known_; before-- > 0;) {
    Row& known = rows_[before];
    if (known.id != row.id) continue;
    if (known.position < row.position) break;
    known.id = 0;
  }
}

bool TokenPredictor::is_stale(const Row& row) const {
  const Sequence* sequence = by_place_[static_cast<size_t>(row.place)];
  return row.id == 0 || sequence == nullptr || sequence->id != row.id || row.position >= sequence->pages.rows;
}

void TokenPredictor::drop_stale() {
  copies_.clear();
  int64_t left = 0;
  for (int64_t r = 0; r < std::ssize(rows_); ++r) {
    const Row& row = rows_[static_cast<size_t>(r)];
    if (is_stale(row)) continue;
    if (left < r) copies_.push_back({r, left});
    rows_[static_cast<size_t>(left++)] = row;
  }
  rows_.resize(known_ = static_cast<size_t>(left));
  if (!copies_.empty()) block_.take_rows(block_, block_.program().hidden_in(), copies_);
}

bool TokenPredictor::ready(const Sequence& sequence) const {
  const int64_t last = std::ssize(sequence.tokens) - 2;
  const auto at =
      std::find_if(rows_.rbegin(), rows_.rend(), [&](const Row& row) { return row.id == sequence.id; });
  return at != rows_.rend() && at->place == sequence.place && at->position == last;
}

int64_t TokenPredictor::predict(std::span<const Ask> asks, std::span<Sequence* const> running) {
  know(running);
  drop_stale();
  int64_t steps = 0;
  for (; !rows_.empty(); ++steps) compute(asks);
  return steps;
}

// A step of all rows that are kept. Of those that asks wait for the likeliest token is drafted; where another
// one is wanted behind it, the row for that is all that is kept then.
void TokenPredictor::compute(std::span<const Ask> asks) {
  const program::Want likeliest{.logits = !finds_top_, .top = finds_top_};
  batch_.clear();
  asked_.clear();
  for (const Row& row : rows_) {
    const auto ask = std::ranges::find_if(
        asks, [&](const Ask& one) { return one.sequence->id == row.id && one.position() == row.position; });
    batch_.set_pages(row.place, by_place_[static_cast<size_t>(row.place)]->pages.pages);
    if (ask == asks.end()) {
      batch_.add(row.token, row.position, row.place, false);
    } else {
      asked_.push_back({&*ask, batch_.rows()});
      batch_.add(row.token, row.position, row.place, likeliest);
    }
  }
  const program::StepResult said = program::run_step(block_, batch_.step());
  rows_.clear();
  draft(said);
  known_ = rows_.size();
}

void TokenPredictor::draft(const program::StepResult& said) {
  copies_.clear();
  for (size_t i = 0; i < asked_.size(); ++i) {
    const auto [ask, row] = asked_[i];
    const int32_t token = likeliest(said.outputs[i]);
    if (token < 0) continue;
    ask->prediction->add(token);
    const auto position = static_cast<int32_t>(ask->position());
    const bool more = std::ssize(ask->prediction->found()) < ask->tokens &&
                      position / program::kPageRows < std::ssize(ask->sequence->pages.pages);
    if (!more) continue;
    copies_.push_back({row, std::ssize(rows_)});
    rows_.push_back({ask->sequence->id, ask->sequence->place, position, token});
  }
  if (!copies_.empty()) block_.take_rows(block_, block_.program().hidden_out(), copies_);
}

// -1: there is none, as of rows that see rows nobody has computed.
int32_t TokenPredictor::likeliest(const program::RowResult& said) const {
  for (const program::Likely& one : said.top)
    if (one.token >= 0 && static_cast<size_t>(one.token) < vocabulary_) return one.token;
  if (finds_top_) return -1;
  float best = -std::numeric_limits<float>::infinity();
  int32_t token = -1;
  const std::span<const float> logits = said.logits.first(vocabulary_);
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > best) best = logits[i], token = static_cast<int32_t>(i);
  return token;
}

}  // namespace sluice::engine
