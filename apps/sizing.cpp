#include "sizing.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

namespace sluice {
namespace {

std::size_t meminfo(std::string_view wanted) {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::size_t kib = 0;
  std::string unit;
  while (file >> key >> kib >> unit) {
    if (key == wanted) return kib << 10;
  }
  return std::size_t{4} << 30;  // not Linux as we know it: assume little
}

// Of the control group; SIZE_MAX where it does not say.
std::size_t cgroup(const char* path) {
  std::ifstream file(path);
  std::size_t value = 0;
  return (file >> value) ? value : SIZE_MAX;
}

std::size_t cgroup_limit() {
  return cgroup("/sys/fs/cgroup/memory.max");
}

// What it still allows; SIZE_MAX where it sets no limit.
std::size_t cgroup_available() {
  const std::size_t limit = cgroup_limit();
  const std::size_t used = cgroup("/sys/fs/cgroup/memory.current");
  if (limit == SIZE_MAX || used == SIZE_MAX) return SIZE_MAX;
  return limit > used ? limit - used : 0;
}

// A quarter of what is free, but no more than 2 GiB unless one context of 8,192
// tokens needs it: the arena is touched at start, and a laptop has other users.
std::size_t automatic_kv_memory(const ServeOptions& options, const KvLayout& layout,
                                std::int32_t trained_context, const Machine& machine) {
  const auto one_context =
      layout.token_bytes() * static_cast<std::size_t>(std::min(8192, std::max(1, trained_context)));
  const std::size_t usual = std::min(machine.available_memory / 4, std::size_t{2} << 30);
  return std::max(usual, std::min(machine.available_memory / 2,
                                  one_context * static_cast<std::size_t>(options.instances)));
}

}  // namespace

Machine this_machine() {
  Machine machine;
  machine.cores = static_cast<std::int32_t>(std::max(1U, std::thread::hardware_concurrency()));
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) machine.cores = CPU_COUNT(&set);
  machine.available_memory = std::min(meminfo("MemAvailable:"), cgroup_available());
  machine.total_memory = std::min(meminfo("MemTotal:"), cgroup_limit());
  return machine;
}

Result<Sizing> size_instance(const ServeOptions& options, const ModelInfo& model,
                             const Machine& machine) {
  Sizing s;
  s.layout = model.kv_layout;
  s.layout.block_tokens = options.block_tokens;
  s.layout.type = options.kv_type;
  if (!s.layout.holds_whole_groups()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a KV cache of {} needs heads of a multiple of {} elements; this model "
                            "has {} and {}",
                            kv_type_name(s.layout.type), kKvGroup, s.layout.head_dim_k,
                            s.layout.head_dim_v));
  }
  const std::size_t memory =
      options.kv_memory > 0
          ? options.kv_memory
          : automatic_kv_memory(options, s.layout, model.trained_context, machine);
  const std::size_t share = memory / static_cast<std::size_t>(options.instances);
  if (memory + options.kv_host_memory > machine.available_memory) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} of KV memory asked for, {} of memory available",
                            format_size(memory + options.kv_host_memory),
                            format_size(machine.available_memory)));
  }
  const std::size_t blocks = share / s.layout.block_bytes();
  if (blocks < 2 || blocks > INT32_MAX) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} of KV memory an instance is {} blocks of {}; between 2 and {} "
                    "are possible",
                    format_size(share), blocks, format_size(s.layout.block_bytes()), INT32_MAX));
  }
  s.num_blocks = static_cast<std::int32_t>(blocks);
  const std::size_t host_share =
      options.kv_host_memory / static_cast<std::size_t>(options.instances);
  s.num_host_blocks = static_cast<std::int32_t>(
      std::min<std::size_t>(host_share / s.layout.block_bytes(), INT32_MAX));

  const std::int64_t capacity = static_cast<std::int64_t>(blocks) * s.layout.block_tokens;
  const std::int32_t wanted = options.context > 0 ? options.context : model.trained_context;
  if (options.context > capacity) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("a context of {} tokens needs {} of KV memory; an instance has {}, "
                    "enough for {} tokens",
                    options.context,
                    format_size(static_cast<std::size_t>(options.context) * s.layout.token_bytes()),
                    format_size(share), capacity));
  }
  s.context = static_cast<std::int32_t>(std::min<std::int64_t>(wanted, capacity));

  const std::int32_t threads = options.threads > 0 ? options.threads : machine.cores;
  s.threads = std::max(1, threads / options.instances);
  s.max_running = options.max_running;
  s.draft_tokens = options.speculative == "ngram" ? 8 : 0;
  s.max_batch_tokens = std::max(options.max_batch_tokens, options.max_running);
  s.mixed_step_ratio = options.mixed_step_ratio;
  return s;
}

std::int32_t step_outputs(const Sizing& sizing) {
  const BatchOptions batch;
  const std::int32_t drafts = sizing.draft_tokens > 0 ? batch.max_draft_tokens : 0;
  return sizing.max_running + batch.max_scored_tokens + drafts;
}

EngineOptions engine_options(const Sizing& sizing, bool prefix_cache) {
  EngineOptions engine;
  engine.max_running = sizing.max_running;
  engine.max_context = sizing.context;
  engine.draft_tokens = sizing.draft_tokens;
  engine.batch.max_step_tokens = sizing.max_batch_tokens;
  engine.batch.mixed_step_ratio = sizing.mixed_step_ratio;
  engine.kv.num_blocks = sizing.num_blocks;
  engine.kv.prefix_cache = prefix_cache;
  engine.kv.window.block_tokens = sizing.layout.block_tokens;
  engine.kv.window.step_token_budget = sizing.max_batch_tokens;
  return engine;
}

}  // namespace sluice
