// A sink, a runner and requests for tests of the threaded shell.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/request.h"
#include "model/fake_model_runner.h"
#include "net/local_cluster.h"

namespace sluice {

// Its prompt is told by its number.
inline std::unique_ptr<Request> numbered_request(std::uint64_t id, std::size_t prompt,
                                                 std::int32_t max_tokens, TimePoint arrival) {
  auto r = std::make_unique<Request>();
  r->id = RequestId{id};
  r->prompt.resize(prompt);
  std::iota(r->prompt.begin(), r->prompt.end(), static_cast<Token>(id * 7));
  r->max_tokens = max_tokens;
  r->arrival = arrival;
  return r;
}

// Collects answers from all engine threads, and checks what every client relies on.
class SharedRecorder final : public TokenSink {
 public:
  struct Answer {
    std::vector<Token> tokens;
    FinishReason finish = FinishReason::kNone;
    Error error;
  };

  void on_tokens(std::vector<TokenEvent>&& events) override {
    const std::lock_guard lock(mutex_);
    for (TokenEvent& event : events) {
      Answer& answer = answers_[event.request];
      if (answer.finish != FinishReason::kNone) ++violations_;
      if (event.has_token) {
        if (event.index != static_cast<std::int32_t>(answer.tokens.size())) ++violations_;
        answer.tokens.push_back(event.token.token);
      }
      if (event.finish == FinishReason::kNone) continue;
      answer.finish = event.finish;
      answer.error = std::move(event.error);
      ++finished_;
    }
    changed_.notify_all();
  }

  // False: not that many have finished in time.
  bool wait_finished(std::size_t count, std::chrono::seconds limit = std::chrono::seconds(60)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return finished_ >= count; });
  }
  bool wait_tokens(RequestId id, std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60),
                             [&] { return answers_[id].tokens.size() >= count; });
  }
  Answer answer(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    return answers_[RequestId{id}];
  }
  std::size_t finished() {
    const std::lock_guard lock(mutex_);
    return finished_;
  }
  int violations() {
    const std::lock_guard lock(mutex_);
    return violations_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, Answer> answers_;  // guarded by mutex_
  std::size_t finished_ = 0;             // guarded by mutex_
  int violations_ = 0;                   // guarded by mutex_
};

// The fake model at a speed of one's choice, with failures on demand.
class PacedRunner final : public ModelRunner {
 public:
  enum class Failure { kNone, kError, kThrow };
  PacedRunner(FakeModelOptions options, std::chrono::microseconds step, Failure failure,
              std::int64_t fail_at)
      : inner_(options), step_(step), failure_(failure), fail_at_(fail_at) {}
  void bind(const KvView& kv) override { inner_.bind(kv); }
  Result<StepOutput> run(const StepInput& input) override {
    if (step_.count() > 0) std::this_thread::sleep_for(step_);
    if (++steps_ == fail_at_) {
      if (failure_ == Failure::kThrow) throw std::runtime_error("the device is on fire");
      if (failure_ == Failure::kError) return fail(ErrorCode::kInternal, "the device failed");
    }
    auto output = inner_.run(input);
    if (output) output->duration = step_ + std::chrono::microseconds(1);
    return output;
  }
  [[nodiscard]] const FakeModelRunner& model() const { return inner_; }

 private:
  FakeModelRunner inner_;
  const std::chrono::microseconds step_;
  const Failure failure_;
  const std::int64_t fail_at_;
  std::int64_t steps_ = 0;
};

struct ClusterSetup {
  std::size_t instances = 2;
  FakeModelOptions model{.num_blocks = 256, .block_tokens = 4};
  EngineOptions engine{};
  LocalClusterOptions cluster{};
  std::chrono::microseconds step{200};
  PacedRunner::Failure failure = PacedRunner::Failure::kNone;  // of one instance
  std::size_t failing = 0;
  std::int64_t fail_at = 0;
};

// Threads and all.
class RunningCluster {
 public:
  explicit RunningCluster(ClusterSetup setup = {}) : samplers(setup.model), model(setup.model) {
    setup.engine.kv.num_blocks = setup.model.num_blocks;
    setup.engine.kv.window.block_tokens = setup.model.block_tokens;
    setup.engine.kv.window.step_token_budget = setup.engine.batch.max_step_tokens;
    std::vector<LocalInstance> instances;
    for (std::size_t i = 0; i < setup.instances; ++i) {
      const auto failure = i == setup.failing ? setup.failure : PacedRunner::Failure::kNone;
      auto runner = std::make_unique<PacedRunner>(setup.model, setup.step, failure, setup.fail_at);
      instances.push_back({setup.engine, std::move(runner), nullptr});
    }
    auto started =
        LocalCluster::start(setup.cluster, std::move(instances), samplers, clock, recorder);
    CHECK(started.has_value());
    cluster = std::move(*started);
  }

  [[nodiscard]] std::unique_ptr<Request> request(std::uint64_t id, std::size_t prompt,
                                                 std::int32_t max_tokens) const {
    return numbered_request(id, prompt, max_tokens, clock.now());
  }
  Status submit(std::uint64_t id, std::size_t prompt, std::int32_t max_tokens) {
    return cluster->submit(request(id, prompt, max_tokens));
  }
  bool wait_ready() {
    for (int i = 0; i < 5000 && !cluster->ready(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return cluster->ready();
  }

  SteadyClock clock;
  SharedRecorder recorder;
  FakeSamplerFactory samplers;
  FakeModelRunner model;  // knows the right answers
  std::unique_ptr<LocalCluster> cluster;
};

}  // namespace sluice
