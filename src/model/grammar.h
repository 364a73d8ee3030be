// Grammars in GBNF: what text is possible next, and which tokens keep to it.
//
// The language is llama.cpp's GBNF: rules, literals, character classes, '.',
// groups, alternatives, the repetitions * + ? {m} {m,} {m,n}, token terminals
// (<[17]>, !<[17]>, <name>) and # comments; the start rule is `root`. A client's
// grammar is never trusted: everything that grows with it has a limit, and left
// recursion (which would never end) is an error.
//
// A Grammar is immutable and shared. A GrammarState is one sequence's place in
// it: a set of pushdown stacks that share their tails. Its steps are cached as a
// deterministic automaton over bytes, so that a token's check costs a few table
// look-ups, and a vocabulary's mask one walk over its trie.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace sluice {

// Limits on one grammar. What json_schema gives for real tools is far below.
inline constexpr std::size_t kMaxGrammarBytes = 1 << 20;
inline constexpr std::size_t kMaxGrammarElements = 500'000;
inline constexpr std::int32_t kMaxGrammarNesting = 100;         // ( inside (
inline constexpr std::int32_t kMaxGrammarRepetitions = 10'000;  // {m,n}
inline constexpr std::size_t kMaxGrammarStacks = 5'000;         // alive at once

class Grammar final {
 public:
  // Finds the token of a text such as "<|tool_call|>"; empty: there is none.
  using FindToken = std::function<std::optional<Token>(std::string_view)>;

  // kInvalidArgument: the text is not GBNF, or beyond a limit.
  [[nodiscard]] static Result<std::shared_ptr<const Grammar>> compile(
      std::string_view gbnf, const FindToken& find_token = {});

 private:
  friend class GrammarCompiler;
  friend class GrammarState;

  enum class Kind : std::uint8_t { kEnd, kRule, kClass, kToken, kTokenNot };
  struct Element {
    Kind kind = Kind::kEnd;
    std::uint32_t value = 0;  // rule, class or token
  };
  struct Range {
    std::uint32_t first = 0;  // code points, both included
    std::uint32_t last = 0;
  };
  struct Class {
    std::vector<Range> ranges;  // sorted, apart from each other
    [[nodiscard]] bool has(std::uint32_t code_point) const;
    // Of the code points [first, last]: none, some or all.
    enum class Overlap : std::uint8_t { kNone, kSome, kAll };
    [[nodiscard]] Overlap overlap(std::uint32_t first, std::uint32_t last) const;
    [[nodiscard]] bool is_literal() const {
      return ranges.size() == 1 && ranges[0].first == ranges[0].last;
    }
  };

  std::vector<Element> elements_;                  // sequences, each ends with kEnd
  std::vector<std::vector<std::uint32_t>> rules_;  // where each alternative begins
  std::vector<Class> classes_;
  std::uint32_t root_ = 0;
};

}  // namespace sluice
