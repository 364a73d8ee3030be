#include "simulation/device.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>

#include "base/check.h"

namespace sluice {
namespace {

// Linear between the points, and beyond the last with the last slope.
double lookup(const std::vector<double>& xs, const std::vector<double>& ys, double x) {
  if (x <= 0) return 0;
  if (xs.size() == 1 || x <= xs.front()) return ys.front();
  const auto above = std::lower_bound(xs.begin() + 1, xs.end() - 1, x);
  const auto i = static_cast<std::size_t>(above - xs.begin());
  return ys[i - 1] + (ys[i] - ys[i - 1]) * (x - xs[i - 1]) / (xs[i] - xs[i - 1]);
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos || line[begin] == '#') return words;
    line.remove_prefix(begin);
    const std::size_t end = std::min(line.find_first_of(" \t\r"), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

std::optional<std::vector<double>> numbers_of(std::span<const std::string_view> words) {
  std::vector<double> numbers;
  for (const std::string_view word : words) {
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
    if (!(value >= 0) || value > 1e18) return std::nullopt;
    numbers.push_back(value);
  }
  return numbers;
}

// Where the numbers of a line go; false: no such name or not so many numbers.
bool take(DeviceProfile& p, std::string_view name, const std::vector<double>& numbers) {
  // A table may take several lines.
  for (const auto& [key, table] : {std::pair{"tokens", &p.tokens}, std::pair{"dense_s", &p.dense_s},
                                   std::pair{"head_s", &p.head_s}}) {
    if (name != key) continue;
    table->insert(table->end(), numbers.begin(), numbers.end());
    return true;
  }
  if (numbers.size() != 1) return false;
  const double value = numbers[0];
  if (name == "kv_tokens") return p.kv_tokens = static_cast<std::int64_t>(value), true;
  if (name == "kv_token_bytes") return p.kv_token_bytes = static_cast<std::int64_t>(value), true;
  const std::pair<std::string_view, double*> scalars[] = {{"step_s", &p.step_s},
                                                          {"decode_row_s", &p.decode_row_s},
                                                          {"decode_context_s", &p.decode_context_s},
                                                          {"prefill_chunk_s", &p.prefill_chunk_s},
                                                          {"prefill_token_s", &p.prefill_token_s},
                                                          {"prefill_pair_s", &p.prefill_pair_s}};
  for (const auto& [key, target] : scalars) {
    if (key == name) return *target = value, true;
  }
  return false;
}

Status check_profile(const DeviceProfile& p) {
  if (p.name.empty() || p.kv_tokens < 1 || p.tokens.empty()) {
    return fail(ErrorCode::kInvalidArgument, "a device profile needs name, kv_tokens and tokens");
  }
  if (p.dense_s.size() != p.tokens.size() || p.head_s.size() != p.tokens.size()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("device {}: tokens has {} points, dense_s {} and head_s {}", p.name,
                            p.tokens.size(), p.dense_s.size(), p.head_s.size()));
  }
  if (!std::is_sorted(p.tokens.begin(), p.tokens.end(), std::less_equal<>()) || p.tokens[0] <= 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("device {}: tokens must be positive and ascend", p.name));
  }
  if (p.dense_s.front() <= 0) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("device {}: dense_s must be > 0", p.name));
  }
  return {};
}

}  // namespace

void StepWork::add(std::int32_t tokens, std::int32_t position, bool samples) {
  sampled += samples ? 1 : 0;
  if (tokens == 1) {
    decode_rows += 1;
    decode_context += position + 1;
    return;
  }
  prefill_chunks += 1;
  prefill_tokens += tokens;
  prefill_pairs += static_cast<double>(tokens) * position + 0.5 * tokens * (tokens + 1.0);
}

double DeviceProfile::seconds(const StepWork& w) const {
  return step_s + lookup(tokens, dense_s, w.decode_rows + w.prefill_tokens) +
         lookup(tokens, head_s, w.sampled) + decode_row_s * w.decode_rows +
         decode_context_s * static_cast<double>(w.decode_context) +
         prefill_chunk_s * w.prefill_chunks + prefill_token_s * w.prefill_tokens +
         prefill_pair_s * w.prefill_pairs;
}

double DeviceProfile::prefill_seconds(std::int32_t prompt, std::int32_t chunk) const {
  double sum = 0;
  for (std::int32_t at = 0; at < prompt; at += chunk) {
    const std::int32_t now = std::min(chunk, prompt - at);
    StepWork work;
    work.add(now, at, at + now == prompt);
    sum += seconds(work);
  }
  return sum;
}

Result<DeviceProfile> parse_device(std::string_view text) {
  DeviceProfile profile;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const auto words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty()) continue;
    if (words[0] == "sluice-device") {
      if (words.size() == 2 && words[1] == "1") continue;
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("line {}: only version 1 of sluice-device is known", number));
    }
    if (words[0] == "name" && words.size() == 2) {
      profile.name = words[1];
      continue;
    }
    const auto numbers = numbers_of(std::span(words).subspan(1));
    if (!numbers || numbers->empty() || !take(profile, words[0], *numbers)) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("line {}: \"{}\" is not known, or its numbers are not as expected",
                              number, words[0]));
    }
  }
  TRY_STATUS(check_profile(profile));
  return profile;
}

std::string device_text(const DeviceProfile& p) {
  std::string text = fmt::format("sluice-device 1\nname {}\nkv_tokens {}\nkv_token_bytes {}\n",
                                 p.name, p.kv_tokens, p.kv_token_bytes);
  for (const auto& [name, table] :
       {std::pair{"tokens", &p.tokens}, std::pair{"dense_s", &p.dense_s},
        std::pair{"head_s", &p.head_s}}) {
    text += name;
    for (const double value : *table) text += fmt::format(" {:.6g}", value);
    text += '\n';
  }
  for (const auto& [name, value] :
       {std::pair{"step_s", p.step_s}, std::pair{"decode_row_s", p.decode_row_s},
        std::pair{"decode_context_s", p.decode_context_s},
        std::pair{"prefill_chunk_s", p.prefill_chunk_s},
        std::pair{"prefill_token_s", p.prefill_token_s},
        std::pair{"prefill_pair_s", p.prefill_pair_s}}) {
    text += fmt::format("{} {:.6g}\n", name, value);
  }
  return text;
}

DeviceProfile roofline_device(const Roofline& r) {
  DeviceProfile p;
  p.name = r.name;
  const double weights = r.parameters * r.weight_bytes;
  p.kv_token_bytes = r.kv_token_bytes;
  p.kv_tokens =
      std::max<std::int64_t>(1, static_cast<std::int64_t>((0.9 * r.memory - weights) /
                                                          static_cast<double>(r.kv_token_bytes)));
  p.step_s = 5e-4;
  const double read_s = weights / (r.bandwidth * r.efficiency);
  const double token_s = 2 * r.parameters / (r.flops * r.efficiency);
  for (double tokens = 1; tokens <= 8192; tokens *= 2) {
    p.tokens.push_back(tokens);
    p.dense_s.push_back(std::max(read_s, token_s * tokens));
    p.head_s.push_back(0);
  }
  p.decode_context_s = static_cast<double>(r.kv_token_bytes) / (r.bandwidth * r.efficiency);
  p.prefill_pair_s = 4 * r.attention_width / (r.flops * r.efficiency);
  return p;
}

}  // namespace sluice
