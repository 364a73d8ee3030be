#include "scheduling/ledger.h"

namespace sluice {

void Ledger::add(RequestId request, InstanceId instance, std::int64_t tokens, std::int64_t blocks,
                 TimePoint now) {
  remove(request);
  entries_[request] = {instance, tokens, blocks, now};
  order_.push_back({request, now});
  LedgerLoad& total = totals_[instance];
  total.tokens += tokens;
  total.blocks += blocks;
  total.requests += 1;
  table_.set_ledger(instance, total);
}

void Ledger::remove(RequestId request) {
  const auto it = entries_.find(request);
  if (it == entries_.end()) return;
  const Entry entry = it->second;
  entries_.erase(it);
  LedgerLoad& total = totals_[entry.instance];
  total.tokens -= entry.tokens;
  total.blocks -= entry.blocks;
  total.requests -= 1;
  table_.set_ledger(entry.instance, total);
}

void Ledger::forget(InstanceId instance) {
  for (const Added& added : order_) {
    const auto it = entries_.find(added.request);
    if (it != entries_.end() && it->second.instance == instance) entries_.erase(it);
  }
  totals_.erase(instance);
  table_.set_ledger(instance, {});
}

void Ledger::expire(TimePoint now) {
  while (!order_.empty()) {
    const Added& oldest = order_.front();
    const auto it = entries_.find(oldest.request);
    const bool counts = it != entries_.end() && it->second.at == oldest.at;
    if (counts && now - oldest.at < kTimeLimit) return;
    if (counts) remove(oldest.request);
    order_.pop_front();
  }
}

LedgerLoad Ledger::load(InstanceId instance) const {
  const auto it = totals_.find(instance);
  return it == totals_.end() ? LedgerLoad{} : it->second;
}

}  // namespace sluice
