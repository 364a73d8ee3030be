// Where measurements go. The gateway reports each finished request; the
// exporter adds what instances say of themselves (cluster/serving.h) and
// renders everything. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/time.h"
#include "engine/request.h"

namespace sluice {

// One finished request as its client saw it.
struct RequestRecord {
  FinishReason finish = FinishReason::kNone;
  std::int32_t prompt_tokens = 0;
  std::int32_t cached_tokens = 0;
  std::int32_t generated_tokens = 0;
  std::int32_t max_tokens = 0;
  std::int32_t n = 1;
  Duration queued{};       // arrival to admission
  Duration first_token{};  // arrival to first token; zero: none came
  Duration total{};        // arrival to end
};

class Telemetry {
 public:
  virtual ~Telemetry() = default;
  virtual void on_inter_token(Duration gap) = 0;
  virtual void on_finished(const RequestRecord& record) = 0;
  // A request that never reached an engine; `reason` from a small fixed set.
  virtual void on_rejected(std::string_view reason) = 0;
  // Prometheus text exposition format 0.0.4.
  [[nodiscard]] virtual std::string render() const = 0;
};

}  // namespace sluice
