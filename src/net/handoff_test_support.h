// Prefill and decode apart, in one process or over sockets, for one suite of tests.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "memory/kv_arena.h"
#include "net/instance_process.h"
#include "net/net_test_support.h"
#include "net/remote_cluster.h"

namespace sluice {

enum class Joined {
  kOneProcess,  // LocalCluster
  kSockets,     // RemoteCluster and InstanceProcess; KV is carried by the stream of peers
  kTcp,         // the same; KV has a connection of its own
  kUcx,         // the same; that is UCX's
  kSharedHost,  // the same; KV is read in place
};

struct ApartSetup {
  std::size_t prefill = 1;
  std::size_t decode = 1;
  // Longer than a word takes to another instance: else a sequence outruns its handoff.
  std::chrono::microseconds step{2000};
  // Of this instance's runner.
  std::size_t failing = 0;
  PacedRunner::Failure failure = PacedRunner::Failure::kNone;
  std::int64_t fail_at = 0;
};

class ApartCluster {
 public:
  explicit ApartCluster(Joined joined, const ApartSetup& setup = {})
      : joined_(joined), setup_(setup), samplers(kModel), model(kModel) {
    if (joined == Joined::kOneProcess) {
      start_local();
    } else {
      start_remote();
    }
  }

  [[nodiscard]] Serving& serving() { return local_ ? static_cast<Serving&>(*local_) : *remote_; }
  [[nodiscard]] std::unique_ptr<Request> request(std::uint64_t id, std::size_t prompt,
                                                 std::int32_t max_tokens) const {
    return numbered_request(id, prompt, max_tokens, clock.now());
  }
  Status submit(std::uint64_t id, std::size_t prompt, std::int32_t max_tokens) {
    return serving().submit(request(id, prompt, max_tokens));
  }
  // All are known, and a first handoff shows that they know each other.
  bool wait_ready() {
    const bool known = wait(
        [&] { return serving().snapshot()->instances.size() == setup_.prefill + setup_.decode; });
    for (std::uint64_t id = 1'000'000; known && id < 1'000'100; ++id) {
      if (!submit(id, 8, 60) || !recorder.wait_finished(id - 999'999)) return false;
      warmed_ = id - 999'999;
      if (wait([&] { return total().taken > 0; }, std::chrono::milliseconds(200))) return true;
    }
    return false;
  }
  // Answers that wait_ready() asked for.
  [[nodiscard]] std::size_t warmed() const { return warmed_; }

  // Of all instances.
  [[nodiscard]] HandoffStats total() {
    HandoffStats sum;
    for (const InstanceSnapshot& i : serving().snapshot()->instances) {
      if (!i.handoffs) continue;
      for (const auto& [by, counts] : i.handoffs->source.outcomes) {
        OutcomeCounts& of = sum.source.outcomes[by];
        for (std::size_t o = 0; o < of.size(); ++o) of[o] += counts[o];
      }
      sum.taken += i.handoffs->taken;
      sum.reservations += i.handoffs->reservations;
      sum.leaving += i.handoffs->leaving;
      for (const auto& [by, bytes] : i.handoffs->transfer.bytes) sum.transfer.bytes[by] += bytes;
    }
    return sum;
  }

  // Nothing runs and nothing is held anywhere.
  bool wait_empty() {
    return wait([&] {
      const auto snapshot = serving().snapshot();
      for (const InstanceSnapshot& i : snapshot->instances) {
        if (i.stats.kv.granted_blocks != 0 || !i.stats.running.empty()) return false;
      }
      const HandoffStats sum = total();
      return !snapshot->instances.empty() && sum.reservations == 0 && sum.leaving == 0;
    });
  }

  // The instance is gone, without a word to its requests.
  void lose(std::size_t i) { processes_.at(i).reset(); }
  // It takes nothing new and hands over what it has.
  void drain(std::size_t i) { processes_.at(i)->drain(); }
  [[nodiscard]] std::int32_t active(std::size_t i) const { return processes_.at(i)->active(); }
  void stop() {
    if (local_) local_->stop();
    if (remote_) remote_->stop();
    for (auto& process : processes_) {
      if (process) process->stop();
    }
  }
  [[nodiscard]] const char* transport() const {
    if (joined_ == Joined::kOneProcess) return "local";
    if (joined_ == Joined::kTcp) return "tcp";
    if (joined_ == Joined::kUcx) return "ucx";
    return joined_ == Joined::kSockets ? "grpc" : "shm";
  }

  template <class Condition>
  static bool wait(const Condition& condition,
                   std::chrono::milliseconds limit = std::chrono::seconds(60)) {
    const auto until = std::chrono::steady_clock::now() + limit;
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

 private:
  static constexpr FakeModelOptions kModel{.num_blocks = 256, .block_tokens = 4};
  static constexpr std::uint64_t kFingerprint = 0xfeed;

  [[nodiscard]] EngineOptions engine_options() const {
    EngineOptions engine;
    engine.kv.num_blocks = kModel.num_blocks;
    engine.kv.window.block_tokens = kModel.block_tokens;
    engine.kv.window.step_token_budget = engine.batch.max_step_tokens;
    return engine;
  }
  [[nodiscard]] std::unique_ptr<PacedRunner> runner(std::size_t i) const {
    const auto failure = i == setup_.failing ? setup_.failure : PacedRunner::Failure::kNone;
    return std::make_unique<PacedRunner>(kModel, setup_.step, failure, setup_.fail_at);
  }
  [[nodiscard]] Role role(std::size_t i) const {
    return i < setup_.prefill ? Role::kPrefill : Role::kDecode;
  }

  void start_local() {
    const std::size_t count = setup_.prefill + setup_.decode;
    add_arena(static_cast<std::int32_t>(count) * kModel.num_blocks, ArenaKind::kPrivate);
    LocalClusterOptions options;
    options.scheduler.queue_limit = 1000;
    options.arena = view(arenas_[0]);
    std::vector<LocalInstance> instances;
    for (std::size_t i = 0; i < count; ++i) {
      EngineOptions engine = engine_options();
      engine.kv.first_block = static_cast<std::int32_t>(i) * kModel.num_blocks;
      auto device = runner(i);
      device->bind(options.arena);
      instances.push_back({engine, std::move(device), nullptr, role(i)});
    }
    auto started = LocalCluster::start(options, std::move(instances), samplers, clock, recorder);
    CHECK(started.has_value());
    local_ = std::move(*started);
  }

  void start_remote() {
    RemoteClusterOptions options;
    options.name = "test";
    options.scheduler.queue_limit = 1000;
    options.model = kFingerprint;
    options.vocabulary = 1 << 24;
    auto started = RemoteCluster::start(options, clock, recorder);
    CHECK(started.has_value());
    remote_ = std::move(*started);
    for (std::size_t i = 0; i < setup_.prefill + setup_.decode; ++i) start_instance(i);
  }

  void start_instance(std::size_t i) {
    const bool shared = joined_ == Joined::kSharedHost;
    const KvArena& arena =
        add_arena(kModel.num_blocks, shared ? ArenaKind::kShared : ArenaKind::kPrivate);
    InstanceProcessOptions options;
    options.name = fmt::format("{}-{}", role_name(role(i)), i);
    options.role = role(i);
    options.join = {fmt::format("127.0.0.1:{}", remote_->port())};
    options.model = kFingerprint;
    options.vocabulary = 1 << 24;
    options.handoffs.arena = view(arena);
    options.handoffs.file = arena.file();
    options.handoffs.lease = std::chrono::seconds(3);
    options.handoffs.checksum = true;
    options.handoffs.kv_tcp = joined_ == Joined::kTcp;
    options.handoffs.kv_ucx = joined_ == Joined::kUcx ? KvUcx::kOn : KvUcx::kOff;
    auto device = runner(i);
    device->bind(view(arena));
    auto process = InstanceProcess::start(options, {engine_options(), std::move(device), nullptr},
                                          samplers, clock);
    CHECK(process.has_value());
    processes_.push_back(std::move(*process));
  }

  const KvArena& add_arena(std::int32_t blocks, ArenaKind kind) {
    // As many bytes as the fake model's, which is no layout of keys and values.
    const KvLayout layout{.num_layers = 1,
                          .num_kv_heads = 1,
                          .head_dim_k = 1,
                          .head_dim_v = 1,
                          .block_tokens = kModel.block_tokens};
    auto arena = KvArena::create(layout, blocks, kind);
    CHECK(arena.has_value());
    arenas_.push_back(std::move(*arena));
    return arenas_.back();
  }
  static KvView view(const KvArena& arena) {
    KvView view = arena.view();
    view.layout = FakeModelRunner::fake_kv_layout(kModel.block_tokens);
    return view;
  }

  const Joined joined_;
  const ApartSetup setup_;
  std::deque<KvArena> arenas_;
  std::size_t warmed_ = 0;

 public:
  SteadyClock clock;
  SharedRecorder recorder;
  FakeSamplerFactory samplers;
  FakeModelRunner model;  // knows the right answers

 private:
  std::unique_ptr<LocalCluster> local_;
  std::unique_ptr<RemoteCluster> remote_;
  std::vector<std::unique_ptr<InstanceProcess>> processes_;
};

}  // namespace sluice
