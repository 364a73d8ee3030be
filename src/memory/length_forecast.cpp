#include "memory/length_forecast.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "base/check.h"

namespace sluice {
namespace {

// Weights grow instead of all bins being aged at each observation; beyond this
// they are scaled back.
constexpr double kLargestUnit = 1e12;
constexpr double kErrorMemory = 0.99;  // of the mean error, a completion
constexpr double kLeastTail = 1e-250;

std::int32_t bin_begin(std::size_t bin) {
  if (bin < 32) return static_cast<std::int32_t>(bin);
  const std::size_t octave = (bin - 32) / 16;
  return static_cast<std::int32_t>((16 + (bin - 32) % 16) << (octave + 1));
}

}  // namespace

LengthForecast::LengthForecast() : LengthForecast(Options{}) {}

LengthForecast::LengthForecast(Options options)
    : options_(options),
      ended_(kBins, 0.0),
      censored_(kBins, 0.0),
      exposure_(kBins, 0.0),
      running_(kBins, 0.0),
      running_exposure_(kBins, 0.0),
      prior_tail_(kBins + 1, 0.0) {
  CHECK_GT(options_.half_life, 0.0);
  CHECK_GT(options_.prior_weight, 0.0);
  CHECK_GT(options_.prior_mean, 0.0);
  // Log-logistic with shape 2: its hazard falls as 2 / length, which is broad
  // enough that no real distribution is a surprise. Its mean is scale * pi / 2.
  const double scale = options_.prior_mean * 2 / std::numbers::pi;
  for (std::size_t i = 0; i <= kBins; ++i) {
    points_[i].begin = bin_begin(i);
    const double x = points_[i].begin / scale;
    prior_tail_[i] = 1 / (1 + x * x);
  }
  rebuild();
}

void LengthForecast::observe(std::int32_t tokens, bool censored) {
  if (censored && tokens <= 0) return;  // says nothing
  tokens = std::clamp(tokens, 1, kLimit - 1);
  const double growth = std::exp2(1 / options_.half_life);
  unit_ *= growth;
  weight_ = weight_ / growth + (censored ? 0 : 1);
  if (censored) {
    censored_[bin_of(tokens)] += unit_;
    exposure_[bin_of(tokens)] += unit_ * part_of_bin(tokens);
  } else {
    const double error = std::abs(quantile(0, kLimit, 0.5) - tokens);
    const double keep = std::min(
        kErrorMemory, static_cast<double>(observations_) / static_cast<double>(observations_ + 1));
    error_tokens_ = keep * error_tokens_ + (1 - keep) * error;
    ended_[bin_of(tokens - 1)] += unit_;
    ++observations_;
    moving_mean_ += moving_weight_ * (std::max(tokens, 64) - moving_mean_);
    moving_weight_ = std::max(0.8 * moving_weight_, 0.04);
  }
  rebuild();
}

void LengthForecast::set_running(std::span<const std::int32_t> generated) {
  std::ranges::fill(running_, 0.0);
  std::ranges::fill(running_exposure_, 0.0);
  for (std::int32_t tokens : generated) {
    if (tokens <= 0) continue;
    tokens = std::min(tokens, kLimit - 1);
    running_[bin_of(tokens)] += 1;
    running_exposure_[bin_of(tokens)] += part_of_bin(tokens);
  }
  rebuild();
}

double LengthForecast::part_of_bin(std::int32_t tokens) {
  const std::size_t bin = bin_of(tokens);
  const double width = bin_begin(bin + 1) - bin_begin(bin);
  return (tokens - bin_begin(bin)) / width;
}

void LengthForecast::rebuild() {
  if (unit_ > kLargestUnit) {
    for (std::size_t i = 0; i < kBins; ++i) {
      ended_[i] /= unit_;
      censored_[i] /= unit_;
      exposure_[i] /= unit_;
    }
    unit_ = 1;
  }
  double beyond = 0;  // weight that left after the bin
  std::array<double, kBins> hazard{};
  const double prior = options_.prior_weight * unit_;
  for (std::size_t i = kBins; i-- > 0;) {
    const double at_risk =
        beyond + ended_[i] + exposure_[i] + unit_ * running_exposure_[i] + prior * prior_tail_[i];
    hazard[i] = (ended_[i] + prior * (prior_tail_[i] - prior_tail_[i + 1])) / at_risk;
    beyond += ended_[i] + censored_[i] + unit_ * running_[i];
  }
  points_[0].tail = 1;
  tail_sums_[0] = 0;
  for (std::size_t i = 0; i < kBins; ++i) {
    const double width = points_[i + 1].begin - points_[i].begin;
    points_[i + 1].tail = std::max(points_[i].tail * (1 - hazard[i]), kLeastTail);
    points_[i].slope = (points_[i + 1].tail - points_[i].tail) / width;
    tail_sums_[i + 1] =
        tail_sums_[i] + width * points_[i].tail + points_[i].slope * width * (width - 1) / 2;
  }
  points_[kBins].slope = 0;
}

double LengthForecast::tail_sum(std::int32_t tokens) const {
  const std::size_t bin = bin_of(tokens);
  const double count = tokens - points_[bin].begin;
  return tail_sums_[bin] + count * points_[bin].tail + points_[bin].slope * count * (count - 1) / 2;
}

std::int32_t LengthForecast::quantile(std::int32_t generated, std::int32_t cap, double q) const {
  if (cap <= 0) return 0;
  const double target = tail(generated) * (1 - q);
  const std::size_t first = bin_of(generated);
  // The first bin at whose end the tail has come down to the target.
  const auto end =
      std::partition_point(points_.begin() + static_cast<std::ptrdiff_t>(first), points_.end(),
                           [target](const Point& point) { return point.tail > target; });
  if (end == points_.end()) return cap;
  std::int32_t at = end->begin;
  if (end != points_.begin()) {
    const Point& bin = *(end - 1);
    if (bin.slope < 0) {
      const double into = std::ceil((target - bin.tail) / bin.slope - 1e-9);
      at = bin.begin + static_cast<std::int32_t>(std::min(into, double(end->begin - bin.begin)));
    }
  }
  const std::int64_t remaining = std::int64_t{at} - generated;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(remaining, 1, cap));
}

double LengthForecast::mean(std::int32_t generated, std::int32_t cap) const {
  if (cap <= 0) return 0;
  const std::int32_t last = generated > std::numeric_limits<std::int32_t>::max() - cap
                                ? std::numeric_limits<std::int32_t>::max()
                                : generated + cap;
  const double sum = tail_sum(last) - tail_sum(generated);
  return std::clamp(sum / tail(generated), 0.0, static_cast<double>(cap));
}

}  // namespace sluice
