#include "model/ggml/runner_options.h"

#include <fmt/format.h>
#include <ggml.h>

namespace sluice {
namespace {

constexpr std::int32_t kMaxStep = 1 << 20;

}  // namespace

Status check_runner_options(const RunnerOptions& options, const ModelConfig& config) {
  struct Range {
    const char* name;
    std::int32_t value;
    std::int32_t most;
    bool open = false;  // what lies above is clipped elsewhere
  };
  for (const Range& r : {
           Range{"threads", options.num_threads, GGML_MAX_N_THREADS},
           Range{"tokens of a step", options.max_step_tokens, kMaxStep},
           Range{"outputs of a step", options.max_step_outputs, kMaxStep, true},
           Range{"context", options.max_context, config.trained_context, true},
       }) {
    if (r.value >= 1 && (r.open || r.value <= r.most)) continue;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is {}, expected 1 to {}", r.name, r.value, r.most));
  }
  return {};
}

}  // namespace sluice
