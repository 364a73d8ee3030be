// Placement and report updates with 10,000 instances; the budgets are 10 us at
// p99 and 1 us.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "scheduling/decision_inputs.h"
#include "scheduling/ledger.h"
#include "scheduling/load_table.h"
#include "scheduling/placement.h"
#include "scheduling/test_support.h"

namespace sluice {
namespace {

constexpr std::uint32_t kInstances = 10'000;

// Of this thread: other people's work on a shared machine does not count.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct World {
  LoadTable table;
  Ledger ledger{table};
  explicit World(double fill) {
    Rng rng(1);
    for (std::uint32_t i = 0; i < kInstances; ++i) {
      table.update(fill < 0 ? idle_report(i) : random_report(i, rng, fill), kTestStart);
    }
  }
};

// Arguments: the policy's place in policy_names(), memory in use in percent (-1: all idle).
void place(benchmark::State& state) {
  World world(static_cast<double>(state.range(1)) / 100);
  const char* name = policy_names()[static_cast<std::size_t>(state.range(0))];
  const auto policy = make_policy(name, {}, Rng(7));
  Rng rng(3);
  std::vector<double> took;
  std::int64_t placed = 0;
  std::uint64_t id = 0;
  for (auto _ : state) {
    PlacementQuery q{.request = RequestId{++id},
                     .role = Role::kPrefill,
                     .prompt_tokens = static_cast<std::int32_t>(1 + rng.below(4000)),
                     .max_new_tokens = static_cast<std::int32_t>(1 + rng.below(1000)),
                     .now = kTestStart};
    const double begin = cpu_seconds();
    const Decision d = policy->place(q, world.table);
    const double time = cpu_seconds() - begin;
    took.push_back(time);
    if (d.placement) {
      ++placed;
      world.ledger.add(q.request, d.placement->instance, q.prompt_tokens, 100, kTestStart);
      world.ledger.remove(RequestId{id > 20'000 ? id - 20'000 : 0});
    }
    state.SetIterationTime(time);
  }
  std::sort(took.begin(), took.end());
  state.counters["p50_us"] = 1e6 * took[took.size() / 2];
  state.counters["p99_us"] = 1e6 * took[took.size() * 99 / 100];
  state.counters["placed"] = static_cast<double>(placed) / static_cast<double>(took.size());
  state.SetLabel(name);
}
BENCHMARK(place)
    ->UseManualTime()
    ->Iterations(20'000)
    ->ArgsProduct({{0}, {-100, 30, 70, 90, 97, 100}})
    ->ArgsProduct({{1, 2, 3, 4}, {70}});

// What keeping a decision's inputs adds. Arguments: instances; 0 or 1: kept.
void place_and_keep(benchmark::State& state) {
  LoadTable table;
  Rng rng(1);
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(state.range(0)); ++i) {
    table.update(random_report(i, rng, 0.7), kTestStart);
  }
  const auto policy = make_policy("forecast", {}, Rng(7));
  std::vector<Decision> last(256);
  std::size_t next = 0;
  for (auto _ : state) {
    const PlacementQuery q{.request = RequestId{next + 1},
                           .prompt_tokens = static_cast<std::int32_t>(1 + rng.below(4000)),
                           .max_new_tokens = static_cast<std::int32_t>(1 + rng.below(1000)),
                           .now = kTestStart};
    const PlacementPolicy::State before = policy->state();
    Decision d = policy->place(q, table);
    if (state.range(1) != 0) d.inputs = inputs_of(d, q, table, before);
    last[next++ % last.size()] = std::move(d);
  }
}
BENCHMARK(place_and_keep)->ArgsProduct({{3, 16, 64, 1000, 10'000}, {0, 1}});

void update_report(benchmark::State& state) {
  World world(0.7);
  Rng rng(5);
  std::vector<LoadReport> reports;
  for (std::uint32_t i = 0; i < kInstances; ++i) reports.push_back(random_report(i, rng, 0.7));
  std::uint64_t sequence = 1;
  std::size_t next = 0;
  for (auto _ : state) {
    state.PauseTiming();
    LoadReport report = reports[next * 7919 % kInstances];
    if (next++ % kInstances == 0) ++sequence;
    report.sequence = sequence;
    state.ResumeTiming();
    benchmark::DoNotOptimize(world.table.update(std::move(report), kTestStart));
  }
}
BENCHMARK(update_report)->Iterations(200'000);

void ledger_add_remove(benchmark::State& state) {
  World world(0.7);
  Rng rng(5);
  std::uint64_t id = 0;
  for (auto _ : state) {
    const RequestId request{++id};
    world.ledger.add(request, InstanceId{static_cast<std::uint32_t>(rng.below(kInstances))}, 500,
                     40, kTestStart);
    world.ledger.remove(request);
  }
}
BENCHMARK(ledger_add_remove)->Iterations(200'000);

}  // namespace
}  // namespace sluice
