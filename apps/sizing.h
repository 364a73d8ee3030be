// Sensible automatic values from the model, the memory and the cores.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/kv_layout.h"
#include "base/result.h"
#include "engine/engine.h"
#include "model/model_info.h"
#include "options.h"

namespace sluice {

// What the machine has for this process (its cgroup and affinity mask counted).
struct Machine {
  std::int32_t cores = 1;
  std::size_t available_memory = 0;  // bytes
  std::size_t total_memory = 0;
};
[[nodiscard]] Machine this_machine();

// Of one instance.
struct Sizing {
  KvLayout layout;
  std::int32_t num_blocks = 0;
  std::int32_t num_host_blocks = 0;  // for paused sequences
  std::int32_t threads = 1;
  std::int32_t context = 0;  // tokens
  std::int32_t max_batch_tokens = 0;
  double mixed_step_ratio = 2;
  std::int32_t max_running = 0;
  std::int32_t draft_tokens = 0;  // of a sequence in a step
};

// kInvalidArgument: the numbers asked for do not fit together; says which.
[[nodiscard]] Result<Sizing> size_instance(const ServeOptions& options, const ModelInfo& model,
                                           const Machine& machine);

// Most rows of logits that a step of such an instance can want.
[[nodiscard]] std::int32_t step_outputs(const Sizing& sizing);

// What the engine of such an instance is given.
[[nodiscard]] EngineOptions engine_options(const Sizing& sizing, bool prefix_cache);

}  // namespace sluice
