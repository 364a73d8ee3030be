#include "net/prometheus_telemetry.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>
#include <thread>

namespace sluice {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

class FixedServing final : public Serving {
 public:
  explicit FixedServing(ClusterSnapshot snapshot)
      : snapshot_(std::make_shared<const ClusterSnapshot>(std::move(snapshot))) {}
  Status submit(std::unique_ptr<Request>) override {
    return fail(ErrorCode::kUnavailable, "nothing is served here");
  }
  void cancel(RequestId) override {}
  std::shared_ptr<const ClusterSnapshot> snapshot() const override { return snapshot_; }
  bool ready() const override { return true; }

 private:
  std::shared_ptr<const ClusterSnapshot> snapshot_;
};

InstanceSnapshot instance_snapshot(std::uint32_t id) {
  InstanceSnapshot i;
  i.report.instance = InstanceId{id};
  i.report.running_sequences = 3;
  i.report.waiting_requests = 2;
  i.report.total_blocks = 200;
  i.report.granted_blocks = 50;
  i.report.free_blocks = 150;
  i.report.outlook = {
      {TimePoint{1s}, 100, 100}, {TimePoint{2s}, 140, 60}, {TimePoint{3s}, 90, 110}};
  i.name = fmt::format("node-{}", id);
  i.report.block_tokens = 16;
  i.ledger_tokens = 77;
  i.report_age = 250ms;
  i.stats.prompt_tokens = 1234;
  i.stats.cached_prompt_tokens = 234;
  i.stats.generated_tokens = 567;
  i.stats.preemptions = 1;
  i.stats.speculation = {.drafts = 40, .draft_tokens = 160, .accepted_tokens = 90};
  i.stats.kv = {.total_blocks = 200,
                .granted_blocks = 50,
                .written_blocks = 44,
                .cached_blocks = 10,
                .free_blocks = 140,
                .prefix_queries = 900,
                .prefix_hits = 300};
  i.stats.windows.windows = 12;
  i.stats.windows.ended = 10;
  i.stats.windows.seconds_sum = 4.5;
  i.stats.windows.demand_blocks = 9;
  i.stats.windows.granted_blocks = 11;
  i.stats.windows.early_renewals = 2;
  i.stats.windows.shortfall_prefixes = 5;
  i.stats.windows.shortfall_recompute = 1;
  i.report.device = {.total_bytes = 1000, .free_bytes = 400, .busy = 0.25};
  i.stats.forecast_error_tokens = 33.5;
  i.stats.step_time_error = 0.125;
  i.stats.step_tokens.observe(100);
  i.stats.step_tokens.observe(5000);
  return i;
}

ClusterSnapshot cluster_snapshot(std::uint32_t instances) {
  ClusterSnapshot s;
  s.at = TimePoint{10s};
  for (std::uint32_t i = 0; i < instances; ++i) s.instances.push_back(instance_snapshot(i));
  s.queued_requests = 4;
  s.retries = 6;
  s.placements = {{"forecast", "placed", 40}, {"forecast", "none_eligible", 2}};
  s.placement_seconds.observe(3e-6);
  return s;
}

RequestRecord record_of(FinishReason finish) {
  return {.finish = finish,
          .prompt_tokens = 30,
          .cached_tokens = 16,
          .generated_tokens = 11,
          .max_tokens = 100,
          .n = 2,
          .queued = 100ms,
          .first_token = 600ms,
          .total = 1600ms};
}

std::string rendered(std::uint32_t instances) {
  ManualClock clock;
  clock.set(TimePoint{11s});
  const FixedServing serving(cluster_snapshot(instances));
  PrometheusTelemetry telemetry(
      {.model_name = "tiny", .num_instances = static_cast<std::int32_t>(instances)}, clock);
  telemetry.observe(&serving);
  telemetry.on_inter_token(30ms);
  telemetry.on_finished(record_of(FinishReason::kStop));
  telemetry.on_finished(record_of(FinishReason::kCancelled));
  telemetry.on_rejected("busy");
  return telemetry.render();
}

// What dashboards and endpoint pickers made for vLLM look for, to the letter.
TEST(PrometheusTelemetry, EmitsExactlyTheseLines) {
  const std::string text = rendered(1);
  for (const char* line : {
           R"(vllm:num_requests_running{model_name="tiny",engine="0"} 3)",
           R"(vllm:num_requests_waiting{model_name="tiny",engine="0"} 6)",
           R"(vllm:num_requests_waiting_by_reason{model_name="tiny",engine="0",)"
           R"(reason="capacity"} 6)",
           R"(vllm:num_requests_waiting_by_reason{model_name="tiny",engine="0",)"
           R"(reason="deferred"} 0)",
           R"(vllm:kv_cache_usage_perc{model_name="tiny",engine="0"} 0.25)",
           R"(vllm:cache_config_info{model_name="tiny",engine="0",block_size="16",)"
           R"(num_gpu_blocks="200"} 1)",
           R"(vllm:prompt_tokens_total{model_name="tiny",engine="0"} 1234)",
           R"(vllm:prompt_tokens_cached_total{model_name="tiny",engine="0"} 234)",
           R"(vllm:generation_tokens_total{model_name="tiny",engine="0"} 567)",
           R"(vllm:num_preemptions_total{model_name="tiny",engine="0"} 1)",
           R"(sluice_speculative_drafts_total{model_name="tiny",engine="0"} 40)",
           R"(sluice_speculative_draft_tokens_total{model_name="tiny",engine="0"} 160)",
           R"(sluice_speculative_accepted_tokens_total{model_name="tiny",engine="0"} 90)",
           R"(vllm:prefix_cache_queries_total{model_name="tiny",engine="0"} 900)",
           R"(vllm:prefix_cache_hits_total{model_name="tiny",engine="0"} 300)",
           R"(vllm:request_success_total{model_name="tiny",engine="0",finished_reason="stop"} 1)",
           R"(vllm:request_success_total{model_name="tiny",engine="0",finished_reason="length"} 0)",
           R"(vllm:request_success_total{model_name="tiny",engine="0",finished_reason="abort"} 1)",
           R"(vllm:admission_rejections_total{model_name="tiny",engine="0",reason="busy"} 1)",
           R"(vllm:time_to_first_token_seconds_bucket{model_name="tiny",engine="0",le="0.5"} 0)",
           R"(vllm:time_to_first_token_seconds_bucket{model_name="tiny",engine="0",le="0.75"} 2)",
           R"(vllm:time_to_first_token_seconds_bucket{model_name="tiny",engine="0",le="2560"} 2)",
           R"(vllm:time_to_first_token_seconds_count{model_name="tiny",engine="0"} 2)",
           R"(vllm:inter_token_latency_seconds_bucket{model_name="tiny",engine="0",le="0.05"} 1)",
           R"(vllm:request_time_per_output_token_seconds_sum{model_name="tiny",engine="0"} 0.2)",
           R"(vllm:e2e_request_latency_seconds_sum{model_name="tiny",engine="0"} 3.2)",
           R"(vllm:request_queue_time_seconds_sum{model_name="tiny",engine="0"} 0.2)",
           R"(vllm:request_prefill_time_seconds_sum{model_name="tiny",engine="0"} 1)",
           R"(vllm:request_decode_time_seconds_sum{model_name="tiny",engine="0"} 2)",
           R"(vllm:request_inference_time_seconds_sum{model_name="tiny",engine="0"} 3)",
           R"(vllm:request_prompt_tokens_sum{model_name="tiny",engine="0"} 60)",
           R"(vllm:request_generation_tokens_sum{model_name="tiny",engine="0"} 22)",
           R"(vllm:request_params_max_tokens_sum{model_name="tiny",engine="0"} 200)",
           R"(vllm:request_params_n_sum{model_name="tiny",engine="0"} 4)",
           R"(vllm:iteration_tokens_total_bucket{model_name="tiny",engine="0",le="128"} 1)",
           R"(vllm:iteration_tokens_total_bucket{model_name="tiny",engine="0",le="+Inf"} 2)",
           R"(sluice_windows_total{model_name="tiny",engine="0"} 12)",
           R"(sluice_window_seconds_count{model_name="tiny",engine="0"} 10)",
           R"(sluice_window_seconds_sum{model_name="tiny",engine="0"} 4.5)",
           R"(sluice_window_demand_blocks{model_name="tiny",engine="0"} 9)",
           R"(sluice_window_granted_blocks{model_name="tiny",engine="0"} 11)",
           R"(sluice_window_unused_blocks{model_name="tiny",engine="0"} 6)",
           R"(sluice_window_early_renewals_total{model_name="tiny",engine="0"} 2)",
           R"(sluice_shortfall_total{model_name="tiny",engine="0",remedy="drop_prefixes"} 5)",
           R"(sluice_shortfall_total{model_name="tiny",engine="0",remedy="recompute"} 1)",
           R"(sluice_forecast_error_tokens{model_name="tiny",engine="0"} 33.5)",
           R"(sluice_step_time_error{model_name="tiny",engine="0"} 0.125)",
           R"(sluice_placements_total{model_name="tiny",policy="forecast",reason="placed"} 40)",
           R"(sluice_placement_seconds_bucket{model_name="tiny",le="5e-06"} 1)",
           R"(sluice_ledger_tokens{model_name="tiny",engine="0"} 77)",
           R"(sluice_instance_info{model_name="tiny",engine="0",role="unified",)"
           R"(instance="node-0"} 1)",
           R"(sluice_forecast_free_blocks{model_name="tiny",engine="0"} 60)",
           R"(sluice_device_memory_bytes{model_name="tiny",engine="0",state="used"} 600)",
           R"(sluice_device_memory_bytes{model_name="tiny",engine="0",state="free"} 400)",
           R"(sluice_device_busy_ratio{model_name="tiny",engine="0"} 0.25)",
           R"(sluice_request_retries_total{model_name="tiny"} 6)",
           R"(sluice_report_age_seconds{model_name="tiny",engine="0"} 1.25)",
       }) {
    EXPECT_THAT(text, HasSubstr("\n" + std::string(line) + "\n"));
  }
  for (const char* type :
       {"# TYPE vllm:num_requests_running gauge", "# TYPE vllm:generation_tokens_total counter",
        "# TYPE vllm:time_to_first_token_seconds histogram",
        "# TYPE vllm:iteration_tokens_total histogram"}) {
    EXPECT_THAT(text, HasSubstr(std::string(type) + "\n"));
  }
  // Names that vLLM has dropped.
  EXPECT_THAT(text, Not(HasSubstr("gpu_cache_usage_perc")));
  EXPECT_THAT(text, Not(HasSubstr("gpu_prefix_cache_hit_rate")));
}

TEST(PrometheusTelemetry, SeveralEnginesHaveSeriesOfTheirOwn) {
  const std::string text = rendered(2);
  EXPECT_THAT(text, HasSubstr(R"(vllm:num_requests_waiting{model_name="tiny",engine="0"} 2)"));
  EXPECT_THAT(text, HasSubstr(R"(vllm:num_requests_waiting{model_name="tiny",engine="1"} 2)"));
  EXPECT_THAT(text, HasSubstr(R"(vllm:num_requests_waiting{model_name="tiny",engine="all"} 4)"));
  EXPECT_THAT(
      text,
      HasSubstr(R"(vllm:e2e_request_latency_seconds_count{model_name="tiny",engine="all"} 2)"));
}

// The exposition format: each family once, with one HELP and one TYPE in front of
// its samples, and no sample twice.
TEST(PrometheusTelemetry, IsWellFormed) {
  std::istringstream lines(rendered(2));
  const std::regex sample(R"(^([a-z_:]+[a-z0-9_:]*)\{([^}]*)\} (\S+)$)");
  std::set<std::string> families;
  std::set<std::string> samples;
  std::string family;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# HELP ")) continue;
    if (line.starts_with("# TYPE ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(family).second) << "twice: " << family;
      continue;
    }
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
    EXPECT_TRUE(match[1].str().starts_with(family)) << line;
    EXPECT_TRUE(samples.insert(match[1].str() + match[2].str()).second) << "twice: " << line;
  }
  EXPECT_GT(families.size(), 40U);
}

TEST(PrometheusTelemetry, FailedRequestsAreCountedButAreNoLatency) {
  ManualClock clock;
  PrometheusTelemetry telemetry({.model_name = "tiny"}, clock);
  telemetry.on_finished(record_of(FinishReason::kError));
  RequestRecord no_token = record_of(FinishReason::kCancelled);
  no_token.first_token = {};
  no_token.generated_tokens = 0;
  telemetry.on_finished(no_token);
  const std::string text = telemetry.render();
  EXPECT_THAT(text, HasSubstr(R"(finished_reason="error"} 1)"));
  EXPECT_THAT(
      text, HasSubstr(R"(vllm:e2e_request_latency_seconds_count{model_name="tiny",engine="0"} 1)"));
  EXPECT_THAT(
      text, HasSubstr(R"(vllm:time_to_first_token_seconds_count{model_name="tiny",engine="0"} 0)"));
  EXPECT_THAT(text, Not(HasSubstr("num_requests_running")));  // nothing is observed
}

TEST(PrometheusTelemetry, LabelsStayBounded) {
  ManualClock clock;
  PrometheusTelemetry telemetry({.model_name = "with \"quotes\"\n"}, clock);
  for (int i = 0; i < 1000; ++i) telemetry.on_rejected("reason " + std::to_string(i));
  const std::string text = telemetry.render();
  EXPECT_THAT(text, HasSubstr("reason=\"other\"} 98"));
  EXPECT_THAT(text, HasSubstr(R"(model_name="with \"quotes\"\n")"));
}

TEST(PrometheusTelemetry, ManyThreads) {
  SteadyClock clock;
  PrometheusTelemetry telemetry({.model_name = "tiny"}, clock);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        telemetry.on_inter_token(1ms);
        telemetry.on_finished(record_of(FinishReason::kLength));
        telemetry.on_rejected("busy");
        if (i % 100 == 0) {
          EXPECT_FALSE(telemetry.render().empty());
        }
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_THAT(telemetry.render(), HasSubstr(R"(finished_reason="length"} 2000)"));
}

}  // namespace
}  // namespace sluice
