#include "gateway/stop_strings.h"

#include <algorithm>
#include <utility>

namespace sluice {

StopStrings::StopStrings(const std::vector<std::string>& stops, bool include) : include_(include) {
  for (const std::string& stop : stops) {
    Automaton a{stop, std::vector<std::size_t>(stop.size(), 0), 0};
    for (std::size_t i = 1, k = 0; i < stop.size(); ++i) {
      while (k > 0 && stop[i] != stop[k]) k = a.failure[k - 1];
      if (stop[i] == stop[k]) ++k;
      a.failure[i] = k;
    }
    automata_.push_back(std::move(a));
  }
}

std::string StopStrings::push(std::string_view text) {
  if (stopped_) return {};
  if (automata_.empty()) return std::string(text);
  std::size_t held = 0;  // bytes at the end that may begin a stop string
  for (const char c : text) {
    held_.push_back(c);
    held = 0;
    std::size_t matched = 0;
    for (Automaton& a : automata_) {
      while (a.state > 0 && a.stop[a.state] != c) a.state = a.failure[a.state - 1];
      if (a.stop[a.state] == c) ++a.state;
      if (a.state == a.stop.size()) {
        matched = std::max(matched, a.state);
        a.state = 0;  // never used again
      }
      held = std::max(held, a.state);
    }
    if (matched > 0) {
      stopped_ = true;
      matched_ = held_.substr(held_.size() - matched);
      if (!include_) held_.resize(held_.size() - matched);
      return std::exchange(held_, {});
    }
  }
  if (text.empty()) return {};
  std::string out = held_.substr(0, held_.size() - held);
  held_.erase(0, out.size());
  return out;
}

std::string StopStrings::finish() {
  return std::exchange(held_, {});
}

}  // namespace sluice
