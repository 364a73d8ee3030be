// Lines of a text, counted from 1, and their fields.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

namespace sluice {

class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}
  // The next line that is not empty; nullopt: the end.
  std::optional<std::string_view> next() {
    while (!rest_.empty()) {
      const std::size_t end = std::min(rest_.find('\n'), rest_.size());
      std::string_view line = rest_.substr(0, end);
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      ++number_;
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      if (!line.empty()) return line;
    }
    return std::nullopt;
  }
  [[nodiscard]] int number() const { return number_; }  // of the line given last

 private:
  std::string_view rest_;
  int number_ = 0;
};

[[nodiscard]] inline std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  while (true) {
    const std::size_t end = line.find(',');
    fields.push_back(line.substr(0, end));
    if (end == std::string_view::npos) return fields;
    line.remove_prefix(end + 1);
  }
}

[[nodiscard]] inline std::optional<double> number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace sluice
