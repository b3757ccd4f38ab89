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
      columns_(static_cast<size_t>(block.program()[block.program().hidden_in()].columns())),
      max_rows_(static_cast<size_t>(max_rows)),
      vocabulary_(vocabulary),
      batch_(max_rows, max_sequences, static_cast<int32_t>(KvPool::pages_for(context))),
      by_place_(static_cast<size_t>(max_sequences)) {
  CHECK(trunk.program().hidden_out() != program::kNoTensor && block.facts().hidden,
        "programs that hand on no hidden states");
  rows_.reserve(max_rows_);
  came_.reserve(max_rows_);
  hidden_.reserve(max_rows_ * columns_);
  came_hidden_.resize(max_rows_ * columns_);
  asked_.reserve(static_cast<size_t>(max_sequences));
}

void TokenPredictor::take(const program::StepInput& input) {
  came_.clear();
  for (size_t r = 0; r < input.tokens.size(); ++r)
    came_.push_back({0, input.sequences[r], input.positions[r], input.tokens[r]});
  trunk_.peek(trunk_.program().hidden_out(), input.rows(),
              std::span(came_hidden_).first(came_.size() * columns_));
}

void TokenPredictor::know(std::span<Sequence* const> running) {
  std::ranges::fill(by_place_, nullptr);
  for (const Sequence* sequence : running) by_place_[static_cast<size_t>(sequence->place)] = sequence;
}

void TokenPredictor::follow(std::span<Sequence* const> running) {
  know(running);
  for (size_t r = 0; r < came_.size(); ++r) {
    Row row = came_[r];
    const Sequence* sequence = by_place_[static_cast<size_t>(row.place)];
    const auto at = static_cast<size_t>(row.position);
    const bool right = sequence != nullptr && at + 1 < sequence->tokens.size() &&
                       row.position < sequence->pages.rows && sequence->tokens[at] == row.token;
    if (!right) continue;
    row.id = sequence->id;
    row.token = sequence->tokens[at + 1];
    if (rows_.size() == max_rows_) {
      drop_stale();
      if (rows_.size() == max_rows_) compute({});
    }
    keep(row, std::span(came_hidden_).subspan(r * columns_, columns_));
  }
  came_.clear();
}

// A row that is computed again, as those of a sequence that had to give way, takes the place of the one
// before.
void TokenPredictor::keep(const Row& row, std::span<const float> hidden) {
  for (auto known = rows_.rbegin(); known != rows_.rend(); ++known) {
    if (known->id != row.id) continue;
    if (known->position < row.position) break;
    known->id = 0;
  }
  rows_.push_back(row);
  hidden_.insert(hidden_.end(), hidden.begin(), hidden.end());
}

bool TokenPredictor::is_stale(const Row& row) const {
  const Sequence* sequence = by_place_[static_cast<size_t>(row.place)];
  return row.id == 0 || sequence == nullptr || sequence->id != row.id || row.position >= sequence->pages.rows;
}

void TokenPredictor::drop_stale() {
  size_t left = 0;
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (is_stale(rows_[r])) continue;
    rows_[left] = rows_[r];
    std::copy_n(hidden_.begin() + static_cast<std::ptrdiff_t>(r * columns_), columns_,
                hidden_.begin() + static_cast<std::ptrdiff_t>(left * columns_));
    ++left;
  }
  rows_.resize(left);
  hidden_.resize(left * columns_);
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
  batch_.clear();
  asked_.clear();
  for (const Row& row : rows_) {
    const auto ask = std::ranges::find_if(
        asks, [&](const Ask& one) { return one.sequence->id == row.id && one.position() == row.position; });
    batch_.set_pages(row.place, by_place_[static_cast<size_t>(row.place)]->pages.pages);
    batch_.add(row.token, row.position, row.place, ask != asks.end());
    if (ask != asks.end()) asked_.push_back(&*ask);
  }
  block_.poke(block_.program().hidden_in(), batch_.rows(), hidden_);
  const program::StepResult result = program::run_step(block_, batch_.step());
  rows_.clear();
  hidden_.clear();
  for (size_t i = 0; i < asked_.size(); ++i) {
    const Ask& ask = *asked_[i];
    const program::RowResult& said = result.outputs[i];
    const int32_t token = likeliest(said.logits.first(vocabulary_));
    if (token < 0) continue;
    ask.prediction->add(token);
    const auto position = static_cast<int32_t>(ask.position());
    const bool more = std::ssize(ask.prediction->found()) < ask.tokens &&
                      position / program::kPageRows < std::ssize(ask.sequence->pages.pages);
    if (more) keep({ask.sequence->id, ask.sequence->place, position, token}, said.hidden);
  }
}

// -1: there is none, as of rows that see rows nobody has computed.
int32_t TokenPredictor::likeliest(std::span<const float> logits) const {
  float best = -std::numeric_limits<float>::infinity();
  int32_t token = -1;
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > best) best = logits[i], token = static_cast<int32_t>(i);
  return token;
}

}  // namespace sluice::engine
