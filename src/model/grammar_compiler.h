// Reads GBNF and builds a Grammar of it. Private to grammar.cpp.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/grammar.h"

namespace sluice {

class GrammarCompiler final {
 public:
  GrammarCompiler(std::string_view text, const Grammar::FindToken& find_token)
      : text_(text), find_token_(find_token) {}

  [[nodiscard]] Result<Grammar> run();

 private:
  using Element = Grammar::Element;
  using Kind = Grammar::Kind;
  using Sequence = std::vector<Element>;

  // The parser; each reads at at_ and moves it on.
  [[nodiscard]] Status parse_rule();
  [[nodiscard]] Status parse_alternatives(std::uint32_t rule, bool nested);
  [[nodiscard]] Result<Sequence> parse_sequence(bool nested);
  [[nodiscard]] Result<Sequence> parse_item(bool nested);
  [[nodiscard]] Result<Sequence> parse_literal();
  [[nodiscard]] Result<Sequence> parse_class();
  [[nodiscard]] Result<Sequence> parse_group();
  [[nodiscard]] Result<Sequence> parse_token();
  [[nodiscard]] Result<std::uint32_t> parse_character();
  [[nodiscard]] Result<std::uint32_t> parse_hex(int digits);
  [[nodiscard]] Result<std::int32_t> parse_count();
  [[nodiscard]] Result<Sequence> parse_repetition(Sequence item, bool nested);
  [[nodiscard]] Result<Sequence> repeat(Sequence item, std::int32_t least,
                                        std::optional<std::int32_t> most);
  [[nodiscard]] std::string_view parse_name();
  void skip_space(bool newlines);

  // The grammar under construction.
  [[nodiscard]] std::uint32_t rule_named(std::string_view name);
  [[nodiscard]] std::uint32_t new_rule();
  [[nodiscard]] Status add_alternative(std::uint32_t rule, const Sequence& sequence);
  [[nodiscard]] Element class_element(std::vector<Grammar::Range> ranges, bool negated);

  // Checks of the whole.
  [[nodiscard]] Status check_defined() const;
  // The rules one of whose alternatives (the element it begins at) satisfies
  // `holds`, which may ask for the rules known so far.
  template <typename Holds>
  [[nodiscard]] std::vector<bool> rules_where(const Holds& holds) const;
  [[nodiscard]] std::vector<bool> find_nullable() const;
  [[nodiscard]] Status check_root() const;
  [[nodiscard]] Status check_left_recursion() const;
  // That one rule may begin with another, and whether it goes on after it.
  struct LeftEdge {
    std::uint32_t to;
    bool leaves_rest;
  };
  [[nodiscard]] std::vector<std::vector<LeftEdge>> left_edges() const;
  [[nodiscard]] static std::vector<std::uint32_t> components(
      const std::vector<std::vector<LeftEdge>>& edges);

  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  [[nodiscard]] tl::unexpected<Error> error(const std::string& what) const;

  std::string_view text_;
  const Grammar::FindToken& find_token_;
  std::size_t at_ = 0;
  std::int32_t depth_ = 0;
  Grammar grammar_;
  std::map<std::string, std::uint32_t, std::less<>> names_;
  std::vector<std::string> rule_names_;  // empty: of a group or repetition
  std::map<std::vector<std::uint32_t>, std::uint32_t> class_index_;
};

}  // namespace sluice
