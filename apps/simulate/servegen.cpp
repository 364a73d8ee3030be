// ServeGen's client populations: each client's rate and burstiness in windows of
// ten minutes, and its lengths in windows of six hours, drawn into a trace.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numbers>

#include "base/rng.h"
#include "lines.h"
#include "trace_files.h"

namespace sluice {
namespace {

using nlohmann::json;

constexpr double kRateWindow = 600;  // seconds
constexpr double kLengthWindow = 21600;
constexpr std::size_t kMostRequests = 20'000'000;

struct Histogram {
  std::vector<std::int32_t> values;
  std::vector<double> sums;  // of counts up to here

  static Histogram of(const json& row) {
    Histogram h;
    const json& counts = row.contains("c") ? row.at("c") : row.at("p");
    if (counts.size() != row.at("v").size()) throw std::runtime_error("v and c differ in length");
    double sum = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      sum += counts[i].get<double>();
      h.values.push_back(static_cast<std::int32_t>(row.at("v")[i].get<double>()));
      h.sums.push_back(sum);
    }
    if (!(sum > 0)) throw std::runtime_error("a histogram without counts");
    return h;
  }
  std::int32_t draw(Rng& rng) const {
    const double x = rng.uniform() * sums.back();
    const auto i = std::upper_bound(sums.begin(), sums.end() - 1, x) - sums.begin();
    return std::max(1, values[static_cast<std::size_t>(i)]);
  }
};

struct Lengths {
  Histogram input;
  Histogram output;
};
// By client, then by the window's begin; whoever has none draws from anybody's.
using LengthTable = std::map<int, std::map<double, Lengths>>;

Result<LengthTable> parse_lengths(const std::string& text) {
  LengthTable table;
  Lines lines(text);
  for (auto line = lines.next(); line; line = lines.next()) {
    try {
      const json row = json::parse(*line);
      table[row.at("client").get<int>()][row.at("t").get<double>()] = {
          Histogram::of(row.at("input_tokens")), Histogram::of(row.at("output_tokens"))};
    } catch (const std::exception& e) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("lengths: line {}: {}", lines.number(), e.what()));
    }
  }
  if (table.empty()) return fail(ErrorCode::kInvalidArgument, "the file of lengths is empty");
  return table;
}

double normal(Rng& rng) {
  return std::sqrt(-2 * std::log(1 - rng.uniform())) *
         std::cos(2 * std::numbers::pi * rng.uniform());
}

// Marsaglia and Tsang, of scale 1.
double gamma(double shape, Rng& rng) {
  if (shape < 1) return gamma(shape + 1, rng) * std::pow(1 - rng.uniform(), 1 / shape);
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = normal(rng);
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - rng.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      return d * v;
    }
  }
}

struct Window {
  double rate = 0;
  bool weibull = false;
  double shape = 1;

  // Time to the next arrival, of mean 1 / rate.
  [[nodiscard]] double gap(Rng& rng) const {
    if (weibull) {
      const double x = std::pow(-std::log(1 - rng.uniform()), 1 / shape);
      return x / std::tgamma(1 + 1 / shape) / rate;
    }
    return gamma(shape, rng) / shape / rate;
  }
};

const Lengths& lengths_of(const LengthTable& table, int client, double t, Rng& rng) {
  auto it = table.find(client);
  if (it == table.end()) {
    it = std::next(table.begin(), static_cast<std::ptrdiff_t>(rng.below(table.size())));
  }
  const auto after = it->second.upper_bound(std::floor(t / kLengthWindow) * kLengthWindow);
  return after == it->second.begin() ? after->second : std::prev(after)->second;
}

}  // namespace

Result<Trace> draw_servegen(const std::string& rates, const std::string& lengths,
                            const TraceSource& source) {
  TRY(const LengthTable table, parse_lengths(lengths));
  const double begin = to_seconds(source.begin);
  const double end = source.end == Duration::max() ? 1e18 : to_seconds(source.end);
  Rng rng(source.seed);
  Trace trace;
  Lines lines(rates);
  lines.next();  // client, t, rate, cv, pattern, arg1, arg2
  for (auto line = lines.next(); line; line = lines.next()) {
    const auto f = fields_of(*line);
    const auto number = [&](std::size_t i) {
      return i < f.size() ? number_of(f[i]) : std::nullopt;
    };
    const auto client = number(0), t = number(1), rate = number(2), shape = number(5);
    const bool known = f.size() > 4 && (f[4] == "Gamma" || f[4] == "Weibull");
    if (!client || !t || !rate || !shape || !known || *shape <= 0 || *rate < 0 || *rate > 1e6) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("rates: line {}: not client, t, rate, cv, Gamma or Weibull, shape, "
                              "scale",
                              lines.number()));
    }
    if (*t + kRateWindow <= begin || *t >= end || *rate == 0) continue;
    const Window window{*rate, f[4] == "Weibull", *shape};
    const double last = std::min(end, *t + kRateWindow);
    // The first gap is cut by the window's begin anywhere in it.
    double at = *t + window.gap(rng) * rng.uniform();
    for (; at < last; at += window.gap(rng)) {
      if (at < begin) continue;
      const Lengths& l = lengths_of(table, static_cast<int>(*client), *t, rng);
      trace.requests.push_back({.arrival = from_seconds(at - begin),
                                .prompt_tokens = l.input.draw(rng),
                                .output_tokens = l.output.draw(rng)});
      if (trace.requests.size() > kMostRequests) {
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("more than {} requests: choose a shorter time", kMostRequests));
      }
    }
  }
  put_in_order(trace);
  return trace;
}

}  // namespace sluice
