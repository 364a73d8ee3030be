#include "scheduling/peer_costs.h"

#include <algorithm>

namespace sluice {
namespace {

// Sums that should be zero may be a rounding error away from it.
constexpr double kLeast = 0.5 / PeerCosts::kEnough;

double weight_of(std::int64_t steps) {
  return std::min(static_cast<double>(std::max<std::int64_t>(steps, 0)) / PeerCosts::kEnough, 1.0);
}

}  // namespace

void PeerCosts::count(Role role, const StepCost& cost, double sign) {
  Sum& sum = by_role_[static_cast<std::size_t>(role)];
  const double steps = sign * weight_of(cost.steps);
  const double prefill = sign * weight_of(cost.prefill_steps);
  sum.steps += steps;
  sum.prefill += prefill;
  sum.weighted.base += steps * cost.base;
  sum.weighted.per_decode_sequence += steps * cost.per_decode_sequence;
  sum.weighted.per_context_token += steps * cost.per_context_token;
  sum.weighted.per_prefill_token += prefill * cost.per_prefill_token;
  sum.weighted.per_prefill_context += prefill * cost.per_prefill_context;
  known_ += steps + prefill;
}

StepCost PeerCosts::judge(Role role, const StepCost& own) const {
  StepCost judged = own;
  const auto mix = [](double& term, double peers, double weight_of_own) {
    term = weight_of_own * term + (1 - weight_of_own) * std::max(peers, 0.0);
  };
  const auto peers_of = [&](double Sum::*weight) {
    const Sum& same = by_role_[static_cast<std::size_t>(role)];
    return same.*weight > kLeast ? &same : &by_role_[static_cast<std::size_t>(Role::kUnified)];
  };
  const double steps = weight_of(own.steps);
  if (const Sum& peers = *peers_of(&Sum::steps); steps < 1 && peers.steps > kLeast) {
    mix(judged.base, peers.weighted.base / peers.steps, steps);
    mix(judged.per_decode_sequence, peers.weighted.per_decode_sequence / peers.steps, steps);
    mix(judged.per_context_token, peers.weighted.per_context_token / peers.steps, steps);
  }
  const double prefill = weight_of(own.prefill_steps);
  if (const Sum& peers = *peers_of(&Sum::prefill); prefill < 1 && peers.prefill > kLeast) {
    mix(judged.per_prefill_token, peers.weighted.per_prefill_token / peers.prefill, prefill);
    mix(judged.per_prefill_context, peers.weighted.per_prefill_context / peers.prefill, prefill);
  }
  return judged;
}

bool PeerCosts::learned() {
  const double known = known_ > kLeast ? known_ : 0;
  if (known == judged_ || (known < 2 * judged_ && known > judged_ / 2)) return false;
  judged_ = known;
  return true;
}

}  // namespace sluice
