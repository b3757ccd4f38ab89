#include "profile/report.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "profile/op_bench.h"
#include "profile/statistics.h"
#include "program/op_info.h"

namespace sluice::profile {
namespace {

/// Indices of the middle half of the steps by wall time; all of fewer than four.
std::vector<size_t> middle_half(const std::vector<double>& wall_ns) {
  std::vector<size_t> order(wall_ns.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return wall_ns[a] < wall_ns[b]; });
  if (order.size() < 4) return order;
  const size_t cut = order.size() / 4;
  return {order.begin() + static_cast<std::ptrdiff_t>(cut), order.end() - static_cast<std::ptrdiff_t>(cut)};
}

const char* bound_by(const program::Cost& cost, const program::Peaks& peaks, double limit, int calls) {
  if (limit <= 0) return "";
  if (limit < kLatencyUs * calls) return "latency";
  return peaks.flops > 0 && cost.flops / peaks.flops > cost.bytes_read / peaks.bytes_per_second ? "compute"
                                                                                                : "memory";
}

/// The ops that one row stands for.
struct Members {
  Row row;
  std::vector<size_t> ops;
};

std::vector<Members> group_ops(const ReportInput& input, Group group) {
  std::vector<Members> list;
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < input.program.ops().size(); ++i) {
    const program::Op& op = input.program.ops()[i];
    const program::OpInfo& info = program::info(op);
    const bool by_weight = group == Group::Weight || group == Group::Record;
    const std::string weight = by_weight ? weight_of(input.program, op) : "";
    const int layer = group == Group::Layer || group == Group::Record ? op.layer : -1;
    const std::string key = group == Group::Record
                                ? std::to_string(i)
                                : std::string(info.name) + "\n" + weight + "\n" + std::to_string(layer);
    const auto [found, is_new] = index.emplace(key, list.size());
    if (is_new) {
      Members members;
      members.row.op = info.name;
      members.row.weight = weight;
      if (by_weight) members.row.shape = shape_text(input.program, op);
      members.row.layer = layer;
      if (i < input.kernels.size()) members.row.kernel = input.kernels[i];
      list.push_back(std::move(members));
    }
    Members& members = list[found->second];
    const program::Cost cost = info.cost(input.program, op, input.shape);
    members.row.cost += cost;
    members.row.limit_us += 1e6 * input.peaks.limit_seconds(cost);
    members.ops.push_back(i);
  }
  return list;
}

void fill_times(Members& members, std::span<const Sample> samples, const std::vector<size_t>& used) {
  std::vector<double> calls, sums;
  for (const size_t sample : used) {
    double sum = 0;
    for (const size_t op : members.ops) {
      calls.push_back(1e-3 * static_cast<double>(samples[sample].parts.op_ns[op]));
      sum += calls.back();
    }
    sums.push_back(sum);
  }
  Row& row = members.row;
  row.calls = static_cast<int>(members.ops.size());
  row.us = mean(sums);
  row.noise_us = noise_of_mean(sums);
  row.call_median_us = median(calls);
  row.call_min_us = calls.empty() ? 0 : *std::min_element(calls.begin(), calls.end());
}

std::vector<Row> rows_of(const ReportInput& input, Group group, const std::vector<size_t>& used) {
  std::vector<Row> rows;
  for (Members& members : group_ops(input, group)) {
    fill_times(members, input.samples, used);
    Row& row = members.row;
    row.bound = bound_by(row.cost, input.peaks, row.limit_us, row.calls);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

std::string weight_of(const program::Program& program, const program::Op& op) {
  std::string name;
  program::info(op).operands(op, [&](const char*, program::TensorId id, bool) {
    if (name.empty() && program[id].kind == program::Kind::Weight) name = program[id].name;
  });
  if (name.rfind("blk.", 0) == 0) name = name.substr(std::min(name.size(), name.find('.', 4) + 1));
  const size_t suffix = name.rfind(".weight");
  return suffix == std::string::npos ? name : name.substr(0, suffix);
}

double Report::ops_us() const {
  double sum = 0;
  for (const Row& row : rows) sum += row.us;
  return sum;
}

Report make_report(const ReportInput& input) {
  Report report;
  std::vector<double> timed_ns, untimed;
  for (const Sample& sample : input.samples) timed_ns.push_back(static_cast<double>(sample.wall_ns));
  const std::vector<size_t> used = middle_half(timed_ns);
  report.records = static_cast<int>(input.program.ops().size());
  report.tokens = input.shape.rows;
  report.group = input.group;
  report.steps = input.samples.size();
  report.spread = spread(timed_ns);
  report.steps_used = used.size();
  report.peaks = input.peaks;
  report.rows = rows_of(input, input.group, used);
  report.layers = rows_of(input, Group::Layer, used);
  if (input.group == Group::Op) {
    std::stable_sort(report.rows.begin(), report.rows.end(),
                     [](const Row& a, const Row& b) { return a.us > b.us; });
  }
  for (const Row& row : report.layers) report.cost += row.cost;
  const double scale = used.empty() ? 0 : 1e-3 / static_cast<double>(used.size());
  for (const size_t sample : used) {
    const StepParts& parts = input.samples[sample].parts;
    const auto around = static_cast<double>(parts.gap_ns.front() + parts.gap_ns.back());
    const auto gaps =
        static_cast<double>(std::accumulate(parts.gap_ns.begin(), parts.gap_ns.end(), int64_t{0}));
    report.around_us += scale * around;
    report.between_us += scale * (gaps - around);
    report.wait_us += scale * static_cast<double>(parts.wait_ns);
    report.wall_us += scale * static_cast<double>(input.samples[sample].wall_ns);
  }
  // By the same rule as the timed ones: a mean and a median of few steps differ by more than clocks cost.
  for (const size_t step : middle_half(input.untimed_ns)) untimed.push_back(1e-3 * input.untimed_ns[step]);
  report.untimed_us = mean(untimed);
  for (const Row& row : report.layers) report.limit_us += row.limit_us;
  return report;
}

}  // namespace sluice::profile
