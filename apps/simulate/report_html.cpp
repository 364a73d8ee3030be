#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "reports.h"
#include "svg.h"

namespace sluice {
namespace {

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>sluice simulate</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1180px; padding: 0 1em;
       color: #1d2430; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .25em .7em; text-align: right; border-bottom: 1px solid #e3e6ea; }
th:first-child, td:first-child { text-align: left; }
.best { font-weight: 700; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 1em; }
svg { width: 100%; height: auto; font-size: 11px; }
.grid { stroke: #e3e6ea; fill: none; } .line { fill: none; stroke-width: 1.6; }
.title { font-size: 13px; font-weight: 600; }
svg text { fill: #49515c; }
</style>
)";

std::string table(const std::vector<MeanResult>& means) {
  std::map<double, double> best;
  for (const MeanResult& m : means) best[m.rate] = std::max(best[m.rate], m.mean.goodput);
  std::string text =
      "<table><tr><th>policy<th>rate<th>goodput, /s<th>over seeds<th>good<th>TTFT p50<th>p99"
      "<th>TPOT p50<th>p99<th>cached<th>preempted<th>failed<th>busy<th>imbalance</tr>\n";
  for (const MeanResult& m : means) {
    const Summary& s = m.mean;
    text += fmt::format(
        "<tr{}><td>{}<td>{:g}<td>{:.3f}<td>{:.3f} - {:.3f}<td>{:.1f} %<td>{:.3f} s<td>{:.3f} s"
        "<td>{:.1f} ms<td>{:.1f} ms<td>{:.1f} %<td>{}<td>{}<td>{:.1f} %<td>{:.2f}</tr>\n",
        s.goodput >= best[m.rate] ? " class='best'" : "", escaped(m.policy), m.rate, s.goodput,
        m.goodput_low, m.goodput_high, 100 * s.attainment, s.ttft_s.p50, s.ttft_s.p99,
        1e3 * s.tpot_s.p50, 1e3 * s.tpot_s.p99, 100 * s.cached_share, s.preemptions,
        s.refused + s.failed, 100 * s.utilization, s.imbalance);
  }
  return text + "</table>\n";
}

// One line a policy, over the rates.
Plot over_rates(const std::vector<MeanResult>& means, const char* title, const char* unit,
                double (*value)(const Summary&)) {
  Plot plot{title, "times the trace's rate", unit, {}};
  for (const MeanResult& m : means) {
    if (plot.lines.empty() || plot.lines.back().name != m.policy)
      plot.lines.push_back({m.policy, {}});
    plot.lines.back().points.emplace_back(m.rate, value(m.mean));
  }
  for (Line& line : plot.lines) std::sort(line.points.begin(), line.points.end());
  return plot;
}

Plot spread(const std::vector<const MeanResult*>& means, const char* title,
            std::vector<double> RunResult::*values) {
  Plot plot{title, "seconds", "share of requests", {}, 0, true};
  for (const MeanResult* m : means) {
    plot.lines.push_back(distribution_of(m->policy, m->first->*values));
  }
  return plot;
}

// Every instance a line: how far they lie apart is what a policy is about.
Plot load_over_time(const MeanResult& mean) {
  constexpr std::size_t kMostLines = 64;
  const RunResult& run = *mean.first;
  Plot plot{"KV memory granted: " + mean.policy, "seconds", "share of the blocks", {}};
  plot.legend = false;
  const std::size_t n = run.samples.empty() ? 0 : run.samples.front().kv_share.size();
  for (std::size_t i = 0; i < std::min(n, kMostLines); ++i) {
    Line line{fmt::format("instance {}", i), {}};
    for (const LoadSample& s : run.samples) {
      line.points.emplace_back(to_seconds(s.at - run.begin), s.kv_share[i]);
    }
    plot.lines.push_back(std::move(line));
  }
  return plot;
}

Plot waiting_over_time(const std::vector<const MeanResult*>& means) {
  Plot plot{"Requests that wait at the instances", "seconds", "requests", {}};
  for (const MeanResult* m : means) {
    Line line{m->policy, {}};
    for (const LoadSample& s : m->first->samples) {
      double sum = 0;
      for (const std::int32_t waiting : s.waiting) sum += waiting;
      line.points.emplace_back(to_seconds(s.at - m->first->begin), sum);
    }
    plot.lines.push_back(std::move(line));
  }
  return plot;
}

}  // namespace

std::string html_of(const SimulateOptions& options, const Trace& trace,
                    const std::vector<MeanResult>& means) {
  std::string html = kHead;
  html += fmt::format(
      "<h1>{} on {}</h1><p>{} requests over {:.0f} s at rate 1. Good: {} (and 3 x the request's "
      "own "
      "prefill time). Report delay {} s, ledger {}, {} seed(s). Bold: most good requests a second "
      "at that rate.</p>\n",
      escaped(trace.name), escaped(options.cluster), trace.requests.size(),
      to_seconds(trace.span()), escaped(options.slo), std::max(0.0, options.report_delay_s),
      options.ledger ? "on" : "off", options.seeds);
  html += table(means) + "<div class='plots'>\n";
  if (options.rates.size() > 1) {
    html += svg_of(
        over_rates(means, "Good requests", "share", [](const Summary& s) { return s.attainment; }));
    html += svg_of(
        over_rates(means, "Goodput", "requests/s", [](const Summary& s) { return s.goodput; }));
    html += svg_of(over_rates(means, "Time to first token, p99", "seconds",
                              [](const Summary& s) { return s.ttft_s.p99; }));
  }
  // Distributions and load of the last rate, where differences show most.
  std::vector<const MeanResult*> last;
  for (const MeanResult& m : means) {
    if (m.rate == options.rates.back()) last.push_back(&m);
  }
  html += svg_of(spread(last, "Time to first token", &RunResult::ttft_s));
  html += svg_of(spread(last, "Time per output token", &RunResult::tpot_s));
  html += svg_of(waiting_over_time(last));
  for (const MeanResult* m : last) html += svg_of(load_over_time(*m));
  return html + "</div></html>\n";
}

}  // namespace sluice
