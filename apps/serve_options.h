// What `serve` is told; `gateway` and `instance` take their parts of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/kv_layout.h"
#include "gateway/gateway.h"
#include "model/paced_runner.h"

namespace sluice {

// 0 or empty means "choose by model, memory and cores" (see sizing.h).
struct ServeOptions {
  std::string model;
  std::string model_name;     // what clients call it
  std::string chat_template;  // a file
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;
  TlsFiles https;  // of clients; none: plain HTTP
  std::vector<std::string> api_keys;
  std::vector<ApiKey> limited_keys;  // of the file of --api-keys
  std::vector<std::string> cors_origins{"localhost"};
  std::map<std::string, std::int32_t> objectives;  // priorities by name
  std::int32_t instances = 1;  // prefill and decode together, where these are given
  std::int32_t prefill = 0;    // instances that hand over what they have prefilled,
  std::int32_t decode = 0;     // and those that go on with it; both or none
  std::string device = "cpu";  // as choose_device() takes it
  std::int32_t threads = 0;    // of all instances together
  std::int32_t io_threads = 2;
  std::size_t kv_memory = 0;       // bytes, of all instances together
  std::size_t kv_host_memory = 0;  // bytes, of all instances together; 0: no pausing
  KvType kv_type = KvType::kF16;
  std::int32_t block_tokens = 16;
  std::int32_t context = 0;  // tokens
  std::int32_t max_batch_tokens = 512;
  double mixed_step_ratio = 2;     // of a step's time with prompts in it to the same without
  std::int32_t max_running = 64;   // sequences, an instance
  std::int32_t queue_limit = 256;  // requests, at the global scheduler
  std::int32_t drain_seconds = 60;
  std::string policy = "forecast";
  std::string memory_policy = "windowed";  // one of memory_policy_names()
  std::string decode_policy = "least-peak";
  std::string forecast_state;  // a file, or none
  bool prefix_cache = true;
  std::string speculative = "off";  // or ngram
  bool repack = true;
  bool accept_any_model = false;
  bool benchmark = false;        // requests may carry their true output length
  std::optional<StepPace> pace;  // steps take at least this
  std::string log_level = "info";
};

}  // namespace sluice
