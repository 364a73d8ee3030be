#include "model/tokenizer.h"

#include "model/utf8.h"

namespace sluice {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Moves what is complete from the front of `pending` into the result. Broken
// bytes become U+FFFD, as WHATWG's decoder does: one for each longest prefix of a
// character.
std::string take_complete(std::string& pending, bool at_end) {
  std::string text;
  std::string_view rest = pending;
  while (!rest.empty()) {
    const Utf8Step step = utf8_step(rest);
    if (step.state == Utf8State::kIncomplete && !at_end) break;
    if (step.state == Utf8State::kValid) {
      text.append(rest.substr(0, step.length));
    } else {
      text.append(kReplacement);
    }
    rest.remove_prefix(step.length);
  }
  pending.erase(0, pending.size() - rest.size());
  return text;
}

}  // namespace

std::string Detokenizer::push(Token token) {
  pending_ += tokenizer_.piece(token, special_);
  return take_complete(pending_, false);
}

std::string Detokenizer::finish() {
  return take_complete(pending_, true);
}

}  // namespace sluice
