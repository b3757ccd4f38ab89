// Plots drawn as SVG text: bars, points and lines in a frame with axes. Colours are the page's (CSS variables
// --s0 to --s5, --ink, --soft, --line), so that one drawing serves a light and a dark page.
#pragma once

#include <string>
#include <vector>

namespace sluice::profile {

/// A text for HTML and SVG: & < > and quotes escaped.
std::string escaped(const std::string& text);

/// A number in three digits: "1.23", "45.6", "789".
std::string short_number(double value);

struct Bar {
  std::string name, label;  ///< left of the bar, right of it
  double value = 0;
  double part = 0;  ///< of the value, drawn darker
};
/// Horizontal bars below each other.
std::string bars_svg(const std::vector<Bar>& bars);

struct Point {
  double x = 0, y = 0, radius = 4;
  std::string name;  ///< beside it
  int series = 0;
  std::string title = {};  ///< shown when it is pointed at; empty: the name
};
struct Line {
  std::string name;
  int series = 0;
  bool dashed = false;
  std::vector<Point> points;
};
struct Axis {
  std::string name;
  bool logarithmic = false;
};
/// Lines and named points; the frame fits them all.
std::string plot_svg(const Axis& x, const Axis& y, const std::vector<Line>& lines,
                     const std::vector<Point>& points);

struct Stack {
  std::string name;
  std::vector<double> parts;  ///< by series
};
/// Columns of stacked parts beside each other, with a legend.
std::string stacks_svg(const Axis& y, const std::vector<std::string>& series,
                       const std::vector<Stack>& stacks);

}  // namespace sluice::profile
