#include "profile/report_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"

namespace sluice::profile {
namespace {

using Json = nlohmann::ordered_json;
using nlohmann::json;

const char* group_name(Group group) {
  switch (group) {
    case Group::Op: return "op";
    case Group::Layer: return "layer";
    case Group::Weight: return "weight";
    case Group::Record: return "record";
  }
  return "";
}

Json row_json(const Row& row) {
  return {{"op", row.op},
          {"weight", row.weight},
          {"shape", row.shape},
          {"layer", row.layer},
          {"calls", row.calls},
          {"us", row.us},
          {"noise_us", row.noise_us},
          {"call_min_us", row.call_min_us},
          {"call_median_us", row.call_median_us},
          {"bytes_read", row.cost.bytes_read},
          {"bytes_written", row.cost.bytes_written},
          {"flops", row.cost.flops},
          {"limit_us", row.limit_us},
          {"bound_by", row.bound},
          {"kernel", row.kernel.name},
          {"file", row.kernel.file},
          {"line", row.kernel.line}};
}

/// An op that adds less than this share to the step is no regression, however many times as long it takes.
constexpr double kLeastShare = 0.001;

/// A change counts when it is larger than both measurements' noise together.
struct Change {
  std::string name;
  double before_us = 0, after_us = 0, noise_us = 0;

  double percent() const { return before_us > 0 ? 100 * (after_us / before_us - 1) : 0; }
  bool real() const { return std::abs(after_us - before_us) > noise_us; }
};

std::string line(const Change& c) {
  const char* verdict = c.real() ? (c.after_us > c.before_us ? "slower" : "faster") : "same";
  return fmt::format("{:<28}{:>12.1f}{:>12.1f}{:>10}{:>12}  {}\n", c.name, c.before_us, c.after_us,
                     fmt::format("{:+.1f} %", c.percent()), fmt::format("± {:.1f}", c.noise_us), verdict);
}

/// What a report's rows stand for: "op", unless it says otherwise.
std::string rows_by(const json& report) { return report.value("rows_by", "op"); }

std::string key_of(const json& row) {
  const int layer = row.at("layer").get<int>();
  const auto weight = row.at("weight").get<std::string>();
  return (layer >= 0 ? std::to_string(layer) + "." : std::string()) + row.at("op").get<std::string>() +
         (weight.empty() ? "" : " " + weight);
}

/// Rows by name. A list by record has a name twice where a layer has an op twice: the second is "name (2)".
std::vector<std::pair<std::string, const json*>> named(const json& rows) {
  std::vector<std::pair<std::string, const json*>> list;
  std::map<std::string, int> seen;
  for (const json& row : rows) {
    const std::string key = key_of(row);
    const int count = ++seen[key];
    list.emplace_back(count == 1 ? key : fmt::format("{} ({})", key, count), &row);
  }
  return list;
}

double noise(const json& a, const json& b, const char* field) {
  return std::hypot(a.at(field).get<double>(), b.at(field).get<double>());
}

void add_test(const json& a, const json& b, Diff& diff) {
  diff.text += fmt::format("{}\n{:<28}{:>12}{:>12}{:>10}{:>12}\n", a.at("test").get<std::string>(), "op",
                           "before us", "after us", "change", "noise us");
  const double least_us = kLeastShare * a.at("wall_us").get<double>();
  const auto note = [&](const Change& change) {
    diff.text += line(change);
    const bool matters = change.real() && change.after_us - change.before_us >= least_us;
    if (matters) diff.worst_percent = std::max(diff.worst_percent, change.percent());
  };
  const auto before = named(a.at("rows")), after = named(b.at("rows"));
  const auto find = [](const auto& rows, const std::string& name) -> const json* {
    const auto found =
        std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.first == name; });
    return found == rows.end() ? nullptr : found->second;
  };
  for (const auto& [name, row] : before) {
    const json* other = find(after, name);
    if (other == nullptr) continue;
    note({name, row->at("us").get<double>(), other->at("us").get<double>(), noise(*row, *other, "noise_us")});
  }
  for (const auto& [name, row] : before) {
    if (find(after, name) != nullptr) continue;
    diff.text += fmt::format("{:<28}{:>12.1f}{:>12}  gone\n", name, row->at("us").get<double>(), "-");
  }
  for (const auto& [name, row] : after) {
    if (find(before, name) != nullptr) continue;
    diff.text += fmt::format("{:<28}{:>12}{:>12.1f}  new\n", name, "-", row->at("us").get<double>());
  }
  note({"gaps", a.at("gaps_us").get<double>(), b.at("gaps_us").get<double>(),
        std::max({noise(a, b, "noise_us"), 0.5 * a.at("gaps_us").get<double>()})});
  note({"step", a.at("wall_us").get<double>(), b.at("wall_us").get<double>(), noise(a, b, "noise_us")});
}

void add_all(const json& a, const json& b, Diff& diff) {
  for (const json& before : a.at("reports")) {
    for (const json& after : b.at("reports")) {
      if (before.at("test") == after.at("test")) add_test(before, after, diff);
    }
  }
}

}  // namespace

Json report_json(const Report& r) {
  Json rows = Json::array(), layers = Json::array(), rates = Json::array();
  double noise_us = 0;
  for (const Row& row : r.rows) {
    rows.push_back(row_json(row));
    noise_us += row.noise_us;
  }
  for (const Row& row : r.layers) layers.push_back({{"layer", row.layer}, {"op", row.op}, {"us", row.us}});
  for (const auto& rate : r.peaks.rates)
    rates.push_back({{"unit", rate.name}, {"per_second", rate.per_second}});
  return {{"test", r.test},
          {"tokens", r.tokens},
          {"records", r.records},
          {"workers", r.workers},
          {"steps", r.steps},
          {"steps_used", r.steps_used},
          {"wall_us", r.wall_us},
          {"untimed_us", r.untimed_us},
          {"noise_us", noise_us},
          {"ops_us", r.ops_us()},
          {"gaps_us", r.gaps_us()},
          {"between_us", r.between_us},
          {"around_us", r.around_us},
          {"wait_us", r.wait_us},
          {"limit_us", r.limit_us},
          {"bytes_read", r.cost.bytes_read},
          {"bytes_written", r.cost.bytes_written},
          {"flops", r.cost.flops},
          {"experts_distinct", r.experts.distinct},
          {"experts_uniform", r.experts.uniform},
          {"peaks",
           {{"bytes_per_second", r.peaks.bytes_per_second},
            {"flops", r.peaks.flops},
            {"rates", std::move(rates)}}},
          {"rows", std::move(rows)},
          {"rows_by", group_name(r.group)},
          {"layers", std::move(layers)}};
}

Diff compare(const std::string& a_name, const json& a, const std::string& b_name, const json& b) {
  Diff diff;
  for (const auto& [name, file] : {std::pair{&a_name, &a}, {&b_name, &b}}) {
    try {
      Diff unused;
      add_all(*file, *file, unused);  // reads every field
    } catch (const json::exception&) {
      fail("{}: no profile: expected what sluice profile --json writes", *name);
    }
  }
  for (const json& before : a.at("reports")) {
    for (const json& after : b.at("reports")) {
      const auto by_a = rows_by(before), by_b = rows_by(after);
      if (by_a != by_b)
        fail("{} has rows by {} and {} by {}: profile both alike", a_name, by_a, b_name, by_b);
    }
  }
  add_all(a, b, diff);
  if (diff.text.empty()) fail("{} and {} have no test in common", a_name, b_name);
  return diff;
}

}  // namespace sluice::profile
