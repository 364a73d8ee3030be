// What the command line and the configuration file say. Names are the same in
// both; a flag wins over the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/kv_layout.h"
#include "base/result.h"
#include "model/paced_runner.h"
#include "simulate/plan.h"
#include "simulate/simulate_options.h"

namespace sluice {

// 0 or empty means "choose by model, memory and cores" (see sizing.h).
struct ServeOptions {
  std::string model;
  std::string model_name;     // what clients call it
  std::string chat_template;  // a file
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;
  std::vector<std::string> api_keys;
  std::vector<std::string> cors_origins{"localhost"};
  std::map<std::string, std::int32_t> objectives;  // priorities by name
  std::int32_t instances = 1;  // prefill and decode together, where these are given
  std::int32_t prefill = 0;    // instances that hand over what they have prefilled,
  std::int32_t decode = 0;     // and those that go on with it; both or none
  std::int32_t threads = 0;    // of all instances together
  std::int32_t io_threads = 2;
  std::size_t kv_memory = 0;       // bytes, of all instances together
  std::size_t kv_host_memory = 0;  // bytes, of all instances together; 0: no pausing
  KvType kv_type = KvType::kF16;
  std::int32_t block_tokens = 16;
  std::int32_t context = 0;  // tokens
  std::int32_t max_batch_tokens = 512;
  std::int32_t max_running = 64;   // sequences, an instance
  std::int32_t queue_limit = 256;  // requests, at the global scheduler
  std::int32_t drain_seconds = 60;
  std::string policy = "forecast";
  std::string memory_policy = "windowed";  // one of memory_policy_names()
  std::string decode_policy = "least-peak";
  std::string forecast_state;  // a file, or none
  bool prefix_cache = true;
  bool repack = true;
  bool accept_any_model = false;
  bool benchmark = false;        // requests may carry their true output length
  std::optional<StepPace> pace;  // steps take at least this
  std::string log_level = "info";
};

struct RunOptions {
  std::string model;
  std::string prompt;
  std::string system;
  bool raw = false;  // no chat template
  std::int32_t threads = 0;
  std::int32_t max_tokens = 256;
  double temperature = 0.7;
  std::uint64_t seed = 0;  // 0: a new one each time
  std::size_t kv_memory = 0;
  KvType kv_type = KvType::kF16;
  std::string log_level = "warning";
};

struct InspectOptions {
  std::string model;
  KvType kv_type = KvType::kF16;
  std::size_t memory = std::size_t{1} << 30;
};

// "1.5GiB", "512M", "4096": decimal multiples are powers of 1024 too, as with
// other engines. kInvalidArgument: not a size.
[[nodiscard]] Result<std::size_t> parse_size(const std::string& text);
[[nodiscard]] std::string format_size(std::size_t bytes);

enum class Command : std::uint8_t { kServe, kRun, kInspect, kSimulate, kPlan };

struct CommandLine {
  Command command = Command::kServe;
  ServeOptions serve;
  RunOptions run;
  InspectOptions inspect;
  SimulateOptions simulate;
  PlanOptions plan;
};

// Exits with the help text where that was asked for; throws std::runtime_error
// with one line where the command line or the file is wrong.
[[nodiscard]] CommandLine parse_command_line(int argc, char** argv);

int serve(const ServeOptions& options);
int run(const RunOptions& options);
int inspect(const InspectOptions& options);

}  // namespace sluice
