// find_devices(): the devices of ggml's registry.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "model/device.h"
#include "model/ggml/ggml_handles.h"
#include "model/ggml/ggml_log.h"

namespace sluice {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

Device describe(ggml_backend_dev_t device, std::string name) {
  ggml_backend_dev_props props{};
  ggml_backend_dev_get_props(device, &props);
  const bool is_cpu = props.type == GGML_BACKEND_DEVICE_TYPE_CPU;
  return {.name = std::move(name),
          .description = props.description,
          .total_bytes = props.memory_total,
          .free_bytes = props.memory_free,
          .shares_host_memory = is_cpu || props.type == GGML_BACKEND_DEVICE_TYPE_IGPU,
          .software = is_cpu};
}

}  // namespace

Devices find_devices() {
  route_ggml_logs();
  Devices there;
  std::map<std::string, int> next;  // number of a backend's next device
  for (std::size_t i = 0; i < ggml_backend_reg_count(); ++i) {
    there.backends.push_back(lower(ggml_backend_reg_name(ggml_backend_reg_get(i))));
  }
  for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    ggml_backend_dev_t device = ggml_backend_dev_get(i);
    const std::string backend = lower(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)));
    const bool is_cpu = backend == "cpu";
    there.devices.push_back(
        describe(device, is_cpu ? backend : fmt::format("{}:{}", backend, next[backend]++)));
  }
  // ggml has the CPU last: what cannot run elsewhere falls back to it.
  const auto cpu_first = [](const auto& begin, const auto& end, const auto& is_cpu) {
    std::stable_partition(begin, end, is_cpu);
  };
  cpu_first(there.backends.begin(), there.backends.end(),
            [](const std::string& name) { return name == "cpu"; });
  cpu_first(there.devices.begin(), there.devices.end(),
            [](const Device& device) { return device.is_cpu(); });
  return there;
}

}  // namespace sluice
