// Stretches of a step: rows of one sequence that follow each other and attend together, and how workers share
// them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "backend/cpu/kernel.h"
#include "backend/cpu/ops/deal.h"

namespace sluice::backend::cpu {

/// Parts of a worker's scratch one behind another, each from a cache line on. Of a null base they lie
/// nowhere: that says how many floats they take.
class ScratchParts {
 public:
  explicit ScratchParts(float* base) : base_(base) {}
  float* floats(int64_t count) {
    float* const begin = base_ == nullptr ? nullptr : base_ + taken_;
    taken_ += (count + 15) / 16 * 16;
    return begin;
  }
  template <typename Number>
  Number* numbers(int64_t count) {
    return reinterpret_cast<Number*>(floats(count * static_cast<int64_t>(sizeof(Number)) / 4));
  }
  int64_t taken() const { return taken_; }

 private:
  float* base_;
  int64_t taken_ = 0;
};

/// Consecutive rows [first, last) of the step, of one sequence.
struct Stretch {
  int64_t first, last;
  int64_t rows() const { return last - first; }
};

inline int64_t position_of(const program::StepInput& input, int64_t row) {
  return input.positions[static_cast<size_t>(row)];
}
/// Whether a row is its predecessor's next one.
inline bool follows(const program::StepInput& input, int64_t row) {
  const auto sequence = [&](int64_t r) { return input.sequences[static_cast<size_t>(r)]; };
  return sequence(row) == sequence(row - 1) && position_of(input, row) == position_of(input, row - 1) + 1;
}
/// Positions that the last row attends to.
inline int64_t length_of(const program::StepInput& input, const Stretch& s) {
  return position_of(input, s.last - 1) + 1;
}
/// Pairs of a row and a position before it, or its own.
inline int64_t attended(const program::StepInput& input, const Stretch& s) {
  return s.rows() * (position_of(input, s.first) + 1 + length_of(input, s)) / 2;
}

/// Rows of the step before the stretches at its end for which pays(stretch).
template <typename Pays>
int64_t rows_before_stretches(const program::StepInput& input, Pays pays) {
  int64_t end = input.rows();
  while (end > 0) {
    int64_t first = end - 1;
    while (first > 0 && follows(input, first)) --first;
    if (!pays(Stretch{first, end})) break;
    end = first;
  }
  return end;
}

/// How stretches are cut: pieces of a head and of rows, a multiple of `unit` and `most` at most; as many
/// parts of a stretch at most, unless `most` asks for more.
struct Cut {
  int64_t heads, unit, most, parts;
};

/// Deals the stretches from row `begin` on out in pieces: body(piece, head) for those of this worker, where
/// work(piece) is what one costs. Everybody finds the same pieces. Where workers steal, whoever is free takes
/// the next one.
template <typename Work, typename Body>
void deal_stretches(const Context& c, int64_t begin, const Cut& cut, Work work, Body body) {
  const auto each_piece = [&](int64_t parts, auto take) {
    for (int64_t first = begin, last; first < c.input.rows(); first = last) {
      last = first + 1;
      while (last < c.input.rows() && follows(c.input, last)) ++last;
      const int64_t rows = last - first, count = std::max(parts, (rows + cut.most - 1) / cut.most);
      for (int64_t part = 0; part < count; ++part) {
        const Slice of = slice_of(rows, static_cast<int>(part), static_cast<int>(count), cut.unit);
        if (of.first == of.last) continue;
        for (int64_t head = 0; head < cut.heads; ++head)
          take(Stretch{first + of.first, first + of.last}, head);
      }
    }
  };
  int64_t parts = 1, least = std::numeric_limits<int64_t>::max();
  for (int64_t n = 1; n <= cut.parts; n *= 2) {
    Deal deal(c.workers);
    each_piece(n, [&](const Stretch& piece, int64_t) { deal.take(work(piece)); });
    // A part more makes keys and values once more.
    if (deal.busiest() < least) least = deal.busiest(), parts = n;
  }
  Deal deal(c.workers);
  const auto next = [&] { return c.steals.taken == nullptr ? 0 : c.steals.taken->next(c.steals.step); };
  int64_t number = 0, mine = next();
  each_piece(parts, [&](const Stretch& piece, int64_t head) {
    const bool takes = c.steals.taken == nullptr ? deal.take(work(piece)) == c.worker : number++ == mine;
    if (!takes) return;
    body(piece, head);
    mine = next();
  });
}

}  // namespace sluice::backend::cpu
