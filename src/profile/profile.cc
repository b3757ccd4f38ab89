#include "profile/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "program/op_info.h"

namespace sluice::profile {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string line(const Row& row, double step_us) {
  return fmt::format("{:<16}{:>7}{:>11.2f}{:>11.1f}{:>8.1f}%{:>13.3f}{:>9.2f}{:>10.2f}\n", row.op, row.calls,
                     row.us / row.calls, row.us, 100 * row.us / step_us, 1e-6 * row.cost.bytes_read,
                     1e-3 * row.cost.bytes_read / row.us, 1e-3 * row.cost.flops / row.us);
}

}  // namespace

std::vector<Row> summarize(const program::Program& program, const std::vector<std::vector<int64_t>>& op_ns,
                           const program::StepShape& shape) {
  std::map<std::string, Row> rows;
  std::map<std::string, std::vector<double>> times;  // by op, one sum a step
  for (size_t i = 0; i < program.ops().size(); ++i) {
    const program::Op& op = program.ops()[i];
    const program::OpInfo& info = program::info(op);
    Row& row = rows[info.name];
    row.op = info.name;
    row.calls += 1;
    row.cost += info.cost(program, op, shape);
    auto& sums = times[info.name];
    sums.resize(op_ns.size());
    for (size_t step = 0; step < op_ns.size(); ++step)
      sums[step] += 1e-3 * static_cast<double>(op_ns[step][i]);
  }
  std::vector<Row> list;
  for (auto& [name, row] : rows) {
    row.us = median(times[name]);
    list.push_back(row);
  }
  std::sort(list.begin(), list.end(), [](const Row& a, const Row& b) { return a.us > b.us; });
  return list;
}

std::string table_text(std::span<const Row> rows) {
  Row sum{"all", 0, 0, {}};
  for (const Row& row : rows) {
    sum.calls += row.calls;
    sum.us += row.us;
    sum.cost += row.cost;
  }
  std::string text = fmt::format("{:<16}{:>7}{:>11}{:>11}{:>9}{:>13}{:>9}{:>10}\n", "op", "calls",
                                 "us a call", "us", "share", "MB read", "GB/s", "GFLOP/s");
  for (const Row& row : rows) text += line(row, sum.us);
  return text + line(sum, sum.us);
}

}  // namespace sluice::profile
