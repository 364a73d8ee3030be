#include "scheduling/decision_inputs.h"

#include <algorithm>

#include "scheduling/eligibility.h"

namespace sluice {

std::shared_ptr<const DecisionInputs> inputs_of(const Decision& decision,
                                                const PlacementQuery& query, const LoadTable& loads,
                                                const PlacementPolicy::State& before) {
  const std::span<const LoadRow> rows = loads.rows();
  auto inputs = std::make_shared<DecisionInputs>();
  inputs->query = query;
  inputs->state = before;
  inputs->table_rows = rows.size();
  if (rows.size() <= kMaxCandidates) {
    inputs->rows.assign(rows.begin(), rows.end());
    return inputs;
  }
  std::vector<std::size_t> seen;
  for (const Candidate& candidate : decision.candidates) {
    const LoadRow* row = loads.find(candidate.instance);
    if (row != nullptr) seen.push_back(static_cast<std::size_t>(row - rows.data()));
  }
  std::sort(seen.begin(), seen.end());
  inputs->rows.reserve(seen.size());
  for (const std::size_t row : seen) inputs->rows.push_back(rows[row]);
  return inputs;
}

Decision decide_again(const DecisionInputs& inputs, PlacementPolicy& policy) {
  LoadTable loads;
  for (const LoadRow& row : inputs.rows) loads.restore(row);
  return policy.place(inputs.query, loads);
}

Prediction predict(const DecisionInputs& inputs, InstanceId instance) {
  const auto row = std::ranges::find(inputs.rows, instance, &LoadRow::instance);
  if (row == inputs.rows.end()) return {};
  const PlacementQuery& query = inputs.query;
  double wait = row->wait_s;
  if (!row->idle()) {
    // Without room in all of the outlook, its end is the earliest that is known of.
    const double age = to_seconds(query.now - row->received_at);
    const double end = row->num_points == 0 ? 0 : row->point_s[row->num_points - 1] - age;
    wait = std::max(wait, memory_start(*row, query).value_or(end));
  }
  const std::int32_t uncached = query.prompt_tokens - cached_tokens(query, instance);
  return {.ttft_s = wait + uncached * row->token_s, .peak = predicted_peak(*row, query)};
}

}  // namespace sluice
