// Metrics in Prometheus' text format: vLLM's names, so that dashboards, autoscalers
// and endpoint pickers made for it work unchanged, and our own under `sluice_`.
//
// What requests look like to their clients is counted here as it happens; what
// engines and the scheduler say of themselves is read from the last snapshot when
// somebody asks. Any thread may call any method.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/time.h"
#include "cluster/serving.h"
#include "cluster/telemetry.h"

namespace sluice {

struct PrometheusOptions {
  std::string model_name;          // the label `model_name`
  std::int32_t num_instances = 1;  // one: requests carry its label; more: engine="all"
};

class PrometheusTelemetry final : public Telemetry {
 public:
  PrometheusTelemetry(PrometheusOptions options, const Clock& clock);
  ~PrometheusTelemetry() override;

  // From now on render() tells of this cluster too; null: no longer. It outlives
  // this object, or is taken off before it ends.
  void observe(const Serving* serving);

  void on_inter_token(Duration gap) override;
  void on_finished(const RequestRecord& record) override;
  void on_rejected(std::string_view reason) override;
  [[nodiscard]] std::string render() const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
