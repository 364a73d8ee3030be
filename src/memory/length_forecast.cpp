#include "memory/length_forecast.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/check.h"

namespace sluice {
namespace {

constexpr double kErrorMemory = 0.99;  // of the mean error, a completion
constexpr double kHintShape = 4;       // a guess within a factor of two, four times out of five
constexpr std::string_view kHeader = "sluice length forecast 1\n";
constexpr char kHintMark = '~';  // before the order of magnitude in a class's key

std::int32_t order_of(std::int32_t hint) {
  return hint > 0 ? std::bit_width(static_cast<std::uint32_t>(hint)) : 0;
}

std::string key_of(std::string_view name, std::int32_t order) {
  std::string key;
  for (const char c : name.substr(0, 64)) key += c > ' ' && c != 127 ? c : '_';
  return key + kHintMark + std::to_string(order);
}

// The order of magnitude that a key ends with; nothing: not a key.
std::optional<std::int32_t> order_of_key(std::string_view key) {
  const std::size_t mark = key.rfind(kHintMark);
  if (mark == std::string_view::npos) return std::nullopt;
  const std::string_view digits = key.substr(mark + 1);
  std::int32_t order = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), order);
  const bool all_read = error == std::errc{} && end == digits.data() + digits.size();
  if (!all_read || order < 0 || order > 31) return std::nullopt;
  return order;
}

}  // namespace

LengthForecast::LengthForecast() : LengthForecast(Options{}) {}

LengthForecast::LengthForecast(Options options) : options_(options) {
  CHECK_GT(options_.prior_mean, 0.0);
  // The mean of a log-logistic of shape 2 is pi / 2 times its median.
  curves_.emplace_back(LengthCurve::Options{options.half_life, options.prior_weight},
                       LengthCurve::Prior{options.prior_mean * 2 / std::numbers::pi, 2});
  inherits_.push_back(false);
}

LengthClass LengthForecast::class_of(std::string_view name, std::int32_t hint) {
  if (name.empty() && hint <= 0) return kAnyLength;
  return class_of_key(key_of(name, order_of(hint)));
}

LengthClass LengthForecast::class_of_key(const std::string& key) {
  if (const auto known = class_of_.find(key); known != class_of_.end()) return known->second;
  if (curves_.size() >= kMostClasses) return kAnyLength;
  const std::int32_t order = order_of_key(key).value_or(0);
  // In the middle of [2^(order - 1), 2^order).
  const LengthCurve::Prior prior{0.75 * std::exp2(std::max(order, 1)), kHintShape};
  curves_.emplace_back(LengthCurve::Options{options_.half_life, options_.prior_weight}, prior);
  inherits_.push_back(order == 0);
  const auto added = static_cast<LengthClass>(curves_.size() - 1);
  class_of_.emplace(key, added);
  rebuild(curves_.size() - 1);
  return added;
}

const LengthCurve& LengthForecast::of(LengthClass length_class) const {
  CHECK_LT(static_cast<std::size_t>(length_class), curves_.size());
  return curves_[static_cast<std::size_t>(length_class)];
}

void LengthForecast::rebuild(std::size_t index) {
  if (inherits_[index]) curves_[index].set_prior(all());
  curves_[index].rebuild();
}

void LengthForecast::observe(std::int32_t tokens, bool censored, LengthClass length_class) {
  const auto index = static_cast<std::size_t>(length_class);
  CHECK_LT(index, curves_.size());
  if (!censored) {
    const std::int32_t length = std::clamp(tokens, 1, kLimit - 1);
    const double error = std::abs(curves_[index].quantile(0, kLimit, 0.5) - length);
    const auto seen = static_cast<double>(observations());
    const double keep = std::min(kErrorMemory, seen / (seen + 1));
    error_tokens_ = keep * error_tokens_ + (1 - keep) * error;
    moving_mean_ += moving_weight_ * (std::max(length, 64) - moving_mean_);
    moving_weight_ = std::max(0.8 * moving_weight_, 0.04);
  }
  curves_[0].observe(tokens, censored);
  rebuild(0);
  if (index == 0) return;
  curves_[index].observe(tokens, censored);
  rebuild(index);
}

void LengthForecast::set_running(std::span<const RunningLength> running) {
  std::vector<bool> touched(curves_.size(), false);
  for (std::size_t i = 0; i < curves_.size(); ++i) touched[i] = curves_[i].clear_running();
  for (const RunningLength& r : running) {
    const auto index = static_cast<std::size_t>(r.length_class);
    CHECK_LT(index, curves_.size());
    curves_[0].add_running(r.generated);
    touched[0] = true;
    if (index == 0) continue;
    curves_[index].add_running(r.generated);
    touched[index] = true;
  }
  for (std::size_t i = 0; i < curves_.size(); ++i) {
    if (touched[i]) rebuild(i);
  }
}

// A header, then a line for all requests and one a class: its key and its curve.
std::string LengthForecast::saved() const {
  std::string text(kHeader);
  text += fmt::format("* {:.6g} {:.6g} {:.6g} {}\n", error_tokens_, moving_mean_, moving_weight_,
                      all().saved());
  for (const auto& [key, index] : class_of_) {
    text += fmt::format("{} {}\n", key, of(index).saved());
  }
  return text;
}

bool LengthForecast::restore(std::string_view text) {
  if (!text.starts_with(kHeader)) return false;
  text.remove_prefix(kHeader.size());
  LengthForecast read(options_);
  bool first = true;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return false;
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) return false;
    const std::string_view key = line.substr(0, space);
    std::string_view rest = line.substr(space + 1);
    if (first != (key == "*")) return false;
    if (first) {
      for (double* target : {&read.error_tokens_, &read.moving_mean_, &read.moving_weight_}) {
        const std::optional<double> value = take_number(rest);
        if (!value || !(*value >= 0) || *value > kLimit) return false;
        *target = *value;
      }
      if (!read.curves_[0].restore(rest)) return false;
      first = false;
      continue;
    }
    if (!order_of_key(key) || read.class_of_.contains(std::string(key))) return false;
    const LengthClass added = read.class_of_key(std::string(key));
    if (added == kAnyLength) return false;
    if (!read.curves_[static_cast<std::size_t>(added)].restore(rest)) return false;
  }
  if (first) return false;
  *this = std::move(read);
  return true;
}

}  // namespace sluice
