// A line plot as SVG text.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace sluice {

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;  // ascending x
};

struct Plot {
  std::string title;
  std::string x;
  std::string y;
  std::vector<Line> lines;
  double y_least = 0;  // of the axis, at least down to here
  bool log_x = false;  // x > 0
  bool legend = true;  // false: too many lines to name
};

[[nodiscard]] std::string svg_of(const Plot& plot);

// The distribution of the values: at most 200 points of (value, share not above).
[[nodiscard]] Line distribution_of(std::string name, std::vector<double> values);

[[nodiscard]] std::string escaped(const std::string& text);

}  // namespace sluice
