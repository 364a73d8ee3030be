#include "net/prometheus_telemetry.h"

#include <prometheus/histogram.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "net/cluster_metrics.h"
#include "net/metric_page.h"

namespace sluice {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

// The bounds of vLLM, so that quantiles computed from them compare.
const Buckets kFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                    0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                    20,    40,    80,   160,  640,  2560};
const Buckets kTokenSeconds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                               0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
const Buckets kRequestSeconds = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
const Buckets kTokens = {1,    2,    5,    10,    20,    50,    100,    200,    500,
                         1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000};
const Buckets kChoices = {1, 2, 5, 10, 20};

// By FinishReason; vLLM's words.
constexpr std::array<const char*, 5> kFinishedReasons = {"", "stop", "length", "abort", "error"};

struct RequestHistogram {
  const char* name;
  const char* help;
  prometheus::Histogram values;
};

}  // namespace

class PrometheusTelemetry::Impl {
 public:
  Impl(PrometheusOptions options, const Clock& clock)
      : options_(std::move(options)),
        clock_(clock),
        labels_{{"model_name", options_.model_name},
                {"engine", options_.num_instances == 1 ? "0" : "all"}} {}

  void observe(const Serving* serving) { serving_.store(serving); }

  void on_inter_token(Duration gap) { inter_token_.values.Observe(to_seconds(gap)); }

  void on_finished(const RequestRecord& r) {
    {
      const std::lock_guard lock(mutex_);
      finished_[static_cast<std::size_t>(r.finish)] += 1;
    }
    prompt_tokens_.values.Observe(r.prompt_tokens);
    max_tokens_.values.Observe(r.max_tokens);
    choices_.values.Observe(r.n);
    if (r.finish == FinishReason::kError) return;  // its times are no latencies
    generation_tokens_.values.Observe(r.generated_tokens);
    e2e_.values.Observe(to_seconds(r.total));
    queue_.values.Observe(to_seconds(r.queued));
    inference_.values.Observe(to_seconds(r.total - r.queued));
    if (r.first_token <= Duration::zero()) return;
    const double decode = to_seconds(r.total - r.first_token);
    first_token_.values.Observe(to_seconds(r.first_token));
    prefill_.values.Observe(to_seconds(r.first_token - r.queued));
    decode_.values.Observe(decode);
    if (r.generated_tokens > 1) per_token_.values.Observe(decode / (r.generated_tokens - 1));
  }

  void on_rejected(std::string_view reason) {
    constexpr std::size_t kMaxReasons = 16;  // labels are never a client's to invent
    const std::lock_guard lock(mutex_);
    const bool room = rejected_.size() < kMaxReasons || rejected_.contains(std::string(reason));
    rejected_[room ? std::string(reason) : "other"] += 1;
  }

  [[nodiscard]] std::string render() const {
    MetricPage page;
    if (const Serving* serving = serving_.load()) {
      add_cluster_metrics(*serving->snapshot(), options_.model_name, clock_.now(), page);
    }
    {
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 1; i < finished_.size(); ++i) {
        page.counter("vllm:request_success_total", "Finished requests by reason.",
                     with("finished_reason", kFinishedReasons[i]),
                     static_cast<double>(finished_[i]));
      }
      for (const auto& [reason, count] : rejected_) {
        page.counter("vllm:admission_rejections_total", "Requests that reached no engine.",
                     with("reason", reason), static_cast<double>(count));
      }
    }
    for (const RequestHistogram* h :
         {&first_token_, &inter_token_, &per_token_, &e2e_, &queue_, &prefill_, &decode_,
          &inference_, &prompt_tokens_, &generation_tokens_, &max_tokens_, &choices_}) {
      page.histogram(h->name, h->help, labels_, h->values);
    }
    return prometheus::TextSerializer().Serialize(page.families());
  }

 private:
  [[nodiscard]] MetricLabels with(const char* name, std::string value) const {
    MetricLabels labels = labels_;
    labels.push_back({name, std::move(value)});
    return labels;
  }

  const PrometheusOptions options_;
  const Clock& clock_;
  const MetricLabels labels_;
  std::atomic<const Serving*> serving_{nullptr};

  mutable std::mutex mutex_;
  std::array<std::int64_t, kFinishedReasons.size()> finished_{};  // guarded by mutex_
  std::map<std::string, std::int64_t> rejected_{                  // guarded by mutex_
                                                {"bad_request", 0},
                                                {"busy", 0},
                                                {"never_fits", 0},
                                                {"unavailable", 0}};

  // Each has a lock of its own.
  RequestHistogram first_token_{"vllm:time_to_first_token_seconds",
                                "Arrival to first token, seconds.",
                                prometheus::Histogram(kFirstTokenSeconds)};
  RequestHistogram inter_token_{"vllm:inter_token_latency_seconds",
                                "Between two tokens of a stream, seconds.",
                                prometheus::Histogram(kTokenSeconds)};
  RequestHistogram per_token_{"vllm:request_time_per_output_token_seconds",
                              "Mean time per output token after the first, seconds.",
                              prometheus::Histogram(kTokenSeconds)};
  RequestHistogram e2e_{"vllm:e2e_request_latency_seconds", "Arrival to end, seconds.",
                        prometheus::Histogram(kRequestSeconds)};
  RequestHistogram queue_{"vllm:request_queue_time_seconds", "Arrival to admission, seconds.",
                          prometheus::Histogram(kRequestSeconds)};
  RequestHistogram prefill_{"vllm:request_prefill_time_seconds",
                            "Admission to first token, seconds.",
                            prometheus::Histogram(kRequestSeconds)};
  RequestHistogram decode_{"vllm:request_decode_time_seconds", "First token to end, seconds.",
                           prometheus::Histogram(kRequestSeconds)};
  RequestHistogram inference_{"vllm:request_inference_time_seconds", "Admission to end, seconds.",
                              prometheus::Histogram(kRequestSeconds)};
  RequestHistogram prompt_tokens_{"vllm:request_prompt_tokens", "Prompt tokens of a request.",
                                  prometheus::Histogram(kTokens)};
  RequestHistogram generation_tokens_{"vllm:request_generation_tokens",
                                      "Generated tokens of a request.",
                                      prometheus::Histogram(kTokens)};
  RequestHistogram max_tokens_{"vllm:request_params_max_tokens",
                               "Most tokens that a request allows.",
                               prometheus::Histogram(kTokens)};
  RequestHistogram choices_{"vllm:request_params_n", "Choices that a request asks for.",
                            prometheus::Histogram(kChoices)};
};

PrometheusTelemetry::PrometheusTelemetry(PrometheusOptions options, const Clock& clock)
    : impl_(std::make_unique<Impl>(std::move(options), clock)) {}
PrometheusTelemetry::~PrometheusTelemetry() = default;

void PrometheusTelemetry::observe(const Serving* serving) {
  impl_->observe(serving);
}
void PrometheusTelemetry::on_inter_token(Duration gap) {
  impl_->on_inter_token(gap);
}
void PrometheusTelemetry::on_finished(const RequestRecord& record) {
  impl_->on_finished(record);
}
void PrometheusTelemetry::on_rejected(std::string_view reason) {
  impl_->on_rejected(reason);
}
std::string PrometheusTelemetry::render() const {
  return impl_->render();
}

}  // namespace sluice
