// How long a step takes, fitted online by least squares:
//
//   t = t0 + a*prefill_tokens + b*decode_sequences + c*decode context + d*prefill context
//
// Context is apart by who reads it: on a GPU a token that a prefill row reads costs
// some fifty times less, since many rows share it; as one term they spoil the fit.
//
// No device is linear, and a server may take the same kind of step for minutes. A fit
// that forgets by time then bends to that one kind and is absurd for all others. So a
// step ages only those of its own kind (powers of its sizes), and what was seen of a
// kind keeps some weight; but where all steps take longer than before, or shorter, the
// machine is another one, and what was before is forgotten.
//
// Errors are relative, so that a decode step of some milliseconds counts as
// much as a prefill step of a second. Coefficients never become negative.
// Belongs to the engine's loop.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

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
  // Normal equations, of steps relative to the time that they took.
  struct Moments {
    std::array<double, kTerms*(kTerms + 1) / 2> square{};  // upper triangle, by rows
    Terms rhs{};
  };
  struct Kind {
    std::uint32_t key = 0;
    double weight = 0;      // steps, aged
    std::int64_t last = 0;  // number of the last one
    Moments sum;            // aged as the weight
  };

  [[nodiscard]] Kind& kind_of(const StepShape& shape);
  void forget();
  void fit();

  StepTimeCoefficients coefficients_;
  Terms prior_{};  // of the scaled coefficients
  std::vector<Kind> kinds_;
  double bias_ = 0;  // aged mean of log(taken / predicted)
  double relative_error_ = 0;
  std::int64_t observations_ = 0;
  std::int64_t prefill_observations_ = 0;
};

}  // namespace sluice
