#include "simulation/simulated_transfer.h"

#include <algorithm>
#include <utility>

namespace sluice {

SimulatedTransfer::SimulatedTransfer(SimulatedTransferOptions options, const Clock& clock,
                                     KvFabric& fabric, SimulatedModel& model)
    : options_(options), clock_(clock), fabric_(fabric), model_(model) {
  fabric_.attach(options_.self.instance, this);
}

SimulatedTransfer::~SimulatedTransfer() {
  fabric_.attach(options_.self.instance, nullptr);
}

Status SimulatedTransfer::start(TransferTicket ticket, const TransferTarget& target,
                                std::vector<BlockMove> moves) {
  const auto bytes = static_cast<double>(options_.block_bytes) * static_cast<double>(moves.size());
  const TimePoint now = clock_.now();
  TimePoint arrives = now;
  if (!moves.empty()) {
    link_free_at_ = std::max(link_free_at_, now) + from_seconds(bytes / options_.bytes_per_s);
    arrives = link_free_at_ + options_.latency;
  }
  jobs_.push_back({ticket, target, std::move(moves), arrives});
  return {};
}

void SimulatedTransfer::cancel(TransferTicket ticket) {
  for (Job& job : jobs_) {
    if (job.ticket == ticket) job.cancelled = true;
  }
}

TimePoint SimulatedTransfer::end_of(const Job& job) const {
  if (job.cancelled) return TimePoint{};
  return std::max(job.arrives, fabric_.open_at(options_.self.instance, job.target.instance));
}

// The blocks may be somebody else's by now.
bool SimulatedTransfer::is_wanted(const Job& job) const {
  const SimulatedTransfer* receiver = fabric_.find(job.target.instance);
  if (receiver == nullptr || receiver->options_.self.incarnation != job.target.incarnation) {
    return false;
  }
  const auto expected = receiver->expected_.find(job.target.key.request);
  return expected != receiver->expected_.end() && expected->second == job.target.key;
}

void SimulatedTransfer::poll(std::vector<TransferDone>& done) {
  const TimePoint now = clock_.now();
  std::erase_if(jobs_, [&](const Job& job) {
    if (end_of(job) > now) return false;
    TransferDone& d = done.emplace_back();
    d.ticket = job.ticket;
    d.transport = "simulated";
    if (job.cancelled) {
      d.outcome = TransferOutcome::kCancelled;
    } else if (!is_wanted(job)) {
      d.outcome = TransferOutcome::kFailed;
      d.error = {ErrorCode::kTransport, "nobody expects these blocks there", 0};
    } else {
      model_.copy_kv(options_.self.instance.value, job.target.instance.value, job.moves);
      d.bytes = options_.block_bytes * static_cast<std::int64_t>(job.moves.size());
    }
    return true;
  });
}

void SimulatedTransfer::expect(const HandoffKey& key, std::span<const BlockId>) {
  expected_[key.request] = key;
}

TimePoint SimulatedTransfer::next_end() const {
  TimePoint next = TimePoint::max();
  for (const Job& job : jobs_) next = std::min(next, end_of(job));
  return next;
}

}  // namespace sluice
