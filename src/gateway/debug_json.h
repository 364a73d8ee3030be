// The cluster's state as JSON, for /debug and the page.
#pragma once

#include <string>

#include "cluster/serving.h"

namespace sluice {

// Instances with their windows, grants, blocks and running sequences.
[[nodiscard]] std::string memory_json(const ClusterSnapshot& snapshot, TimePoint now);
// The last placements, newest first.
[[nodiscard]] std::string decisions_json(const ClusterSnapshot& snapshot, TimePoint now);

}  // namespace sluice
