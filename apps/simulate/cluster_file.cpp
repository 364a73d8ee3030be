#include "cluster_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "lines.h"
#include "trace_files.h"

namespace sluice {
namespace {

constexpr int kMostInstances = 20000;
constexpr int kBlockTokens = 64;

using Devices = std::map<std::string, std::shared_ptr<const DeviceProfile>>;

// What is wrong in a file is thrown, and leaves parse_cluster() as an Error.
[[noreturn]] void refuse(const YAML::Node& where, const std::string& what) {
  throw std::runtime_error(fmt::format("line {}: {}", where.Mark().line + 1, what));
}

std::shared_ptr<const DeviceProfile> device_of(const std::string& name, Devices& known) {
  auto& device = known[name];
  if (device) return device;
  auto profile = built_in_device(name);
  if (!profile && profile.error().code == ErrorCode::kNotFound) {
    if (const auto text = read_file(name)) profile = parse_device(*text);
  }
  if (!profile) throw std::runtime_error(profile.error().message);
  device = std::make_shared<DeviceProfile>(*std::move(profile));
  return device;
}

double number(const YAML::Node& map, const char* key, double otherwise, double least, double most) {
  const YAML::Node node = map[key];
  if (!node) return otherwise;
  double value = 0;
  if (!YAML::convert<double>::decode(node, value) || !(value >= least && value <= most)) {
    refuse(node, fmt::format("{} must be a number from {} to {}", key, least, most));
  }
  return value;
}

std::int32_t integer(const YAML::Node& map, const char* key, int otherwise, int least, int most) {
  return static_cast<std::int32_t>(number(map, key, otherwise, least, most));
}

Duration milliseconds(const YAML::Node& map, const char* key, Duration otherwise) {
  return from_seconds(number(map, key, to_seconds(otherwise) * 1e3, 0, 1e6) * 1e-3);
}

void check_keys(const YAML::Node& map, std::initializer_list<std::string_view> known) {
  if (!map.IsMap()) refuse(map, "a map is expected");
  for (const auto& entry : map) {
    const auto key = entry.first.as<std::string>();
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      refuse(entry.first,
             fmt::format("\"{}\" is not known here; there are {}", key, fmt::join(known, ", ")));
    }
  }
}

// Of an instance on a device, as a server for many users is set up.
NodeOptions node_of(const DeviceProfile& device, std::int32_t block_tokens) {
  NodeOptions node;
  EngineOptions& e = node.engine;
  e.max_running = 256;
  e.max_waiting = 4096;
  e.max_context = 1 << 20;
  e.batch.max_step_tokens = 2048;
  e.batch.min_chunk_tokens = 128;
  e.batch.mixed_step_target = std::chrono::milliseconds(45);
  e.kv.window.block_tokens = block_tokens;
  e.kv.window.step_token_budget = e.batch.max_step_tokens;
  e.kv.num_blocks = static_cast<std::int32_t>(device.kv_tokens / block_tokens);
  node.kv_token_bytes = device.kv_token_bytes;
  return node;
}

Role role_of(const YAML::Node& entry) {
  const std::string name = entry["role"] ? entry["role"].as<std::string>() : "unified";
  for (const Role role : {Role::kUnified, Role::kPrefill, Role::kDecode}) {
    if (name == role_name(role)) return role;
  }
  refuse(entry["role"], "role must be unified, prefill or decode");
}

void add_instances(const YAML::Node& entry, Devices& devices, ClusterSpec& cluster) {
  check_keys(entry, {"count", "device", "kv_tokens", "block_tokens", "max_running",
                     "max_step_tokens", "min_chunk_tokens", "mixed_step_ms", "mixed_step_ratio",
                     "prefix_cache", "report_ms", "role"});
  if (!entry["device"]) refuse(entry, "an instance needs a device");
  const auto device = device_of(entry["device"].as<std::string>(), devices);
  const std::int32_t block = integer(entry, "block_tokens", kBlockTokens, 1, 4096);
  NodeOptions node = node_of(*device, block);
  node.role = role_of(entry);
  EngineOptions& e = node.engine;
  e.kv.num_blocks = static_cast<std::int32_t>(
      number(entry, "kv_tokens", static_cast<double>(device->kv_tokens), block, 1e12) / block);
  e.kv.prefix_cache = !entry["prefix_cache"] || entry["prefix_cache"].as<bool>();
  e.max_running = integer(entry, "max_running", e.max_running, 1, 1 << 16);
  e.batch.max_step_tokens = integer(entry, "max_step_tokens", e.batch.max_step_tokens, 1, 1 << 20);
  e.kv.window.step_token_budget = e.batch.max_step_tokens;
  e.batch.min_chunk_tokens =
      integer(entry, "min_chunk_tokens", e.batch.min_chunk_tokens, 1, 1 << 20);
  e.batch.mixed_step_target = milliseconds(entry, "mixed_step_ms", e.batch.mixed_step_target);
  e.batch.mixed_step_ratio = number(entry, "mixed_step_ratio", e.batch.mixed_step_ratio, 1, 100);
  node.report_interval = milliseconds(entry, "report_ms", node.report_interval);
  const std::int32_t count = integer(entry, "count", 1, 1, kMostInstances);
  cluster.nodes.insert(cluster.nodes.end(), static_cast<std::size_t>(count), node);
  cluster.devices.insert(cluster.devices.end(), static_cast<std::size_t>(count), device);
}

void read_network(const YAML::Node& entry, NetworkOptions& network) {
  check_keys(entry, {"latency_ms", "jitter_ms", "report_delay_ms", "report_loss", "mail_loss",
                     "kv_gbit_per_s"});
  network.latency = milliseconds(entry, "latency_ms", network.latency);
  network.jitter = milliseconds(entry, "jitter_ms", network.jitter);
  network.report_delay = milliseconds(entry, "report_delay_ms", network.report_delay);
  network.report_loss = number(entry, "report_loss", 0, 0, 1);
  network.mail_loss = number(entry, "mail_loss", 0, 0, 1);
  constexpr double kGbit = 1e9 / 8;
  network.kv_bytes_per_s =
      number(entry, "kv_gbit_per_s", network.kv_bytes_per_s / kGbit, 1e-3, 1e6) * kGbit;
}

void add_fault(const YAML::Node& entry, ClusterSpec& cluster) {
  check_keys(entry, {"at_s", "kind", "instance", "seconds"});
  static const std::map<std::string, FaultKind> kKinds = {{"crash", FaultKind::kCrash},
                                                          {"hang", FaultKind::kHang},
                                                          {"partition", FaultKind::kPartition},
                                                          {"drain", FaultKind::kDrain}};
  const auto kind = kKinds.find(entry["kind"] ? entry["kind"].as<std::string>() : "");
  if (kind == kKinds.end()) refuse(entry, "kind must be crash, hang, partition or drain");
  const auto last = static_cast<int>(cluster.nodes.size()) - 1;
  cluster.faults.push_back(
      {.at = from_seconds(number(entry, "at_s", 0, 0, 1e9)),
       .kind = kind->second,
       .instance = static_cast<std::uint32_t>(integer(entry, "instance", 0, 0, last)),
       .length = from_seconds(number(entry, "seconds", 10, 0, 1e9))});
}

ClusterSpec read_yaml(const std::string& text) {
  const YAML::Node root = YAML::Load(text);
  check_keys(root, {"instances", "network", "scheduler", "faults"});
  ClusterSpec cluster;
  Devices devices;
  if (!root["instances"] || root["instances"].size() == 0) refuse(root, "instances are missing");
  for (const auto& entry : root["instances"]) add_instances(entry, devices, cluster);
  if (root["network"]) read_network(root["network"], cluster.network);
  if (root["scheduler"]) {
    check_keys(root["scheduler"], {"queue_limit", "max_waiting"});
    cluster.queue_limit =
        integer(root["scheduler"], "queue_limit", cluster.queue_limit, 0, 1 << 30);
    cluster.max_waiting =
        integer(root["scheduler"], "max_waiting", cluster.max_waiting, 1, 1 << 30);
  }
  if (root["faults"]) {
    for (const auto& entry : root["faults"]) add_fault(entry, cluster);
  }
  return cluster;
}

// "16xh100-8b+4xa100-8b"
ClusterSpec read_words(std::string_view words) {
  ClusterSpec cluster;
  Devices devices;
  while (!words.empty()) {
    const std::size_t end = std::min(words.find('+'), words.size());
    const std::string_view word = words.substr(0, end);
    words.remove_prefix(std::min(end + 1, words.size()));
    const std::size_t x = word.find('x');
    const auto count = number_of(word.substr(0, std::min(x, word.size())));
    if (x == std::string_view::npos || !count || *count < 1 || *count > kMostInstances) {
      throw std::runtime_error(
          fmt::format("\"{}\" is no file, and not like 16xh100-8b with 1 to {} instances", word,
                      kMostInstances));
    }
    const auto device = device_of(std::string(word.substr(x + 1)), devices);
    const auto n = static_cast<std::size_t>(*count);
    cluster.nodes.insert(cluster.nodes.end(), n, node_of(*device, kBlockTokens));
    cluster.devices.insert(cluster.devices.end(), n, device);
  }
  return cluster;
}

template <class Read>
Result<ClusterSpec> guarded(const std::string& name, Read read) {
  try {
    return read();
  } catch (const std::exception& e) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", name, e.what()));
  }
}

}  // namespace

std::vector<const DeviceProfile*> ClusterSpec::profiles() const {
  std::vector<const DeviceProfile*> profiles;
  for (const auto& device : devices) profiles.push_back(device.get());
  return profiles;
}

Status set_roles(ClusterSpec& cluster, std::int32_t prefill, std::int32_t decode) {
  const auto count = static_cast<std::int32_t>(cluster.nodes.size());
  if (prefill + decode > count) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} prefill and {} decode instances are more than the cluster's {}",
                            prefill, decode, count));
  }
  for (std::int32_t i = 0; i < prefill + decode; ++i) {
    cluster.nodes[static_cast<std::size_t>(i)].role = i < prefill ? Role::kPrefill : Role::kDecode;
  }
  const auto only_decodes = [](const NodeOptions& node) { return node.role == Role::kDecode; };
  if (std::all_of(cluster.nodes.begin(), cluster.nodes.end(), only_decodes)) {
    return fail(ErrorCode::kInvalidArgument, "a cluster needs at least 1 instance that prefills");
  }
  return {};
}

Result<ClusterSpec> parse_cluster(const std::string& yaml) {
  return guarded("cluster", [&] { return read_yaml(yaml); });
}

Result<ClusterSpec> read_cluster(const std::string& file_or_words) {
  if (const auto text = read_file(file_or_words)) {
    return guarded(file_or_words, [&] { return read_yaml(*text); });
  }
  return guarded("--cluster", [&] { return read_words(file_or_words); });
}

}  // namespace sluice
