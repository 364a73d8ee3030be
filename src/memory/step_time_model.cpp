#include "memory/step_time_model.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

using Vector = std::array<double, 4>;

// A laptop's small model; the first observed steps correct it.
constexpr StepTimeCoefficients kInitial{2e-3, 2e-4, 1e-3, 1e-8};
// Typical sizes of the terms, so that the four unknowns are alike.
constexpr Vector kScale{1, 256, 16, 16384};
constexpr double kForgetting = 0.998;
constexpr double kInitialVariance = 1e4;  // relative to the coefficients' own size
constexpr std::int64_t kWarmUp = 16;      // observations before outliers are told from news
constexpr double kClip = 4;               // mean residuals that a residual may have at most
constexpr double kLeastClip = 0.05;
constexpr double kErrorMemory = 0.98;
constexpr double kLeastSeconds = 1e-6;

Vector features(const StepShape& shape) {
  return {1 / kScale[0], shape.prefill_tokens / kScale[1], shape.decode_sequences / kScale[2],
          static_cast<double>(shape.context_tokens) / kScale[3]};
}

}  // namespace

double StepTimeCoefficients::seconds(const StepShape& shape) const {
  return base + per_prefill_token * shape.prefill_tokens +
         per_decode_sequence * shape.decode_sequences +
         per_context_token * static_cast<double>(shape.context_tokens);
}

StepTimeModel::StepTimeModel() : StepTimeModel(kInitial) {}

StepTimeModel::StepTimeModel(StepTimeCoefficients initial) : coefficients_(initial) {
  // Known to about its own size, or to a millisecond if it says nothing.
  const Vector sizes{initial.base, initial.per_prefill_token * kScale[1],
                     initial.per_decode_sequence * kScale[2],
                     initial.per_context_token * kScale[3]};
  for (std::size_t i = 0; i < 4; ++i) {
    const double size = sizes[i] > 0 ? sizes[i] : 1e-3;
    covariance_[i][i] = kInitialVariance * size * size;
  }
}

Duration StepTimeModel::predict(const StepShape& shape) const {
  return from_seconds(std::max(coefficients_.seconds(shape), kLeastSeconds));
}

void StepTimeModel::observe(const StepShape& shape, Duration took) {
  if (took <= Duration::zero()) return;
  const double seconds = to_seconds(took);
  const double predicted = std::max(coefficients_.seconds(shape), kLeastSeconds);
  const double count = static_cast<double>(observations_);
  const double keep = std::min(kErrorMemory, count / (count + 1));
  relative_error_ = keep * relative_error_ + (1 - keep) * std::abs(predicted - seconds) / seconds;

  // All in units of the predicted time.
  double residual = seconds / predicted - 1;
  if (observations_ >= kWarmUp) {
    const double limit = std::max(kClip * deviation_, kLeastClip);
    residual = std::clamp(residual, -limit, limit);
  }
  // Grows with the clipped residual, so a lasting change is followed at last.
  deviation_ = keep * deviation_ + (1 - keep) * std::abs(residual);
  ++observations_;

  Vector x = features(shape);
  for (double& value : x) value /= predicted;
  Vector px{};
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t j = 0; j < 4; ++j) px[i] += covariance_[i][j] * x[j];
  }
  double xpx = 0;
  for (std::size_t i = 0; i < 4; ++i) xpx += x[i] * px[i];
  if (!(xpx > 0)) return;
  const double gain = 1 / (1 + xpx);
  // Forgets only along the direction that this step measures (Kulhavy), so that
  // what is not excited for long does not become unknown without end.
  const double shrink = (kForgetting * xpx - (1 - kForgetting)) / (kForgetting * xpx * (1 + xpx));
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t j = 0; j < 4; ++j) covariance_[i][j] -= shrink * px[i] * px[j];
  }
  const auto update = [&](double& coefficient, std::size_t i) {
    coefficient = std::max(0.0, coefficient + gain * px[i] * residual / kScale[i]);
  };
  update(coefficients_.base, 0);
  update(coefficients_.per_prefill_token, 1);
  update(coefficients_.per_decode_sequence, 2);
  update(coefficients_.per_context_token, 3);
}

}  // namespace sluice
