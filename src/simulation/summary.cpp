#include "simulation/summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/check.h"

namespace sluice {
namespace {

bool completed(const Answer& a) {
  return a.finish == FinishReason::kStop || a.finish == FinishReason::kLength;
}

double ttft_of(const Answer& a) {
  return to_seconds(a.first - a.arrival);
}

// Of a single token there is none.
double tpot_of(const Answer& a) {
  return a.tokens < 2 ? 0 : to_seconds(a.last - a.first) / (a.tokens - 1);
}

double imbalance_of(const std::vector<LoadSample>& samples) {
  double sum = 0;
  double weight = 0;
  for (const LoadSample& s : samples) {
    double total = 0;
    double largest = 0;
    for (const std::int32_t tokens : s.kv_tokens) {
      total += tokens;
      largest = std::max<double>(largest, tokens);
    }
    if (total <= 0) continue;
    const double mean = total / static_cast<double>(s.kv_tokens.size());
    sum += total * largest / mean;  // weighted by load: an idle cluster has no balance
    weight += total;
  }
  return weight > 0 ? sum / weight : 1;
}

}  // namespace

Quantiles quantiles_of(std::vector<double> values) {
  if (values.empty()) return {};
  const auto at = [&](double q) {
    const auto i = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
    std::nth_element(values.begin(), values.begin() + i, values.end());
    return values[static_cast<std::size_t>(i)];
  };
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {sum / static_cast<double>(values.size()), at(0.5), at(0.9), at(0.99)};
}

std::vector<double> ttfts(const World& world) {
  std::vector<double> values;
  for (const Answer& a : world.answers()) {
    if (completed(a)) values.push_back(ttft_of(a));
  }
  return values;
}

std::vector<double> tpots(const World& world) {
  std::vector<double> values;
  for (const Answer& a : world.answers()) {
    if (completed(a) && a.tokens > 1) values.push_back(tpot_of(a));
  }
  return values;
}

Summary summarize(const World& world, const Trace& trace,
                  const std::vector<const DeviceProfile*>& devices, const ServiceLevel& level) {
  Summary s;
  s.requests = trace.requests.size();
  TimePoint last_arrival = world.begin();
  TimePoint end = world.begin();
  std::vector<double> e2e;
  std::vector<double> second;
  std::vector<double> longest;
  double tokens = 0;
  double prompt = 0;
  double cached = 0;
  // Times to be first are those of the device that a cluster has most of.
  const DeviceProfile& device = *devices.front();
  const std::int32_t chunk = world.options().nodes.front().engine.batch.max_step_tokens;
  std::map<std::int32_t, double> alone;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const Answer& a = world.answers()[i];
    const std::int32_t length = trace.requests[i].prompt_tokens;
    last_arrival = std::max(last_arrival, a.arrival);
    end = std::max(end, a.last);
    tokens += a.tokens;
    if (a.finish == FinishReason::kError) {
      const bool refusal = a.error == ErrorCode::kBusy || a.error == ErrorCode::kNeverFits;
      (refusal ? s.refused : s.failed) += 1;
    }
    if (!completed(a)) continue;
    s.completed += 1;
    prompt += length;
    cached += a.cached;
    e2e.push_back(to_seconds(a.last - a.arrival));
    if (a.tokens > 1) {
      second.push_back(to_seconds(a.second - a.first));
      longest.push_back(to_seconds(a.longest_gap));
    }
    const auto [it, added] = alone.try_emplace(length, 0);
    if (added) it->second = device.prefill_seconds(length, chunk);
    const bool good = ttft_of(a) <= level.ttft_s + level.ttft_prefill_factor * it->second &&
                      tpot_of(a) <= level.tpot_s;
    s.good += good ? 1 : 0;
  }
  const double arriving = std::max(1e-9, to_seconds(last_arrival - world.begin()));
  s.seconds = to_seconds(end - world.begin());
  s.offered = static_cast<double>(s.requests) / arriving;
  s.goodput = static_cast<double>(s.good) / arriving;
  s.attainment =
      s.requests == 0 ? 0 : static_cast<double>(s.good) / static_cast<double>(s.requests);
  s.ttft_s = quantiles_of(ttfts(world));
  s.tpot_s = quantiles_of(tpots(world));
  const GapHistogram& gaps = world.gaps();
  s.gap_s = {gaps.mean(), gaps.quantile(0.5), gaps.quantile(0.9), gaps.quantile(0.99)};
  s.longest_gap_s = quantiles_of(std::move(longest));
  s.e2e_s = quantiles_of(std::move(e2e));
  s.second_s = quantiles_of(std::move(second));
  s.output_tokens_per_s = s.seconds > 0 ? tokens / s.seconds : 0;
  s.cached_share = prompt > 0 ? cached / prompt : 0;
  for (const auto& node : world.nodes()) {
    s.preemptions += node->preemptions();
    s.steps += node->steps();
    s.utilization += node->busy_seconds();
    s.handoffs += node->handoffs();
  }
  s.utilization /= std::max(s.seconds, 1e-9) * static_cast<double>(world.nodes().size());
  s.imbalance = imbalance_of(world.samples());
  s.hash = world.hash();
  return s;
}

Summary mean_of(const std::vector<Summary>& runs) {
  CHECK(!runs.empty());
  const auto n = static_cast<double>(runs.size());
  const auto mean = [&](auto field) {
    double sum = 0;
    for (const Summary& run : runs) sum += static_cast<double>(field(run));
    return sum / n;
  };
  const auto count = [&](auto field) { return static_cast<std::size_t>(mean(field) + 0.5); };
  const auto handoffs = [&](std::int64_t HandoffCounts::*of) {
    return std::llround(mean([of](const Summary& s) { return s.handoffs.*of; }));
  };
  const auto spread = [&](Quantiles Summary::*of) {
    return Quantiles{mean([of](const Summary& s) { return (s.*of).mean; }),
                     mean([of](const Summary& s) { return (s.*of).p50; }),
                     mean([of](const Summary& s) { return (s.*of).p90; }),
                     mean([of](const Summary& s) { return (s.*of).p99; })};
  };
  Summary m = runs.front();
  m.completed = count([](const Summary& s) { return s.completed; });
  m.refused = count([](const Summary& s) { return s.refused; });
  m.failed = count([](const Summary& s) { return s.failed; });
  m.good = count([](const Summary& s) { return s.good; });
  m.seconds = mean([](const Summary& s) { return s.seconds; });
  m.offered = mean([](const Summary& s) { return s.offered; });
  m.goodput = mean([](const Summary& s) { return s.goodput; });
  m.attainment = mean([](const Summary& s) { return s.attainment; });
  m.ttft_s = spread(&Summary::ttft_s);
  m.tpot_s = spread(&Summary::tpot_s);
  m.gap_s = spread(&Summary::gap_s);
  m.longest_gap_s = spread(&Summary::longest_gap_s);
  m.e2e_s = spread(&Summary::e2e_s);
  m.second_s = spread(&Summary::second_s);
  m.output_tokens_per_s = mean([](const Summary& s) { return s.output_tokens_per_s; });
  m.cached_share = mean([](const Summary& s) { return s.cached_share; });
  m.preemptions =
      static_cast<std::int64_t>(mean([](const Summary& s) { return s.preemptions; }) + 0.5);
  m.steps = static_cast<std::int64_t>(mean([](const Summary& s) { return s.steps; }) + 0.5);
  m.utilization = mean([](const Summary& s) { return s.utilization; });
  m.imbalance = mean([](const Summary& s) { return s.imbalance; });
  for (const auto of : {&HandoffCounts::moved, &HandoffCounts::stayed, &HandoffCounts::other_ends,
                        &HandoffCounts::refused, &HandoffCounts::lost, &HandoffCounts::bytes,
                        &HandoffCounts::taken, &HandoffCounts::expired}) {
    m.handoffs.*of = handoffs(of);
  }
  return m;
}

}  // namespace sluice
