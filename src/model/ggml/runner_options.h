// Checks what every runner is told.
#pragma once

#include "base/result.h"
#include "model/ggml/architecture.h"
#include "model/model.h"

namespace sluice {

// kInvalidArgument: an option is out of its range; the message says which.
[[nodiscard]] Status check_runner_options(const RunnerOptions& options, const ModelConfig& config);

}  // namespace sluice
