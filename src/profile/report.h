// A profile: a step's clock readings joined with the ops' costs and the device's peaks. What each kind of op
// takes, what the hardware would need for it, and what lies between. Printing it is other files' business
// (report_text, report_json, report_html, trace).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "profile/experts.h"
#include "profile/timeline.h"
#include "program/backend.h"

namespace sluice::profile {

/// What a row of a report stands for.
enum class Group : uint8_t {
  Op,      ///< all ops of one kind
  Layer,   ///< all ops of one kind in one layer
  Weight,  ///< all ops of one kind that read the same weight of their layer ("attn_q_a"), over all layers
  Record,  ///< every op by itself
};

/// One timed step.
struct Sample {
  StepParts parts;
  int64_t wall_ns = 0;  ///< measured by who ran the timed step, not by the device
};

struct Row {
  std::string op, weight;
  std::string shape;  ///< Group::Weight, Record: of the first such op (shape_text)
  int layer = -1;     ///< Group::Layer, Record; -1: outside of layers
  int calls = 0;      ///< a step
  double us = 0;      ///< a step, mean of the steps that count
  double call_min_us = 0, call_median_us = 0;
  double noise_us = 0;  ///< how far us may be off by chance (statistics.h)
  program::Cost cost;
  double limit_us = 0;  ///< what the hardware needs at least; 0: its peaks are not known
  const char* bound =
      "";  ///< what that limit comes from: "memory", "compute"; "latency" for less than kLatencyUs
  program::BoundKernel kernel;  ///< of the first such op
};

/// An op that the hardware could do in less is bound by starting and ending it, not by bytes or FLOPs.
inline constexpr double kLatencyUs = 2.0;

struct Report {
  std::string test;   ///< "tg32 @ d128"
  double tokens = 1;  ///< of a step
  int records = 0;    ///< ops of a step
  int workers = 0;
  size_t steps = 0, steps_used = 0;  ///< timed, and how many of them count: the middle half by wall time
  Group group = Group::Op;           ///< of rows
  std::vector<Row> rows;             ///< by falling time; other groups than Op: in order of the Program
  std::vector<Row> layers;           ///< Group::Layer's rows, for plots
  double between_us = 0;             ///< gaps between ops: hand-over and barriers after all had ended
  double around_us = 0;   ///< before the first op and after the last: waking the team, copying results
  double wait_us = 0;     ///< what an average worker waited for others inside of the ops' time
  double wall_us = 0;     ///< measured independently
  double spread = 0;      ///< of all timed steps' times, those that do not count too (statistics.h)
  double untimed_us = 0;  ///< the same steps without clocks, in between: their middle half
  double limit_us = 0;
  program::Cost cost;
  program::Peaks peaks;
  ExpertCount experts;

  double ops_us() const;
  double gaps_us() const { return between_us + around_us; }
};

struct ReportInput {
  const program::Program& program;
  std::span<const program::BoundKernel> kernels;  ///< [ops]
  std::span<const Sample> samples;
  std::vector<double> untimed_ns;
  program::StepShape shape;
  program::Peaks peaks;
  Group group = Group::Op;
};

Report make_report(const ReportInput& input);

/// "attn_q_a" for an op that reads blk.7.attn_q_a.weight; the name of its first weight, or "".
std::string weight_of(const program::Program& program, const program::Op& op);

}  // namespace sluice::profile
