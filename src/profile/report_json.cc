#include "profile/report_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "profile/statistics.h"

namespace sluice::profile {
namespace {

using Json = nlohmann::ordered_json;

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
std::string rows_by(const Json& report) { return report.value("rows_by", "op"); }

std::string key_of(const Json& row) {
  const int layer = row.at("layer").get<int>();
  const auto weight = row.at("weight").get<std::string>();
  return (layer >= 0 ? std::to_string(layer) + "." : std::string()) + row.at("op").get<std::string>() +
         (weight.empty() ? "" : " " + weight);
}

/// Rows by name. A list by record has a name twice where a layer has an op twice: the second is "name (2)".
std::vector<std::pair<std::string, const Json*>> named(const Json& rows) {
  std::vector<std::pair<std::string, const Json*>> list;
  std::map<std::string, int> seen;
  for (const Json& row : rows) {
    const std::string key = key_of(row);
    const int count = ++seen[key];
    list.emplace_back(count == 1 ? key : fmt::format("{} ({})", key, count), &row);
  }
  return list;
}

double noise(const Json& a, const Json& b, const char* field) {
  return std::hypot(a.at(field).get<double>(), b.at(field).get<double>());
}

/// Two runs of one program were so far apart on machines where nothing else ran.
constexpr double kRunToRun = 0.05;

/// How far the machine's speed may have changed within and between these runs, as a share: by the bandwidth
/// that was measured in them, and by how far their steps lie apart.
double drift_of(std::span<const ProfileFile> a, std::span<const ProfileFile> b) {
  double low = 0, high = 0, widest = a.size() > 1 && b.size() > 1 ? 0 : kRunToRun;
  const auto take = [&](const Json& bandwidth) {
    const double value = bandwidth.is_number() ? bandwidth.get<double>() : 0;
    if (value <= 0) return;
    low = low == 0 ? value : std::min(low, value);
    high = std::max(high, value);
  };
  for (const auto side : {a, b}) {
    for (const ProfileFile& file : side) {
      for (const char* when : {"bandwidth_before", "bandwidth_after"}) take(file.content.value(when, Json()));
      for (const Json& report : file.content.at("reports"))
        widest = std::max(widest, report.value("spread", 0.0));
    }
  }
  return std::max(widest, low > 0 ? high / low - 1 : 0.0);
}

/// Several runs as one: medians, and as noise what it was and how far they lie apart.
Json joined(std::span<const ProfileFile> runs) {
  Json whole = runs.front().content;
  const auto join = [&](Json& into, const auto& of_run, const char* field) {
    std::vector<double> values;
    for (const ProfileFile& run : runs) {
      const Json* there = of_run(run.content);
      if (there != nullptr) values.push_back(there->at(field).template get<double>());
    }
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    into[field] = median(values);
    if (into.contains("noise_us") && std::string_view(field) != "gaps_us")
      into["noise_us"] = std::max(into["noise_us"].get<double>(), *most - *least);
  };
  for (size_t r = 0; r < whole["reports"].size(); ++r) {
    Json& report = whole["reports"][r];
    const auto same = [&](const Json& content) -> const Json* {
      for (const Json& other : content.at("reports"))
        if (other.at("test") == report.at("test")) return &other;
      return nullptr;
    };
    join(report, same, "wall_us");
    join(report, same, "gaps_us");
    std::map<std::string, int> seen;
    for (Json& row : report["rows"]) {
      const std::string key = key_of(row);
      const int count = ++seen[key];
      const std::string name = count == 1 ? key : fmt::format("{} ({})", key, count);
      const auto same_row = [&](const Json& content) -> const Json* {
        const Json* other = same(content);
        if (other == nullptr) return nullptr;
        for (const auto& [other_name, other_row] : named(other->at("rows")))
          if (other_name == name) return other_row;
        return nullptr;
      };
      join(row, same_row, "us");
    }
  }
  return whole;
}

void add_test(const Json& a, const Json& b, double drift, Diff& diff) {
  diff.text += fmt::format("{}\n{:<28}{:>12}{:>12}{:>10}{:>12}\n", a.at("test").get<std::string>(), "op",
                           "before us", "after us", "change", "noise us");
  const double least_us = kLeastShare * a.at("wall_us").get<double>();
  const auto note = [&](Change change) {
    change.noise_us += drift * std::max(change.before_us, change.after_us);
    diff.text += line(change);
    const bool matters = change.real() && change.after_us - change.before_us >= least_us;
    if (matters) diff.worst_percent = std::max(diff.worst_percent, change.percent());
  };
  const auto before = named(a.at("rows")), after = named(b.at("rows"));
  const auto find = [](const auto& rows, const std::string& name) -> const Json* {
    const auto found =
        std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.first == name; });
    return found == rows.end() ? nullptr : found->second;
  };
  for (const auto& [name, row] : before) {
    const Json* other = find(after, name);
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

void add_all(const Json& a, const Json& b, double drift, Diff& diff) {
  for (const Json& before : a.at("reports")) {
    for (const Json& after : b.at("reports")) {
      if (before.at("test") == after.at("test")) add_test(before, after, drift, diff);
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
          {"spread", r.spread},
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

Diff compare(std::span<const ProfileFile> a, std::span<const ProfileFile> b) {
  Diff diff;
  for (const auto side : {a, b}) {
    for (const ProfileFile& file : side) {
      try {
        Diff unused;
        add_all(file.content, file.content, 0, unused);  // reads every field
      } catch (const Json::exception&) {
        fail("{}: no profile: expected what sluice profile --json writes", file.name);
      }
      for (const Json& before : a.front().content.at("reports")) {
        for (const Json& after : file.content.at("reports")) {
          const auto by_a = rows_by(before), by_b = rows_by(after);
          if (by_a != by_b) {
            fail("{} has rows by {} and {} by {}: profile both alike", a.front().name, by_a, file.name, by_b);
          }
        }
      }
    }
  }
  const double drift = drift_of(a, b);
  add_all(joined(a), joined(b), drift, diff);
  if (diff.text.empty()) fail("{} and {} have no test in common", a.front().name, b.front().name);
  diff.text += fmt::format(
      "noise: what the steps of a run and the runs of a side lie apart, and {:.1f} % for {}\n", 100 * drift,
      drift > kRunToRun ? "the machine, whose speed changed so much"
                        : "what two runs of one program differ by");
  return diff;
}

}  // namespace sluice::profile
