// Reads JSON from clients: bounded before it is parsed, checked field by field.
//
// Nothing here throws. A FieldReader remembers the first thing that is wrong;
// after that its getters answer "absent", so that callers check once, at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "gateway/api_error.h"

namespace sluice {

using Json = nlohmann::ordered_json;  // keeps the order of a schema's properties

// An object's keys are searched one after the other: not too many of them.
inline constexpr int kMaxJsonKeys = 1'024;

// kInvalid JSON, UTF-8, nesting or numbers of keys: 400 with the place or the limit.
[[nodiscard]] ApiResult<Json> parse_json(std::string_view text, std::int32_t max_depth);
[[nodiscard]] ApiResult<Json> parse_json_object(std::string_view text, std::int32_t max_depth);

[[nodiscard]] std::string dump_json(const Json& value);

class FieldReader final {
 public:
  // `object` is an object and stays as long as this; `path` names it in errors ("tools[0].").
  explicit FieldReader(const Json& object, std::string path = {});

  // Absent and null are the same. The range is closed: [min, max].
  [[nodiscard]] const Json* find(std::string_view key) const;
  [[nodiscard]] bool is_null(std::string_view key) const;  // and not absent
  [[nodiscard]] std::optional<bool> boolean(std::string_view key);
  [[nodiscard]] std::optional<double> number(std::string_view key, double min, double max);
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key, std::int64_t min,
                                                    std::int64_t max);
  [[nodiscard]] std::optional<std::string> string(std::string_view key);
  [[nodiscard]] const Json* array(std::string_view key, std::size_t max_items);
  [[nodiscard]] const Json* object(std::string_view key);

  // Records an error of a field, unless there is one already.
  void fail(std::string_view key, std::string_view what);
  void fail(ApiError error);
  // What is asked for is valid, but no model here can do it: 404, as OpenAI has it.
  void fail_incapable(std::string_view key, std::string_view what);
  [[nodiscard]] bool failed() const { return error_.has_value(); }
  [[nodiscard]] const ApiError& error() const { return *error_; }
  [[nodiscard]] std::string name(std::string_view key) const;

 private:
  // The code says which bound was meant, in the words of Python's clients (pydantic).
  void fail_range(std::string_view key, bool above, const std::string& seen, const std::string& min,
                  const std::string& max);

  const Json& object_;
  const std::string path_;
  std::optional<ApiError> error_;
};

}  // namespace sluice
