// How KV goes from one simulated instance to another: over the sender's one link,
// which all of its transfers share, each at full width after those before it.
//
// The receiving side is taken to be wide enough for what comes. A transfer ends
// when its last byte has arrived, and is seen when its instance next polls; a
// partition makes it late, a dead or unwilling receiver makes it fail. What was
// cancelled has used its time on the link all the same. Bytes and virtual time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "base/time.h"
#include "scheduling/placement.h"
#include "simulation/simulated_model.h"
#include "transfer/kv_transfer.h"

namespace sluice {

class SimulatedTransfer;

// Who is there to receive, and who is cut off. One a world.
class KvFabric final {
 public:
  explicit KvFabric(std::size_t instances) : ends_(instances) {}

  void attach(InstanceId instance, const SimulatedTransfer* receiver) {
    ends_[instance.value].receiver = receiver;
  }
  // Null: it is not alive.
  [[nodiscard]] const SimulatedTransfer* find(InstanceId instance) const {
    return instance.value < ends_.size() ? ends_[instance.value].receiver : nullptr;
  }
  void cut(InstanceId instance, TimePoint until) {
    TimePoint& cut = ends_[instance.value].cut_until;
    cut = std::max(cut, until);
  }
  [[nodiscard]] TimePoint open_at(InstanceId a, InstanceId b) const {
    return std::max(ends_[a.value].cut_until, ends_[b.value].cut_until);
  }

 private:
  struct End {
    const SimulatedTransfer* receiver = nullptr;
    TimePoint cut_until{};
  };
  std::vector<End> ends_;  // by instance
};

struct SimulatedTransferOptions {
  Placement self;
  std::int64_t block_bytes = 0;
  double bytes_per_s = 50e9;
  Duration latency{};  // one way
};

class SimulatedTransfer final : public KvTransfer {
 public:
  // References outlive the transfer.
  SimulatedTransfer(SimulatedTransferOptions options, const Clock& clock, KvFabric& fabric,
                    SimulatedModel& model);
  ~SimulatedTransfer() override;

  [[nodiscard]] Status start(TransferTicket ticket, const TransferTarget& target,
                             std::vector<BlockMove> moves) override;
  void cancel(TransferTicket ticket) override;
  void poll(std::vector<TransferDone>& done) override;
  [[nodiscard]] bool idle() const override { return jobs_.empty(); }
  [[nodiscard]] bool busy() const override { return false; }  // the link works by itself
  void expect(const HandoffKey& key, std::span<const BlockId> blocks) override;
  void close(RequestId request) override { expected_.erase(request); }

  // When poll() has something to report; max(): nothing is on its way.
  [[nodiscard]] TimePoint next_end() const;

 private:
  struct Job {
    TransferTicket ticket;
    TransferTarget target;
    std::vector<BlockMove> moves;
    TimePoint arrives{};
    bool cancelled = false;
  };

  [[nodiscard]] TimePoint end_of(const Job& job) const;
  [[nodiscard]] bool is_wanted(const Job& job) const;

  const SimulatedTransferOptions options_;
  const Clock& clock_;
  KvFabric& fabric_;
  SimulatedModel& model_;
  std::deque<Job> jobs_;  // in order of arrival, but for those to who is cut off
  TimePoint link_free_at_{};
  std::map<RequestId, HandoffKey> expected_;
};

}  // namespace sluice
