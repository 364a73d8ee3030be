// Writes JSON text straight into a string, in the order of the calls.
//
// Strings that are not UTF-8 come out with U+FFFD in place of the bad bytes;
// numbers that JSON does not have come out as null. The caller balances
// begin_ and end_.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

void append_json_string(std::string& out, std::string_view text);

class JsonWriter final {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }

  JsonWriter& key(std::string_view name);
  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  JsonWriter& value(bool flag) { return raw(flag ? "true" : "false"); }
  JsonWriter& value(double number);
  JsonWriter& value(float number) { return value(static_cast<double>(number)); }
  template <std::integral Int>
  requires(!std::same_as<Int, bool> && !std::same_as<Int, char>) JsonWriter& value(Int number) {
    return raw(std::to_string(number));
  }
  JsonWriter& null() { return raw("null"); }
  JsonWriter& string_or_null(std::string_view text) { return text.empty() ? null() : value(text); }
  // Text that is JSON already.
  JsonWriter& raw(std::string_view json);

  template <class T>
  JsonWriter& member(std::string_view name, const T& v) {
    key(name);
    return value(v);
  }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void separate();

  std::string& out_;
  bool first_ = true;  // nothing was written since the last opening bracket or key
};

}  // namespace sluice
