// One GET to a sluice server, for `sluice top`.
#pragma once

#include <string>

#include "base/result.h"

namespace sluice {

// The body of a 200 answer to http://host:port/path. kUnavailable: nobody answers;
// other statuses are kInternal with their number.
[[nodiscard]] Result<std::string> http_get(const std::string& url, const std::string& path,
                                           const std::string& api_key);

}  // namespace sluice
