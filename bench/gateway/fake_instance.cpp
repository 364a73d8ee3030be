#include "fake_instance.h"

#include <algorithm>
#include <utility>

namespace sluice {

FakeInstance::FakeInstance(TokenSink& sink, std::vector<Token> words, Duration step)
    : sink_(sink), words_(std::move(words)), step_(step), thread_([this] { run(); }) {}

FakeInstance::~FakeInstance() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  news_.notify_one();
  thread_.join();
}

Status FakeInstance::submit(std::unique_ptr<Request> request) {
  {
    const std::lock_guard lock(mutex_);
    arrived_.push_back({request->id, request->max_tokens, 0});
  }
  news_.notify_one();
  return {};
}

void FakeInstance::cancel(RequestId request) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(request);
}

std::shared_ptr<const ClusterSnapshot> FakeInstance::snapshot() const {
  return std::make_shared<const ClusterSnapshot>();
}

void FakeInstance::run() {
  auto next = std::chrono::steady_clock::now();
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const bool idle = running_.empty();
      if (idle) news_.wait(lock, [this] { return stopping_ || !arrived_.empty(); });
      if (stopping_) return;
      if (idle) next = std::chrono::steady_clock::now();
      running_.insert(running_.end(), arrived_.begin(), arrived_.end());
      arrived_.clear();
      for (const RequestId id : cancelled_) {
        std::erase_if(running_, [id](const Running& one) { return one.id == id; });
      }
      cancelled_.clear();
    }
    next += step_;
    std::this_thread::sleep_until(next);
    sink_.on_tokens(step());
  }
}

std::vector<TokenEvent> FakeInstance::step() {
  std::vector<TokenEvent> events;
  events.reserve(running_.size());
  for (Running& one : running_) {
    TokenEvent event;
    event.request = one.id;
    event.index = one.made++;
    event.has_token = true;
    event.token.token = words_[static_cast<std::size_t>(event.index) % words_.size()];
    if (one.made == one.max_tokens) event.finish = FinishReason::kLength;
    events.push_back(std::move(event));
  }
  std::erase_if(running_, [](const Running& one) { return one.made == one.max_tokens; });
  return events;
}

}  // namespace sluice
