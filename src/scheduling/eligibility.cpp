#include "scheduling/eligibility.h"

#include <algorithm>
#include <limits>

namespace sluice {

std::int32_t cached_tokens(const PlacementQuery& query, InstanceId instance) {
  for (const CachedPrefix& prefix : query.cached) {
    if (prefix.instance == instance) return std::min(prefix.tokens, query.prompt_tokens);
  }
  return 0;
}

Rejection basic_rejection(const LoadRow& row, const PlacementQuery& query,
                          const PlacementLimits& limits) {
  if (!row.serves(query.role)) return Rejection::kWrongRole;
  if (row.draining) return Rejection::kDraining;
  if (!row.present || query.now - row.received_at > limits.max_report_age) {
    return Rejection::kStale;
  }
  const std::int64_t tokens = std::int64_t{query.prompt_tokens} + query.max_new_tokens;
  if (tokens > row.capacity_tokens()) return Rejection::kNeverFits;
  if (row.queue_length() >= limits.max_waiting) return Rejection::kWait;
  if (std::find(query.refused.begin(), query.refused.end(), row.instance) != query.refused.end()) {
    return Rejection::kRefused;
  }
  return Rejection::kNone;
}

std::optional<double> memory_start(const LoadRow& row, const PlacementQuery& query) {
  if (row.num_points == 0) return std::nullopt;
  const double elapsed = to_seconds(query.now - row.received_at);
  const double step_s = std::max(row.step_s, 1e-6);
  // What a prefill instance generates it hands over.
  const std::int32_t likely = row.role == Role::kPrefill ? 1 : row.output_quantiles[2];
  const double output = std::max(1, std::min(query.max_new_tokens, likely));
  double start = row.wait_s;
  std::size_t first = 0;  // the point from which on room is being proved
  for (std::size_t i = 0; i < row.num_points; ++i) {
    const double at = row.point_s[i] - elapsed;
    const double generating = at - start - query.prompt_tokens * row.token_s;
    const bool last = i + 1 == row.num_points;
    // The last point stands for all that follows it, so there the request is full grown.
    const double grown = last ? output : std::clamp(generating / step_s, 1.0, output);
    const bool over = !last && generating / step_s > output;
    if (over) continue;
    const auto tokens = query.prompt_tokens + static_cast<std::int64_t>(grown);
    if (row.blocks_for(tokens) <= row.headroom(i)) continue;
    if (last) return std::nullopt;
    first = i + 1;
    start = std::max(row.wait_s, row.point_s[first] - elapsed);
  }
  return first == 0 ? 0.0 : std::max(0.0, row.point_s[first] - elapsed);
}

double predicted_peak(const LoadRow& row, const PlacementQuery& query) {
  if (row.total_blocks <= 0) return std::numeric_limits<double>::infinity();
  const double elapsed = to_seconds(query.now - row.received_at);
  const double step_s = std::max(row.step_s, 1e-6);
  const double output = std::max(1, std::min(query.max_new_tokens, row.output_quantiles[1]));
  const std::int32_t shared = cached_tokens(query, row.instance);
  double peak = 0;
  for (std::size_t i = 0; i < row.num_points; ++i) {
    const bool last = i + 1 == row.num_points;
    const double grown =
        last ? output : std::clamp((row.point_s[i] - elapsed) / step_s, 1.0, output);
    const auto tokens = query.prompt_tokens - shared + static_cast<std::int64_t>(grown);
    const auto used = static_cast<double>(row.total_blocks - row.headroom(i));
    peak = std::max(peak, used + static_cast<double>(row.blocks_for(tokens)));
  }
  return peak / static_cast<double>(row.total_blocks);
}

Judgement judge(const LoadRow& row, const PlacementQuery& query, const PlacementLimits& limits,
                bool relaxed) {
  const double age = to_seconds(query.now - row.received_at);
  const double window_left = std::max(0.0, row.window_end_s - age);
  const double max_wait = to_seconds(limits.max_wait) * (relaxed ? 2 : 1);
  Judgement result;
  result.rejection = basic_rejection(row, query, limits);
  if (result.rejection != Rejection::kNone) {
    result.room_in_s = std::max(window_left, row.wait_s);
    return result;
  }
  if (relaxed && row.queue_length() >= limits.relaxed_waiting) {
    result.rejection = Rejection::kWait;
    result.room_in_s = std::max(window_left, row.wait_s);
    return result;
  }
  double wait = row.wait_s;
  if (!row.idle()) {  // where nothing runs or waits, whatever can fit at all is admitted
    const std::optional<double> start = row.has_slot() ? memory_start(row, query) : std::nullopt;
    if (start) {
      wait = std::max(wait, *start);
    } else if (relaxed) {
      wait = std::max(wait, window_left);
    } else {
      result.rejection = row.has_slot() ? Rejection::kMemory : Rejection::kWait;
      result.room_in_s = std::max(window_left, row.wait_s);
      return result;
    }
  }
  if (wait > max_wait) {
    result.rejection = Rejection::kWait;
    result.room_in_s = wait - max_wait;
    return result;
  }
  const std::int32_t uncached = query.prompt_tokens - cached_tokens(query, row.instance);
  result.ttft_s = wait + uncached * row.token_s;
  result.cost_s = row.cost_of(wait, uncached);
  return result;
}

Decision new_decision(const PlacementQuery& query, const char* policy) {
  Decision decision;
  decision.request = query.request;
  decision.at = query.now;
  decision.role = query.role;
  decision.policy = policy;
  decision.prompt_tokens = query.prompt_tokens;
  decision.max_new_tokens = query.max_new_tokens;
  return decision;
}

bool never_fits(const PlacementQuery& query, const LoadTable& loads, Decision& decision) {
  const std::int64_t tokens = std::int64_t{query.prompt_tokens} + query.max_new_tokens;
  const auto largest = loads.largest(query.role);
  if (!largest || tokens <= largest->tokens) return false;
  decision.outcome = PlacementOutcome::kNeverFits;
  decision.needed_blocks = (tokens + largest->block_tokens - 1) / largest->block_tokens;
  decision.largest_blocks = largest->tokens / largest->block_tokens;
  return true;
}

void place_at(const LoadRow& row, PlacementOutcome outcome, Decision& decision) {
  decision.outcome = outcome;
  decision.placement = Placement{row.instance, row.incarnation};
}

void order_candidates(Decision& decision) {
  auto& all = decision.candidates;
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.instance < b.instance; };
  std::sort(all.begin(), all.end(), by_id);
  const auto same = [](const Candidate& a, const Candidate& b) { return a.instance == b.instance; };
  all.erase(std::unique(all.begin(), all.end(), same), all.end());
  if (all.size() <= kMaxCandidates) return;
  // What is cut off is not the chosen one.
  const auto chosen = std::find_if(all.begin(), all.end(), [&](const Candidate& c) {
    return decision.placement && c.instance == decision.placement->instance;
  });
  if (chosen != all.end() && chosen - all.begin() >= static_cast<std::ptrdiff_t>(kMaxCandidates)) {
    std::iter_swap(chosen, all.begin() + kMaxCandidates - 1);
  }
  all.resize(kMaxCandidates);
}

}  // namespace sluice
