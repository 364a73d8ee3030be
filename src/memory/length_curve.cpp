#include "memory/length_curve.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace sluice {
namespace {

// Weights grow instead of all bins being aged at each observation; beyond this
// they are scaled back.
constexpr double kLargestUnit = 1e12;
constexpr double kLeastTail = 1e-250;

std::int32_t bin_begin(std::size_t bin) {
  if (bin < 32) return static_cast<std::int32_t>(bin);
  const std::size_t octave = (bin - 32) / 16;
  return static_cast<std::int32_t>((16 + (bin - 32) % 16) << (octave + 1));
}

}  // namespace

LengthCurve::LengthCurve(Options options, Prior prior)
    : options_(options),
      ended_(kBins, 0.0),
      censored_(kBins, 0.0),
      exposure_(kBins, 0.0),
      running_(kBins, 0.0),
      running_exposure_(kBins, 0.0),
      prior_tail_(kBins + 1, 0.0) {
  CHECK_GT(options_.half_life, 0.0);
  CHECK_GT(options_.prior_weight, 0.0);
  CHECK_GT(prior.median, 0.0);
  for (std::size_t i = 0; i <= kBins; ++i) {
    points_[i].begin = bin_begin(i);
    prior_tail_[i] = 1 / (1 + std::pow(points_[i].begin / prior.median, prior.shape));
  }
  rebuild();
}

void LengthCurve::set_prior(const LengthCurve& other) {
  for (std::size_t i = 0; i <= kBins; ++i) prior_tail_[i] = other.points_[i].tail;
}

void LengthCurve::observe(std::int32_t tokens, bool censored) {
  if (censored && tokens <= 0) return;  // says nothing
  tokens = std::clamp(tokens, 1, kLimit - 1);
  const double growth = std::exp2(1 / options_.half_life);
  unit_ *= growth;
  weight_ = weight_ / growth + (censored ? 0 : 1);
  if (censored) {
    censored_[bin_of(tokens)] += unit_;
    exposure_[bin_of(tokens)] += unit_ * part_of_bin(tokens);
  } else {
    ended_[bin_of(tokens - 1)] += unit_;
    ++observations_;
  }
}

bool LengthCurve::clear_running() {
  if (!has_running_) return false;
  std::ranges::fill(running_, 0.0);
  std::ranges::fill(running_exposure_, 0.0);
  has_running_ = false;
  return true;
}

void LengthCurve::add_running(std::int32_t generated) {
  if (generated <= 0) return;
  generated = std::min(generated, kLimit - 1);
  running_[bin_of(generated)] += 1;
  running_exposure_[bin_of(generated)] += part_of_bin(generated);
  has_running_ = true;
}

double LengthCurve::part_of_bin(std::int32_t tokens) {
  const std::size_t bin = bin_of(tokens);
  const double width = bin_begin(bin + 1) - bin_begin(bin);
  return (tokens - bin_begin(bin)) / width;
}

void LengthCurve::rebuild() {
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

double LengthCurve::tail_sum(std::int32_t tokens) const {
  const std::size_t bin = bin_of(tokens);
  const double count = tokens - points_[bin].begin;
  return tail_sums_[bin] + count * points_[bin].tail + points_[bin].slope * count * (count - 1) / 2;
}

std::int32_t LengthCurve::quantile(std::int32_t generated, std::int32_t cap, double q) const {
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

double LengthCurve::mean(std::int32_t generated, std::int32_t cap) const {
  if (cap <= 0) return 0;
  const std::int32_t last = generated > std::numeric_limits<std::int32_t>::max() - cap
                                ? std::numeric_limits<std::int32_t>::max()
                                : generated + cap;
  const double sum = tail_sum(last) - tail_sum(generated);
  return std::clamp(sum / tail(generated), 0.0, static_cast<double>(cap));
}

std::optional<double> take_number(std::string_view& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (text.empty()) return value;
  if (text.front() != ' ' && text.front() != ':') return std::nullopt;
  text.remove_prefix(1);
  return value;
}

// Weights relative to the newest, which is all that matters of them.
std::string LengthCurve::saved() const {
  std::string line = fmt::format("{} {:.6g}", observations_, weight_);
  for (std::size_t i = 0; i < kBins; ++i) {
    if (ended_[i] == 0 && censored_[i] == 0) continue;
    line += fmt::format(" {}:{:.6g}:{:.6g}:{:.6g}", i, ended_[i] / unit_, censored_[i] / unit_,
                        exposure_[i] / unit_);
  }
  return line;
}

bool LengthCurve::restore(std::string_view line) {
  LengthCurve read = *this;
  std::ranges::fill(read.ended_, 0.0);
  std::ranges::fill(read.censored_, 0.0);
  std::ranges::fill(read.exposure_, 0.0);
  read.unit_ = 1;
  const auto weight = [&line](double& target) {
    const std::optional<double> value = take_number(line);
    if (value) target = *value;
    return value && *value >= 0 && *value <= kLargestUnit;
  };
  double observations = 0;
  if (!weight(observations) || !weight(read.weight_)) return false;
  read.observations_ = static_cast<std::int64_t>(observations);
  while (!line.empty()) {
    double bin = 0;
    if (!weight(bin) || bin >= kBins) return false;
    const auto i = static_cast<std::size_t>(bin);
    if (!weight(read.ended_[i]) || !weight(read.censored_[i]) || !weight(read.exposure_[i])) {
      return false;
    }
    if (read.exposure_[i] > read.censored_[i]) return false;
  }
  *this = std::move(read);
  rebuild();
  return true;
}

}  // namespace sluice
