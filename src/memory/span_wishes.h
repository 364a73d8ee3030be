// What the tests of spans wish for. For tests only.
#pragma once

#include <cstdint>

#include "memory/span_plan.h"

namespace sluice {

inline SpanWish wish(std::uint64_t span, std::int64_t tokens) {
  return {.span = SpanId(span), .tokens = tokens};
}

// One that begins with the first `prefix` tokens of another.
inline SpanWish after(std::uint64_t span, std::int64_t tokens, std::uint64_t from,
                      std::int64_t prefix) {
  return {.span = SpanId(span),
          .tokens = tokens,
          .prefix = SpanPrefix{.from = SpanId(from), .tokens = prefix}};
}

}  // namespace sluice
