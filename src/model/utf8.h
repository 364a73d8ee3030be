// UTF-8 as the Unicode standard defines it: no overlong forms, no surrogates,
// nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

enum class Utf8State : std::uint8_t {
  kValid,       // a whole character
  kBroken,      // bytes that no continuation can make a character
  kIncomplete,  // the text ends inside a character
};

struct Utf8Step {
  Utf8State state = Utf8State::kValid;
  std::size_t length = 0;  // bytes; of the longest broken or incomplete prefix otherwise
  std::uint32_t code_point = 0;
};

// The first character of `text`, which is not empty.
[[nodiscard]] Utf8Step utf8_step(std::string_view text);

[[nodiscard]] bool is_utf8(std::string_view text);

void append_utf8(std::string& out, std::uint32_t code_point);

}  // namespace sluice
