// What a cluster's snapshot says, as metrics. Internal to net/.
#pragma once

#include <string>

#include "base/time.h"
#include "cluster/serving.h"
#include "net/metric_page.h"

namespace sluice {

void add_cluster_metrics(const ClusterSnapshot& snapshot, const std::string& model_name,
                         TimePoint now, MetricPage& page);

}  // namespace sluice
