#include "cluster_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <map>
#include <set>

namespace sluice {
namespace {

constexpr int kMostAlike = 256;
constexpr int kFirstPort = 8080;
constexpr int kFirstJoinPort = 7070;

using Settings = std::vector<std::pair<std::string, std::string>>;

struct Wrong {
  std::string what;
};

// `name: value` and `name: [value, ...]`.
Settings settings_of(const YAML::Node& map, const std::set<std::string>& skipped) {
  Settings settings;
  for (const auto& entry : map) {
    const auto name = entry.first.as<std::string>();
    if (skipped.contains(name)) continue;
    if (entry.second.IsScalar()) {
      settings.emplace_back(name, entry.second.Scalar());
      continue;
    }
    if (!entry.second.IsSequence()) throw Wrong{fmt::format("\"{}\" must be a value", name)};
    for (const auto& value : entry.second) {
      if (!value.IsScalar()) throw Wrong{fmt::format("\"{}\" must hold plain values", name)};
      settings.emplace_back(name, value.Scalar());
    }
  }
  return settings;
}

std::string value_of(const Settings& settings, const std::string& name, std::string otherwise) {
  for (const auto& [key, value] : settings) {
    if (key == name) return value;
  }
  return otherwise;
}

int count_of(const YAML::Node& entry) {
  if (!entry["count"]) return 1;
  const int count = entry["count"].as<int>();
  if (count < 1 || count > kMostAlike) {
    throw Wrong{fmt::format("\"count\" is {}; it must be from 1 to {}", count, kMostAlike)};
  }
  return count;
}

class Builder {
 public:
  explicit Builder(const YAML::Node& root) : root_(root) {
    if (!root.IsMap()) throw Wrong{"must be a list of \"name: value\" lines"};
    common_ = settings_of(root, {"gateways", "instances"});
    if (value_of(common_, "model", "").empty()) throw Wrong{"\"model\" is missing"};
  }

  std::vector<ProcessSpec> build() {
    each("gateways", [this](const YAML::Node& entry) { add_gateway(entry); });
    each("instances", [this](const YAML::Node& entry) { add_instance(entry); });
    return std::move(specs_);
  }

 private:
  template <class Add>
  void each(const char* what, const Add& add) {
    const YAML::Node list = root_[what];
    if (!list || !list.IsSequence() || list.size() == 0) {
      throw Wrong{fmt::format("\"{}\" must be a list of at least 1", what)};
    }
    for (const auto& entry : list) {
      if (!entry.IsMap()) throw Wrong{fmt::format("\"{}\" must hold settings", what)};
      for (int i = count_of(entry); i > 0; --i) add(entry);
    }
  }

  void add_gateway(const YAML::Node& entry) {
    Settings own = settings_of(entry, {"count", "name"});
    const int index = gateways_++;
    if (value_of(own, "port", "").empty()) {
      own.emplace_back("port", std::to_string(kFirstPort + index));
    }
    if (value_of(own, "listen", "").empty()) {
      own.emplace_back("listen", fmt::format("127.0.0.1:{}", kFirstJoinPort + index));
    }
    joins_.push_back(value_of(own, "listen", ""));
    add(entry, "gateway", "gateway", own);
  }

  void add_instance(const YAML::Node& entry) {
    Settings own = settings_of(entry, {"count", "name"});
    if (value_of(own, "join", "").empty()) {
      for (const std::string& join : joins_) own.emplace_back("join", join);
    }
    add(entry, "instance", value_of(own, "role", "unified"), own);
  }

  void add(const YAML::Node& entry, const char* command, const std::string& kind,
           const Settings& own) {
    std::string name = entry["name"] ? entry["name"].as<std::string>() : kind;
    const int before = names_[name]++;
    if (!entry["name"] || before > 0) name += fmt::format("-{}", before);
    ProcessSpec spec{name, {"sluice", command, "--name=" + name}};
    for (const auto& settings : {common_, own}) {
      for (const auto& [key, value] : settings) {
        spec.arguments.push_back(fmt::format("--{}={}", key, value));
      }
    }
    specs_.push_back(std::move(spec));
  }

  const YAML::Node root_;
  Settings common_;
  int gateways_ = 0;
  std::vector<std::string> joins_;
  std::map<std::string, int> names_;
  std::vector<ProcessSpec> specs_;
};

}  // namespace

Result<std::vector<ProcessSpec>> read_cluster_file(const std::string& path) {
  std::string wrong;
  try {
    return Builder(YAML::LoadFile(path)).build();
  } catch (const Wrong& e) {
    wrong = e.what;
  } catch (const YAML::BadFile&) {
    wrong = "cannot be read";
  } catch (const YAML::Exception& e) {
    wrong = e.what();
  }
  return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", path, wrong));
}

}  // namespace sluice
