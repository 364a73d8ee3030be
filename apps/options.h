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
#include "cluster_options.h"
#include "serve_options.h"
#include "simulate/plan.h"
#include "simulate/replay.h"
#include "simulate/simulate_options.h"

namespace sluice {

struct RunOptions {
  std::string model;
  std::string prompt;
  std::string system;
  bool raw = false;  // no chat template
  std::string device = "cpu";
  std::int32_t threads = 0;
  std::int32_t max_tokens = 256;
  double temperature = 0.7;
  std::uint64_t seed = 0;  // 0: a new one each time
  std::size_t kv_memory = 0;
  KvType kv_type = KvType::kF16;
  std::string speculative = "off";
  std::string log_level = "warning";
};

struct InspectOptions {
  std::string model;
  KvType kv_type = KvType::kF16;
  std::size_t memory = std::size_t{1} << 30;
};

struct ProfileOptions {
  ServeOptions engine;  // what an instance would be given
  std::string name;     // of the profile; empty: the model's
  std::string output;   // a file; empty: standard output
  std::int32_t rounds = 5;
};

// "1.5GiB", "512M", "4096": decimal multiples are powers of 1024 too, as with
// other engines. kInvalidArgument: not a size.
[[nodiscard]] Result<std::size_t> parse_size(const std::string& text);
[[nodiscard]] std::string format_size(std::size_t bytes);

enum class Command : std::uint8_t {
  kServe,
  kGateway,
  kInstance,
  kClusterUp,
  kTop,
  kDrain,
  kRun,
  kInspect,
  kDevices,
  kProfile,
  kSimulate,
  kPlan,
  kReplay
};

struct CommandLine {
  Command command = Command::kServe;
  ServeOptions serve;
  GatewayCommandOptions gateway;
  InstanceOptions instance;
  UpOptions up;
  TopOptions top;
  DrainOptions drain;
  RunOptions run;
  InspectOptions inspect;
  ProfileOptions profile;
  SimulateOptions simulate;
  PlanOptions plan;
  ReplayOptions replay;
};

// Exits with the help text where that was asked for; throws std::runtime_error
// with one line where the command line or the file is wrong.
[[nodiscard]] CommandLine parse_command_line(int argc, char** argv);

int serve(const ServeOptions& options);
int gateway(const GatewayCommandOptions& options);
int instance(const InstanceOptions& options);
int cluster_up(const UpOptions& options);
int top(const TopOptions& options);
int drain(const DrainOptions& options);
int run(const RunOptions& options);
int inspect(const InspectOptions& options);
int devices();
int profile(const ProfileOptions& options);

}  // namespace sluice
