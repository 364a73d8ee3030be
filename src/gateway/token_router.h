// Brings token events from the engines' loops to the connections that wait for
// them: one hand-over per step and I/O thread, however many sequences it has.
//
// A RequestId says which I/O thread its client belongs to:
//
//   [ 63..48 this gateway, random | 47..40 thread | 39..0 counter ]
//
// so that an engine thread needs no table and no lock to sort events. The table
// from ids to mailboxes is per I/O thread and touched by that thread only.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "engine/request.h"
#include "gateway/io_threads.h"
#include "gateway/mailbox.h"

namespace sluice {

class TokenRouter final : public TokenSink {
 public:
  explicit TokenRouter(IoThreads& threads);

  void on_tokens(std::vector<TokenEvent>&& events) override;  // any thread

  // On the I/O thread `thread` only. The mailbox must stay until remove().
  [[nodiscard]] RequestId add(std::size_t thread, Mailbox& mailbox);
  void remove(std::size_t thread, RequestId id);

 private:
  struct Table {
    std::unordered_map<RequestId, Mailbox*> mailboxes;
    std::uint64_t counter = 0;
  };

  void deliver(std::size_t thread, std::vector<TokenEvent>&& events);

  IoThreads& threads_;
  const std::uint64_t gateway_bits_;
  std::vector<Table> tables_;
};

}  // namespace sluice
