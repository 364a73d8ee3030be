// A transfer that goes wrong when it is told to: a decorator for tests.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "transfer/kv_transfer.h"

namespace sluice {

struct TransferFaults {
  double refuse = 0;  // share of starts that are refused as kBusy
  double fail = 0;    // share of tickets that fail, after all or some was written
  double stall = 0;   // share of polls that do nothing
};

class FaultyTransfer final : public KvTransfer {
 public:
  // `inner` outlives it.
  FaultyTransfer(KvTransfer& inner, TransferFaults faults, Rng rng)
      : inner_(inner), faults_(faults), rng_(rng) {}

  [[nodiscard]] Status start(TransferTicket ticket, const TransferTarget& target,
                             std::vector<BlockMove> moves) override {
    if (rng_.uniform() < faults_.refuse) return sluice::fail(ErrorCode::kBusy, "refused by a test");
    return inner_.start(ticket, target, std::move(moves));
  }
  void cancel(TransferTicket ticket) override { inner_.cancel(ticket); }
  void poll(std::vector<TransferDone>& done) override {
    if (rng_.uniform() < faults_.stall) return;
    const std::size_t before = done.size();
    inner_.poll(done);
    for (std::size_t i = before; i < done.size(); ++i) {
      if (done[i].outcome != TransferOutcome::kDone || rng_.uniform() >= faults_.fail) continue;
      done[i].outcome = TransferOutcome::kFailed;
      done[i].error = {ErrorCode::kTransport, "failed by a test", 0};
    }
  }
  [[nodiscard]] bool idle() const override { return inner_.idle(); }
  [[nodiscard]] bool busy() const override { return inner_.busy(); }
  void expect(const HandoffKey& key, std::span<const BlockId> blocks) override {
    inner_.expect(key, blocks);
  }
  void close(RequestId request) override { inner_.close(request); }

 private:
  KvTransfer& inner_;
  const TransferFaults faults_;
  Rng rng_;
};

}  // namespace sluice
