// Times and costs of a step's ops, joined: what each kind of op takes and how many bytes a second it moves.
// Knows Programs and numbers; who measured the times is not its business.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace sluice::profile {

/// All ops of one kind in one step.
struct Row {
  std::string op;
  int calls = 0;
  double us = 0;  ///< median over the steps of the sum over the calls
  program::Cost cost;
};

/// Rows by falling time. op_ns: [steps][ops], nanoseconds of each op; costs are those of the middle step.
std::vector<Row> summarize(const program::Program& program, const std::vector<std::vector<int64_t>>& op_ns,
                           const program::StepShape& shape);

/// A table for people: calls, microseconds a call, share of the step, bytes, GB/s, GFLOP/s; the step's sum
/// last.
std::string table_text(std::span<const Row> rows);

}  // namespace sluice::profile
