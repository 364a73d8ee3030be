// What a window's plan costs on a device of an H200's size: 60,000 granules of 2 MiB.
#include <benchmark/benchmark.h>

#include "base/check.h"
#include "memory/span_planner.h"

namespace sluice {
namespace {

constexpr std::size_t kGranule = std::size_t{2} << 20;

std::vector<SpanWish> wishes(std::int64_t spans, std::int64_t tokens) {
  std::vector<SpanWish> all;
  for (std::int64_t s = 0; s < spans; ++s) {
    all.push_back({.span = SpanId(static_cast<std::uint64_t>(s)), .tokens = tokens + 37 * s % 500});
  }
  return all;
}

// range(0) sequences of some 4,000 tokens grow by 64 each; 8 KV heads of 128, f16, 32 layers in
// range(1) lanes.
void plan_a_window(benchmark::State& state) {
  const std::int64_t spans = state.range(0);
  const auto lanes = static_cast<std::int32_t>(state.range(1));
  const SpanShape shape{.granule_bytes = kGranule,
                        .num_lanes = lanes,
                        .lane_token_bytes = std::size_t{4096} * 32 / static_cast<unsigned>(lanes),
                        .max_tokens = 32'768};
  SpanBook book(shape, {.granules = 60'000, .spans = 256});
  const std::size_t free = std::size_t{60'000} * kGranule;
  const auto first = plan_spans(book, {.wishes = wishes(spans, 4'000), .free_bytes = free});
  CHECK(first.has_value());
  for (const SpanOp& op : first->ops) book.apply(op);
  const SpanRequest next{.wishes = wishes(spans, 4'064), .free_bytes = free};
  std::size_t ops = 0;
  for (auto _ : state) {
    const auto plan = plan_spans(book, next);
    ops = plan->ops.size();
    benchmark::DoNotOptimize(plan);
  }
  state.counters["ops"] = static_cast<double>(ops);
}
BENCHMARK(plan_a_window)->ArgsProduct({{16, 64, 200}, {1, 8, 32}})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace sluice
