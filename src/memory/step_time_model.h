// How long a step takes, fitted online by recursive least squares with forgetting,
// outliers clipped:
//
//   t = t0 + a*prefill_tokens + b*decode_sequences + c*decode context + d*prefill context
//
// Context is apart by who reads it: on a GPU a token that a prefill row reads costs
// some fifty times less, since many rows share it; as one term they spoil the fit.
// Errors are relative, so that a decode step of some milliseconds counts as
// much as a prefill step of a second. Coefficients never become negative.
// Belongs to the engine's loop.
#pragma once

#include <array>
#include <cstdint>

#include "base/time.h"

namespace sluice {

struct StepShape {
  std::int32_t prefill_tokens = 0;
  std::int32_t decode_sequences = 0;
  std::int64_t context_tokens = 0;   // tokens that the attention of the step reads, all rows,
  std::int64_t prefill_context = 0;  //   and of these the prefill rows
};

// The fitted coefficients, in seconds: what a load report carries.
struct StepTimeCoefficients {
  double base = 0;
  double per_prefill_token = 0;
  double per_decode_sequence = 0;
  double per_context_token = 0;    // that a decode row reads
  double per_prefill_context = 0;  // that a prefill row reads
  [[nodiscard]] double seconds(const StepShape& shape) const;
};

class StepTimeModel final {
 public:
  StepTimeModel();
  explicit StepTimeModel(StepTimeCoefficients initial);

  // Steps without a duration are ignored.
  void observe(const StepShape& shape, Duration took);
  [[nodiscard]] Duration predict(const StepShape& shape) const;  // > 0
  [[nodiscard]] const StepTimeCoefficients& coefficients() const { return coefficients_; }
  // Aged mean of |predicted - took| / took.
  [[nodiscard]] double relative_error() const { return relative_error_; }
  [[nodiscard]] std::int64_t observations() const { return observations_; }
  // Of these, with prefill tokens: without any, what prefill costs is a guess.
  [[nodiscard]] std::int64_t prefill_observations() const { return prefill_observations_; }

 private:
  static constexpr std::size_t kTerms = 5;
  using Terms = std::array<double, kTerms>;
  void publish();

  StepTimeCoefficients coefficients_;
  Terms scaled_{};                          // as fitted, of any sign
  std::array<Terms, kTerms> covariance_{};  // of the scaled coefficients
  double mean_seconds_ = 0;                 // aged
  double deviation_ = 0;                    // aged mean |residual|, of the prediction
  double relative_error_ = 0;
  std::int64_t observations_ = 0;
  std::int64_t prefill_observations_ = 0;
};

}  // namespace sluice
