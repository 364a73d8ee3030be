#include "model/ggml/devices.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "model/device.h"
#include "model/ggml/ggml_log.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Where backends lie that are not part of the program.
std::vector<fs::path> backend_folders() {
  if (const char* told = std::getenv("SLUICE_BACKENDS")) return {told};
  std::error_code none;
  const fs::path program = fs::read_symlink("/proc/self/exe", none).parent_path();
  if (program.empty()) return {};
  return {program / "backends", program.parent_path() / "lib" / "sluice"};
}

// Once a process: a library that was loaded stays.
void load_backends() {
  static std::once_flag once;
  std::call_once(once, [] {
    route_ggml_logs();
    for (const char* name : {"cuda", "vulkan"}) {
      for (const fs::path& folder : backend_folders()) {
        const fs::path library = folder / fmt::format("libggml-{}.so", name);
        std::error_code none;
        if (!fs::exists(library, none)) continue;
        route_ggml_logs_of(folder.string());
        if (ggml_backend_load(library.c_str()) != nullptr) break;
      }
    }
  });
}

// ggml has the CPU last, since what cannot run elsewhere falls back to it; here it is first.
std::vector<std::pair<std::string, ggml_backend_dev_t>> named_devices() {
  load_backends();
  std::vector<std::pair<std::string, ggml_backend_dev_t>> devices;
  std::map<std::string, int> next;  // number of a backend's next device
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    ggml_backend_dev_t device = ggml_backend_dev_get(i);
    const std::string backend = lower(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)));
    if (backend == "cpu") {
      devices.emplace(devices.begin(), backend, device);
    } else {
      devices.emplace_back(fmt::format("{}:{}", backend, next[backend]++), device);
    }
  }
  return devices;
}

}  // namespace

ggml_backend_dev_t ggml_device(const std::string& name) {
  for (const auto& [known, device] : named_devices()) {
    if (known == name) return device;
  }
  return nullptr;
}

Devices find_devices() {
  Devices there;
  for (const auto& [name, device] : named_devices()) {
    ggml_backend_dev_props props{};
    ggml_backend_dev_get_props(device, &props);
    there.devices.push_back({name, props.description, props.memory_total, props.memory_free,
                             props.device_id != nullptr ? props.device_id : ""});
  }
  for (std::size_t i = 0; i < ggml_backend_reg_count(); ++i) {
    there.backends.push_back(lower(ggml_backend_reg_name(ggml_backend_reg_get(i))));
  }
  std::stable_partition(there.backends.begin(), there.backends.end(),
                        [](const std::string& name) { return name == "cpu"; });
  return there;
}

}  // namespace sluice
