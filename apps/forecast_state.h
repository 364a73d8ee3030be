// The file of --forecast-state: what the instances' length forecasts have learned,
// so that a restarted server does not begin with a guess.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace sluice {

// By instance; empty where there is no file yet. kInvalidArgument: not such a
// file, or not to be read.
[[nodiscard]] Result<std::vector<std::string>> read_forecast_state(const std::string& path);

// Replaces the file as a whole, or leaves it as it was.
[[nodiscard]] Status write_forecast_state(const std::string& path,
                                          const std::vector<std::string>& by_instance);

}  // namespace sluice
