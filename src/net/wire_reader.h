// Reads the fields of a message and remembers the first that is out of bounds.
// Internal to net/.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_stats.h"
#include "net/wire.h"

namespace sluice {

inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;  // of tokens or blocks, anywhere
inline constexpr std::int64_t kMaxCounter = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int32_t kMaxInt = std::numeric_limits<std::int32_t>::max();

class Reader final {
 public:
  explicit Reader(const WireLimits& limits) : limits_(limits) {}

  template <class T>
  T within(const char* what, T value, T least, T most) {
    if (value >= least && value <= most) return value;
    refuse(fmt::format("{} is {}; it must be from {} to {}", what, value, least, most));
    return least;
  }
  std::int32_t count(const char* what, std::int32_t value) {
    return within<std::int32_t>(what, value, 0, kMaxInt);
  }
  std::int64_t count(const char* what, std::int64_t value, std::int64_t most = kMaxCount) {
    return within<std::int64_t>(what, value, 0, most);
  }
  // The last enumerator bounds it.
  template <class Enum>
  Enum enumeration(const char* what, std::uint32_t value, Enum last) {
    return static_cast<Enum>(
        within<std::uint32_t>(what, value, 0, static_cast<std::uint32_t>(last)));
  }
  Token token(const char* what, std::int32_t value) {
    return within<std::int32_t>(what, value, 0, limits_.vocabulary - 1);
  }
  const std::string& text(const char* what, const std::string& value) {
    static const std::string kNone;
    if (!holds(what, value.size(), limits_.max_text)) return kNone;
    return value;
  }
  Duration span(const char* what, std::int64_t ns) {
    return Duration(
        within<std::int64_t>(what, ns, -limits_.max_span.count(), limits_.max_span.count()));
  }
  // False: `size` is too large, and nothing of the list is to be read.
  bool holds(const char* what, std::size_t size, std::int32_t most) {
    if (size <= static_cast<std::size_t>(most)) return true;
    refuse(fmt::format("{} has {} entries (limit {})", what, size, most));
    return false;
  }
  template <class List>
  bool list(const char* what, const List& values) {
    return holds(what, static_cast<std::size_t>(values.size()), limits_.max_list);
  }
  template <class List>
  std::vector<Token> tokens(const char* what, const List& values) {
    if (!holds(what, static_cast<std::size_t>(values.size()), limits_.max_sequence)) return {};
    std::vector<Token> result(values.begin(), values.end());
    const auto [least, most] = std::minmax_element(result.begin(), result.end());
    if (!result.empty()) {
      (void)token(what, *least);
      (void)token(what, *most);
    }
    return result;
  }
  [[nodiscard]] const WireLimits& limits() const { return limits_; }
  void refuse(std::string why) {
    if (!error_) error_ = Error{ErrorCode::kInvalidArgument, std::move(why), 0};
  }
  template <class T>
  Result<T> result(T value) {
    if (error_) return tl::unexpected(*error_);
    return value;
  }

 private:
  const WireLimits& limits_;
  std::optional<Error> error_;
};

// The bounds are this program's.
inline void read(Reader& in, const proto::Histogram& m, FixedHistogram<12>& h) {
  if (m.counts_size() != std::ssize(h.counts)) {
    return in.refuse(
        fmt::format("a histogram has {} counts; {} were due", m.counts_size(), h.counts.size()));
  }
  for (int i = 0; i < m.counts_size(); ++i) {
    h.counts[static_cast<std::size_t>(i)] = in.count("histogram", m.counts(i), kMaxCounter);
  }
  h.sum = m.sum();
}

}  // namespace sluice
