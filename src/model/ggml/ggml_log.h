// Sends what ggml and libllama print to our log, at debug level.
#pragma once

namespace sluice {

// Idempotent; any thread.
void route_ggml_logs();

}  // namespace sluice
