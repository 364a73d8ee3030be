// One sequence's place in a Grammar, and the tokens that may come next.
//
// Owned by one Sampler. The automaton is built as far as it is used; a limit on
// its size and on the work of one call keeps any grammar from stopping a step.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "model/grammar.h"
#include "model/tokenizer.h"

namespace sluice {

// The texts of a vocabulary as a trie. Immutable, shared by all grammars.
class GrammarVocabulary final {
 public:
  explicit GrammarVocabulary(const Tokenizer& tokenizer);

 private:
  friend class GrammarState;
  // Nodes in preorder: the children of a node follow it; `skip` is where the
  // first node after its subtree lies.
  struct Node {
    std::uint32_t skip = 0;
    std::uint32_t token_begin = 0;  // of the tokens that end here, in tokens; to the next node's
    std::uint16_t depth = 0;        // 0: the first byte of a token
    std::uint8_t byte = 0;
  };
  struct Trie {
    std::vector<Node> nodes;  // with one sentinel at the end
    std::vector<Token> tokens;
  };
  [[nodiscard]] static Trie build(std::vector<std::pair<std::string, Token>> pieces);

  std::vector<std::string> pieces_;
  std::vector<bool> control_;  // shown only on request: must be spelled out by the grammar
  std::vector<bool> is_end_;
  std::vector<Token> end_tokens_;
  Trie text_;
  Trie control_text_;
};

class GrammarState final {
 public:
  GrammarState(std::shared_ptr<const Grammar> grammar,
               std::shared_ptr<const GrammarVocabulary> vocabulary);

  // Moves on; false, and unchanged, where the grammar does not allow it.
  [[nodiscard]] bool accept(Token token);
  [[nodiscard]] bool accept_text(std::string_view text);

  [[nodiscard]] bool allows(Token token);
  // Bit t % 64 of word t / 64: token t may come next. Valid until the next call.
  [[nodiscard]] const std::vector<std::uint64_t>& mask();
  // The text so far is complete.
  [[nodiscard]] bool can_end() const { return states_[current_].accepts; }
  // A limit was met: what the grammar allows is not known any more.
  [[nodiscard]] bool too_complex() const { return too_complex_; }

 private:
  using Index = std::uint32_t;
  // A stack: the terminal it waits at, and what follows it below.
  struct Stack {
    Index at = 0;      // an element
    Index parent = 0;  // a frame; 0: the bottom
    friend bool operator==(const Stack&, const Stack&) = default;
  };
  // The character that the text ends in the middle of.
  struct Partial {
    std::uint32_t bits = 0;    // kAnyBits: every rest is fine
    std::uint8_t missing = 0;  // bytes; 0: none
    std::uint8_t length = 0;
  };
  struct Place {
    std::vector<Stack> stacks;
    Partial partial;
    bool accepts = false;
  };
  struct State : Place {
    std::array<std::int32_t, 256> next;  // kUnknown, kDead, or a state
    std::unique_ptr<std::vector<std::uint64_t>> mask;
  };
  // Mostly of a few values, which a search finds faster than a hash.
  class SmallSet {
   public:
    [[nodiscard]] bool insert(std::uint64_t value);  // false: it was there
    void clear() {
      few_.clear();
      if (!many_.empty()) many_.clear();
    }

   private:
    static constexpr std::size_t kFew = 24;
    std::vector<std::uint64_t> few_;
    std::unordered_set<std::uint64_t> many_;
  };
  static constexpr std::int32_t kUnknown = -2;
  static constexpr std::int32_t kDead = -1;
  static constexpr std::uint32_t kAnyBits = 0xFFFFFFFF;

  [[nodiscard]] Index frame(Index at, Index parent);
  void close(std::vector<Stack> open, Place& into);
  [[nodiscard]] Place step(const Place& from, std::uint8_t byte, bool literal_only);
  [[nodiscard]] Place step_partial(const Place& from, Partial partial, bool literal_only);
  [[nodiscard]] Place begin();
  [[nodiscard]] std::int32_t intern(Place place, bool keep);
  [[nodiscard]] std::int32_t next_state(std::int32_t from, std::uint8_t byte);
  // Where the token leads; empty: nowhere.
  [[nodiscard]] std::optional<Place> after(Token token);
  void add_token_stacks(const Place& from, Token token, Place& into);
  void add_token_terminal(Grammar::Element element, std::vector<std::uint64_t>& mask) const;
  void walk_text(std::vector<std::uint64_t>& mask);
  void walk_control(std::vector<std::uint64_t>& mask);
  void make_room();

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::vector<Stack> frames_;  // hash-consed: equal stacks have equal indices
  std::unordered_map<std::uint64_t, Index> frame_index_;
  std::vector<State> states_;
  std::unordered_map<std::string, std::int32_t> state_index_;
  std::uint32_t current_ = 0;
  SmallSet seen_;         // of one close()
  std::size_t work_ = 0;  // stacks visited in this call
  std::size_t num_masks_ = 0;
  bool too_complex_ = false;
};

}  // namespace sluice
