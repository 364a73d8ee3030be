// How many more tokens a sequence will generate, given how many it has.
//
// The empirical distribution of output lengths, exponentially aged, read as a
// survival function conditioned on the tokens generated so far and capped by
// max_tokens. Prompt length is not an input: in real traces it does not predict
// output length (docs/memory.md). Starts from a broad prior that real
// completions soon outweigh.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace sluice {

class LengthForecast final {
 public:
  struct Options {
    double half_life = 2000;      // completions after which an observation weighs half
    double prior_weight = 32;     // completions that the prior stands for
    double prior_mean = 256;      // tokens
  };
  LengthForecast();
  explicit LengthForecast(Options options);

  // A sequence ended by itself after `tokens` generated tokens. Those cut short
  // by max_tokens or a client are censored: they say only "longer than that".
  void observe(std::int32_t tokens, bool censored);

  // P(more than `more` further tokens | `generated` so far).
  [[nodiscard]] double survival(std::int32_t generated, std::int32_t more) const;
  // The least n with P(remaining <= n) >= q, at most `cap`.
  [[nodiscard]] std::int32_t quantile(std::int32_t generated, std::int32_t cap, double q) const;
  // Mean of min(remaining, cap).
  [[nodiscard]] double mean(std::int32_t generated, std::int32_t cap) const;

  // Mean absolute error of the median forecast made at the start, tokens.
  [[nodiscard]] double error_tokens() const { return error_tokens_; }
  [[nodiscard]] std::int64_t observations() const { return observations_; }

 private:
  struct Bins;
  Options options_;
  std::vector<double> weight_;      // ended in bin i, aged
  std::vector<double> at_risk_;     // reached bin i, aged
  std::vector<double> log_survival_;  // cumulated up to the start of bin i
  double error_tokens_ = 0;
  std::int64_t observations_ = 0;
};

}  // namespace sluice
