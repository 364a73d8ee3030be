// What the memory manager costs a step: planning a window of 1,000 running
// sequences (goal: 50 us at the 99th percentile), looking up a prompt of 4,000
// tokens in an index of 100,000 blocks, admitting, and forecasting.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "memory/kv_manager.h"
#include "memory/prefix_index.h"

namespace sluice {
namespace {

LengthForecast learned_forecast() {
  LengthForecast forecast;
  Rng rng(1);
  for (int i = 0; i < 5000; ++i) {
    forecast.observe(static_cast<std::int32_t>(1 + rng.below(30) * rng.below(60)), i % 7 == 0);
  }
  return forecast;
}

// `prefills` of them have a prompt left, the others decode at all ages.
std::vector<RunningSequence> running_set(std::size_t count, std::size_t prefills) {
  Rng rng(2);
  std::vector<RunningSequence> running(count);
  for (std::size_t i = 0; i < count; ++i) {
    RunningSequence& s = running[i];
    const auto prompt = static_cast<std::int32_t>(1 + rng.below(2000));
    s.id = SequenceId(i + 1);
    s.prefill_left = i < prefills ? prompt : 1;
    s.generated = i < prefills ? 0 : static_cast<std::int32_t>(1 + rng.below(1500));
    s.held_tokens = i < prefills ? 0 : prompt + s.generated;
    s.held_blocks = (s.held_tokens + 15) / 16;
    s.decode_cap = static_cast<std::int32_t>(1 + rng.below(4000));
  }
  return running;
}

// Of this thread's processor time: other processes do not count.
double thread_micros() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

// Arguments: sequences, prefills among them, free blocks as a share of what the
// longest window needs (percent): below 100 the window is shortened.
void BM_Plan(benchmark::State& state) {
  const auto running = running_set(static_cast<std::size_t>(state.range(0)),
                                   static_cast<std::size_t>(state.range(1)));
  const LengthForecast forecast = learned_forecast();
  const StepTimeModel step_time;
  const WindowPlanner planner({});
  std::int64_t blocks = 0;
  for (const auto& s : running) blocks += planner.writable_tokens(s, 64) / 16 + 1;
  const PlanInput input{.running = running,
                        .free_blocks = blocks * state.range(2) / 100,
                        .total_blocks = 400'000,
                        .planning_cost = std::chrono::microseconds(50)};
  std::vector<double> micros;
  for (auto _ : state) {
    const double begin = thread_micros();
    benchmark::DoNotOptimize(planner.plan(input, step_time, forecast));
    micros.push_back(thread_micros() - begin);
  }
  std::ranges::sort(micros);
  state.counters["p50_us"] = micros[micros.size() / 2];
  state.counters["p99_us"] = micros[micros.size() * 99 / 100];
}
BENCHMARK(BM_Plan)
    ->ArgNames({"running", "prefills", "free%"})
    ->Args({10, 1, 100})
    ->Args({100, 5, 100})
    ->Args({1000, 20, 100})
    ->Args({1000, 20, 10})
    ->Args({1000, 1000, 100})
    ->Unit(benchmark::kMicrosecond);

std::vector<Token> prompt_of(std::uint64_t seed, std::size_t tokens) {
  Rng rng(seed);
  std::vector<Token> prompt(tokens);
  for (Token& token : prompt) token = static_cast<Token>(rng.below(50'000));
  return prompt;
}

constexpr std::size_t kPromptTokens = 4000;

// Prompts of 250 blocks until the index has `blocks`.
void fill(PrefixIndex& index, std::int32_t blocks) {
  for (std::uint64_t seed = 0; index.num_nodes() < blocks; ++seed) {
    const auto tokens = prompt_of(seed, kPromptTokens);
    std::vector<PrefixNode> path;
    for (std::size_t i = 0; i < kPromptTokens; i += 16) {
      path.push_back(index
                         .insert(path.empty() ? kPrefixRoot : path.back(),
                                 std::span(tokens).subspan(i, 16), BlockId(index.num_nodes()))
                         .node);
    }
    for (std::size_t i = path.size(); i-- > 0;) index.mark_unused(path[i]);
  }
}

void BM_PrefixLookup(benchmark::State& state) {
  PrefixIndex index(16);
  fill(index, static_cast<std::int32_t>(state.range(0)));
  const bool hit = state.range(1) != 0;
  std::vector<std::vector<Token>> prompts;
  for (std::uint64_t i = 0; i < 100; ++i) {
    prompts.push_back(prompt_of(hit ? i * 4 % 400 : 1'000'000 + i, kPromptTokens));
  }
  std::size_t i = 0;
  for (auto _ : state) benchmark::DoNotOptimize(index.match(prompts[i++ % prompts.size()]));
}
BENCHMARK(BM_PrefixLookup)
    ->ArgNames({"blocks", "hit"})
    ->Args({100'000, 1})
    ->Args({100'000, 0})
    ->Unit(benchmark::kMicrosecond);

// A block forgotten and another one remembered.
void BM_PrefixEvictInsert(benchmark::State& state) {
  PrefixIndex index(16);
  fill(index, 100'000);
  std::uint64_t seed = 1'000'000;
  for (auto _ : state) {
    const auto block = index.evict();
    const auto tokens = prompt_of(seed++, 16);
    index.mark_unused(index.insert(kPrefixRoot, tokens, *block).node);
  }
}
BENCHMARK(BM_PrefixEvictInsert);

// Admission of a 1,000-token prompt beside `running` others, and its release.
void BM_Admit(benchmark::State& state) {
  const auto count = static_cast<std::size_t>(state.range(0));
  KvManager manager({.num_blocks = 400'000, .prefix_cache = true, .window = {}});
  const LengthForecast forecast = learned_forecast();
  const StepTimeModel step_time;
  std::vector<RunningSequence> running;
  const TimePoint now{};
  manager.open_window(now, {}, step_time, forecast);
  const auto admit = [&](std::uint64_t id, std::span<const Token> tokens) {
    return manager.admit({.id = SequenceId(id), .tokens = tokens, .decode_cap = 1000}, now, running,
                         step_time, forecast);
  };
  for (std::uint64_t i = 1; i <= count; ++i) {
    const auto tokens = prompt_of(i, 1000);
    if (!admit(i, tokens)) state.SkipWithError("refused");
    running.push_back({.id = SequenceId(i), .prefill_left = 1000, .decode_cap = 1000});
  }
  const auto tokens = prompt_of(1'000'000, 1000);
  std::uint64_t id = count + 1;
  for (auto _ : state) {
    if (!admit(id, tokens)) state.SkipWithError("refused");
    manager.release(SequenceId(id++));
  }
}
BENCHMARK(BM_Admit)->ArgName("running")->Arg(1)->Arg(100)->Arg(1000)->Unit(benchmark::kMicrosecond);

// A whole window of 1,000 sequences: plan, bulk grant, and 16 steps that write.
void BM_Window(benchmark::State& state) {
  KvManager manager({.num_blocks = 400'000,
                     .prefix_cache = state.range(0) != 0,
                     .window = {.min_steps = 16, .max_steps = 16}});
  const LengthForecast forecast = learned_forecast();
  const StepTimeModel step_time;
  std::vector<RunningSequence> running;
  std::vector<std::vector<Token>> tokens;
  const TimePoint now{};
  manager.open_window(now, {}, step_time, forecast);
  for (std::uint64_t i = 1; i <= 1000; ++i) {
    tokens.push_back(prompt_of(i, 4));
    static_cast<void>(
        manager.admit({.id = SequenceId(i), .tokens = tokens.back(), .decode_cap = 1'000'000}, now,
                      running, step_time, forecast));
    running.push_back({.id = SequenceId(i), .prefill_left = 4, .decode_cap = 1'000'000});
  }
  for (auto _ : state) {
    manager.open_window(now, running, step_time, forecast);
    for (int step = 0; step < 16; ++step) {
      manager.use_step();
      for (std::size_t i = 0; i < running.size(); ++i) {
        tokens[i].push_back(step);
        running[i].held_tokens += running[i].prefill_left;
        running[i].prefill_left = 1;
        manager.written(running[i].id, std::span(tokens[i]).first(
                                           static_cast<std::size_t>(running[i].held_tokens)));
      }
    }
    if (tokens[0].size() > 5000) state.SkipWithError("the pool is used up");
  }
}
BENCHMARK(BM_Window)
    ->ArgName("prefix_cache")
    ->Arg(0)
    ->Arg(1)
    ->Unit(benchmark::kMicrosecond)
    ->Iterations(200);

void BM_ForecastQuantile(benchmark::State& state) {
  const LengthForecast forecast = learned_forecast();
  std::int32_t age = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(forecast.quantile(age, 100'000, 0.1));
    age = (age + 37) % 3000;
  }
}
BENCHMARK(BM_ForecastQuantile);

void BM_ForecastSurvival(benchmark::State& state) {
  const LengthForecast forecast = learned_forecast();
  std::int32_t age = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(forecast.survival(age, 64));
    age = (age + 37) % 3000;
  }
}
BENCHMARK(BM_ForecastSurvival);

void BM_ForecastObserve(benchmark::State& state) {
  LengthForecast forecast = learned_forecast();
  std::int32_t length = 1;
  for (auto _ : state) {
    forecast.observe(length, false);
    length = length % 3000 + 37;
  }
}
BENCHMARK(BM_ForecastObserve);

}  // namespace
}  // namespace sluice
