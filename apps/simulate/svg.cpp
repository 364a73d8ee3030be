#include "svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace sluice {
namespace {

constexpr double kWidth = 560;
constexpr double kHeight = 320;
constexpr double kLeft = 62;
constexpr double kRight = 12;
constexpr double kTop = 28;
constexpr double kBottom = 44;
// Distinct for colour-blind readers, after Okabe and Ito.
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#6a3d9a", "#444444"};

struct Axis {
  double least = 0;
  double most = 1;
  bool log = false;
  double from = 0;  // pixels
  double to = 1;

  [[nodiscard]] double at(double value) const {
    const auto scaled = [this](double v) { return log ? std::log10(v) : v; };
    const double share = (scaled(value) - scaled(least)) / (scaled(most) - scaled(least));
    return from + share * (to - from);
  }
  [[nodiscard]] std::vector<double> ticks() const {
    std::vector<double> ticks;
    if (log) {
      for (double t = std::pow(10, std::ceil(std::log10(least) - 1e-9)); t <= most * 1.0001;
           t *= 10)
        ticks.push_back(t);
      return ticks;
    }
    const double raw = (most - least) / 5;
    const double power = std::pow(10, std::floor(std::log10(raw)));
    double step = 10 * power;
    for (const double nice : {1.0, 2.0, 5.0}) {
      if (nice * power >= raw) {
        step = nice * power;
        break;
      }
    }
    for (double t = std::ceil(least / step) * step; t <= most + step * 1e-6; t += step) {
      ticks.push_back(t);
    }
    return ticks;
  }
};

void fit(const Plot& plot, Axis& x, Axis& y) {
  constexpr double kBig = std::numeric_limits<double>::infinity();
  x = {kBig, -kBig, plot.log_x, kLeft, kWidth - kRight};
  y = {plot.y_least, -kBig, false, kHeight - kBottom, kTop};
  for (const Line& line : plot.lines) {
    for (const auto& [px, py] : line.points) {
      if (plot.log_x && px <= 0) continue;
      x.least = std::min(x.least, px);
      x.most = std::max(x.most, px);
      y.most = std::max(y.most, py);
    }
  }
  if (!(x.least < x.most)) x.least = x.most == -kBig ? 0.1 : x.most * 0.5, x.most = x.least + 1;
  if (!(y.least < y.most)) y.most = y.least + 1;
}

void draw_axes(const Plot& plot, const Axis& x, const Axis& y, std::string& svg) {
  for (const double t : x.ticks()) {
    svg += fmt::format(
        "<path class='grid' d='M{0:.1f} {1}V{2}'/><text x='{0:.1f}' y='{3}' text-anchor='middle'>"
        "{4:.4g}</text>\n",
        x.at(t), kTop, kHeight - kBottom, kHeight - kBottom + 15, t);
  }
  for (const double t : y.ticks()) {
    svg += fmt::format(
        "<path class='grid' d='M{0} {1:.1f}H{2}'/><text x='{3}' y='{4:.1f}' text-anchor='end'>"
        "{5:.4g}</text>\n",
        kLeft, y.at(t), kWidth - kRight, kLeft - 5, y.at(t) + 4, t);
  }
  svg += fmt::format(
      "<text class='title' x='{}' y='17'>{}</text><text x='{}' y='{}' text-anchor='middle'>{}"
      "</text><text transform='translate(14 {}) rotate(-90)' text-anchor='middle'>{}</text>\n",
      kLeft, escaped(plot.title), (kLeft + kWidth) / 2, kHeight - 10, escaped(plot.x),
      (kTop + kHeight - kBottom) / 2, escaped(plot.y));
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string svg_of(const Plot& plot) {
  Axis x;
  Axis y;
  fit(plot, x, y);
  std::string svg = fmt::format("<svg viewBox='0 0 {} {}' role='img'>\n", kWidth, kHeight);
  draw_axes(plot, x, y, svg);
  for (std::size_t i = 0; i < plot.lines.size(); ++i) {
    const Line& line = plot.lines[i];
    const char* colour = kColours[i % kColours.size()];
    std::string path;
    for (const auto& [px, py] : line.points) {
      if (plot.log_x && px <= 0) continue;
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? 'M' : 'L', x.at(px), y.at(py));
    }
    const char* dash = i < kColours.size() ? "" : " stroke-dasharray='5 3'";
    svg += fmt::format("<path class='line' stroke='{}'{} d='{}'><title>{}</title></path>\n", colour,
                       dash, path, escaped(line.name));
    if (!plot.legend) continue;
    svg += fmt::format("<text x='{}' y='{}' text-anchor='end' fill='{}'>{}</text>\n",
                       kWidth - kRight - 4, kHeight - kBottom - 6 - 13.0 * static_cast<double>(i),
                       colour, escaped(line.name));
  }
  return svg + "</svg>\n";
}

Line distribution_of(std::string name, std::vector<double> values) {
  Line line{std::move(name), {}};
  std::sort(values.begin(), values.end());
  constexpr std::size_t kPoints = 200;
  const std::size_t n = values.size();
  for (std::size_t k = 1; k <= kPoints && n > 0; ++k) {
    const std::size_t i = std::max<std::size_t>(1, n * k / kPoints);
    line.points.emplace_back(values[i - 1], static_cast<double>(i) / static_cast<double>(n));
  }
  return line;
}

}  // namespace sluice
