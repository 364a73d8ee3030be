// How many more tokens a sequence will generate, given how many it has.
//
// A LengthCurve for all requests of the model, and one for each class of them. A
// class is a name that a client gives, an order of magnitude that it hints at,
// or both; what is true of all is a class's prior until it has seen lengths of
// its own. A hint is not believed but learned from: hints that are off by a
// factor are as good as others. Prompt length is not an input: in real traces it
// does not predict output length. Belongs to the engine's loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memory/length_curve.h"

namespace sluice {

// An index into the classes of one forecast.
using LengthClass = std::int32_t;
inline constexpr LengthClass kAnyLength = 0;  // all requests

struct RunningLength {
  std::int32_t generated = 0;
  LengthClass length_class = kAnyLength;
};

class LengthForecast final {
 public:
  struct Options {
    double half_life = 2000;   // completions after which an observation weighs half
    double prior_weight = 32;  // completions that a prior stands for
    double prior_mean = 256;   // tokens, before anything was seen
  };
  LengthForecast();
  explicit LengthForecast(Options options);

  // The class of such requests; an empty name and hint 0 mean "not given". Only
  // so many are kept apart: beyond, kAnyLength.
  [[nodiscard]] LengthClass class_of(std::string_view name, std::int32_t hint);
  static constexpr std::size_t kMostClasses = 64;

  // A sequence ended by itself after `tokens` generated tokens. Those cut short
  // by max_tokens or a client are censored: they say only "longer than that".
  void observe(std::int32_t tokens, bool censored, LengthClass length_class = kAnyLength);
  // Those still running, instead of the last such call: each says "longer than
  // that" for now. Without them the first completions, which are the short ones,
  // would speak for all.
  void set_running(std::span<const RunningLength> running);

  [[nodiscard]] const LengthCurve& of(LengthClass length_class) const;
  [[nodiscard]] std::size_t num_classes() const { return curves_.size(); }

  // Of all requests; see LengthCurve.
  [[nodiscard]] double tail(std::int32_t tokens) const { return all().tail(tokens); }
  [[nodiscard]] double survival(std::int32_t generated, std::int32_t more) const {
    return all().survival(generated, more);
  }
  [[nodiscard]] std::int32_t quantile(std::int32_t generated, std::int32_t cap, double q) const {
    return all().quantile(generated, cap, q);
  }
  [[nodiscard]] double mean(std::int32_t generated, std::int32_t cap) const {
    return all().mean(generated, cap);
  }
  [[nodiscard]] double weight() const { return all().weight(); }
  [[nodiscard]] std::int64_t observations() const { return all().observations(); }

  // Exponential mean of the lengths seen, as LightLLM's router keeps it: from
  // 2048 on, weights from 0.5 down to 0.04, lengths of at least 64.
  [[nodiscard]] double moving_mean() const { return moving_mean_; }
  // Mean absolute error of the median forecast made at the start, tokens.
  [[nodiscard]] double error_tokens() const { return error_tokens_; }

  // What was learned, as text; what runs is left out.
  [[nodiscard]] std::string saved() const;
  // False: not such a text; nothing has changed.
  [[nodiscard]] bool restore(std::string_view text);

  static constexpr std::size_t kBins = LengthCurve::kBins;
  static constexpr std::int32_t kLimit = LengthCurve::kLimit;
  [[nodiscard]] static std::size_t bin_of(std::int32_t tokens) {
    return LengthCurve::bin_of(tokens);
  }

 private:
  [[nodiscard]] const LengthCurve& all() const { return curves_[0]; }
  [[nodiscard]] LengthClass class_of_key(const std::string& key);
  void rebuild(std::size_t index);

  Options options_;
  std::vector<LengthCurve> curves_;              // by class
  std::vector<bool> inherits_;                   // its prior is the lengths of all
  std::map<std::string, LengthClass> class_of_;  // by name and hint
  double error_tokens_ = 0;
  double moving_mean_ = 2048;
  double moving_weight_ = 0.5;
};

}  // namespace sluice
