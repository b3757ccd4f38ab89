// Steps of chunks of sequences' rows, for ops that attend.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/op_case.h"

namespace sluice::test {

/// Rows of a sequence from a position on.
struct Chunk {
  int32_t sequence, first, rows;
};
using Chunks = std::vector<Chunk>;

/// Sequences that steps have, and pages of each.
inline constexpr int32_t kChunkSequences = 6, kChunkPages = 12;

/// The output of a step of these chunks, whose sequences' pages lie anywhere: [rows][...]. most_rows: of the
/// case.
inline std::vector<float> values_of(const CaseRun& run, Executable& executable, int64_t most_rows,
                                    const Chunks& chunks) {
  std::vector<int32_t> table(kChunkSequences * kChunkPages), tokens, positions, sequences, slots, outputs;
  for (int32_t i = 0; i < kChunkSequences * kChunkPages; ++i)
    table[static_cast<size_t>(i)] = i * 29 % (kChunkSequences * kChunkPages);
  for (const Chunk& chunk : chunks) {
    for (int32_t p = chunk.first; p < chunk.first + chunk.rows; ++p) {
      constexpr auto kRows = static_cast<int32_t>(kPageRows);
      tokens.push_back(1), positions.push_back(p), sequences.push_back(chunk.sequence);
      const int32_t page = chunk.sequence * kChunkPages + p / kRows;
      slots.push_back(table[static_cast<size_t>(page)] * kRows + p % kRows);
      outputs.push_back(static_cast<int32_t>(outputs.size()));
    }
  }
  run.poke_inputs(executable);  // what a step made may lie where they were
  const TensorId id = run.program().output();
  run_step(executable, {.input = {tokens, positions, sequences, slots, table, kChunkPages, outputs}});
  const auto of_case = static_cast<size_t>(most_rows);
  std::vector<float> values(run.elements(id) / of_case * outputs.size());
  executable.peek(id, static_cast<int64_t>(outputs.size()), values);
  return values;
}

/// The step's output after the cached chunks, a step each.
inline std::vector<float> values_of(const CaseRun& run, Backend& backend, int64_t most_rows,
                                    const Chunks& cached, const Chunks& step, bool batch_invariant = false) {
  CompileOptions options{most_rows, most_rows, kChunkSequences * kChunkPages};
  options.batch_invariant = batch_invariant;
  const auto executable = backend.compile(run.program(), run.weights(), options);
  for (const Chunk& chunk : cached) values_of(run, *executable, most_rows, {chunk});
  return values_of(run, *executable, most_rows, step);
}

/// Relative errors (of norms): of all numbers, and of the worst head of a row.
struct HeadErrors {
  double all = 0, worst = 0;
};
/// columns: of a head.
inline HeadErrors errors_of_heads(const std::vector<float>& seen, const std::vector<float>& expected,
                                  size_t columns) {
  EXPECT_EQ(seen.size(), expected.size());
  HeadErrors errors;
  double error = 0, norm = 0;
  for (size_t at = 0; at < std::min(seen.size(), expected.size()); at += columns) {
    double of_head = 0, norm_of_head = 0;
    for (size_t i = at; i < at + columns; ++i) {
      of_head += std::pow(double{seen[i]} - expected[i], 2);
      norm_of_head += std::pow(double{expected[i]}, 2);
    }
    EXPECT_TRUE(std::isfinite(of_head)) << at / columns;
    EXPECT_GT(norm_of_head, 0) << "a result of zeros proves nothing";
    error += of_head, norm += norm_of_head;
    errors.worst = std::max(errors.worst, std::sqrt(of_head / norm_of_head));
  }
  errors.all = std::sqrt(error / norm);
  return errors;
}

}  // namespace sluice::test
