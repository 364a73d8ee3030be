#include "forecast_state.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

#include "memory/length_forecast.h"

namespace sluice {
namespace {

// Before the text of each instance.
constexpr std::string_view kMark = "[instance]\n";

}  // namespace

Result<std::vector<std::string>> read_forecast_state(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> by_instance;
  std::string_view rest = text;
  while (file && rest.starts_with(kMark)) {
    rest.remove_prefix(kMark.size());
    by_instance.emplace_back(rest.substr(0, rest.find(kMark)));
    rest.remove_prefix(by_instance.back().size());
    if (LengthForecast().restore(by_instance.back())) continue;
    by_instance.clear();
    break;
  }
  if (by_instance.empty() || !rest.empty()) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} is not the state of a forecast; delete it, or name another file", path));
  }
  return by_instance;
}

Status write_forecast_state(const std::string& path, const std::vector<std::string>& by_instance) {
  const std::string fresh = path + ".new";
  std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
  for (const std::string& text : by_instance) file << kMark << text;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(fresh, path, error);
  if (!file || error) {
    return fail(ErrorCode::kInternal, fmt::format("{} cannot be written", path));
  }
  return {};
}

}  // namespace sluice
