// Traces that are JSON, one object a line: see trace_files.h.
#pragma once

#include <string>

#include "base/result.h"
#include "simulation/trace.h"

namespace sluice {

[[nodiscard]] Result<Trace> parse_json_trace(const std::string& path, const std::string& text);

}  // namespace sluice
