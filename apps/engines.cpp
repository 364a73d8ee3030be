#include "engines.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "base/time.h"
#include "memory/host_kv.h"
#include "memory/memory_policy.h"
#include "or_throw.h"

namespace sluice {

Device device_of(const std::string& wanted) {
  // The CPU is there without asking, which would start the drivers of all others.
  if (wanted == "cpu") return {.name = wanted};
  return or_throw(choose_device(wanted, find_devices()));
}

Machine machine_of(const Device& device) {
  Machine machine = this_machine();
  if (!device.is_cpu()) machine.available_memory = device_of(device.name).free_bytes;
  return machine;
}

namespace {

KvArena make_arena(const Sizing& sizing, std::int32_t num_blocks, ArenaKind kind) {
  KvArena arena = or_throw(KvArena::create(sizing.layout, num_blocks, kind));
  std::vector<Status> results(static_cast<std::size_t>(sizing.threads));
  std::vector<std::jthread> threads;
  for (std::size_t t = 0; t < results.size(); ++t) {
    threads.emplace_back([&arena, &results, t] {
      for (std::size_t chunk = t; chunk < arena.num_chunks() && results[t];
           chunk += results.size()) {
        results[t] = arena.touch_chunk(chunk);
      }
    });
  }
  threads.clear();  // joins
  for (Status& result : results) or_throw(std::move(result));
  return arena;
}

// Where paused sequences wait, and what copying a block there takes; none: null.
struct HostMemory {
  std::unique_ptr<HostKv> kv;
  Duration block_copy{};
};

HostMemory make_host_memory(const KvView& device, const Sizing& sizing) {
  if (sizing.num_host_blocks == 0) return {};
  auto arena = or_throw(KvArena::create(sizing.layout, sizing.num_host_blocks));
  or_throw(arena.touch());
  HostMemory host{make_arena_host_kv(device, std::move(arena)), {}};
  const std::int32_t count = std::min({16, device.num_blocks, sizing.num_host_blocks});
  std::vector<BlockId> blocks;
  for (std::int32_t b = 0; b < count; ++b) blocks.emplace_back(b);
  const SteadyClock clock;
  const TimePoint begin = clock.now();
  host.kv->save(blocks, blocks);
  host.block_copy = (clock.now() - begin) / count;
  return host;
}

}  // namespace

KvMemory::KvMemory(const Model& model, const Sizing& sizing, std::int32_t num_blocks,
                   ArenaKind kind)
    : device_(or_throw(model.make_device_kv(sizing.layout, num_blocks))) {
  if (device_ == nullptr) host_ = make_arena(sizing, num_blocks, kind);
}

KvView KvMemory::view() const {
  return device_ != nullptr ? device_->view() : host_->view();
}

ArenaFile KvMemory::file() const {
  return host_ ? host_->file() : ArenaFile{};
}

LocalInstance make_engine(const ServeOptions& options, const Sizing& sizing, const Model& model,
                          const KvView& kv) {
  auto runner = or_throw(model.make_runner({.num_threads = sizing.threads,
                                            .max_step_tokens = sizing.max_batch_tokens,
                                            .max_step_outputs = step_outputs(sizing),
                                            .max_context = sizing.context}));
  if (options.pace) runner = make_paced_runner(std::move(runner), *options.pace);
  runner->bind(kv);
  EngineOptions engine = engine_options(sizing, options.prefix_cache);
  engine.kv.policy = memory_policy_of(options.memory_policy).value();  // the flag was checked
  HostMemory host = make_host_memory(kv, sizing);
  if (host.kv) engine.host_block_copy = host.block_copy;
  return {.engine = engine, .runner = std::move(runner), .host = std::move(host.kv)};
}

}  // namespace sluice
