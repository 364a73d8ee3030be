#include "net/cluster_metrics.h"

#include <algorithm>
#include <string>
#include <utility>

namespace sluice {
namespace {

// The series of one engine.
class EngineMetrics {
 public:
  EngineMetrics(const InstanceSnapshot& instance, std::string model, MetricPage& page)
      : instance_(instance),
        stats_(instance.stats),
        model_(std::move(model)),
        engine_(std::to_string(instance.report.instance.value)),
        page_(page) {}

  void add_scheduler(std::int32_t queued) {
    const LoadReport& r = instance_.report;
    const double waiting = r.waiting_requests + queued;
    gauge("vllm:num_requests_running", "Requests in the running set.", r.running_sequences);
    gauge("vllm:num_requests_waiting", "Requests that wait for memory or a slot.", waiting);
    page_.gauge("vllm:num_requests_waiting_by_reason", "Requests that wait, by reason.",
                with("reason", "capacity"), waiting);
    page_.gauge("vllm:num_requests_waiting_by_reason", "Requests that wait, by reason.",
                with("reason", "deferred"), 0);
    const double total = static_cast<double>(r.total_blocks);
    gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks that are in use, 0 to 1.",
          total > 0 ? static_cast<double>(r.granted_blocks) / total : 0);
    MetricLabels config = labels();
    config.push_back({"block_size", std::to_string(r.block_tokens)});
    config.push_back({"num_gpu_blocks", std::to_string(r.total_blocks)});
    MetricLabels info = with("role", role_name(r.role));
    info.push_back({"instance", instance_.name});
    page_.gauge("sluice_instance_info", "Name and role, in labels.", std::move(info), 1);
    page_.gauge("vllm:cache_config_info", "The KV cache's shape, in labels.", std::move(config), 1);
  }

  void add_tokens() {
    counter("vllm:prompt_tokens_total", "Prompt tokens of admitted requests.",
            stats_.prompt_tokens);
    counter("vllm:prompt_tokens_cached_total", "Of these, from the prefix cache.",
            stats_.cached_prompt_tokens);
    counter("vllm:generation_tokens_total", "Generated tokens.", stats_.generated_tokens);
    counter("vllm:num_preemptions_total", "Sequences restarted for memory.", stats_.preemptions);
    const SpeculationStats& guesses = stats_.speculation;
    counter("sluice_speculative_drafts_total", "Rows of a step with guesses after them.",
            guesses.drafts);
    counter("sluice_speculative_draft_tokens_total", "Tokens that were guessed and computed.",
            guesses.draft_tokens);
    counter("sluice_speculative_accepted_tokens_total", "Of these, what was then drawn.",
            guesses.accepted_tokens);
    counter("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache.",
            stats_.kv.prefix_queries);
    counter("vllm:prefix_cache_hits_total", "Tokens found in the prefix cache.",
            stats_.kv.prefix_hits);
    page_.histogram("vllm:iteration_tokens_total", "Tokens computed in a step.", labels(),
                    stats_.step_tokens);
    page_.histogram("sluice_step_seconds", "Duration of a step, seconds.", labels(),
                    stats_.step_seconds);
    counter("sluice_steps_total", "Steps that ran.", stats_.steps);
    page_.counter("sluice_busy_seconds_total", "Time spent in steps, seconds.", labels(),
                  stats_.busy_seconds);
  }

  void add_windows() {
    const WindowStats& w = stats_.windows;
    counter("sluice_windows_total", "Memory windows opened.", w.windows);
    page_.summary("sluice_window_seconds", "Length of the windows that ended, seconds.", labels(),
                  w.ended, w.seconds_sum);
    gauge("sluice_window_demand_blocks", "Blocks that the present window needed anew.",
          static_cast<double>(w.demand_blocks));
    gauge("sluice_window_granted_blocks", "Blocks granted by the present window.",
          static_cast<double>(w.granted_blocks));
    gauge("sluice_window_unused_blocks", "Granted blocks without a token yet.",
          stats_.kv.granted_blocks - stats_.kv.written_blocks);
    gauge("sluice_kv_unfilled_tokens", "Places without a token in blocks that hold some.",
          static_cast<double>(stats_.kv.unfilled_tokens));
    gauge("sluice_window_room_blocks", "Blocks that the window's plan left for arrivals.",
          static_cast<double>(stats_.window.plan.room_blocks));
    counter("sluice_window_ends_unused_blocks_total",
            "Blocks granted but not written, summed at window ends.", w.unused_blocks_sum);
    counter("sluice_window_ends_granted_blocks_total", "Blocks held, summed at window ends.",
            w.granted_blocks_sum);
    counter("sluice_window_early_renewals_total", "Windows renewed early, for an arrival.",
            w.early_renewals);
    page_.counter("sluice_window_planning_seconds_total", "Time spent planning, seconds.", labels(),
                  w.planning_seconds_sum);
    const std::pair<const char*, std::int64_t> remedies[] = {
        {"drop_prefixes", w.shortfall_prefixes},
        {"shorten_window", w.shortfall_shortened},
        {"stop_admitting", w.shortfall_admission},
        {"move", w.shortfall_move},
        {"pause", w.shortfall_pause},
        {"recompute", w.shortfall_recompute}};
    for (const auto& [remedy, count] : remedies) {
      page_.counter("sluice_shortfall_total", "Remedies taken when memory was short.",
                    with("remedy", remedy), static_cast<double>(count));
    }
    const std::pair<const char*, std::int32_t> states[] = {{"granted", stats_.kv.granted_blocks},
                                                           {"written", stats_.kv.written_blocks},
                                                           {"cached", stats_.kv.cached_blocks},
                                                           {"free", stats_.kv.free_blocks}};
    for (const auto& [state, blocks] : states) {
      page_.gauge("sluice_kv_blocks", "KV blocks by state; written ones are granted ones.",
                  with("state", state), blocks);
    }
  }

  void add_host_memory() {
    const HostKvStats& host = stats_.host;
    const std::pair<const char*, std::int32_t> states[] = {
        {"used", host.used_blocks}, {"free", host.total_blocks - host.used_blocks}};
    for (const auto& [state, blocks] : states) {
      page_.gauge("sluice_kv_host_blocks", "KV blocks in host memory, for paused sequences.",
                  with("state", state), blocks);
    }
    gauge("sluice_paused_sequences", "Sequences whose KV waits in host memory.",
          host.paused_sequences);
    counter("sluice_resumed_sequences_total", "Paused sequences that went on.", host.resumed);
  }

  void add_device() {
    const DeviceState& device = instance_.report.device;
    if (device.total_bytes > 0) {
      const std::pair<const char*, std::int64_t> states[] = {
          {"used", std::max<std::int64_t>(0, device.total_bytes - device.free_bytes)},
          {"free", device.free_bytes}};
      for (const auto& [state, bytes] : states) {
        page_.gauge("sluice_device_memory_bytes", "Memory of the device, of all processes.",
                    with("state", state), static_cast<double>(bytes));
      }
    }
    gauge("sluice_device_busy_ratio", "Share of the last second that the device computed, 0 to 1.",
          device.busy);
  }

  void add_forecasts(Duration since_snapshot) {
    gauge("sluice_forecast_error_tokens", "Mean absolute error of the length forecast, tokens.",
          stats_.forecast_error_tokens);
    gauge("sluice_step_time_error", "Mean relative error of the step-time model.",
          stats_.step_time_error);
    gauge("sluice_ledger_tokens", "Prompt tokens sent there that no report has seen.",
          static_cast<double>(instance_.ledger_tokens));
    std::int64_t least = instance_.report.free_blocks;
    for (const DemandPoint& point : instance_.report.outlook) {
      least = std::min(least, point.free_blocks);
    }
    gauge("sluice_forecast_free_blocks", "Fewest free blocks at the window ends looked out for.",
          static_cast<double>(least));
    gauge("sluice_report_age_seconds", "Age of the last load report, seconds.",
          to_seconds(instance_.report_age + since_snapshot));
  }

  void add_handoffs(const HandoffStats& h) {
    auto outcomes = h.source.outcomes;
    outcomes.try_emplace(kNoTransport);  // so that a first one that stays is seen to grow
    for (const auto& [transport, counts] : outcomes) {
      for (std::size_t i = 0; i < kHandoffOutcomeNames.size(); ++i) {
        MetricLabels all = with("outcome", kHandoffOutcomeNames[i]);
        all.push_back({"transport", transport});
        page_.counter("sluice_handoffs_total",
                      "Handoffs of sequences that began here, by outcome and what carried them.",
                      std::move(all), static_cast<double>(counts[i]));
      }
    }
    for (std::size_t i = 0; i < kHandoffStageNames.size(); ++i) {
      page_.histogram("sluice_handoff_seconds", "Time spent in each stage of a handoff, seconds.",
                      with("stage", kHandoffStageNames[i]), h.source.stages[i]);
    }
    for (const auto& [by, bytes] : h.transfer.bytes) {
      page_.counter("sluice_handoff_bytes_total", "KV that was sent to other instances, bytes.",
                    with("transport", by.c_str()), static_cast<double>(bytes));
    }
    gauge("sluice_reservations", "Sequences that memory is held for and that do not run yet.",
          static_cast<double>(h.reservations));
    counter("sluice_reservations_expired_total", "Reservations whose source fell silent.",
            h.expired);
    counter("sluice_handoffs_taken_total", "Sequences that came from elsewhere and ran here.",
            h.taken);
  }

 private:
  [[nodiscard]] MetricLabels labels() const {
    return {{"model_name", model_}, {"engine", engine_}};
  }
  [[nodiscard]] MetricLabels with(const char* name, const char* value) const {
    MetricLabels all = labels();
    all.push_back({name, value});
    return all;
  }
  void gauge(const char* name, const char* help, double value) {
    page_.gauge(name, help, labels(), value);
  }
  void counter(const char* name, const char* help, std::int64_t value) {
    page_.counter(name, help, labels(), static_cast<double>(value));
  }

  const InstanceSnapshot& instance_;
  const EngineStats& stats_;
  const std::string model_;
  const std::string engine_;
  MetricPage& page_;
};

}  // namespace

void add_cluster_metrics(const ClusterSnapshot& snapshot, const std::string& model_name,
                         TimePoint now, MetricPage& page) {
  // What waits at the scheduler waits for the only engine, if there is only one.
  const bool single = snapshot.instances.size() == 1;
  for (const InstanceSnapshot& instance : snapshot.instances) {
    EngineMetrics metrics(instance, model_name, page);
    metrics.add_scheduler(single ? snapshot.queued_requests : 0);
    metrics.add_tokens();
    metrics.add_windows();
    metrics.add_host_memory();
    metrics.add_device();
    metrics.add_forecasts(now - snapshot.at);
    if (instance.handoffs) metrics.add_handoffs(*instance.handoffs);
  }
  const MetricLabels all = {{"model_name", model_name}, {"engine", "all"}};
  if (!single) {
    page.gauge("vllm:num_requests_waiting", "Requests that wait for memory or a slot.", all,
               snapshot.queued_requests);
  }
  page.gauge("sluice_queued_requests", "Requests that no instance can take yet.",
             {{"model_name", model_name}}, snapshot.queued_requests);
  for (const ClusterSnapshot::Placed& placed : snapshot.placements) {
    page.counter("sluice_placements_total", "Placement decisions by policy and outcome.",
                 {{"model_name", model_name}, {"policy", placed.policy}, {"reason", placed.reason}},
                 static_cast<double>(placed.count));
  }
  page.counter("sluice_request_retries_total",
               "Requests that lost their instance and were placed again.",
               {{"model_name", model_name}}, static_cast<double>(snapshot.retries));
  page.histogram("sluice_placement_seconds", "Time that a placement takes, seconds.",
                 {{"model_name", model_name}}, snapshot.placement_seconds);
}

}  // namespace sluice
