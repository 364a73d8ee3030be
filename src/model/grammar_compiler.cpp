#include "model/grammar_compiler.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/utf8.h"

namespace sluice {
namespace {

constexpr std::uint32_t kLastCodePoint = 0x10FFFF;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || is_digit(c);
}

}  // namespace

tl::unexpected<Error> GrammarCompiler::error(const std::string& what) const {
  const std::string_view before = text_.substr(0, std::min(at_, text_.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t start =
      before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return fail(ErrorCode::kInvalidArgument, fmt::format("grammar, line {}, column {}: {}", line,
                                                       before.size() - start + 1, what));
}

Result<Grammar> GrammarCompiler::run() {
  if (text_.size() > kMaxGrammarBytes) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the grammar has {} bytes; the limit is {}", text_.size(), kMaxGrammarBytes));
  }
  if (!is_utf8(text_) || text_.find('\0') != std::string_view::npos) {
    return fail(ErrorCode::kInvalidArgument, "the grammar is not text in UTF-8");
  }
  skip_space(true);
  while (at_ < text_.size()) TRY_STATUS(parse_rule());
  const auto root = names_.find("root");
  if (root == names_.end())
    return fail(ErrorCode::kInvalidArgument, "the grammar has no rule `root`");
  grammar_.root_ = root->second;
  TRY_STATUS(check_defined());
  TRY_STATUS(check_left_recursion());
  TRY_STATUS(check_root());
  return std::move(grammar_);
}

void GrammarCompiler::skip_space(bool newlines) {
  for (; at_ < text_.size(); ++at_) {
    const char c = text_[at_];
    if (c == '#') {
      while (at_ < text_.size() && peek() != '\n' && peek() != '\r') ++at_;
      --at_;  // the loop moves on
    } else if (c != ' ' && c != '\t' && !(newlines && (c == '\n' || c == '\r'))) {
      return;
    }
  }
}

std::string_view GrammarCompiler::parse_name() {
  const std::size_t start = at_;
  while (is_word(peek())) ++at_;
  return text_.substr(start, at_ - start);
}

Status GrammarCompiler::parse_rule() {
  const std::string_view name = parse_name();
  if (name.empty()) return error("expected the name of a rule");
  skip_space(false);
  if (text_.substr(at_, 3) != "::=") return error("expected ::=");
  at_ += 3;
  skip_space(true);
  const std::uint32_t rule = rule_named(name);
  grammar_.rules_[rule].clear();  // a later rule of the same name replaces it
  TRY_STATUS(parse_alternatives(rule, false));
  if (at_ < text_.size() && peek() != '\n' && peek() != '\r') {
    return error(fmt::format("did not expect '{}'", peek()));
  }
  skip_space(true);
  return {};
}

Status GrammarCompiler::parse_alternatives(std::uint32_t rule, bool nested) {
  while (true) {
    TRY(const Sequence sequence, parse_sequence(nested));
    TRY_STATUS(add_alternative(rule, sequence));
    if (peek() != '|') return {};
    ++at_;
    skip_space(true);
  }
}

Result<GrammarCompiler::Sequence> GrammarCompiler::parse_sequence(bool nested) {
  Sequence sequence;
  while (at_ < text_.size()) {
    const char c = peek();
    if (c == '|' || c == ')' || c == '\n' || c == '\r') break;
    TRY(const Sequence item, parse_item(nested));
    sequence.insert(sequence.end(), item.begin(), item.end());
    if (sequence.size() > kMaxGrammarElements) {
      return error(fmt::format("more than {} elements", kMaxGrammarElements));
    }
  }
  return sequence;
}

Result<GrammarCompiler::Sequence> GrammarCompiler::parse_item(bool nested) {
  Sequence item;
  const char c = peek();
  if (c == '"') {
    TRY(item, parse_literal());
  } else if (c == '[') {
    TRY(item, parse_class());
  } else if (c == '(') {
    TRY(item, parse_group());
  } else if (c == '<' || c == '!') {
    TRY(item, parse_token());
  } else if (c == '.') {
    ++at_;
    item = {class_element({{0, kLastCodePoint}}, false)};
  } else if (is_word(c)) {
    item = {{Kind::kRule, rule_named(parse_name())}};
  } else {
    return error(fmt::format("did not expect '{}'", c));
  }
  skip_space(nested);
  return parse_repetition(std::move(item), nested);
}

Result<GrammarCompiler::Sequence> GrammarCompiler::parse_literal() {
  ++at_;
  Sequence sequence;
  while (peek() != '"') {
    if (at_ >= text_.size()) return error("a literal does not end");
    TRY(const std::uint32_t c, parse_character());
    sequence.push_back(class_element({{c, c}}, false));
  }
  ++at_;
  return sequence;
}

Result<GrammarCompiler::Sequence> GrammarCompiler::parse_class() {
  ++at_;
  const bool negated = peek() == '^';
  if (negated) ++at_;
  std::vector<Grammar::Range> ranges;
  while (peek() != ']') {
    if (at_ >= text_.size()) return error("a character class does not end");
    TRY(const std::uint32_t first, parse_character());
    std::uint32_t last = first;
    if (peek() == '-' && peek(1) != ']') {
      ++at_;
      if (at_ >= text_.size()) return error("a character class does not end");
      TRY(last, parse_character());
      if (last < first) return error("a character range ends before it begins");
    }
    ranges.push_back({first, last});
  }
  ++at_;
  if (ranges.empty() && !negated) return error("an empty character class matches nothing");
  return Sequence{class_element(std::move(ranges), negated)};
}

Result<GrammarCompiler::Sequence> GrammarCompiler::parse_group() {
  if (++depth_ > kMaxGrammarNesting) {
    return error(fmt::format("groups are nested deeper than {}", kMaxGrammarNesting));
  }
  ++at_;
  skip_space(true);
  const std::uint32_t rule = new_rule();
  TRY_STATUS(parse_alternatives(rule, true));
  if (peek() != ')') return error("expected )");
  ++at_;
  --depth_;
  return Sequence{{Kind::kRule, rule}};
}

Result<GrammarCompiler::Sequence> GrammarCompiler::parse_token() {
  Kind kind = Kind::kToken;
  if (peek() == '!') {
    kind = Kind::kTokenNot;
    ++at_;
  }
  if (peek() != '<') return error("expected <");
  const std::size_t start = at_;
  const std::size_t end = text_.find('>', start);
  if (end == std::string_view::npos) return error("a token does not end");
  const std::string_view name = text_.substr(start, end + 1 - start);
  std::optional<Token> token;
  if (name.size() > 3 && name[1] == '[') {
    at_ += 2;
    TRY(token, parse_count());
    if (text_.substr(at_, 2) != "]>") return error("expected ]>");
  } else if (find_token_) {
    token = find_token_(name);
  }
  if (!token) return error(fmt::format("{} is not one token of this model", name));
  at_ = end + 1;
  return Sequence{{kind, static_cast<std::uint32_t>(*token)}};
}

Result<std::uint32_t> GrammarCompiler::parse_hex(int digits) {
  std::uint32_t value = 0;
  for (int i = 0; i < digits; ++i, ++at_) {
    const char c = peek();
    const char lower = static_cast<char>(c | 0x20);
    if (is_digit(c)) {
      value = value << 4 | static_cast<std::uint32_t>(c - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      value = value << 4 | static_cast<std::uint32_t>(lower - 'a' + 10);
    } else {
      return error(fmt::format("expected {} hexadecimal digits", digits));
    }
  }
  if (value > kLastCodePoint) return error("a character is above U+10FFFF");
  return value;
}

Result<std::uint32_t> GrammarCompiler::parse_character() {
  if (peek() != '\\') {
    const Utf8Step step = utf8_step(text_.substr(at_));
    at_ += step.length;
    return step.code_point;
  }
  const char c = peek(1);
  at_ += 2;
  switch (c) {
    case 'x': return parse_hex(2);
    case 'u': return parse_hex(4);
    case 'U': return parse_hex(8);
    case 't': return '\t';
    case 'r': return '\r';
    case 'n': return '\n';
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-': return static_cast<std::uint32_t>(c);
    default: return error(fmt::format("unknown escape \\{}", c));
  }
}

Result<std::int32_t> GrammarCompiler::parse_count() {
  if (!is_digit(peek())) return error("expected a number");
  std::int64_t value = 0;
  for (; is_digit(peek()); ++at_) {
    value = value * 10 + (peek() - '0');
    if (value > INT32_MAX) return error("a number is too large");
  }
  return static_cast<std::int32_t>(value);
}

Result<GrammarCompiler::Sequence> GrammarCompiler::parse_repetition(Sequence item, bool nested) {
  while (true) {
    std::int32_t least = 0;
    std::optional<std::int32_t> most;
    const char c = peek();
    if (c == '*' || c == '+' || c == '?') {
      ++at_;
      least = c == '+' ? 1 : 0;
      if (c == '?') most = 1;
    } else if (c == '{') {
      ++at_;
      skip_space(nested);
      TRY(least, parse_count());
      skip_space(nested);
      most = least;
      if (peek() == ',') {
        ++at_;
        skip_space(nested);
        most.reset();
        if (is_digit(peek())) {
          TRY(most, parse_count());
        }
        skip_space(nested);
      }
      if (peek() != '}') return error("expected }");
      ++at_;
    } else {
      return item;
    }
    TRY(item, repeat(std::move(item), least, most));
    skip_space(nested);
  }
}

// x{m,n}: m times x, then R(n-m) where R(k) is `x R(k-1) |`; x{m,}: R is `x R |`.
Result<GrammarCompiler::Sequence> GrammarCompiler::repeat(Sequence item, std::int32_t least,
                                                          std::optional<std::int32_t> most) {
  if (item.empty()) return error("nothing to repeat");
  if (most && *most < least) return error("a repetition ends before it begins");
  if (std::max(least, most.value_or(0)) > kMaxGrammarRepetitions) {
    return error(fmt::format("{} repetitions; the limit is {}", std::max(least, most.value_or(0)),
                             kMaxGrammarRepetitions));
  }
  if (item.size() > 1) {  // a rule of its own, so that copies stay small
    const std::uint32_t rule = new_rule();
    TRY_STATUS(add_alternative(rule, item));
    item = {{Kind::kRule, rule}};
  }
  Sequence result(static_cast<std::size_t>(least), item[0]);
  if (!most) {
    const std::uint32_t rule = new_rule();
    TRY_STATUS(add_alternative(rule, {item[0], {Kind::kRule, rule}}));
    TRY_STATUS(add_alternative(rule, {}));
    result.push_back({Kind::kRule, rule});
    return result;
  }
  std::optional<Element> rest;
  for (std::int32_t i = least; i < *most; ++i) {
    const std::uint32_t rule = new_rule();
    Sequence sequence{item[0]};
    if (rest) sequence.push_back(*rest);
    TRY_STATUS(add_alternative(rule, sequence));
    TRY_STATUS(add_alternative(rule, {}));
    rest = Element{Kind::kRule, rule};
  }
  if (rest) result.push_back(*rest);
  return result;
}

std::uint32_t GrammarCompiler::rule_named(std::string_view name) {
  const auto found = names_.find(name);
  if (found != names_.end()) return found->second;
  const std::uint32_t rule = new_rule();
  names_.emplace(name, rule);
  rule_names_[rule] = name;
  return rule;
}

std::uint32_t GrammarCompiler::new_rule() {
  grammar_.rules_.emplace_back();
  rule_names_.emplace_back();
  return static_cast<std::uint32_t>(grammar_.rules_.size() - 1);
}

Status GrammarCompiler::add_alternative(std::uint32_t rule, const Sequence& sequence) {
  auto& elements = grammar_.elements_;
  if (elements.size() + sequence.size() >= kMaxGrammarElements) {
    return error(fmt::format("more than {} elements", kMaxGrammarElements));
  }
  grammar_.rules_[rule].push_back(static_cast<std::uint32_t>(elements.size()));
  elements.insert(elements.end(), sequence.begin(), sequence.end());
  elements.push_back({});
  return {};
}

GrammarCompiler::Element GrammarCompiler::class_element(std::vector<Grammar::Range> ranges,
                                                        bool negated) {
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Grammar::Range> merged;
  for (const auto& range : ranges) {
    if (!merged.empty() && range.first <= merged.back().last + 1) {
      merged.back().last = std::max(merged.back().last, range.last);
    } else {
      merged.push_back(range);
    }
  }
  if (negated) {
    std::vector<Grammar::Range> rest;
    std::uint32_t next = 0;
    for (const auto& range : merged) {
      if (range.first > next) rest.push_back({next, range.first - 1});
      next = range.last + 1;
    }
    if (next <= kLastCodePoint) rest.push_back({next, kLastCodePoint});
    merged = std::move(rest);
  }
  std::vector<std::uint32_t> key;
  for (const auto& range : merged) key.insert(key.end(), {range.first, range.last});
  const auto [at, added] =
      class_index_.emplace(std::move(key), static_cast<std::uint32_t>(grammar_.classes_.size()));
  if (added) grammar_.classes_.push_back({std::move(merged)});
  return {Kind::kClass, at->second};
}

Status GrammarCompiler::check_defined() const {
  for (std::size_t i = 0; i < grammar_.rules_.size(); ++i) {
    if (grammar_.rules_[i].empty()) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("the grammar uses the rule `{}` but does not define it", rule_names_[i]));
    }
  }
  return {};
}

// Repeated until nothing changes, over the rules that use what changed.
template <typename Holds>
std::vector<bool> GrammarCompiler::rules_where(const Holds& holds) const {
  const auto& rules = grammar_.rules_;
  std::vector<std::vector<std::uint32_t>> users(rules.size());
  for (std::uint32_t rule = 0; rule < rules.size(); ++rule) {
    for (std::uint32_t at : rules[rule]) {
      for (; grammar_.elements_[at].kind != Kind::kEnd; ++at) {
        if (grammar_.elements_[at].kind == Kind::kRule) {
          users[grammar_.elements_[at].value].push_back(rule);
        }
      }
    }
  }
  std::vector<bool> known(rules.size(), false);
  const auto is_so = [&](std::uint32_t at) { return holds(at, known); };
  std::vector<std::uint32_t> todo(rules.size());
  for (std::uint32_t rule = 0; rule < rules.size(); ++rule) todo[rule] = rule;
  while (!todo.empty()) {
    const std::uint32_t rule = todo.back();
    todo.pop_back();
    if (known[rule] || std::none_of(rules[rule].begin(), rules[rule].end(), is_so)) continue;
    known[rule] = true;
    todo.insert(todo.end(), users[rule].begin(), users[rule].end());
  }
  return known;
}

// Which rules may match the empty text.
std::vector<bool> GrammarCompiler::find_nullable() const {
  return rules_where([&](std::uint32_t at, const std::vector<bool>& nullable) {
    for (;; ++at) {
      const Element& element = grammar_.elements_[at];
      if (element.kind == Kind::kEnd) return true;
      if (element.kind != Kind::kRule || !nullable[element.value]) return false;
    }
  });
}

// A root that only ever leads to itself has no first character, and no end either.
Status GrammarCompiler::check_root() const {
  const std::vector<bool> nullable = find_nullable();
  if (nullable[grammar_.root_]) return {};
  const std::vector<bool> begins =
      rules_where([&](std::uint32_t at, const std::vector<bool>& known) {
        for (;; ++at) {
          const Element& element = grammar_.elements_[at];
          if (element.kind != Kind::kRule) return element.kind != Kind::kEnd;
          if (known[element.value]) return true;
          if (!nullable[element.value]) return false;
        }
      });
  if (begins[grammar_.root_]) return {};
  return fail(ErrorCode::kInvalidArgument, "the grammar: no text begins the rule `root`");
}

std::vector<std::vector<GrammarCompiler::LeftEdge>> GrammarCompiler::left_edges() const {
  const std::vector<bool> nullable = find_nullable();
  const auto& elements = grammar_.elements_;
  std::vector<std::vector<LeftEdge>> edges(grammar_.rules_.size());
  for (std::uint32_t rule = 0; rule < edges.size(); ++rule) {
    for (std::uint32_t at : grammar_.rules_[rule]) {
      for (; elements[at].kind == Kind::kRule; ++at) {
        edges[rule].push_back({elements[at].value, elements[at + 1].kind != Kind::kEnd});
        if (!nullable[elements[at].value]) break;
      }
    }
  }
  return edges;
}

// Tarjan's strongly connected components, without recursion: the component of
// each rule, from 1.
std::vector<std::uint32_t> GrammarCompiler::components(
    const std::vector<std::vector<LeftEdge>>& edges) {
  std::vector<std::uint32_t> order(edges.size(), 0), low(edges.size(), 0);
  std::vector<std::uint32_t> component(edges.size(), 0);
  std::vector<std::uint32_t> open;
  std::vector<std::pair<std::uint32_t, std::size_t>> path;  // rule, its next edge
  std::uint32_t visited = 0, found = 0;
  for (std::uint32_t start = 0; start < edges.size(); ++start) {
    if (order[start] == 0) path.push_back({start, 0});
    while (!path.empty()) {
      const auto [rule, next] = path.back();
      if (next == 0) {
        order[rule] = low[rule] = ++visited;
        open.push_back(rule);
      }
      if (next < edges[rule].size()) {
        ++path.back().second;
        const std::uint32_t to = edges[rule][next].to;
        if (order[to] == 0) {
          path.push_back({to, 0});
        } else if (component[to] == 0) {
          low[rule] = std::min(low[rule], order[to]);
        }
        continue;
      }
      path.pop_back();
      if (!path.empty()) low[path.back().first] = std::min(low[path.back().first], low[rule]);
      if (low[rule] != order[rule]) continue;
      ++found;
      while (component[rule] == 0) {
        component[open.back()] = found;
        open.pop_back();
      }
    }
  }
  return component;
}

// A rule that reaches itself before any character was read, and leaves something
// behind on the stack, would push for ever.
Status GrammarCompiler::check_left_recursion() const {
  const auto edges = left_edges();
  const std::vector<std::uint32_t> component = components(edges);
  for (std::uint32_t rule = 0; rule < edges.size(); ++rule) {
    for (const LeftEdge& edge : edges[rule]) {
      if (!edge.leaves_rest || component[rule] != component[edge.to]) continue;
      const std::string& name =
          rule_names_[rule].empty() ? rule_names_[edge.to] : rule_names_[rule];
      return fail(ErrorCode::kInvalidArgument,
                  "the grammar is left-recursive at " +
                      (name.empty() ? "a group" : "the rule `" + name + "`"));
    }
  }
  return {};
}

Result<std::shared_ptr<const Grammar>> Grammar::compile(std::string_view gbnf,
                                                        const FindToken& find_token) {
  TRY(Grammar grammar, GrammarCompiler(gbnf, find_token).run());
  return std::make_shared<const Grammar>(std::move(grammar));
}

bool Grammar::Class::has(std::uint32_t code_point) const {
  return overlap(code_point, code_point) == Overlap::kAll;
}

Grammar::Class::Overlap Grammar::Class::overlap(std::uint32_t first, std::uint32_t last) const {
  const auto at =
      std::lower_bound(ranges.begin(), ranges.end(), first,
                       [](const Range& range, std::uint32_t v) { return range.last < v; });
  if (at == ranges.end() || at->first > last) return Overlap::kNone;
  return at->first <= first && last <= at->last ? Overlap::kAll : Overlap::kSome;
}

}  // namespace sluice
