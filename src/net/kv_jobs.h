// What the engine's loop and the thread that moves KV share, whatever the connection, and the
// loop's side of it. Internal to net/.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "net/kv_connections.h"
#include "transfer/expected_kv.h"

namespace sluice {

// One ticket. Belongs to the thread that moves KV, but for `cancelled`.
struct KvJob {
  TransferTicket ticket;
  HandoffKey key;
  std::vector<BlockMove> moves;
  std::size_t next = 0;         // the first that was not sent
  std::int32_t unanswered = 0;  // frames
  std::optional<Error> error;
  bool cancelled = false;  // guarded by KvShared::moving

  // A frame of it was answered; `told` is 0, or one more than the ErrorCode.
  void answered(std::uint32_t told, std::string text);
};

struct KvShared {
  KvShared(const KvView& view, const char* word, std::function<void()> w)
      : arena(view), transport(word), wake(std::move(w)) {}

  const KvView arena;
  const char* const transport;
  const std::function<void()> wake;

  std::mutex moving;    // held while bytes leave the arena or enter it
  ExpectedKv expected;  // guarded by moving

  mutable std::mutex telling;
  std::vector<TransferDone> done;  // guarded by telling
  std::set<KvPeer> reached;        // guarded by telling

  // `outcome` other than kFailed leaves `error` empty.
  void tell(const KvJob& job, TransferOutcome outcome, Error error);
  void fail_job(const KvJob& job, const std::string& why) {
    if (is_cancelled(job)) return tell(job, TransferOutcome::kCancelled, {});
    tell(job, TransferOutcome::kFailed, {ErrorCode::kTransport, why, 0});
  }
  // True: it is over, and was told.
  [[nodiscard]] bool finish(KvJob& job);

  [[nodiscard]] bool is_cancelled(const KvJob& job) {
    const std::lock_guard lock(moving);
    return job.cancelled;
  }
  void set_reached(const KvPeer& peer, bool yes) {
    const std::lock_guard lock(telling);
    if (yes) {
      reached.insert(peer);
    } else {
      reached.erase(peer);
    }
  }
};

// KvTransfer over jobs that another thread sends: what is left to a connection is to send them.
class KvJobs : public KvConnections {
 public:
  [[nodiscard]] const char* transport() const final { return shared_.transport; }
  [[nodiscard]] bool reaches(const KvPeer& peer) const final;
  [[nodiscard]] Status start(TransferTicket ticket, const TransferTarget& target,
                             std::vector<BlockMove> moves) final;
  void cancel(TransferTicket ticket) final;
  void poll(std::vector<TransferDone>& done) final;
  [[nodiscard]] bool idle() const final { return jobs_.empty(); }
  [[nodiscard]] bool busy() const final;
  void expect(const HandoffKey& key, std::span<const BlockId> blocks) final;
  void close(RequestId request) final;

 protected:
  // `shared` outlives all but the destructor.
  KvJobs(KvShared& shared, std::size_t max_in_flight)
      : shared_(shared), max_in_flight_(max_in_flight) {}

 private:
  // Of the engine's loop: begin it, or tell of its end; some job was cancelled.
  virtual void send(const KvPeer& peer, std::shared_ptr<KvJob> job) = 0;
  virtual void look() = 0;

  KvShared& shared_;
  const std::size_t max_in_flight_;
  std::map<TransferTicket, std::shared_ptr<KvJob>> jobs_;
};

}  // namespace sluice
