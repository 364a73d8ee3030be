// The cluster's state as JSON, for /debug and the page.
#pragma once

#include <string>

#include "cluster/serving.h"

namespace sluice {

// Instances with their windows, grants, blocks and running sequences.
[[nodiscard]] std::string memory_json(const ClusterSnapshot& snapshot, TimePoint now);
// The last placements, newest first. `inputs`: with what each was made from, for `sluice replay`
// (apps/simulate/decision_file.h reads it).
[[nodiscard]] std::string decisions_json(const ClusterSnapshot& snapshot, TimePoint now,
                                         bool inputs);

}  // namespace sluice
