#include "gateway/token_router.h"

#include <boost/asio/post.hpp>
#include <random>
#include <utility>

namespace sluice {

namespace {

constexpr int kThreadShift = 40;
constexpr int kGatewayShift = 48;
constexpr std::uint64_t kCounterMask = (std::uint64_t{1} << kThreadShift) - 1;

std::size_t thread_of(RequestId id) {
  return (id.value >> kThreadShift) & 0xFF;
}

}  // namespace

TokenRouter::TokenRouter(IoThreads& threads)
    : threads_(threads),
      gateway_bits_(static_cast<std::uint64_t>(std::random_device{}() & 0xFFFF) << kGatewayShift),
      tables_(threads.size()) {}

RequestId TokenRouter::add(std::size_t thread, Mailbox& mailbox) {
  Table& table = tables_[thread];
  const RequestId id{gateway_bits_ | (static_cast<std::uint64_t>(thread) << kThreadShift) |
                     (++table.counter & kCounterMask)};
  table.mailboxes.emplace(id, &mailbox);
  return id;
}

void TokenRouter::remove(std::size_t thread, RequestId id) {
  tables_[thread].mailboxes.erase(id);
}

void TokenRouter::on_tokens(std::vector<TokenEvent>&& events) {
  if (events.empty()) return;
  const auto post = [this](std::size_t thread, std::vector<TokenEvent>&& part) {
    boost::asio::post(threads_.context(thread), [this, thread, part = std::move(part)]() mutable {
      deliver(thread, std::move(part));
    });
  };
  if (threads_.size() == 1) return post(0, std::move(events));
  std::vector<std::vector<TokenEvent>> parts(threads_.size());
  for (TokenEvent& event : events) {
    const std::size_t thread = thread_of(event.request);
    if (thread < parts.size()) parts[thread].push_back(std::move(event));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].empty()) post(i, std::move(parts[i]));
  }
}

void TokenRouter::deliver(std::size_t thread, std::vector<TokenEvent>&& events) {
  auto& mailboxes = tables_[thread].mailboxes;
  for (TokenEvent& event : events) {
    const auto found = mailboxes.find(event.request);
    if (found == mailboxes.end()) continue;  // its client left, or a stop string ended it
    found->second->put(std::move(event));
  }
}

}  // namespace sluice
