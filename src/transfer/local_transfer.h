// KV between two instances of one process whose blocks lie in one arena: a copy
// within it, a bounded piece a poll, so that the source's steps go on.
//
// The source reads blocks of its own, and writes blocks that their owner has
// reserved for nobody else and does not look at before it is told to.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "transfer/kv_transfer.h"

namespace sluice {

struct LocalTransferOptions {
  std::size_t bytes_a_poll = std::size_t{64} << 20;
  std::size_t max_in_flight = 64;  // tickets
};

class LocalTransfer final : public KvTransfer {
 public:
  // The arena outlives the transfer.
  LocalTransfer(const KvView& arena, LocalTransferOptions options);

  [[nodiscard]] Status start(TransferTicket ticket, const TransferTarget& target,
                             std::vector<BlockMove> moves) override;
  void cancel(TransferTicket ticket) override;
  void poll(std::vector<TransferDone>& done) override;
  [[nodiscard]] bool idle() const override { return jobs_.empty(); }

 private:
  struct Job {
    TransferTicket ticket;
    std::vector<BlockMove> moves;
    std::size_t next = 0;
    bool cancelled = false;
  };

  void copy_block(BlockId from, BlockId to);

  const KvView arena_;
  const LocalTransferOptions options_;
  std::deque<Job> jobs_;            // in order
  std::vector<std::byte> staging_;  // of a block on its way through the host
};

}  // namespace sluice
