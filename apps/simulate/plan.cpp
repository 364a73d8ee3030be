#include "plan.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <stdexcept>

#include "runs.h"
#include "trace_files.h"

namespace sluice {
namespace {

// One run of every seed: all unified where `prefill` is 0, else so many prefill and the
// others decode.
Summary try_out(const PlanOptions& options, const Trace& trace, const ServiceLevel& level,
                double rate, std::int32_t instances, std::int32_t prefill) {
  SimulateOptions run = options.simulate;
  run.rates = {rate};
  run.cluster = fmt::format("{}x{}", instances, options.device);
  auto cluster = read_cluster(run.cluster);
  if (!cluster) throw std::runtime_error(cluster.error().message);
  if (prefill > 0) {
    const Status roles = set_roles(*cluster, prefill, instances - prefill);
    if (!roles) throw std::runtime_error(roles.error().message);
  }
  return means_of(run_all(run, trace, *cluster, level, [](double) {})).front().mean;
}

// Share of good requests by number of instances, each simulated once.
class Curve {
 public:
  Curve(const PlanOptions& options, const Trace& trace, const ServiceLevel& level, double rate)
      : options_(options), trace_(trace), level_(level), rate_(rate) {}

  const Summary& at(std::int32_t instances) {
    const auto known = points_.find(instances);
    if (known != points_.end()) return known->second;
    const Summary summary = try_out(options_, trace_, level_, rate_, instances, 0);
    return points_.emplace(instances, summary).first->second;
  }

  // The least number that attains the share: doubling, then halving the interval.
  // Goodness grows with instances but for chance, which the curve shows.
  std::int32_t least(std::int32_t most) {
    std::int32_t enough = 1;
    while (!attains(enough)) {
      if (enough == most) return 0;
      enough = std::min(2 * enough, most);
    }
    std::int32_t too_few = enough / 2;
    while (enough - too_few > 1) {
      const std::int32_t middle = (enough + too_few) / 2;
      (attains(middle) ? enough : too_few) = middle;
    }
    return enough;
  }

  [[nodiscard]] const std::map<std::int32_t, Summary>& points() const { return points_; }

 private:
  bool attains(std::int32_t instances) { return at(instances).attainment >= options_.attainment; }

  const PlanOptions& options_;
  const Trace& trace_;
  const ServiceLevel& level_;
  const double rate_;
  std::map<std::int32_t, Summary> points_;
};

void print_row(const std::string& name, const Summary& s, bool best) {
  fmt::print("{:>9} {:>7.1f}% {:>8.2f}s {:>7.1f}ms {:>7.2f}/s {:>6.1f}%{}\n", name,
             100 * s.attainment, s.ttft_s.p99, 1e3 * s.tpot_s.p99, s.goodput, 100 * s.utilization,
             best ? "  <" : "");
}

// The same number of instances, prefill and decode apart, in up to `options.splits` ratios.
void try_splits(const PlanOptions& options, const Trace& trace, const ServiceLevel& level,
                std::int32_t instances, const Summary& unified) {
  std::map<std::int32_t, Summary> by_prefill;
  for (std::int32_t i = 1; i <= options.splits; ++i) {
    const std::int32_t prefill = instances * i / (options.splits + 1);
    if (prefill < 1 || by_prefill.contains(prefill)) continue;
    by_prefill[prefill] = try_out(options, trace, level, options.rate, instances, prefill);
  }
  if (by_prefill.empty()) return;
  const auto best = std::ranges::max_element(
      by_prefill, {}, [](const auto& entry) { return entry.second.attainment; });
  const bool apart = best->second.attainment > unified.attainment;
  fmt::print("prefill + decode, of {} instances:\n", instances);
  print_row("unified", unified, !apart);
  for (const auto& [prefill, s] : by_prefill) {
    print_row(fmt::format("{} + {}", prefill, instances - prefill), s,
              apart && prefill == best->first);
  }
}

}  // namespace

void add_plan_options(CLI::App& app, PlanOptions& o) {
  SimulateOptions& s = o.simulate;
  s.policies = {"forecast"};
  app.add_option("--trace", s.trace, "a trace's name or a file")->required();
  app.add_option("--traces", s.trace_folder, "folder of the traces with names")
      ->capture_default_str();
  app.add_option("--device", o.device, "a built-in device or a profile's file")
      ->capture_default_str();
  app.add_option("--slo", s.slo, "what counts as good")->capture_default_str();
  app.add_option("--attainment", o.attainment, "share of requests that must be good")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  app.add_option("--rate", o.rate, "times the trace's own rate")
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  app.add_option("--policy", s.policies, "how an instance is chosen")->expected(1);
  app.add_option("--from", s.from_s, "second of the trace to begin at")
      ->check(CLI::Range(0.0, 1e9));
  app.add_option("--to", s.to_s, "second of the trace to end at")->check(CLI::Range(0.0, 1e9));
  app.add_option("--seeds", s.seeds, "runs of each point")->check(CLI::Range(1, 100));
  app.add_option("--splits", o.splits, "ratios of prefill to decode instances to try; 0: none")
      ->check(CLI::Range(0, 64))
      ->capture_default_str();
  app.add_option("--most", o.most, "instances to try at most")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
}

int plan(const PlanOptions& options) {
  const auto level = parse_service_level(options.simulate.slo);
  if (!level) throw std::runtime_error(level.error().message);
  const Trace trace = load_trace(options.simulate);
  if (make_policy(options.simulate.policies.front(), {}, Rng(1)) == nullptr) {
    throw std::runtime_error(fmt::format("no policy \"{}\"", options.simulate.policies.front()));
  }
  Curve curve(options, trace, *level, options.rate);
  const std::int32_t least = curve.least(options.most);
  if (least > 1) curve.at(least - 1);
  if (least > 0) curve.at(least + 1);
  fmt::print("{:>9} {:>8} {:>9} {:>9} {:>9} {:>7}\n", "instances", "good", "TTFT p99", "TPOT p99",
             "goodput", "busy");
  for (const auto& [instances, s] : curve.points()) {
    print_row(fmt::format("{}", instances), s, instances == least);
  }
  if (least == 0) {
    fmt::print("{} instances of {} are not enough\n", options.most, options.device);
    return 1;
  }
  fmt::print("{} instances of {} answer {:.0f} % of {} at {:g} times its rate within {}\n", least,
             options.device, 100 * options.attainment, trace.name, options.rate,
             options.simulate.slo);
  try_splits(options, trace, *level, least, curve.at(least));
  for (const double factor : {0.8, 1.25}) {
    Curve other(options, trace, *level, options.rate * factor);
    const std::int32_t needed = other.least(options.most);
    if (needed > 0) {
      fmt::print("at {:g} times that: {}\n", factor, needed);
    } else {
      fmt::print("at {:g} times that: more than {}\n", factor, options.most);
    }
  }
  return 0;
}

}  // namespace sluice
