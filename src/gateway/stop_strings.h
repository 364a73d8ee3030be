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
  // None of them is empty. `include`: the one that ends the text is shown.
  explicit StopStrings(const std::vector<std::string>& stops, bool include = false);

  // The text that may be shown now. After a match: what lay before the stop
  // string (and that itself, if it is included), and nothing more ever.
  [[nodiscard]] std::string push(std::string_view text);
  // What was held back and turned out not to be a stop string.
  [[nodiscard]] std::string finish();
  [[nodiscard]] bool stopped() const { return stopped_; }
  [[nodiscard]] const std::string& matched() const { return matched_; }  // empty: none yet

 private:
  struct Automaton {
    std::string stop;
    std::vector<std::size_t> failure;  // length of the longest border of each prefix
    std::size_t state = 0;             // bytes of `stop` that the text ends with
  };

  std::vector<Automaton> automata_;
  const bool include_;
  std::string held_;
  std::string matched_;
  bool stopped_ = false;
};

}  // namespace sluice
