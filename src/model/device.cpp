#include "model/device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace sluice {
namespace {

struct Backend {
  std::string_view name;
  std::string_view title;
};
constexpr std::array kNumbered = {Backend{"cuda", "CUDA"}, Backend{"vulkan", "Vulkan"}};
constexpr std::size_t kMaxDigits = 3;

std::vector<std::string> names_of(const Devices& there) {
  std::vector<std::string> names;
  for (const Device& device : there.devices) names.push_back(device.name);
  return names;
}

tl::unexpected<Error> not_a_name(std::string_view wanted) {
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("\"{}\" is not a device: expected cpu, cuda[:N], vulkan[:N] or auto", wanted));
}

const Device* named(std::string_view name, const Devices& there) {
  const auto found = std::find_if(there.devices.begin(), there.devices.end(),
                                  [&](const Device& device) { return device.name == name; });
  return found == there.devices.end() ? nullptr : &*found;
}

Device best_of(const Devices& there) {
  const Device* best = &there.devices.front();
  for (const Device& device : there.devices) {
    if (device.is_cpu()) continue;
    if (best->is_cpu() || device.free_bytes > best->free_bytes) best = &device;
  }
  return *best;
}

}  // namespace

Result<Device> choose_device(std::string_view wanted, const Devices& there) {
  if (wanted == "auto") return best_of(there);
  const std::size_t colon = wanted.find(':');
  const std::string_view kind = wanted.substr(0, colon);
  std::string name(wanted);
  if (kind != "cpu") {
    const std::string_view number =
        colon == std::string_view::npos ? std::string_view("0") : wanted.substr(colon + 1);
    const bool digits = !number.empty() && number.size() <= kMaxDigits &&
                        std::all_of(number.begin(), number.end(),
                                    [](unsigned char c) { return std::isdigit(c) != 0; });
    const auto* const backend = std::find_if(kNumbered.begin(), kNumbered.end(),
                                             [&](const Backend& b) { return b.name == kind; });
    if (!digits || backend == kNumbered.end()) return not_a_name(wanted);
    if (std::find(there.backends.begin(), there.backends.end(), kind) == there.backends.end()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("this build has no {} backend; it has: {}", backend->title,
                              fmt::join(there.backends, ", ")));
    }
    name = fmt::format("{}:{}", kind, std::stoi(std::string(number)));
  } else if (colon != std::string_view::npos) {
    return not_a_name(wanted);
  }
  if (const Device* device = named(name, there)) return *device;
  return fail(ErrorCode::kNotFound, fmt::format("there is no device {} here; there are: {}", name,
                                                fmt::join(names_of(there), ", ")));
}

}  // namespace sluice
