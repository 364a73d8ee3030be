#include "model/regex_grammar.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>

#include "model/utf8.h"

namespace sluice {
namespace {

constexpr int kMaxNesting = 100;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// The members of \d, \w and \s in a class of a grammar.
std::optional<std::string_view> shorthand(char c) {
  switch (c) {
    case 'd': return "0-9";
    case 'w': return "a-zA-Z0-9_";
    case 's': return "\\x20\\t\\n\\r\\x0B\\x0C";
    default: return std::nullopt;
  }
}

// Escaped where a grammar could read it as something else.
std::string grammar_character(std::uint32_t code_point) {
  if (code_point < 0x80 && is_word(static_cast<char>(code_point))) {
    return std::string(1, static_cast<char>(code_point));
  }
  if (code_point < 0x100) return fmt::format("\\x{:02X}", code_point);
  return fmt::format("\\U{:08X}", code_point);
}

class RegexReader final {
 public:
  explicit RegexReader(std::string_view text) : text_(text) {}

  Result<std::string> run() {
    if (!is_utf8(text_)) return error("it is not valid UTF-8");
    TRY(std::string body, alternatives());
    if (at_ < text_.size()) return error("a ) without its (");
    return "root ::= " + body;
  }

 private:
  Result<std::string> alternatives() {
    TRY(std::string out, sequence());
    while (take('|')) {
      TRY(const std::string other, sequence());
      out += " | " + other;
    }
    return out;
  }

  // Up to a |, a ) or the end.
  Result<std::string> sequence() {
    std::string out;
    if (depth_ == 0) take('^');
    while (at_ < text_.size() && peek() != '|' && peek() != ')') {
      if (peek() == '$' && depth_ == 0 && (at_ + 1 == text_.size() || text_[at_ + 1] == '|')) {
        ++at_;
        break;
      }
      TRY(std::string item, atom());
      TRY(const std::string times, repetition());
      if (!out.empty()) out += ' ';
      out += item + times;
    }
    return out.empty() ? "\"\"" : out;
  }

  Result<std::string> atom() {
    const char c = peek();
    switch (c) {
      case '(': return group();
      case '[': return character_class();
      case '.': ++at_; return std::string("[^\\n]");
      case '^':
      case '$': return error("an anchor inside the expression is not supported");
      case '*':
      case '+':
      case '?': return error("nothing to repeat");
      default: break;
    }
    if (c == '\\' && at_ + 1 < text_.size()) {
      const char kind = text_[at_ + 1];
      const bool opposite = kind == 'D' || kind == 'W' || kind == 'S';
      if (const auto members = shorthand(opposite ? static_cast<char>(kind + 32) : kind)) {
        at_ += 2;
        return fmt::format("[{}{}]", opposite ? "^" : "", *members);
      }
    }
    TRY(const std::uint32_t code_point, character());
    return '"' + grammar_character(code_point) + '"';
  }

  Result<std::string> group() {
    ++at_;
    if (take('?')) {
      take('P');
      if (take('<')) {
        while (is_word(peek())) ++at_;
        if (!take('>')) return error("lookbehind is not supported");
      } else if (!take(':')) {
        return error("lookahead and flags are not supported");
      }
    }
    if (++depth_ > kMaxNesting) return error(fmt::format("more than {} groups deep", kMaxNesting));
    TRY(const std::string body, alternatives());
    --depth_;
    if (!take(')')) return error("a ( without its )");
    return '(' + body + ')';
  }

  Result<std::string> character_class() {
    ++at_;
    std::string out = take('^') ? "[^" : "[";
    bool first = true;
    while (first || peek() != ']') {
      if (at_ >= text_.size()) return error("a [ without its ]");
      first = false;
      if (peek() == '\\' && at_ + 1 < text_.size()) {
        if (const auto members = shorthand(text_[at_ + 1])) {
          out += *members;
          at_ += 2;
          continue;
        }
      }
      TRY(const std::uint32_t low, class_character());
      out += grammar_character(low);
      const bool range = peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (!range) continue;
      ++at_;
      TRY(const std::uint32_t high, class_character());
      if (high < low) return error("a range ends before it begins");
      out += '-' + grammar_character(high);
    }
    ++at_;
    return out + ']';
  }

  Result<std::uint32_t> class_character() {
    if (text_.substr(at_).starts_with("\\b")) {  // in a class it is a backspace
      at_ += 2;
      return 8U;
    }
    return character();
  }

  // One character, escaped or not.
  Result<std::uint32_t> character() {
    if (peek() != '\\') {
      const Utf8Step step = utf8_step(text_.substr(at_));
      at_ += step.length;
      return step.code_point;
    }
    ++at_;
    if (at_ >= text_.size()) return error("it ends with a \\");
    const char c = text_[at_++];
    switch (c) {
      case 'n': return 10U;
      case 'r': return 13U;
      case 't': return 9U;
      case 'f': return 12U;
      case 'v': return 11U;
      case '0': return 0U;
      case 'x': return hexadecimal(2);
      case 'u': return hexadecimal(4);
      default: break;
    }
    if (is_word(c)) return error(fmt::format("\\{} is not supported", c));
    --at_;
    const Utf8Step step = utf8_step(text_.substr(at_));
    at_ += step.length;
    return step.code_point;
  }

  Result<std::uint32_t> hexadecimal(int digits) {
    std::uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = peek();
      const std::size_t digit = std::string_view("0123456789abcdefABCDEF").find(c);
      if (c == '\0' || digit == std::string_view::npos) {
        return error(fmt::format("expected {} hexadecimal digits", digits));
      }
      value = value * 16 + static_cast<std::uint32_t>(digit < 16 ? digit : digit - 6);
      ++at_;
    }
    return value;
  }

  // What follows an atom, in a grammar's form; empty: once.
  Result<std::string> repetition() {
    std::string out;
    const char c = peek();
    if (c == '*' || c == '+' || c == '?') {
      ++at_;
      out = std::string(1, c);
    } else if (c == '{') {
      const std::size_t end = text_.find('}', at_);
      const std::string_view counts = text_.substr(at_ + 1, end - at_ - 1);
      const std::size_t comma = counts.find(',');
      const auto is_number = [](std::string_view s) {
        return s.find_first_not_of("0123456789") == std::string_view::npos && s.size() < 10;
      };
      const std::string_view least = counts.substr(0, comma);
      const std::string_view most =
          comma == std::string_view::npos ? std::string_view() : counts.substr(comma + 1);
      if (end == std::string_view::npos || least.empty() || !is_number(least) || !is_number(most)) {
        return error("expected {n}, {n,} or {n,m}");
      }
      out = fmt::format("{{{}}}", counts);
      at_ = end + 1;
    }
    if (out.empty()) return out;
    take('?');
    if (peek() == '+' || peek() == '*' || peek() == '{')
      return error("a repetition of a repetition");
    return out;
  }

  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  [[nodiscard]] tl::unexpected<Error> error(const std::string& what) const {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the regular expression, at byte {}: {}", at_, what));
  }

  const std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

Result<std::string> regex_to_gbnf(std::string_view regex) {
  return RegexReader(regex).run();
}

}  // namespace sluice
