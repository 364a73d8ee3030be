#include "api_key_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <stdexcept>

#include "gateway/api_keys.h"

namespace sluice {

namespace {

ApiKey key_of(const YAML::Node& node) {
  ApiKey key;
  for (const auto& entry : node) {
    const auto name = entry.first.as<std::string>();
    if (name == "key") {
      key.key = entry.second.as<std::string>();
    } else if (name == "name") {
      key.name = entry.second.as<std::string>();
    } else if (name == "requests-per-minute") {
      key.requests_per_minute = entry.second.as<std::int64_t>();
    } else if (name == "tokens-per-minute") {
      key.tokens_per_minute = entry.second.as<std::int64_t>();
    } else if (name == "concurrent-requests") {
      key.concurrent_requests = entry.second.as<std::int64_t>();
    } else {
      throw std::runtime_error(fmt::format(
          "there is no \"{}\"; a key has key, name, requests-per-minute, tokens-per-minute and "
          "concurrent-requests",
          name));
    }
  }
  return key;
}

}  // namespace

std::vector<ApiKey> read_api_keys(const std::string& file) {
  try {
    const YAML::Node root = YAML::LoadFile(file);
    if (!root.IsSequence()) throw std::runtime_error("must be a list of keys");
    std::vector<ApiKey> keys;
    for (const auto& node : root) {
      if (!node.IsMap()) throw std::runtime_error("each key must be \"name: value\" lines");
      keys.push_back(key_of(node));
    }
    if (const Status good = check_api_keys(keys); !good) {
      throw std::runtime_error(good.error().message);
    }
    return keys;
  } catch (const YAML::BadFile&) {
    throw std::runtime_error(fmt::format("cannot read {}", file));
  } catch (const std::exception& e) {  // YAML's own among them; no value is shown: it may be a key
    throw std::runtime_error(fmt::format("{}: {}", file, e.what()));
  }
}

}  // namespace sluice
