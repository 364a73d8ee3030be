#include "engine/batch_scheduler.h"

#include <algorithm>

namespace sluice {

std::int32_t BatchScheduler::prefill_budget(const StepShape& decode, std::int32_t position,
                                            std::int64_t left,
                                            const StepTimeModel& step_time) const {
  const std::int32_t room =
      options_.max_step_tokens - decode.decode_sequences - decode.prefill_tokens;
  if (decode.decode_sequences == 0 || room <= options_.min_chunk_tokens) return std::max(room, 0);
  // Step time is linear in prefill tokens, so the target is met by division.
  const StepTimeCoefficients& c = step_time.coefficients();
  // Each row of the chunk also reads what its sequence has already.
  const double per_token = c.per_prefill_token + c.per_prefill_context * position;
  if (per_token <= 0) return room;
  const double alone = to_seconds(step_time.predict(decode));
  const double most =
      std::min(to_seconds(options_.mixed_step_target), options_.mixed_step_ratio * alone) - alone;
  const double soon = static_cast<double>(left) * per_token / options_.even_steps;
  const double spare = std::min(most, std::max((options_.even_step_ratio - 1) * alone, soon));
  const double fits = std::min(spare / per_token, static_cast<double>(room));
  return std::max(options_.min_chunk_tokens, static_cast<std::int32_t>(fits));
}

// The guess that brings the most tokens first, until the next brings too few for its cost.
void BatchScheduler::add_drafts(std::span<const BatchCandidate> candidates,
                                const StepTimeModel& step_time, BatchPlan& plan) const {
  if (std::ranges::all_of(candidates, [](const auto& c) { return c.drafts == 0; })) return;
  const auto may_have = [&](const BatchRow& row) {
    const BatchCandidate& c = candidates[row.candidate];
    return std::min(c.drafts, c.granted_tokens - c.computed - 1);
  };
  std::vector<double> chances;  // by row: that its next guess is right, and those before it
  for (const BatchRow& row : plan.rows) {
    chances.push_back(may_have(row) > 0 ? candidates[row.candidate].acceptance : 0);
  }
  const StepTimeCoefficients& c = step_time.coefficients();
  double tokens = plan.shape.decode_sequences;
  double seconds = to_seconds(step_time.predict(plan.shape));
  std::int32_t budget =
      std::min(options_.max_draft_tokens, options_.max_step_tokens - plan.shape.decode_sequences);
  for (; budget > 0; --budget) {
    const auto best = std::ranges::max_element(chances);
    if (best == chances.end() || *best <= 0) return;
    BatchRow& row = plan.rows[static_cast<std::size_t>(best - chances.begin())];
    const BatchCandidate& candidate = candidates[row.candidate];
    const std::int64_t context = std::int64_t{candidate.computed} + row.drafts + 2;
    const double cost = c.per_prefill_token + c.per_prefill_context * static_cast<double>(context);
    if (*best < 1 && *best * seconds <= tokens * cost) return;
    tokens += *best;
    seconds += cost;
    row.drafts += 1;
    plan.draft_tokens += 1;
    plan.shape.prefill_tokens += 1;
    plan.shape.context_tokens += context;
    plan.shape.prefill_context += context;
    *best = row.drafts < may_have(row) ? *best * candidate.acceptance : 0;
  }
}

BatchPlan BatchScheduler::plan(std::span<const BatchCandidate> candidates,
                               const StepTimeModel& step_time) const {
  BatchPlan plan;
  plan.rows.reserve(candidates.size());
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const BatchCandidate& c = candidates[i];
    if (!c.decoding || c.granted_tokens <= c.computed) continue;
    if (plan.shape.decode_sequences == options_.max_step_tokens) break;
    plan.rows.push_back({.candidate = i, .num_tokens = 1, .samples = true});
    plan.shape.decode_sequences += 1;
    plan.shape.context_tokens += c.computed + 1;
  }

  add_drafts(candidates, step_time, plan);

  const auto first = std::find_if(candidates.begin(), candidates.end(),
                                  [](const BatchCandidate& c) { return !c.decoding; });
  if (first == candidates.end()) return plan;
  std::int64_t left = 0;
  for (const BatchCandidate& c : candidates) left += c.decoding ? 0 : c.left_to_compute;
  std::int32_t budget = prefill_budget(plan.shape, first->computed, left, step_time);
  std::int32_t scored_budget = options_.max_scored_tokens;
  for (std::size_t i = 0; i < candidates.size() && budget > 0; ++i) {
    const BatchCandidate& c = candidates[i];
    if (c.decoding) continue;
    std::int32_t tokens = std::min({c.left_to_compute, c.granted_tokens - c.computed, budget});
    if (c.scored) tokens = std::min(tokens, scored_budget);
    if (tokens <= 0) continue;
    if (c.scored) scored_budget -= tokens;
    plan.rows.push_back(
        {.candidate = i, .num_tokens = tokens, .samples = tokens == c.left_to_compute});
    plan.shape.prefill_tokens += tokens;
    // Row j of the chunk reads computed + j + 1 tokens of context.
    const std::int64_t context = static_cast<std::int64_t>(tokens) * c.computed +
                                 static_cast<std::int64_t>(tokens) * (tokens + 1) / 2;
    plan.shape.context_tokens += context;
    plan.shape.prefill_context += context;
    budget -= tokens;
  }
  return plan;
}

}  // namespace sluice
