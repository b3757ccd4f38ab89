#include "profile/report_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "profile/report_text.h"
#include "profile/svg.h"

namespace sluice::profile {
namespace {

constexpr const char* kStyle = R"(<style>
:root { color-scheme: light dark; --page:#fbfbfa; --ink:#1d2126; --soft:#5d6670; --line:#d9dde1; --bar:#b9cfe8;
  --s0:#2f6db5; --s1:#d9792b; --s2:#3f9a5f; --s3:#b8497f; --s4:#8a6fc1; --s5:#a08a2c; --s6:#2f9aa0; --s7:#b3bac1; }
@media (prefers-color-scheme: dark) { :root { --page:#15181c; --ink:#e6e9ec; --soft:#9aa4ae; --line:#30363d; --bar:#2d4664;
  --s0:#6ea8ea; --s1:#f0a05a; --s2:#69c48a; --s3:#e082b1; --s4:#b39be8; --s5:#d6c06a; --s6:#67c6cc; --s7:#5d666e; } }
body { margin:0 auto; max-width:900px; padding:28px 20px 60px; background:var(--page); color:var(--ink);
  font:15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size:24px; margin:0 0 2px; } h2 { font-size:18px; margin:36px 0 4px; } h3 { font-size:15px; margin:22px 0 4px; }
p { margin:2px 0 8px; color:var(--soft); }
svg { width:100%; height:auto; display:block; margin:8px 0; font:12px system-ui, sans-serif; }
svg .ink { fill:var(--ink); } svg .soft { fill:var(--soft); } svg .grid { stroke:var(--line); stroke-width:1; }
svg .bar { fill:var(--bar); } svg .part { fill:var(--s0); } svg .line { fill:none; stroke-width:2; }
svg text { paint-order:stroke; stroke:var(--page); stroke-width:3px; stroke-linejoin:round; }
.cards { display:flex; flex-wrap:wrap; gap:10px; margin:10px 0 4px; }
.card { flex:1 1 150px; padding:8px 12px; border:1px solid var(--line); border-radius:6px; }
.card b { display:block; font-size:20px; font-weight:600; } .card span { color:var(--soft); font-size:13px; }
svg .lead { stroke:var(--soft); stroke-width:0.7; } svg .dashed { stroke-dasharray:5 4; } svg .dot { stroke:var(--page); stroke-width:1; }
dl { display:grid; grid-template-columns:auto minmax(0,1fr); gap:2px 14px; margin:8px 0; font-size:13px; }
dt { color:var(--soft); } dd { margin:0; overflow-wrap:anywhere; }
.wide { overflow-x:auto; border:1px solid var(--line); border-radius:6px; }
table { border-collapse:collapse; font-size:12.5px; white-space:nowrap; font-variant-numeric:tabular-nums; width:100%; }
th, td { padding:4px 10px; text-align:right; border-bottom:1px solid var(--line); } th { font-weight:600; }
th:first-child, td:first-child, .left { text-align:left; } tr:last-child td { border-bottom:0; font-weight:600; }
.noisy { color:var(--s1); } .totals { font-size:13px; white-space:pre-line; }
</style>
)";

constexpr int kOther = 7;  // the colour of what has none of its own

std::string card(const std::string& figure, const std::string& what) {
  return fmt::format("<div class=\"card\"><b>{}</b><span>{}</span></div>\n", escaped(figure), escaped(what));
}

/// The step in a few figures.
std::string cards(const Report& report) {
  const double step_us = report.untimed_us > 0 ? report.untimed_us : report.wall_us;
  std::string text = "<div class=\"cards\">\n";
  text += card(short_number(1e6 * report.tokens / step_us), "tokens/s");
  if (report.limit_us > 0) {
    text += card(short_number(1e6 * report.tokens / report.limit_us),
                 fmt::format("tokens/s: the limit at {:.1f} GB/s", 1e-9 * report.peaks.bytes_per_second));
    text += card(share_of_limit(report.limit_us, step_us), "of the limit");
  }
  text += card(short_number(1e-6 * report.cost.bytes_read / report.tokens) + " MB", "read a token");
  text += card(std::to_string(report.records), "records a step");
  return text + card(fmt::format("{:.1f} %", 100 * report.gaps_us() / report.wall_us), "gaps") + "</div>\n";
}

std::string time_by_op(const Report& report) {
  std::vector<Bar> bars;
  for (const Row& row : report.rows) {
    const std::string name = row.weight.empty() ? row.op : row.op + " " + row.weight;
    std::string label = fmt::format("{} us, {:.1f} %", short_number(row.us), 100 * row.us / report.wall_us);
    if (row.limit_us > 0) label += ", " + share_of_limit(row.limit_us, row.us) + " of peak";
    bars.push_back(
        {row.layer >= 0 ? fmt::format("{}.{}", row.layer, name) : name, label, row.us, row.limit_us});
  }
  std::sort(bars.begin(), bars.end(), [](const Bar& a, const Bar& b) { return a.value > b.value; });
  if (bars.size() > 24) bars.resize(24);
  bars.push_back({"(gaps)",
                  fmt::format("{} us, {:.1f} %", short_number(report.gaps_us()),
                              100 * report.gaps_us() / report.wall_us),
                  report.gaps_us(), 0});
  return "<h3>Time by op</h3>\n<p>Microseconds a step; the full colour is what the hardware needs at "
         "least.</p>\n" +
         bars_svg(bars);
}

std::string roofline(const Report& report) {
  if (report.peaks.bytes_per_second <= 0) return "";
  std::vector<Point> points;
  double low = 1, high = 1;
  for (const Row& row : report.rows) {
    if (row.cost.flops <= 0 || row.cost.bytes_read <= 0 || row.us <= 0) continue;
    const double intensity = row.cost.flops / row.cost.bytes_read;
    low = std::min(low, intensity);
    high = std::max(high, intensity);
    const std::string& name = row.weight.empty() ? row.op : row.weight;
    points.push_back({intensity, 1e-3 * row.cost.flops / row.us, 3 + 14 * std::sqrt(row.us / report.wall_us),
                      name, std::string(row.bound) == "latency" ? kOther : 1,
                      row.layer >= 0 ? fmt::format("{}.{}", row.layer, name) : name});
  }
  // A name once, at its largest dot: a list by layer has hundreds of dots.
  std::stable_sort(points.begin(), points.end(),
                   [](const Point& a, const Point& b) { return a.radius > b.radius; });
  std::set<std::string> named;
  for (Point& point : points) {
    if (!named.insert(point.name).second) point.name.clear();
  }
  const double bandwidth = 1e-9 * report.peaks.bytes_per_second, flops = 1e-9 * report.peaks.flops;
  const double ridge = flops > 0 ? flops / bandwidth : high * 4;
  high = std::max(high, ridge * 2);
  std::vector<Line> roofs = {{"", 0, false, {{low, low * bandwidth}, {ridge, ridge * bandwidth}}}};
  if (flops > 0) {
    roofs.push_back({"", 0, false, {{ridge, flops}, {high, flops}}});
  }
  return "<h3>Roofline</h3>\n<p>Every op by what it computes for a byte that it reads, and how fast it does; "
         "larger dots take more of the step (the largest of a name has it), grey ones are too short to be "
         "bound by either. The line is what "
         "was measured of the machine: " +
         (flops > 0 ? fmt::format("{:.0f} GB/s, then {:.0f} GFLOP/s", bandwidth, flops)
                    : fmt::format("{:.0f} GB/s", bandwidth)) +
         "; caches are above it.</p>\n" + plot_svg({"FLOP a byte", true}, {"GFLOP/s", true}, roofs, points);
}

std::string share_by_layer(const Report& report) {
  std::map<int, std::map<std::string, double>> layers;
  for (const Row& row : report.layers) layers[row.layer][row.op] += row.us;
  // An op has a colour that is much of any layer: what fills the first one alone must not be "other".
  std::map<std::string, double> largest;
  for (const auto& [layer, ops] : layers)
    for (const auto& [op, us] : ops) largest[op] = std::max(largest[op], us);
  std::vector<std::pair<double, std::string>> order;
  order.reserve(largest.size());
  for (const auto& [op, us] : largest) order.emplace_back(us, op);
  std::sort(order.rbegin(), order.rend());
  if (order.size() > kOther) order.resize(kOther);
  std::vector<std::string> series;
  series.reserve(order.size() + 1);
  for (const auto& [us, op] : order) series.push_back(op);
  series.resize(kOther);  // colours go by place
  series.emplace_back("other");
  std::vector<Stack> stacks;
  for (const auto& [layer, ops] : layers) {
    Stack stack{layer < 0 ? "ends" : std::to_string(layer), std::vector<double>(series.size(), 0)};
    for (const auto& [op, us] : ops) {
      const auto at = std::find(series.begin(), series.end() - 1, op) - series.begin();
      stack.parts[static_cast<size_t>(at)] += us;
    }
    stacks.push_back(std::move(stack));
  }
  return "<h3>Time by layer</h3>\n<p>Microseconds a step; \"ends\" is what stands outside of layers: "
         "embedding and "
         "output.</p>\n" +
         stacks_svg({"us"}, series, stacks);
}

/// All rows, with how far each may be off by chance.
std::string table(const Report& report) {
  std::string html =
      "<div class=\"wide\"><table>\n<tr><th>op</th><th>calls</th><th>us a call</th><th>us a "
      "step</th><th>noise</th>"
      "<th>share</th><th>MB read</th><th>GB/s</th><th>GFLOP/s</th><th>of peak</th>"
      "<th class=\"left\">bound by</th><th class=\"left\">kernel</th></tr>\n";
  const auto line = [&](const std::string& name, int calls, const std::string& call, double us,
                        double noise_us, const program::Cost& cost, double limit_us, const char* bound,
                        const std::string& kernel) {
    const bool noisy = noise_us > 0.1 * us && us > 0.01 * report.wall_us;
    html += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.1f}</td><td{}>{}</td><td>{:.1f} %</td><td>{:.3f}</td>"
        "<td>{:.1f}</td><td>{:.1f}</td><td>{}</td><td class=\"left\">{}</td><td "
        "class=\"left\">{}</td></tr>\n",
        escaped(name), calls, call, us, noisy ? " class=\"noisy\"" : "",
        noise_us > 0 ? fmt::format("&plusmn; {:.1f}", noise_us) : "", 100 * us / report.wall_us,
        1e-6 * cost.bytes_read, us > 0 ? 1e-3 * cost.bytes_read / us : 0.0,
        us > 0 ? 1e-3 * cost.flops / us : 0.0, share_of_limit(limit_us, us), bound, escaped(kernel));
  };
  double noise_us = 0;
  for (const Row& row : report.rows) {
    noise_us += row.noise_us;
    line(name_of(row), row.calls, fmt::format("{:.2f}", row.call_median_us), row.us, row.noise_us, row.cost,
         row.limit_us, row.bound, kernel_text(row.kernel));
  }
  line("(gaps)", 0, "", report.gaps_us(), 0, {}, 0, "", "");
  line("all", report.records, "", report.ops_us() + report.gaps_us(), noise_us, report.cost, report.limit_us,
       "", "");
  return html + "</table></div>\n<p class=\"totals\">" + escaped(totals_text(report)) + "</p>\n";
}

std::string facts_text(const std::vector<Fact>& facts) {
  if (facts.empty()) return "";
  std::string html = "<dl>\n";
  for (const Fact& fact : facts)
    html += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escaped(fact.name), escaped(fact.value));
  return html + "</dl>\n";
}

std::string speed_over_depth(const Page& page) {
  const auto speeds = page.speeds;
  if (speeds.empty()) return "";
  const double bandwidth = 1e-9 * page.speeds_bytes_per_second;
  Line measured{"measured", 0, false, {}};
  Line limit{bandwidth > 0 ? fmt::format("limit at {:.1f} GB/s", bandwidth) : "limit", 1, true, {}};
  std::vector<Point> dots;
  for (const DepthSpeed& speed : speeds) {
    measured.points.push_back({speed.depth, speed.tokens_per_second});
    dots.push_back({speed.depth, speed.tokens_per_second, 4, "", 0});
    if (speed.limit_tokens_per_second > 0)
      limit.points.push_back({speed.depth, speed.limit_tokens_per_second});
  }
  return "<h2>Decode speed over depth</h2>\n<p>Tokens a second of one sequence, and what the hardware allows "
         "at most.</p>\n" +
         plot_svg({"tokens of context"}, {"tokens/s"}, {measured, limit}, dots);
}

}  // namespace

std::string report_html(const Page& page) {
  std::string html = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width\">\n<title>{}</title>\n{}</head>\n<body>\n<h1>{}</h1>\n<p>{}</p>\n",
      escaped(page.title), kStyle, escaped(page.title), escaped(page.subtitle));
  html += facts_text(page.facts);
  for (const Report& report : page.reports) {
    html += fmt::format("<h2>{}</h2>\n", escaped(report.test));
    html += cards(report) + time_by_op(report) + roofline(report) + share_by_layer(report);
    html += "<h3>All figures</h3>\n" + table(report);
  }
  return html + speed_over_depth(page) + "</body>\n</html>\n";
}

}  // namespace sluice::profile
