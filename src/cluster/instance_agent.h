// Speaks for one instance: hands requests to its engine, steps it, and pushes its
// load reports.
//
// Belongs to the engine's loop. A report leaves at window boundaries and after
// changes, at most every `min_interval`, and at least every `max_interval`, since
// an instance that says nothing counts as gone.
#pragma once

#include <cstdint>
#include <memory>

#include "base/ids.h"
#include "base/time.h"
#include "engine/engine.h"
#include "scheduling/load_report.h"

namespace sluice {

class ReportSink {
 public:
  virtual ~ReportSink() = default;
  virtual void on_report(LoadReport&& report) = 0;
};

struct InstanceAgentOptions {
  InstanceId instance;
  Incarnation incarnation{1};
  Role role = Role::kUnified;
  std::int32_t block_tokens = 16;
  std::int32_t max_running = 0;
  std::int32_t step_token_budget = 512;
  Duration min_interval = std::chrono::milliseconds(20);
  Duration max_interval = std::chrono::seconds(1);
};

class InstanceAgent final {
 public:
  // References outlive the agent.
  InstanceAgent(InstanceAgentOptions options, Engine& engine, const Clock& clock,
                ReportSink& reports);

  void submit(std::unique_ptr<Request> request);
  void cancel(RequestId request);
  // One step of the engine and, if one is due, a report. True if a step ran.
  bool step();
  // From now on reports say that no request is wanted.
  void drain();
  // Sends a report if one is due.
  void report_if_due();
  // When the next one is due: what an idle loop may sleep until.
  [[nodiscard]] TimePoint next_report() const;

 private:
  [[nodiscard]] LoadReport make_report(TimePoint now);
  void add_outlook(const EngineLoad& load, LoadReport& report);

  const InstanceAgentOptions options_;
  Engine& engine_;
  const Clock& clock_;
  ReportSink& reports_;

  bool draining_ = false;
  bool changed_ = true;  // since the last report
  std::uint64_t sequence_ = 0;
  TimePoint last_report_{};
  std::int64_t window_ = 0;          // of the last report,
  std::int64_t window_granted_ = 0;  // and what was granted when it was first seen
};

}  // namespace sluice
