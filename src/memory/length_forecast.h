// How many more tokens a sequence will generate, given how many it has.
//
// The empirical distribution of output lengths, exponentially aged, read as a
// survival function conditioned on the tokens generated so far and capped by
// max_tokens (Kaplan and Meier's estimator over log-spaced bins). Prompt length
// is not an input: in real traces it does not predict output length. Starts
// from a broad prior that real completions soon outweigh. Belongs to the
// engine's loop; queries are O(1), quantile() O(log bins).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

class LengthForecast final {
 public:
  struct Options {
    double half_life = 2000;   // completions after which an observation weighs half
    double prior_weight = 32;  // completions that the prior stands for
    double prior_mean = 256;   // tokens
  };
  LengthForecast();
  explicit LengthForecast(Options options);

  // A sequence ended by itself after `tokens` generated tokens. Those cut short
  // by max_tokens or a client are censored: they say only "longer than that".
  void observe(std::int32_t tokens, bool censored);
  // Tokens that those still running have generated, instead of the last such
  // call: each says "longer than that" for now. Without them the first
  // completions, which are the short ones, would speak for all.
  void set_running(std::span<const std::int32_t> generated);

  // P(length > tokens); not increasing, 1 at 0.
  [[nodiscard]] double tail(std::int32_t tokens) const {
    const Point& point = points_[bin_of(tokens)];
    return point.tail + point.slope * static_cast<double>(std::min(tokens, kLimit) - point.begin);
  }
  // P(more than `more` further tokens | `generated` so far).
  [[nodiscard]] double survival(std::int32_t generated, std::int32_t more) const {
    return tail(generated + more) / tail(generated);
  }
  // The least n with P(remaining <= n) >= q, at most `cap`.
  [[nodiscard]] std::int32_t quantile(std::int32_t generated, std::int32_t cap, double q) const;
  // Mean of min(remaining, cap).
  [[nodiscard]] double mean(std::int32_t generated, std::int32_t cap) const;

  // Exponential mean of the lengths seen, as LightLLM's router keeps it: from
  // 2048 on, weights from 0.5 down to 0.04, lengths of at least 64.
  [[nodiscard]] double moving_mean() const { return moving_mean_; }

  // Mean absolute error of the median forecast made at the start, tokens.
  [[nodiscard]] double error_tokens() const { return error_tokens_; }
  [[nodiscard]] std::int64_t observations() const { return observations_; }
  // Completions that the forecast rests on, aged, the prior's included: how far
  // to trust it.
  [[nodiscard]] double weight() const { return options_.prior_weight + weight_; }

  // Lengths up to 32 have bins of their own; then 16 bins an octave. Ages of
  // one bin have about the same forecast.
  static constexpr std::size_t kBins = 272;
  static constexpr std::int32_t kLimit = 1 << 20;  // longer ones count as this long
  [[nodiscard]] static std::size_t bin_of(std::int32_t tokens) {
    if (tokens < 32) return static_cast<std::size_t>(tokens);
    if (tokens >= kLimit) return kBins;
    const auto x = static_cast<std::uint32_t>(tokens);
    const auto exponent = static_cast<std::uint32_t>(std::bit_width(x)) - 1;
    return 32 + (exponent - 5) * 16 + ((x >> (exponent - 4)) & 15);
  }

 private:
  // At the start of a bin: lengths (begin, next begin] end in it.
  struct Point {
    double tail = 1;   // P(length > begin)
    double slope = 0;  // of the tail inside the bin, a token
    std::int32_t begin = 0;
  };
  [[nodiscard]] static double part_of_bin(std::int32_t tokens);
  void rebuild();
  [[nodiscard]] double tail_sum(std::int32_t tokens) const;  // of tail(x), x in [0, tokens)

  Options options_;
  double unit_ = 1;                            // what an observation weighs now; grows
  std::vector<double> ended_;                  // weight of those that ended in the bin
  std::vector<double> censored_;               // and of those that were cut short in it,
  std::vector<double> exposure_;               //   times the part of the bin that they lived
  std::vector<double> running_;                // number of those running with an age in the bin,
  std::vector<double> running_exposure_;       //   times the part of the bin that they lived
  std::vector<double> prior_tail_;             // at the bins' starts
  std::array<Point, kBins + 1> points_{};      // the last one: kLimit and beyond
  std::array<double, kBins + 1> tail_sums_{};  // of tail(x), x in [0, begin of the bin)
  double weight_ = 0;                          // of those that ended, aged
  double error_tokens_ = 0;
  std::int64_t observations_ = 0;
  double moving_mean_ = 2048;
  double moving_weight_ = 0.5;
};

}  // namespace sluice
