#include "memory/completion_peak.h"

#include <algorithm>
#include <span>

namespace sluice {
namespace {

std::int64_t end_of(const KnownDemand& demand) {
  return demand.after + demand.left;
}

std::int64_t tokens_at(const KnownDemand& demand, std::int64_t step) {
  return demand.known + std::max<std::int64_t>(step - demand.after, 0);
}

}  // namespace

bool completion_peak_fits(std::vector<KnownDemand>& demands, std::int64_t blocks,
                          std::int32_t block_tokens) {
  // Last to end first: when demands[i] ends, [0, i] are there still.
  std::ranges::stable_sort(
      demands, [](const KnownDemand& a, const KnownDemand& b) { return end_of(a) > end_of(b); });
  const std::int64_t size = block_tokens;
  std::int64_t known = 0;  // of [0, i]
  std::int64_t after = 0;
  std::vector<const KnownDemand*> late;  // not growing yet now: few
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const auto count = static_cast<std::int64_t>(i + 1);
    const std::int64_t step = end_of(demands[i]);
    known += demands[i].known;
    after += demands[i].after;
    if (demands[i].after > 0) late.push_back(&demands[i]);
    std::int64_t tokens = known + count * step - after;
    for (const KnownDemand* other : late) tokens += std::max<std::int64_t>(other->after - step, 0);
    if (tokens + count * (size - 1) <= blocks * size) continue;  // whatever the last blocks hold
    if (tokens > blocks * size) return false;
    std::int64_t exact = 0;
    for (const KnownDemand& other : std::span(demands).first(i + 1)) {
      exact += (tokens_at(other, step) + size - 1) / size;
    }
    if (exact > blocks) return false;
  }
  return true;
}

}  // namespace sluice
