// What a decision was made from, so that it can be made again: by the same policy,
// which then chooses the same instance, or by another one.
//
// Immutable once made, and shared by all copies of its decision. It holds the rows that
// the policy read, in the table's order; of a table of more than 64 only those that
// are among the decision's candidates, and a choice made again is one among these.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "scheduling/load_table.h"
#include "scheduling/placement.h"

namespace sluice {

struct DecisionInputs {
  PlacementQuery query;
  PlacementPolicy::State state;  // the policy's, before it chose
  std::vector<LoadRow> rows;
  std::size_t table_rows = 0;  // of the table; more than `rows`: the others are not known
};

// Before the choice changes anything in the table. Copies at most 64 rows.
[[nodiscard]] std::shared_ptr<const DecisionInputs> inputs_of(const Decision& decision,
                                                              const PlacementQuery& query,
                                                              const LoadTable& loads,
                                                              const PlacementPolicy::State& before);

// What a policy does with these inputs, in the state in which it is.
[[nodiscard]] Decision decide_again(const DecisionInputs& inputs, PlacementPolicy& policy);

// What the load there predicts for a request, whoever chose the instance.
struct Prediction {
  double ttft_s = 0;
  double peak = 0;  // of KV memory with the request in it, as a share of the blocks
};
// Zero for an instance of which the inputs hold no row.
[[nodiscard]] Prediction predict(const DecisionInputs& inputs, InstanceId instance);

}  // namespace sluice
