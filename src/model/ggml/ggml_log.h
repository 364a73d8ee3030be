// Sends what ggml and libllama print to our log, at debug level.
#pragma once

#include <string>

namespace sluice {

// Idempotent; any thread.
void route_ggml_logs();

// The same for the copy of ggml that backends in `folder` share; before any is loaded.
void route_ggml_logs_of(const std::string& folder);

}  // namespace sluice
