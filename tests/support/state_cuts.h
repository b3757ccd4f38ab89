// Ops with a state, with rows of two sequences cut into steps in several ways.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "support/op_case.h"

namespace sluice::test {

/// Some rows of one of two sequences in a step, and where their state is read and left.
struct Stretch {
  int32_t sequence, first, last;
  StateSlots slots;
};

class Cuts {
 public:
  /// deviation: of what goes in.
  Cuts(const OpCase& op_case, int32_t rows, float deviation = 1) : run_(op_case, 5), rows_(rows) {
    const Program& p = run_.program();
    info(op()).operands(op(), [&](const char*, TensorId id, bool written) {
      if (p[id].kind != Kind::Activation) return;
      if (written) {
        out_ = id;
        return;
      }
      std::vector<float>& values = inputs_[p.storage(id)];
      const Tensor& whole = p[p.storage(id)];
      std::normal_distribution<float> normal(0, deviation);
      values.resize(static_cast<size_t>(2 * rows * width(whole)));
      for (float& value : values) value = normal(random_);
    });
  }

  /// What both sequences give, [2][rows][width of out].
  std::vector<float> run(Backend& backend, const std::vector<std::vector<Stretch>>& steps) {
    const auto executable =
        backend.compile(run_.program(), run_.weights(), {.max_rows = 2 * rows_, .max_outputs = 1});
    const int64_t wide = width(run_.program()[out_]);
    std::vector<float> all(static_cast<size_t>(2 * rows_ * wide), std::numeric_limits<float>::quiet_NaN());
    for (const std::vector<Stretch>& stretches : steps) {
      std::vector<int32_t> positions, sequences, from;
      for (const Stretch& s : stretches) {
        for (int32_t r = s.first; r < s.last; ++r) {
          positions.push_back(r), sequences.push_back(s.sequence), from.push_back(s.sequence * rows_ + r);
        }
      }
      const size_t count = positions.size();
      for (const auto& [id, values] : inputs_) {
        const auto columns = width(run_.program()[id]);
        std::vector<float> part;
        for (const int32_t row : from)
          part.insert(part.end(), values.begin() + row * columns, values.begin() + (row + 1) * columns);
        executable->poke(id, static_cast<int64_t>(count), part);
      }
      std::vector<StateSlots> states(2);
      for (const Stretch& s : stretches) states[static_cast<size_t>(s.sequence)] = s.slots;
      const std::vector<int32_t> tokens(count, 1), slots(count, 0), pages(2, 0), outputs{0};
      run_step(*executable, {.input = {tokens, positions, sequences, slots, pages, 1, outputs, states}});
      std::vector<float> got(static_cast<size_t>(wide) * count);
      executable->peek(out_, static_cast<int64_t>(count), got);
      for (size_t i = 0; i < count; ++i)
        std::copy_n(got.begin() + static_cast<int64_t>(i) * wide, wide, all.begin() + from[i] * wide);
    }
    return all;
  }

 private:
  const Op& op() const { return run_.program().ops().back(); }
  static int64_t width(const Tensor& tensor) { return tensor.heads() * tensor.columns(); }

  CaseRun run_;
  int32_t rows_;
  std::mt19937_64 random_{17};
  std::map<TensorId, std::vector<float>> inputs_;
  TensorId out_ = kNoTensor;
};

/// The same bits however a sequence's rows are cut, and whoever else has rows in a step.
inline void expect_same_bits(const OpCase& op_case, Backend& backend) {
  constexpr int32_t kRows = 70;
  Cuts cuts(op_case, kRows);
  const auto whole = cuts.run(backend, {{{0, 0, kRows, {0, 1}}}, {{1, 0, kRows, {0, 2}}}});
  for (const float value : whole) ASSERT_TRUE(std::isfinite(value)) << op_case.name;
  const auto cut = cuts.run(backend, {{{0, 0, 1, {0, 1}}},
                                      {{1, 0, 66, {0, 2}}, {0, 1, 3, {1, 0}}},
                                      {{0, 3, 69, {0, 1}}, {1, 66, 67, {2, 3}}},
                                      {{1, 67, kRows, {3, 2}}, {0, 69, kRows, {1, 0}}}});
  EXPECT_EQ(whole, cut) << op_case.name;
  // A step that is computed once more reads what it read.
  const auto again = cuts.run(
      backend,
      {{{0, 0, 40, {0, 1}}, {1, 0, kRows, {0, 3}}}, {{0, 40, 60, {1, 2}}}, {{0, 40, kRows, {1, 2}}}});
  EXPECT_EQ(whole, again) << op_case.name;
}

}  // namespace sluice::test
