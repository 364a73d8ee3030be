// Collects metric families for one rendering. Internal to net/.
#pragma once

#include <prometheus/client_metric.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "engine/engine_stats.h"

namespace sluice {

using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

// Families keep the order of their first value.
class MetricPage final {
 public:
  void gauge(const std::string& name, const char* help, MetricLabels labels, double value) {
    prometheus::ClientMetric metric;
    metric.gauge.value = value;
    add(name, help, prometheus::MetricType::Gauge, std::move(labels), std::move(metric));
  }
  void counter(const std::string& name, const char* help, MetricLabels labels, double value) {
    prometheus::ClientMetric metric;
    metric.counter.value = value;
    add(name, help, prometheus::MetricType::Counter, std::move(labels), std::move(metric));
  }
  // A count and a sum.
  void summary(const std::string& name, const char* help, MetricLabels labels, std::int64_t count,
               double sum) {
    prometheus::ClientMetric metric;
    metric.summary.sample_count = static_cast<std::uint64_t>(count);
    metric.summary.sample_sum = sum;
    add(name, help, prometheus::MetricType::Summary, std::move(labels), std::move(metric));
  }
  void histogram(const std::string& name, const char* help, MetricLabels labels,
                 const prometheus::Histogram& histogram) {
    add(name, help, prometheus::MetricType::Histogram, std::move(labels), histogram.Collect());
  }
  template <std::size_t N>
  void histogram(const std::string& name, const char* help, MetricLabels labels,
                 const FixedHistogram<N>& histogram) {
    prometheus::ClientMetric metric;
    std::uint64_t count = 0;
    for (std::size_t i = 0; i <= N; ++i) {
      count += static_cast<std::uint64_t>(histogram.counts[i]);
      const double bound = i < N ? histogram.bounds[i] : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({count, bound});
    }
    metric.histogram.sample_count = count;
    metric.histogram.sample_sum = histogram.sum;
    add(name, help, prometheus::MetricType::Histogram, std::move(labels), std::move(metric));
  }
  [[nodiscard]] const std::vector<prometheus::MetricFamily>& families() const { return families_; }

 private:
  void add(const std::string& name, const char* help, prometheus::MetricType type,
           MetricLabels labels, prometheus::ClientMetric metric) {
    metric.label = std::move(labels);
    const auto [it, added] = index_.try_emplace(name, families_.size());
    if (added) families_.push_back({name, help, type, {}});
    families_[it->second].metric.push_back(std::move(metric));
  }

  std::vector<prometheus::MetricFamily> families_;
  std::map<std::string, std::size_t> index_;
};

}  // namespace sluice
