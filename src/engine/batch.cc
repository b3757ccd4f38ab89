#include "engine/batch.h"

#include <algorithm>

#include "base/check.h"
#include "program/tensor.h"

namespace sluice::engine {

Batch::Batch(int64_t max_rows, int32_t max_sequences, int32_t pages_per_sequence)
    : pages_per_sequence_(pages_per_sequence),
      page_tables_(static_cast<size_t>(max_sequences) * static_cast<size_t>(pages_per_sequence), -1) {
  for (auto* list : {&tokens_, &positions_, &sequences_, &slots_, &output_rows_}) {
    list->reserve(static_cast<size_t>(max_rows));
  }
  wants_.reserve(static_cast<size_t>(max_rows));
  for (int32_t i = 0; i < max_sequences; ++i) states_.push_back({2 * i, 2 * i + 1});
}

void Batch::clear() {
  for (auto* list : {&tokens_, &positions_, &sequences_, &slots_, &output_rows_}) list->clear();
  wants_.clear();
}

void Batch::set_pages(int32_t sequence, std::span<const int32_t> pages) {
  CHECK(static_cast<int64_t>(pages.size()) <= pages_per_sequence_, "{} pages", pages.size());
  std::copy(pages.begin(), pages.end(), page_tables_.begin() + int64_t{sequence} * pages_per_sequence_);
}

void Batch::set_state(int32_t sequence, program::StateSlots slots) {
  states_[static_cast<size_t>(sequence)] = slots;
}

void Batch::add(int32_t token, int32_t position, int32_t sequence, const program::Want& want) {
  output_rows_.push_back(static_cast<int32_t>(rows()));
  wants_.push_back(want);
  add(token, position, sequence, false);
}

void Batch::add(int32_t token, int32_t position, int32_t sequence, bool wants_logits) {
  if (wants_logits) return add(token, position, sequence, program::Want{});
  const auto entry =
      static_cast<size_t>(int64_t{sequence} * pages_per_sequence_ + position / program::kPageRows);
  CHECK(position / program::kPageRows < pages_per_sequence_ && page_tables_[entry] >= 0, "position {}",
        position);
  tokens_.push_back(token);
  positions_.push_back(position);
  sequences_.push_back(sequence);
  slots_.push_back(page_tables_[entry] * program::kPageRows + position % program::kPageRows);
}

program::StepInput Batch::input() const {
  return {tokens_, positions_, sequences_, slots_, page_tables_, pages_per_sequence_, output_rows_, states_};
}

}  // namespace sluice::engine
