#include "cluster/local_scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduling/decision_inputs.h"

namespace sluice {
namespace {

constexpr std::size_t kMaxDecisions = 256;

}  // namespace

LocalScheduler::LocalScheduler(InstanceId self, std::unique_ptr<PlacementPolicy> policy,
                               bool keep_inputs)
    : self_(self), policy_(std::move(policy)), keep_inputs_(keep_inputs) {
  CHECK(policy_ != nullptr);
}

ReportOutcome LocalScheduler::on_report(LoadReport report, TimePoint now) {
  if (report.instance == self_) return ReportOutcome::kOld;
  const InstanceId instance = report.instance;
  const std::vector<RequestId> seen = std::move(report.seen);
  const ReportOutcome outcome = table_.update(std::move(report), now);
  if (outcome == ReportOutcome::kRestarted) ledger_.forget(instance);
  if (outcome == ReportOutcome::kInvalid) return outcome;
  for (const RequestId request : seen) ledger_.remove(request);
  return outcome;
}

bool LocalScheduler::instance_gone(InstanceId instance, Incarnation up_to) {
  const LoadRow* row = table_.find(instance);
  if (row == nullptr || row->incarnation > up_to) return false;
  table_.remove(instance);
  ledger_.forget(instance);
  return true;
}

Decision LocalScheduler::choose(const Wish& wish, TimePoint now) {
  const std::vector<std::uint64_t> hashes = prefix_hashes(wish.prompt);
  PlacementQuery query{.request = wish.request,
                       .role = Role::kDecode,
                       .prompt_tokens = wish.known_tokens,
                       .max_new_tokens = wish.left_tokens,
                       .cached = prefixes_.find(hashes, table_),
                       .refused = {},
                       .now = now};
  if (wish.refused != nullptr) query.refused.assign(wish.refused->begin(), wish.refused->end());
  ledger_.remove(wish.request);
  const PlacementPolicy::State before = policy_->state();
  Decision decision = policy_->place(query, table_);
  if (keep_inputs_) decision.inputs = inputs_of(decision, query, table_, before);
  decision.by = self_;
  if (decision.placement) {
    const LoadRow& row = *table_.find(decision.placement->instance);
    const std::int32_t output = std::min(wish.left_tokens, row.output_quantiles[1]);
    ledger_.add(wish.request, decision.placement->instance, wish.known_tokens,
                row.blocks_for(std::int64_t{wish.known_tokens} + output), now);
    prefixes_.insert(hashes, decision.placement->instance, decision.placement->incarnation);
  }
  if (decisions_.size() == kMaxDecisions) decisions_.erase(decisions_.begin());
  decisions_.push_back(decision);
  return decision;
}

std::vector<Decision> LocalScheduler::take_decisions() {
  return std::exchange(decisions_, {});
}

}  // namespace sluice
