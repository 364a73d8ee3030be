#include "runs.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "memory/memory_policy.h"
#include "simulation/decode_choice.h"

namespace sluice {
namespace {

WorldOptions world_options(const SimulateOptions& options, const ClusterSpec& cluster,
                           const RunKey& key, const Trace& trace) {
  WorldOptions w;
  w.nodes = cluster.nodes;
  if (trace.blocks.empty()) {  // nothing is shared: a prefix cache would only cost time here
    for (NodeOptions& node : w.nodes) node.engine.kv.prefix_cache = false;
  }
  for (NodeOptions& node : w.nodes) {
    node.engine.kv.policy = memory_policy_of(key.memory).value_or(MemoryPolicy::kWindowed);
    w.true_lengths = node.engine.kv.policy == MemoryPolicy::kOracle;
  }
  w.policy = key.policy;
  w.decode = parse_decode_choice(key.decode).value_or(DecodeChoice{});
  w.limits.max_waiting = cluster.max_waiting;
  w.scheduler.queue_limit = cluster.queue_limit;
  w.scheduler.ledger = options.ledger;
  w.network = cluster.network;
  if (options.report_delay_s >= 0) w.network.report_delay = from_seconds(options.report_delay_s);
  w.limits.max_report_age += w.network.report_delay;
  w.gone_after += w.network.report_delay;
  w.faults = cluster.faults;
  w.seed = key.seed;
  w.max_tokens = options.max_tokens;
  constexpr double kSamples = 400;
  w.sample_interval = from_seconds(std::max(0.05, to_seconds(trace.span()) / kSamples));
  return w;
}

RunResult run_one(const SimulateOptions& options, const Trace& base, const ClusterSpec& cluster,
                  const ServiceLevel& level, const RunKey& key,
                  const std::function<void(double)>& progress) {
  Trace trace = base;
  scale_rate(trace, key.rate);
  const auto devices = cluster.profiles();
  const auto model = make_trace_model(trace, devices);
  const SteadyClock wall;
  const TimePoint begin = wall.now();
  World world(world_options(options, cluster, key, trace), trace, *model);
  RunResult result;
  result.key = key;
  result.finished = world.run(progress);
  result.wall_s = to_seconds(wall.now() - begin);
  result.events = world.events();
  result.violations = world.violations();
  result.summary = summarize(world, trace, devices, level);
  result.limit = fluid_limit(trace, world.options().nodes, devices, level);
  if (key.seed == static_cast<std::uint64_t>(options.first_seed)) {
    result.ttft_s = ttfts(world);
    result.tpot_s = tpots(world);
    result.samples = world.samples();
    result.begin = world.begin();
  }
  return result;
}

}  // namespace

std::vector<RunResult> run_all(const SimulateOptions& options, const Trace& base,
                               const ClusterSpec& cluster, const ServiceLevel& level,
                               const std::function<void(double)>& progress) {
  std::vector<RunKey> keys;
  for (const std::string& policy : options.policies) {
    for (const std::string& memory : options.memory_policies) {
      for (const std::string& decode : options.decode_choices) {
        for (const double rate : options.rates) {
          for (std::int32_t s = 0; s < options.seeds; ++s) {
            const auto seed = static_cast<std::uint64_t>(options.first_seed + s);
            keys.push_back({policy, memory, decode, rate, seed});
          }
        }
      }
    }
  }
  std::vector<RunResult> results(keys.size());
  std::vector<double> done(keys.size(), 0);
  std::atomic<std::size_t> next{0};
  std::mutex mutex;  // of `done` and of what progress() does
  const auto work = [&] {
    for (std::size_t i = next++; i < keys.size(); i = next++) {
      const auto report = [&, i](double share) {
        const std::lock_guard lock(mutex);
        done[i] = share;
        double sum = 0;
        for (const double d : done) sum += d;
        progress(sum / static_cast<double>(done.size()));
      };
      results[i] = run_one(options, base, cluster, level, keys[i], report);
      report(1);
    }
  };
  const auto cores = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t jobs = options.jobs > 0 ? static_cast<std::size_t>(options.jobs) : cores;
  std::vector<std::jthread> threads;
  for (std::size_t t = 1; t < std::min(jobs, keys.size()); ++t) threads.emplace_back(work);
  work();
  threads.clear();  // joins
  return results;
}

std::vector<MeanResult> means_of(const std::vector<RunResult>& runs) {
  const std::string_view kDefault = name_of(MemoryPolicy::kWindowed);
  std::vector<MeanResult> means;
  for (std::size_t begin = 0; begin < runs.size();) {
    const RunKey& key = runs[begin].key;
    std::vector<Summary> same;
    std::size_t end = begin;
    const auto is_same = [&key](const RunKey& k) {
      return k.policy == key.policy && k.memory == key.memory && k.decode == key.decode &&
             k.rate == key.rate;
    };
    for (; end < runs.size() && is_same(runs[end].key); ++end) {
      same.push_back(runs[end].summary);
    }
    std::string name = key.policy;
    if (key.memory != kDefault) name += "/" + key.memory;
    if (key.decode != "local") name += " " + key.decode;
    MeanResult mean{std::move(name), key.rate,        mean_of(same),
                    same[0].goodput, same[0].goodput, &runs[begin]};
    for (const Summary& s : same) {
      mean.goodput_low = std::min(mean.goodput_low, s.goodput);
      mean.goodput_high = std::max(mean.goodput_high, s.goodput);
    }
    means.push_back(std::move(mean));
    begin = end;
  }
  return means;
}

}  // namespace sluice
