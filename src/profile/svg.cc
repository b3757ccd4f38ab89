#include "profile/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace sluice::profile {
namespace {

constexpr double kWidth = 860;
constexpr double kLeft = 64, kRight = 24, kTop = 14, kBottom = 44;

std::string text(double x, double y, const char* anchor, const char* kind, const std::string& content) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n", x, y,
                     anchor, kind, escaped(content));
}

std::string svg(double height, const std::string& body) {
  return fmt::format("<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\">\n{}</svg>\n", kWidth, height, body);
}

/// A range of numbers on its way to a stretch of pixels.
class Scale {
 public:
  Scale(bool logarithmic, double low, double high, double from, double to)
      : logarithmic_(logarithmic), from_(from), to_(to) {
    if (logarithmic) {
      low_ = std::floor(std::log10(std::max(low, 1e-12)));
      high_ = std::max(std::ceil(std::log10(std::max(high, 1e-12))), low_ + 1);
    } else {
      low_ = 0;
      const double rough = std::max(high, 1e-12) / 5, magnitude = std::pow(10, std::floor(std::log10(rough)));
      step_ = magnitude * (rough / magnitude > 5   ? 10
                           : rough / magnitude > 2 ? 5
                           : rough / magnitude > 1 ? 2
                                                   : 1);
      high_ = step_ * std::ceil(std::max(high, 1e-12) / step_);
    }
  }
  double operator()(double value) const {
    const double place = logarithmic_ ? std::log10(std::max(value, 1e-12)) : value;
    return from_ + (to_ - from_) * (place - low_) / (high_ - low_);
  }
  std::vector<double> ticks() const {
    std::vector<double> list;
    const double step = logarithmic_ ? 1 : step_;
    for (int i = 0; low_ + i * step <= high_ + step / 1000; ++i) {
      list.push_back(logarithmic_ ? std::pow(10, low_ + i) : low_ + i * step);
    }
    return list;
  }

 private:
  bool logarithmic_;
  double from_, to_, low_ = 0, high_ = 1, step_ = 1;
};

std::string tick_text(double value) { return fmt::format("{:g}", value); }

std::string y_axis(const Axis& axis, const Scale& scale) {
  std::string body;
  for (const double tick : scale.ticks()) {
    body += fmt::format("<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"grid\"/>\n",
                        kLeft, kWidth - kRight, scale(tick), scale(tick));
    body += text(kLeft - 6, scale(tick) + 4, "end", "soft", tick_text(tick));
  }
  return body + text(4, 11, "start", "soft", axis.name);
}

std::string x_axis(const Axis& axis, const Scale& scale, double height) {
  std::string body;
  for (const double tick : scale.ticks()) {
    body +=
        fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" class=\"grid\"/>\n",
                    scale(tick), kTop, height - kBottom);
    body += text(scale(tick), height - kBottom + 16, "middle", "soft", tick_text(tick));
  }
  return body + text(kWidth - kRight, height - 8, "end", "soft", axis.name);
}

struct Range {
  double low = std::numeric_limits<double>::max(), high = 0;
  void take(double value) {
    if (value > 0) low = std::min(low, value);
    high = std::max(high, value);
  }
};

/// Names of points, moved to the nearest free line where they would lie over each other; a thin line leads
/// from a name that was moved to its point.
std::string point_names(const std::vector<std::pair<Point, std::pair<double, double>>>& places,
                        double height) {
  constexpr double kLine = 13, kLetter = 7;
  struct Box {
    double from, to, y;
  };
  std::vector<Box> taken;
  std::string body;
  for (const auto& [point, place] : places) {
    const double width = kLetter * static_cast<double>(point.name.size());
    const bool left = place.first > kWidth - kRight - width - 20;
    const double x = place.first + (left ? -1 : 1) * (point.radius + 6), home = place.second + 4;
    Box box{left ? x - width : x, left ? x : x + width, home};
    const auto lies_over = [&](const Box& other) {
      return box.from < other.to && other.from < box.to && std::abs(other.y - box.y) < kLine;
    };
    const auto is_free = [&] {
      return box.y > kTop + 8 && box.y < height - kBottom &&
             std::none_of(taken.begin(), taken.end(), lies_over);
    };
    for (int step = 1; !is_free() && step < 80; ++step) {
      const int lines = (step + 1) / 2;  // down, up, further down, ...
      box.y = home + kLine / 2 * (step % 2 == 0 ? -lines : lines);
    }
    taken.push_back(box);
    if (std::abs(box.y - home) > kLine / 2) {
      body += fmt::format("<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" class=\"lead\"/>\n",
                          place.first, x, place.second, box.y - 4);
    }
    body += text(x, box.y, left ? "end" : "start", "ink", point.name);
  }
  return body;
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string short_number(double value) {
  if (value >= 100) return fmt::format("{:.0f}", value);
  return value >= 10 ? fmt::format("{:.1f}", value) : fmt::format("{:.2f}", value);
}

std::string bars_svg(const std::vector<Bar>& bars) {
  constexpr double kRow = 24, kNames = 190, kLabels = 230;
  double largest = 1e-12;
  for (const Bar& bar : bars) largest = std::max(largest, bar.value);
  std::string body;
  double y = 4;
  for (const Bar& bar : bars) {
    const auto width = [&](double value) { return (kWidth - kNames - kLabels) * value / largest; };
    body += text(kNames - 8, y + 14, "end", "ink", bar.name);
    body += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"16\" rx=\"2\" class=\"bar\"/>\n", kNames,
        y + 2, std::max(1.0, width(bar.value)));
    body += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"16\" rx=\"2\" class=\"part\"/>\n", kNames,
        y + 2, width(std::min(bar.part, bar.value)));
    body += text(kNames + width(bar.value) + 8, y + 14, "start", "soft", bar.label);
    y += kRow;
  }
  return svg(y + 4, body);
}

std::string plot_svg(const Axis& x, const Axis& y, const std::vector<Line>& lines,
                     const std::vector<Point>& points) {
  constexpr double kHeight = 400;
  Range xs, ys;
  for (const Point& point : points) xs.take(point.x), ys.take(point.y);
  for (const Line& line : lines) {
    for (const Point& point : line.points) xs.take(point.x), ys.take(point.y);
  }
  const Scale across(x.logarithmic, xs.low, xs.high, kLeft, kWidth - kRight);
  const Scale up(y.logarithmic, ys.low, ys.high, kHeight - kBottom, kTop + 6);
  std::string body = y_axis(y, up) + x_axis(x, across, kHeight);
  std::vector<double> labels;  // where lines' names stand, at the lines' ends
  for (const Line& line : lines) {
    std::string path;
    for (const Point& point : line.points) {
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", across(point.x), up(point.y));
    }
    body += fmt::format("<path d=\"{}\" class=\"line{}\" style=\"stroke:var(--s{})\"/>\n", path,
                        line.dashed ? " dashed" : "", line.series);
    if (line.points.empty()) continue;
    const Point& last = line.points.back();
    double label = up(last.y) - 7;
    for (const double other : labels) {
      if (!line.name.empty() && std::abs(other - label) < 14) label = other + 14;
    }
    labels.push_back(label);
    body += text(std::min(across(last.x), kWidth - kRight) - 4, label, "end", "soft", line.name);
  }
  std::vector<std::pair<Point, std::pair<double, double>>> places;
  for (const Point& point : points) {
    body += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" class=\"dot\" "
        "style=\"fill:var(--s{})\"><title>{}</title></circle>\n",
        across(point.x), up(point.y), point.radius, point.series,
        escaped(point.title.empty() ? point.name : point.title));
    if (!point.name.empty()) places.push_back({point, {across(point.x), up(point.y)}});
  }
  return svg(kHeight, body + point_names(places, kHeight));
}

std::string stacks_svg(const Axis& y, const std::vector<std::string>& series,
                       const std::vector<Stack>& stacks) {
  constexpr double kHeight = 346, kLegend = 42;  // of two lines
  Range ys;
  for (const Stack& stack : stacks) {
    double sum = 0;
    for (const double part : stack.parts) sum += part;
    ys.take(sum);
  }
  const Scale up(false, 0, ys.high, kHeight - kBottom, kTop + kLegend);
  std::string body = y_axis(y, up);
  const double slot = (kWidth - kLeft - kRight) / static_cast<double>(std::max<size_t>(stacks.size(), 1));
  const size_t every = stacks.size() / 24 + 1;
  for (size_t i = 0; i < stacks.size(); ++i) {
    const double x = kLeft + slot * static_cast<double>(i);
    double sum = 0;
    for (size_t s = 0; s < stacks[i].parts.size(); ++s) {
      const double bottom = up(sum), top = up(sum + stacks[i].parts[s]);
      sum += stacks[i].parts[s];
      if (stacks[i].parts[s] <= 0) continue;
      body += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.2f}\" "
          "style=\"fill:var(--s{})\"><title>{} {}: {} us</title></rect>\n",
          x + 1, top, std::max(1.0, slot - 2), std::max(0.0, bottom - top), s, escaped(stacks[i].name),
          escaped(series[s]), short_number(stacks[i].parts[s]));
    }
    if (i % every == 0) body += text(x + slot / 2, kHeight - kBottom + 16, "middle", "soft", stacks[i].name);
  }
  double x = kLeft + 90, line = 4;
  for (size_t s = 0; s < series.size(); ++s) {
    if (series[s].empty()) continue;
    const double width = 30 + 7.2 * static_cast<double>(series[s].size());
    if (x + width > kWidth - kRight) x = kLeft + 90, line += 16;
    body += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"11\" height=\"11\" rx=\"2\" style=\"fill:var(--s{})\"/>\n",
        x, line, s);
    body += text(x + 16, line + 10, "start", "ink", series[s]);
    x += width;
  }
  return svg(kHeight, body);
}

}  // namespace sluice::profile
