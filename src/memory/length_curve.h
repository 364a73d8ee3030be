// The distribution of output lengths of one kind of requests, as a survival
// function: exponentially aged histograms, Kaplan and Meier's estimator over
// log-spaced bins, conditioned on the tokens generated so far.
//
// Starts from a prior that real completions soon outweigh. Belongs to the
// engine's loop, through LengthForecast; queries are O(1), quantile() O(log bins).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// Takes a number and the blank or colon after it from the front of `text`.
[[nodiscard]] std::optional<double> take_number(std::string_view& text);

class LengthCurve final {
 public:
  struct Options {
    double half_life = 2000;   // completions after which an observation weighs half
    double prior_weight = 32;  // completions that the prior stands for
  };
  // What is taken for true before anything was seen: log-logistic, its hazard
  // falls as `shape` / length. Shape 2 is so broad that no real distribution is
  // a surprise.
  struct Prior {
    double median = 163;
    double shape = 2;
  };
  LengthCurve(Options options, Prior prior);

  // See LengthForecast. Both leave the curve as it was until rebuild().
  void observe(std::int32_t tokens, bool censored);
  bool clear_running();  // whether there were any
  void add_running(std::int32_t generated);
  void rebuild();
  // As a prior the lengths of all requests are better than a guess.
  void set_prior(const LengthCurve& other);

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

  // Everything that was learned, as text of one line; the running are left out.
  [[nodiscard]] std::string saved() const;
  // False: not such a line; the curve is as it was.
  [[nodiscard]] bool restore(std::string_view line);

 private:
  // At the start of a bin: lengths (begin, next begin] end in it.
  struct Point {
    double tail = 1;   // P(length > begin)
    double slope = 0;  // of the tail inside the bin, a token
    std::int32_t begin = 0;
  };
  [[nodiscard]] static double part_of_bin(std::int32_t tokens);
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
  std::int64_t observations_ = 0;
  bool has_running_ = false;
};

}  // namespace sluice
