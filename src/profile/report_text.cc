#include "profile/report_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace sluice::profile {
namespace {

constexpr double kQuietSpread = 0.1;

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "-";
}

size_t name_width(const Report& report) {
  size_t width = 14;
  for (const Row& row : report.rows) width = std::max(width, name_of(row).size());
  return width;
}

/// A sum of rows has no times of a call.
std::string row_text(const Row& row, double wall_us, size_t width) {
  const auto call = [&](double us) {
    return row.call_median_us > 0 ? fmt::format("{:.2f}", us) : std::string();
  };
  return fmt::format(
      "{:<{}}{:>6}{:>10}{:>10}{:>11.1f}{:>9}{:>10.3f}{:>8.2f}{:>10.2f}{:>9}  {:<8}", name_of(row), width,
      row.calls, call(row.call_min_us), call(row.call_median_us), row.us, percent(row.us, wall_us),
      1e-6 * row.cost.bytes_read, row.us > 0 ? 1e-3 * row.cost.bytes_read / row.us : 0.0,
      row.us > 0 ? 1e-3 * row.cost.flops / row.us : 0.0, share_of_limit(row.limit_us, row.us), row.bound);
}

/// What each row's kernel takes of the machine: a line a launch.
std::string resources_text(const Report& report) {
  std::string text = "\nkernels\n";
  for (const Row& row : report.rows) {
    const size_t colon = row.kernel.name.find(": ");
    if (colon == std::string::npos) continue;
    std::string resources = row.kernel.name.substr(colon + 2);
    for (const auto& [mark, indent] : {std::pair{"; rows ", "\n    rows "}, std::pair{" + ", "\n    + "}}) {
      for (size_t at = resources.find(mark); at != std::string::npos; at = resources.find(mark, at + 8))
        resources.replace(at, std::string_view(mark).size(), indent);
    }
    text += fmt::format("  {}: {}\n    {}\n", name_of(row), kernel_text(row.kernel), resources);
  }
  return text;
}

std::string gap_text(const char* name, double us, double wall_us, size_t width) {
  return fmt::format("{:<{}}{:>6}{:>10}{:>10}{:>11.1f}{:>9}\n", name, width, "", "", "", us,
                     percent(us, wall_us));
}

}  // namespace

std::string share_of_limit(double limit_us, double us) {
  constexpr double kMost = 1.05;  // what measuring the peaks may be off by
  if (limit_us <= 0 || us <= 0) return "-";
  return limit_us > kMost * us ? "> 100 %" : percent(limit_us, us);
}

std::string name_of(const Row& row) {
  std::string name = row.layer >= 0 ? fmt::format("{}.{}", row.layer, row.op) : row.op;
  return row.weight.empty() ? name : name + " " + row.weight;
}

// Behind the colon of a kernel's name stand its resources.
std::string kernel_text(const program::BoundKernel& kernel) {
  if (kernel.name.empty()) return "";
  return fmt::format("{} ({}:{})", kernel.name.substr(0, kernel.name.find(':')), kernel.file, kernel.line);
}

std::string totals_text(const Report& r) {
  const double sum = r.ops_us() + r.gaps_us();
  std::string text = fmt::format(
      "{} records a step of {:.0f} token{}; {} steps timed, the middle {} count; {} worker{}\n", r.records,
      r.tokens, r.tokens == 1 ? "" : "s", r.steps, r.steps_used, r.workers, r.workers == 1 ? "" : "s");
  text += fmt::format(
      "ops {:.1f} us + gaps {:.1f} us = {:.1f} us; measured apart: {:.1f} us a step ({:+.2f} %)\n",
      r.ops_us(), r.gaps_us(), sum, r.wall_us, r.wall_us > 0 ? 100 * (sum / r.wall_us - 1) : 0.0);
  if (r.untimed_us > 0) {
    text += fmt::format("without clocks {:.1f} us a step, {:.2f} tokens/s; the clocks cost {:+.2f} %\n",
                        r.untimed_us, 1e6 * r.tokens / r.untimed_us, 100 * (r.wall_us / r.untimed_us - 1));
  }
  if (r.spread > kQuietSpread) {
    text +=
        fmt::format("an unquiet machine: the middle half of the steps lies {:.0f} % apart\n", 100 * r.spread);
  }
  if (r.workers > 1) {
    text +=
        fmt::format("an average worker waited {:.1f} us a step ({}) for others, inside of the ops' time\n",
                    r.wait_us, percent(r.wait_us, r.wall_us));
  }
  if (r.experts.uniform > 0) {
    text += fmt::format("{:.1f} different experts a layer; uniform selection would give {:.1f}\n",
                        r.experts.distinct, r.experts.uniform);
  }
  if (r.limit_us <= 0) return text + "limit: not known, this backend has no peaks\n";
  const double step = r.untimed_us > 0 ? r.untimed_us : r.wall_us;
  text += fmt::format(
      "limit {:.1f} us a step, {:.2f} tokens/s: {:.1f} MB at {:.1f} GB/s, {:.2f} GFLOP at {}; efficiency "
      "{}\n",
      r.limit_us, 1e6 * r.tokens / r.limit_us, 1e-6 * r.cost.bytes_read, 1e-9 * r.peaks.bytes_per_second,
      1e-9 * r.cost.flops,
      r.peaks.flops > 0 ? fmt::format("{:.1f} GFLOP/s", 1e-9 * r.peaks.flops) : "any rate",
      share_of_limit(r.limit_us, step));
  const bool cached = std::any_of(r.rows.begin(), r.rows.end(), [](const Row& row) {
    return share_of_limit(row.limit_us, row.us) == "> 100 %";
  });
  return cached ? text + "> 100 %: weights came out of a cache, and the limit is that of memory\n" : text;
}

std::string report_text(const Report& report, bool with_resources) {
  const size_t width = name_width(report) + 1;
  std::string text = fmt::format(
      "{}\n{:<{}}{:>6}{:>10}{:>10}{:>11}{:>9}{:>10}{:>8}{:>10}{:>9}  {:<8}  kernel\n", report.test, "op",
      width, "calls", "min us", "median", "us", "share", "MB read", "GB/s", "GFLOP/s", "of peak", "bound by");
  for (const Row& row : report.rows) {
    text += row_text(row, report.wall_us, width);
    text += "  " + kernel_text(row.kernel);
    while (text.back() == ' ') text.pop_back();
    text += "\n";
  }
  text += gap_text("(between ops)", report.between_us, report.wall_us, width);
  text += gap_text("(around them)", report.around_us, report.wall_us, width);
  Row all;
  all.op = "all";
  all.calls = report.records;
  all.us = report.ops_us() + report.gaps_us();
  all.cost = report.cost;
  all.limit_us = report.limit_us;
  text += row_text(all, report.wall_us, width);
  while (text.back() == ' ') text.pop_back();
  return text + "\n\n" + totals_text(report) + (with_resources ? resources_text(report) : "");
}

std::string report_markdown(const Report& report) {
  const size_t width = name_width(report);
  std::string text = fmt::format(
      "| {:<{}} | {:>5} | {:>10} | {:>10} | {:>7} | {:>8} | {:>6} | {:>8} | {:<8} |\n", "op", width, "calls",
      "us a call", "us a step", "share", "MB read", "GB/s", "of peak", "bound by");
  text += fmt::format("|{:-<{}}|{:->6}:|{:->11}:|{:->11}:|{:->8}:|{:->9}:|{:->7}:|{:->9}:|{:-<10}|\n", "",
                      width + 2, "", "", "", "", "", "", "", "");
  for (const Row& row : report.rows) {
    text += fmt::format(
        "| {:<{}} | {:>5} | {:>10.1f} | {:>10.1f} | {:>7} | {:>8.2f} | {:>6.1f} | {:>8} | {:<8} |\n",
        name_of(row), width, row.calls, row.call_median_us, row.us, percent(row.us, report.wall_us),
        1e-6 * row.cost.bytes_read, row.us > 0 ? 1e-3 * row.cost.bytes_read / row.us : 0.0,
        share_of_limit(row.limit_us, row.us), row.bound);
  }
  text += fmt::format("| {:<{}} | {:>5} | {:>10} | {:>10.1f} | {:>7} | {:>8} | {:>6} | {:>8} | {:<8} |\n",
                      "(gaps)", width, "", "", report.gaps_us(), percent(report.gaps_us(), report.wall_us),
                      "", "", "", "");
  return text + "\n" + totals_text(report);
}

}  // namespace sluice::profile
