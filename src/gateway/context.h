// What all handlers of a gateway share. Set up before the I/O threads start;
// after that only the atomics change.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/time.h"
#include "cluster/serving.h"
#include "cluster/telemetry.h"
#include "gateway/api_keys.h"
#include "gateway/gateway.h"
#include "gateway/request_parser.h"
#include "gateway/token_router.h"
#include "model/model.h"

namespace sluice {

class GenerationRun;

struct GatewayContext {
  const GatewayOptions& options;
  const Model& model;
  const Clock& clock;
  Telemetry& telemetry;
  TokenRouter& router;
  ApiKeys& keys;
  ParseContext parse;
  std::int32_t context_tokens = 0;
  std::string fingerprint;     // system_fingerprint of every answer
  std::int64_t created = 0;    // unix time, of the model's record
  Serving* serving = nullptr;  // from start() on
  std::atomic<bool> draining{false};
  std::atomic<std::int32_t> active{0};  // generations submitted and not ended
  // By I/O thread, each touched by that thread only.
  std::vector<std::unordered_set<GenerationRun*>> runs;
};

}  // namespace sluice
