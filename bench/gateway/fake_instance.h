// In the place of a cluster: makes a token a step for every request and computes nothing, so that
// what is measured is HTTP, parsing, tokenizing, detokenizing and streaming.
//
// Thread-safe. Its thread is the one that an engine has: it calls the sink once a step.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cluster/serving.h"

namespace sluice {

class FakeInstance final : public Serving {
 public:
  // `words` are the tokens that it says again and again. With a step of zero the next step begins
  // when the sink has returned.
  FakeInstance(TokenSink& sink, std::vector<Token> words, Duration step);
  ~FakeInstance() override;

  [[nodiscard]] Status submit(std::unique_ptr<Request> request) override;
  void cancel(RequestId request) override;
  [[nodiscard]] std::shared_ptr<const ClusterSnapshot> snapshot() const override;
  [[nodiscard]] bool ready() const override { return true; }

 private:
  struct Running {
    RequestId id;
    std::int32_t max_tokens = 0;
    std::int32_t made = 0;
  };

  void run();
  [[nodiscard]] std::vector<TokenEvent> step();

  TokenSink& sink_;
  const std::vector<Token> words_;
  const Duration step_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<Running> arrived_;      // guarded by mutex_
  std::vector<RequestId> cancelled_;  // guarded by mutex_
  bool stopping_ = false;             // guarded by mutex_
  std::vector<Running> running_;      // its thread's
  std::thread thread_;
};

}  // namespace sluice
