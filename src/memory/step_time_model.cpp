#include "memory/step_time_model.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

constexpr std::size_t kTerms = 5;
using Vector = std::array<double, kTerms>;

// A laptop's small model; the first observed steps correct it.
constexpr StepTimeCoefficients kInitial{2e-3, 2e-4, 1e-3, 1e-8, 1e-8};
// Typical sizes of the terms, so that the unknowns are alike.
constexpr Vector kScale{1, 256, 16, 16384, 65536};
constexpr double kForgetting = 0.99;      // along what a step measures
constexpr double kFading = 0.99;          // of all else
constexpr double kInitialVariance = 1e4;  // relative to the coefficients' own size
constexpr double kMostVariance = 100;     // relative to the mean step time, of a coefficient's term
constexpr std::int64_t kWarmUp = 16;      // observations before outliers are told from news
constexpr double kClip = 4;               // mean residuals that a residual may have at most
constexpr double kLeastClip = 0.05;
constexpr double kErrorMemory = 0.98;
constexpr double kLargestError = 2;  // one step may add to the mean error
constexpr double kLeastSeconds = 1e-6;

Vector features(const StepShape& shape) {
  return {1 / kScale[0], shape.prefill_tokens / kScale[1], shape.decode_sequences / kScale[2],
          static_cast<double>(shape.context_tokens - shape.prefill_context) / kScale[3],
          static_cast<double>(shape.prefill_context) / kScale[4]};
}

}  // namespace

double StepTimeCoefficients::seconds(const StepShape& shape) const {
  return base + per_prefill_token * shape.prefill_tokens +
         per_decode_sequence * shape.decode_sequences +
         per_context_token * static_cast<double>(shape.context_tokens - shape.prefill_context) +
         per_prefill_context * static_cast<double>(shape.prefill_context);
}

StepTimeModel::StepTimeModel() : StepTimeModel(kInitial) {}

StepTimeModel::StepTimeModel(StepTimeCoefficients initial)
    : coefficients_(initial),
      scaled_{initial.base * kScale[0], initial.per_prefill_token * kScale[1],
              initial.per_decode_sequence * kScale[2], initial.per_context_token * kScale[3],
              initial.per_prefill_context * kScale[4]} {
  // Known to about its own size, or to a millisecond if it says nothing.
  for (std::size_t i = 0; i < kTerms; ++i) {
    const double size = scaled_[i] > 0 ? scaled_[i] : 1e-3;
    covariance_[i][i] = kInitialVariance * size * size;
  }
}

Duration StepTimeModel::predict(const StepShape& shape) const {
  return from_seconds(std::max(coefficients_.seconds(shape), kLeastSeconds));
}

void StepTimeModel::observe(const StepShape& shape, Duration took) {
  if (took <= Duration::zero()) return;
  const double seconds = to_seconds(took);
  const double error = std::abs(to_seconds(predict(shape)) - seconds) / seconds;
  const double count = static_cast<double>(observations_);
  const double keep = std::min(kErrorMemory, count / (count + 1));
  relative_error_ = keep * relative_error_ + (1 - keep) * std::min(error, kLargestError);
  mean_seconds_ = keep * mean_seconds_ + (1 - keep) * seconds;
  ++observations_;
  if (shape.prefill_tokens > 0) ++prefill_observations_;

  // Relative to the time taken: a stall of the machine then weighs little by itself.
  Vector x = features(shape);
  for (double& value : x) value /= seconds;
  double residual = 1;
  for (std::size_t i = 0; i < kTerms; ++i) residual -= scaled_[i] * x[i];
  if (observations_ > kWarmUp) {
    const double limit = std::max(kClip * deviation_, kLeastClip);
    residual = std::clamp(residual, -limit, limit);
  }
  // Grows with the clipped residual, so a lasting change is followed at last.
  deviation_ = keep * deviation_ + (1 - keep) * std::min(std::abs(residual), kLargestError);

  Vector px{};
  double xpx = 0;
  for (std::size_t i = 0; i < kTerms; ++i) {
    for (std::size_t j = 0; j < kTerms; ++j) px[i] += covariance_[i][j] * x[j];
    xpx += x[i] * px[i];
  }
  if (!(xpx > 0)) return;
  // Forgets along the direction that this step measures (Kulhavy), and all else
  // slowly and within bounds: what is not excited for long must not become
  // unknown without end.
  const double shrink = (kForgetting * xpx - (1 - kForgetting)) / (kForgetting * xpx * (1 + xpx));
  for (std::size_t i = 0; i < kTerms; ++i) {
    scaled_[i] += px[i] / (1 + xpx) * residual;
    for (std::size_t j = 0; j < kTerms; ++j) covariance_[i][j] -= shrink * px[i] * px[j];
  }
  bool may_fade = true;
  for (std::size_t i = 0; i < kTerms; ++i) {
    may_fade &= covariance_[i][i] < kMostVariance * mean_seconds_ * mean_seconds_;
  }
  if (may_fade) {
    for (auto& row : covariance_) {
      for (double& value : row) value /= kFading;
    }
  }
  publish();
}

// The best coefficients that are not negative: those that would be are held at
// zero, one after the other, and the rest conditioned on it.
void StepTimeModel::publish() {
  Vector best = scaled_;
  auto covariance = covariance_;
  for (std::size_t round = 0; round < kTerms; ++round) {
    std::size_t worst = 0;
    for (std::size_t i = 1; i < kTerms; ++i) worst = best[i] < best[worst] ? i : worst;
    if (best[worst] >= 0) break;
    const double variance = covariance[worst][worst];
    const Vector row = covariance[worst];
    if (variance > 0) {
      const double excess = best[worst];
      for (std::size_t i = 0; i < kTerms; ++i) {
        best[i] -= row[i] / variance * excess;
        for (std::size_t j = 0; j < kTerms; ++j) covariance[i][j] -= row[i] * row[j] / variance;
      }
    }
    best[worst] = 0;
  }
  for (double& value : best) value = std::isfinite(value) ? std::max(value, 0.0) : 0.0;
  coefficients_ = {best[0] / kScale[0], best[1] / kScale[1], best[2] / kScale[2],
                   best[3] / kScale[3], best[4] / kScale[4]};
}

}  // namespace sluice
