// A regular expression as a GBNF grammar, for output that must match it as a whole.
//
// Takes what Python's and ECMAScript's expressions have in common and what can be
// a grammar: literals, escapes (\d \w \s, their opposites, \n, \xHH, \uHHHH), `.`,
// classes, groups (named or not), alternatives, repetitions (greedy or lazy: for a
// whole match that is the same), and anchors where they say nothing new. Not:
// lookaround, back references, word boundaries, flags.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice {

// kInvalidArgument, with the place: not an expression, or beyond the above.
[[nodiscard]] Result<std::string> regex_to_gbnf(std::string_view regex);

}  // namespace sluice
