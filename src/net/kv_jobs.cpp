#include "net/kv_jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice {

void KvJob::answered(std::uint32_t told, std::string text) {
  unanswered = std::max(0, unanswered - 1);
  if (told == 0 || error) return;
  const auto code = std::min(told - 1, static_cast<std::uint32_t>(ErrorCode::kInternal));
  error = Error{static_cast<ErrorCode>(code), std::move(text), 0};
}

void KvShared::tell(const KvJob& job, TransferOutcome outcome, Error error) {
  TransferDone told;
  told.ticket = job.ticket;
  told.outcome = outcome;
  told.bytes = static_cast<std::int64_t>(job.next * arena.layout.block_bytes());
  told.error = std::move(error);
  told.transport = transport;
  {
    const std::lock_guard lock(telling);
    done.push_back(std::move(told));
  }
  wake();
}

bool KvShared::finish(KvJob& job) {
  if (is_cancelled(job)) {
    tell(job, TransferOutcome::kCancelled, {});
  } else if (job.error) {
    tell(job, TransferOutcome::kFailed, std::move(*job.error));
  } else if (job.next == job.moves.size() && job.unanswered == 0) {
    tell(job, TransferOutcome::kDone, {});
  } else {
    return false;
  }
  return true;
}

bool KvJobs::reaches(const KvPeer& peer) const {
  const std::lock_guard lock(shared_.telling);
  return shared_.reached.contains(peer);
}

Status KvJobs::start(TransferTicket ticket, const TransferTarget& target,
                     std::vector<BlockMove> moves) {
  const KvPeer peer{target.instance, target.incarnation};
  if (!reaches(peer)) return fail(ErrorCode::kUnavailable, "there is no connection to the peer");
  if (jobs_.size() >= max_in_flight_) {
    return fail(ErrorCode::kBusy, fmt::format("{} transfers are on their way already (limit {})",
                                              jobs_.size(), max_in_flight_));
  }
  const std::int32_t blocks = shared_.arena.num_blocks;
  for (const BlockMove& move : moves) {
    if (move.from.value < 0 || move.from.value >= blocks || move.to.value < 0) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("from block {} of an arena of {} to "
                                                           "block {}",
                                                           move.from.value, blocks, move.to.value));
    }
  }
  auto job = std::make_shared<KvJob>();
  job->ticket = ticket;
  job->key = target.key;
  job->moves = std::move(moves);
  jobs_.emplace(ticket, job);
  if (job->moves.empty()) {
    shared_.tell(*job, TransferOutcome::kDone, {});
  } else {
    send(peer, std::move(job));
  }
  return {};
}

void KvJobs::cancel(TransferTicket ticket) {
  const auto it = jobs_.find(ticket);
  if (it == jobs_.end()) return;
  {
    const std::lock_guard lock(shared_.moving);
    it->second->cancelled = true;
  }
  look();
}

void KvJobs::poll(std::vector<TransferDone>& done) {
  std::vector<TransferDone> ended;
  {
    const std::lock_guard lock(shared_.telling);
    std::swap(ended, shared_.done);
  }
  for (TransferDone& told : ended) {
    jobs_.erase(told.ticket);
    done.push_back(std::move(told));
  }
}

bool KvJobs::busy() const {
  const std::lock_guard lock(shared_.telling);
  return !shared_.done.empty();
}
void KvJobs::expect(const HandoffKey& key, std::span<const BlockId> blocks) {
  const std::lock_guard lock(shared_.moving);
  shared_.expected.expect(key, blocks);
}
void KvJobs::close(RequestId request) {
  const std::lock_guard lock(shared_.moving);
  shared_.expected.close(request);
}

}  // namespace sluice
