// Ends a text at the first of some strings, holding back what may be the
// beginning of one.
//
// One automaton a string (Knuth-Morris-Pratt): the cost is linear in the text
// whatever the strings are. A match ends at the earliest byte possible; of
// several that end there, the longest one counts.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

class StopStrings final {
 public:
  explicit StopStrings(const std::vector<std::string>& stops);  // none of them empty

  // The text that may be shown now. After a match: what lay before the stop
  // string, and nothing more ever.
  [[nodiscard]] std::string push(std::string_view text);
  // What was held back and turned out not to be a stop string.
  [[nodiscard]] std::string finish();
  [[nodiscard]] bool stopped() const { return stopped_; }

 private:
  struct Automaton {
    std::string stop;
    std::vector<std::size_t> failure;  // length of the longest border of each prefix
    std::size_t state = 0;             // bytes of `stop` that the text ends with
  };

  std::vector<Automaton> automata_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace sluice
