#include "model/grammar_state.h"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

constexpr std::size_t kMaxStates = 2048;  // kept; about 1 KB each
constexpr std::size_t kMaxFrames = 200'000;
constexpr std::size_t kMaxMasks = 64;
constexpr std::size_t kMaxWork = 4'000'000;  // stacks in one call, some 0.1 s

void set_bit(std::vector<std::uint64_t>& mask, Token token) {
  mask[static_cast<std::size_t>(token) / 64] |= std::uint64_t{1} << (token % 64);
}

}  // namespace

bool GrammarState::SmallSet::insert(std::uint64_t value) {
  if (few_.size() < kFew) {
    if (std::find(few_.begin(), few_.end(), value) != few_.end()) return false;
    few_.push_back(value);
    return true;
  }
  if (many_.empty()) many_.insert(few_.begin(), few_.end());
  return many_.insert(value).second;
}

GrammarVocabulary::GrammarVocabulary(const Tokenizer& tokenizer) {
  const std::int32_t size = tokenizer.vocabulary_size();
  std::vector<std::pair<std::string, Token>> text, control;
  for (Token token = 0; token < size; ++token) {
    std::string piece = tokenizer.piece(token, true);
    const bool is_control = tokenizer.piece(token, false).empty();
    const bool is_end = tokenizer.is_end_of_generation(token);
    control_.push_back(is_control);
    is_end_.push_back(is_end);
    if (is_end) {
      end_tokens_.push_back(token);
    } else if (!piece.empty() && piece[0] != '\0') {
      (is_control ? control : text).emplace_back(piece, token);
    } else {
      piece.clear();
    }
    pieces_.push_back(std::move(piece));
  }
  text_ = build(std::move(text));
  control_text_ = build(std::move(control));
}

GrammarVocabulary::Trie GrammarVocabulary::build(
    std::vector<std::pair<std::string, Token>> pieces) {
  std::sort(pieces.begin(), pieces.end());
  Trie trie;
  std::vector<std::size_t> open;  // nodes from the root to the last piece's end
  std::string path;
  for (const auto& [piece, token] : pieces) {
    const auto common = static_cast<std::size_t>(
        std::mismatch(path.begin(), path.end(), piece.begin(), piece.end()).first - path.begin());
    while (open.size() > common) {
      trie.nodes[open.back()].skip = static_cast<std::uint32_t>(trie.nodes.size());
      open.pop_back();
    }
    for (std::size_t i = common; i < piece.size(); ++i) {
      open.push_back(trie.nodes.size());
      trie.nodes.push_back({0, static_cast<std::uint32_t>(trie.tokens.size()),
                            static_cast<std::uint16_t>(i), static_cast<std::uint8_t>(piece[i])});
    }
    trie.tokens.push_back(token);
    path = piece;
  }
  for (const std::size_t node : open) {
    trie.nodes[node].skip = static_cast<std::uint32_t>(trie.nodes.size());
  }
  trie.nodes.push_back({0, static_cast<std::uint32_t>(trie.tokens.size()), 0, 0});
  return trie;
}

GrammarState::GrammarState(std::shared_ptr<const Grammar> grammar,
                           std::shared_ptr<const GrammarVocabulary> vocabulary)
    : grammar_(std::move(grammar)), vocabulary_(std::move(vocabulary)) {
  frames_.push_back({});  // the bottom
  const std::int32_t start = intern(begin(), true);
  if (start == kDead) states_.emplace_back().next.fill(kDead);  // a limit was met at once
}

GrammarState::Place GrammarState::begin() {
  std::vector<Stack> open;
  for (const Index at : grammar_->rules_[grammar_->root_]) open.push_back({at, 0});
  Place place;
  close(std::move(open), place);
  return place;
}

GrammarState::Index GrammarState::frame(Index at, Index parent) {
  const std::uint64_t key = std::uint64_t{at} << 32 | parent;
  const auto [found, added] = frame_index_.emplace(key, static_cast<Index>(frames_.size()));
  if (added) frames_.push_back({at, parent});
  return found->second;
}

// Expands rules until every stack waits at a terminal. Equal stacks are one, so
// that rules which match nothing end.
void GrammarState::close(std::vector<Stack> open, Place& into) {
  const auto& elements = grammar_->elements_;
  seen_.clear();
  while (!open.empty()) {
    const Stack stack = open.back();
    open.pop_back();
    if (++work_ > kMaxWork || into.stacks.size() > kMaxGrammarStacks ||
        frames_.size() > 2 * kMaxFrames) {
      too_complex_ = true;
      return;
    }
    if (!seen_.insert(std::uint64_t{stack.at} << 32 | stack.parent)) continue;
    const Grammar::Element element = elements[stack.at];
    if (element.kind == Grammar::Kind::kEnd) {
      if (stack.parent == 0) {
        into.accepts = true;
      } else {
        open.push_back(frames_[stack.parent]);
      }
    } else if (element.kind == Grammar::Kind::kRule) {
      const bool last = elements[stack.at + 1].kind == Grammar::Kind::kEnd;
      const Index parent = last ? stack.parent : frame(stack.at + 1, stack.parent);
      for (const Index at : grammar_->rules_[element.value]) open.push_back({at, parent});
    } else {
      into.stacks.push_back(stack);
    }
  }
}

// `from` after one byte; no stacks and not accepting: nothing matches. With
// `literal_only`, classes of more than one character do not match.
GrammarState::Place GrammarState::step(const Place& from, std::uint8_t byte, bool literal_only) {
  Partial partial = from.partial;
  if (partial.missing == 0) {
    if (byte < 0x80) {
      Place next;
      std::vector<Stack> open;
      for (const Stack& stack : from.stacks) {
        ++work_;
        const Grammar::Element element = grammar_->elements_[stack.at];
        if (element.kind != Grammar::Kind::kClass) continue;
        const Grammar::Class& wanted = grammar_->classes_[element.value];
        if (wanted.has(byte) && (!literal_only || wanted.is_literal())) {
          open.push_back({stack.at + 1, stack.parent});
        }
      }
      if (!open.empty()) close(std::move(open), next);
      return next;
    }
    if (byte < 0xC2 || byte > 0xF4) return {};
    partial.length = byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    partial.missing = static_cast<std::uint8_t>(partial.length - 1);
    partial.bits = byte & (0x7FU >> partial.length);
    return step_partial(from, partial, literal_only);
  }
  if ((byte & 0xC0) != 0x80) return {};
  --partial.missing;
  if (partial.bits != kAnyBits) partial.bits = partial.bits << 6 | (byte & 0x3FU);
  return step_partial(from, partial, literal_only);
}

// The stacks that some rest of a character keeps alive; where it is complete,
// those that it moves on.
GrammarState::Place GrammarState::step_partial(const Place& from, Partial partial,
                                               bool literal_only) {
  using Overlap = Grammar::Class::Overlap;
  static constexpr std::uint32_t kFirstOf[] = {0, 0, 0x80, 0x800, 0x10000};
  const int shift = 6 * partial.missing;
  std::uint32_t first = 0, last = 0;
  if (partial.bits != kAnyBits) {
    first = std::max(partial.bits << shift, kFirstOf[partial.length]);
    last = std::min(partial.bits << shift | ((1U << shift) - 1), 0x10FFFFU);
    const bool surrogate = first >= 0xD800 && last <= 0xDFFF;
    if (first > last || surrogate) return {};  // an overlong form, or no character at all
  }
  Place next;
  std::vector<Stack> open;
  bool all = true;
  for (const Stack& stack : from.stacks) {
    ++work_;
    const Grammar::Element element = grammar_->elements_[stack.at];
    if (element.kind != Grammar::Kind::kClass) continue;
    const Grammar::Class& wanted = grammar_->classes_[element.value];
    if (literal_only && !wanted.is_literal()) continue;
    const Overlap overlap = partial.bits == kAnyBits ? Overlap::kAll : wanted.overlap(first, last);
    if (overlap == Overlap::kNone) continue;
    all = all && overlap == Overlap::kAll;
    if (partial.missing == 0) {
      open.push_back({stack.at + 1, stack.parent});
    } else {
      next.stacks.push_back(stack);
    }
  }
  if (partial.missing == 0) {
    if (!open.empty()) close(std::move(open), next);
    return next;
  }
  // Most characters are alike to most grammars: forgetting their bits keeps the
  // automaton small. First bytes that restrict the second one are remembered.
  const bool restricts =
      partial.missing + 1 == partial.length &&
      (first == 0x800 || first == 0xD000 || first == 0x10000 || last == 0x10FFFF);
  if (all && !restricts) partial.bits = kAnyBits;
  next.partial = partial;
  return next;
}

std::int32_t GrammarState::intern(Place place, bool keep) {
  if (place.stacks.empty() && !place.accepts) return kDead;
  std::sort(place.stacks.begin(), place.stacks.end(), [](const Stack& a, const Stack& b) {
    return a.at != b.at ? a.at < b.at : a.parent < b.parent;
  });
  std::string key;
  if (keep) {
    const auto add = [&](std::uint32_t v) {
      key.append(reinterpret_cast<const char*>(&v), sizeof(v));
    };
    add(place.partial.missing == 0 ? 0 : place.partial.bits);
    add(place.partial.missing << 1 | static_cast<std::uint32_t>(place.accepts));
    add(place.partial.length);
    for (const Stack& stack : place.stacks) {
      add(stack.at);
      add(stack.parent);
    }
    const auto found = state_index_.find(key);
    if (found != state_index_.end()) return found->second;
  }
  const auto id = static_cast<std::int32_t>(states_.size());
  State state;
  static_cast<Place&>(state) = std::move(place);
  state.next.fill(kUnknown);
  states_.push_back(std::move(state));
  if (keep) state_index_.emplace(std::move(key), id);
  return id;
}

// Beyond kMaxStates new states are not kept: the caller drops them.
std::int32_t GrammarState::next_state(std::int32_t from, std::uint8_t byte) {
  const auto index = static_cast<std::size_t>(from);
  if (states_[index].next[byte] != kUnknown) return states_[index].next[byte];
  const bool keep = states_.size() < kMaxStates;
  const std::int32_t to = intern(step(states_[index], byte, false), keep);
  if (keep || to == kDead) states_[index].next[byte] = to;
  return to;
}

void GrammarState::add_token_stacks(const Place& from, Token token, Place& into) {
  if (from.partial.missing != 0) return;
  std::vector<Stack> open;
  for (const Stack& stack : from.stacks) {
    const Grammar::Element element = grammar_->elements_[stack.at];
    const bool same = element.value == static_cast<std::uint32_t>(token);
    if ((element.kind == Grammar::Kind::kToken && same) ||
        (element.kind == Grammar::Kind::kTokenNot && !same)) {
      open.push_back({stack.at + 1, stack.parent});
    }
  }
  if (open.empty()) return;
  if (into.partial.missing != 0) into = {};  // a whole token ends every character
  for (const Stack& stack : into.stacks) open.push_back(stack);
  into.stacks.clear();
  close(std::move(open), into);
}

std::optional<GrammarState::Place> GrammarState::after(Token token) {
  const auto index = static_cast<std::size_t>(token);
  if (token < 0 || index >= vocabulary_->pieces_.size() || vocabulary_->is_end_[index]) return {};
  const Place& from = states_[current_];
  Place place;
  const std::string& piece = vocabulary_->pieces_[index];
  if (!piece.empty()) {
    place.stacks = from.stacks;
    place.partial = from.partial;
    for (const char c : piece) {
      place = step(place, static_cast<std::uint8_t>(c), vocabulary_->control_[index]);
      if (place.stacks.empty() && !place.accepts) break;
    }
  }
  add_token_stacks(from, token, place);
  if (place.stacks.empty() && !place.accepts) return {};
  return place;
}

bool GrammarState::allows(Token token) {
  const auto index = static_cast<std::size_t>(token);
  if (token < 0 || index >= vocabulary_->pieces_.size()) return false;
  if (vocabulary_->is_end_[index]) return can_end();
  work_ = 0;
  return after(token).has_value();
}

bool GrammarState::accept(Token token) {
  const auto index = static_cast<std::size_t>(token);
  if (token < 0 || index >= vocabulary_->pieces_.size()) return false;
  if (vocabulary_->is_end_[index]) return can_end();
  work_ = 0;
  make_room();
  auto place = after(token);
  if (!place) return false;
  current_ = static_cast<std::uint32_t>(intern(std::move(*place), true));
  return true;
}

bool GrammarState::accept_text(std::string_view text) {
  if (text.empty()) return true;
  work_ = 0;
  make_room();
  Place place;
  place.stacks = states_[current_].stacks;
  place.partial = states_[current_].partial;
  for (const char c : text) {
    place = step(place, static_cast<std::uint8_t>(c), false);
    if (place.stacks.empty() && !place.accepts) return false;
  }
  current_ = static_cast<std::uint32_t>(intern(std::move(place), true));
  return true;
}

const std::vector<std::uint64_t>& GrammarState::mask() {
  work_ = 0;
  if (states_[current_].mask) return *states_[current_].mask;
  make_room();
  std::vector<std::uint64_t> mask((vocabulary_->pieces_.size() + 63) / 64, 0);
  walk_text(mask);
  walk_control(mask);
  const Place& place = states_[current_];
  if (place.accepts) {
    for (const Token token : vocabulary_->end_tokens_) set_bit(mask, token);
  }
  if (place.partial.missing == 0) {
    for (const Stack& stack : place.stacks) add_token_terminal(grammar_->elements_[stack.at], mask);
  }
  ++num_masks_;
  states_[current_].mask = std::make_unique<std::vector<std::uint64_t>>(std::move(mask));
  return *states_[current_].mask;
}

void GrammarState::add_token_terminal(Grammar::Element element,
                                      std::vector<std::uint64_t>& mask) const {
  const std::size_t size = vocabulary_->pieces_.size();
  if (element.kind == Grammar::Kind::kToken) {
    if (element.value < size && !vocabulary_->is_end_[element.value]) {
      set_bit(mask, static_cast<Token>(element.value));
    }
  } else if (element.kind == Grammar::Kind::kTokenNot) {
    for (std::size_t i = 0; i < size; ++i) {
      if (i != element.value && !vocabulary_->is_end_[i]) set_bit(mask, static_cast<Token>(i));
    }
  }
}

void GrammarState::walk_text(std::vector<std::uint64_t>& mask) {
  const auto& [nodes, tokens] = vocabulary_->text_;
  std::vector<std::int32_t> path{static_cast<std::int32_t>(current_)};  // states by depth
  std::vector<std::size_t> sizes{states_.size()};  // of states_ when the path got there
  for (std::size_t i = 0; i + 1 < nodes.size();) {
    const auto& node = nodes[i];
    path.resize(node.depth + 1U);
    sizes.resize(node.depth + 1U);
    const std::size_t kept = std::max(sizes.back(), std::min(states_.size(), kMaxStates));
    while (states_.size() > kept) states_.pop_back();
    const std::int32_t to = next_state(path.back(), node.byte);
    if (work_ > kMaxWork) too_complex_ = true;
    if (too_complex_) return;
    if (to == kDead) {
      i = node.skip;
      continue;
    }
    path.push_back(to);
    sizes.push_back(states_.size());
    for (std::uint32_t t = node.token_begin; t < nodes[i + 1].token_begin; ++t) {
      set_bit(mask, tokens[t]);
    }
    ++i;
  }
  while (states_.size() > std::max<std::size_t>(kMaxStates, current_ + 1U)) states_.pop_back();
}

void GrammarState::walk_control(std::vector<std::uint64_t>& mask) {
  const auto& [nodes, tokens] = vocabulary_->control_text_;
  std::vector<Place> path(1);
  path[0].stacks = states_[current_].stacks;
  path[0].partial = states_[current_].partial;
  for (std::size_t i = 0; i + 1 < nodes.size();) {
    const auto& node = nodes[i];
    path.resize(node.depth + 1U);
    Place to = step(path.back(), node.byte, true);
    if (work_ > kMaxWork) too_complex_ = true;
    if (too_complex_) return;
    if (to.stacks.empty() && !to.accepts) {
      i = node.skip;
      continue;
    }
    path.push_back(std::move(to));
    for (std::uint32_t t = node.token_begin; t < nodes[i + 1].token_begin; ++t) {
      set_bit(mask, tokens[t]);
    }
    ++i;
  }
}

// Starts the automaton again from the current place when it has grown too large.
void GrammarState::make_room() {
  if (num_masks_ >= kMaxMasks) {
    for (State& state : states_) state.mask.reset();
    num_masks_ = 0;
  }
  if (states_.size() < kMaxStates && frames_.size() < kMaxFrames) return;
  Place place = std::move(states_[current_]);
  const std::vector<Stack> old = std::move(frames_);
  frames_.assign(1, {});
  frame_index_.clear();
  states_.clear();
  state_index_.clear();
  num_masks_ = 0;
  std::unordered_map<Index, Index> moved{{0, 0}};
  for (Stack& stack : place.stacks) {
    std::vector<Index> below;  // from the top down, up to what was moved already
    for (Index at = stack.parent; !moved.contains(at); at = old[at].parent) below.push_back(at);
    for (; !below.empty(); below.pop_back()) {
      const Stack& from = old[below.back()];
      moved[below.back()] = frame(from.at, moved[from.parent]);
    }
    stack.parent = moved[stack.parent];
  }
  current_ = static_cast<std::uint32_t>(intern(std::move(place), true));
}

}  // namespace sluice
