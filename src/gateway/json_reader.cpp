#include "gateway/json_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace sluice {

namespace {

// Nesting and keys per object, from the brackets alone. Whether it is JSON at
// all is the parser's question.
std::optional<std::string> over_limits(std::string_view text, std::int32_t max_depth) {
  std::vector<int> keys;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    switch (c) {
      case '"': in_string = true; break;
      case '{':
      case '[':
        if (keys.size() >= static_cast<std::size_t>(max_depth)) {
          return fmt::format("the JSON is nested deeper than the limit of {} levels", max_depth);
        }
        keys.push_back(0);
        break;
      case '}':
      case ']':
        if (!keys.empty()) keys.pop_back();
        break;
      case ':':
        if (!keys.empty() && ++keys.back() > kMaxJsonKeys) {
          return fmt::format("a JSON object has more than the limit of {} keys", kMaxJsonKeys);
        }
        break;
      default: break;
    }
  }
  return std::nullopt;
}

// nlohmann's "[json.exception.parse_error.101] parse error at line 1, ...".
std::string clean_message(std::string_view what) {
  if (const auto end = what.find("] "); what.substr(0, 1) == "[" && end != what.npos) {
    what.remove_prefix(end + 2);
  }
  return std::string(what.substr(0, 300));
}

const char* type_name(const Json& value) {
  return value.type_name();
}

std::string shown(double value) {
  return fmt::format("{}", value);
}

}  // namespace

ApiResult<Json> parse_json(std::string_view text, std::int32_t max_depth) {
  if (auto over = over_limits(text, max_depth)) return bad_request(*over, "", "json_limit");
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    return bad_request("the body is not valid JSON: " + clean_message(e.what()), "",
                       "invalid_json");
  }
}

ApiResult<Json> parse_json_object(std::string_view text, std::int32_t max_depth) {
  auto value = parse_json(text, max_depth);
  if (value && !value->is_object()) {
    return bad_request(fmt::format("the body must be a JSON object, not {}", type_name(*value)));
  }
  return value;
}

std::string dump_json(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

FieldReader::FieldReader(const Json& object, std::string path)
    : object_(object), path_(std::move(path)) {}

std::string FieldReader::name(std::string_view key) const {
  return path_ + std::string(key);
}

void FieldReader::fail(std::string_view key, std::string_view what) {
  ApiError error;
  error.param = name(key);
  error.message = fmt::format("'{}' {}", error.param, what);
  fail(std::move(error));
}

void FieldReader::fail_range(std::string_view key, bool above, const std::string& seen,
                             const std::string& min, const std::string& max) {
  ApiError error;
  error.param = name(key);
  error.message =
      fmt::format("'{}' is {} but must be between {} and {}", error.param, seen, min, max);
  error.code = above ? "less_than_equal" : "greater_than_equal";
  fail(std::move(error));
}

void FieldReader::fail_incapable(std::string_view key, std::string_view what) {
  ApiError error;
  error.status = 404;
  error.param = name(key);
  error.message = fmt::format("'{}' {}", error.param, what);
  error.code = "unsupported";
  fail(std::move(error));
}

void FieldReader::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

const Json* FieldReader::find(std::string_view key) const {
  if (error_) return nullptr;
  const auto found = object_.find(key);
  if (found == object_.end() || found->is_null()) return nullptr;
  return &*found;
}

bool FieldReader::is_null(std::string_view key) const {
  const auto found = object_.find(key);
  return found != object_.end() && found->is_null();
}

std::optional<bool> FieldReader::boolean(std::string_view key) {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) {
    fail(key, fmt::format("must be a boolean, not {}", type_name(*value)));
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<double> FieldReader::number(std::string_view key, double min, double max) {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_number()) {
    fail(key, fmt::format("must be a number, not {}", type_name(*value)));
    return std::nullopt;
  }
  const double number = value->get<double>();
  if (!(number >= min && number <= max)) {
    fail_range(key, number > max, shown(number), shown(min), shown(max));
    return std::nullopt;
  }
  return number;
}

std::optional<std::int64_t> FieldReader::integer(std::string_view key, std::int64_t min,
                                                 std::int64_t max) {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  const auto out_of_range = [&](bool above, const std::string& seen) {
    fail_range(key, above, seen, std::to_string(min), std::to_string(max));
    return std::nullopt;
  };
  if (!value->is_number()) {
    fail(key, fmt::format("must be an integer, not {}", type_name(*value)));
    return std::nullopt;
  }
  if (value->is_number_unsigned()) {
    const auto number = value->get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return out_of_range(true, std::to_string(number));
    }
  } else if (value->is_number_float()) {  // 8.0 is an integer, as in JSON schema
    const double number = value->get<double>();
    if (std::trunc(number) != number) {
      fail(key, fmt::format("must be an integer, not {}", shown(number)));
      return std::nullopt;
    }
    if (!(std::abs(number) < 9.0e18)) return out_of_range(number > 0, shown(number));
  }
  const auto number = value->get<std::int64_t>();
  if (number < min || number > max) return out_of_range(number > max, std::to_string(number));
  return number;
}

std::optional<std::string> FieldReader::string(std::string_view key) {
  const Json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_string()) {
    fail(key, fmt::format("must be a string, not {}", type_name(*value)));
    return std::nullopt;
  }
  return value->get<std::string>();
}

const Json* FieldReader::array(std::string_view key, std::size_t max_items) {
  const Json* value = find(key);
  if (!value) return nullptr;
  if (!value->is_array()) {
    fail(key, fmt::format("must be an array, not {}", type_name(*value)));
    return nullptr;
  }
  if (value->size() > max_items) {
    fail(key, fmt::format("has {} items, above the limit of {}", value->size(), max_items));
    return nullptr;
  }
  return value;
}

const Json* FieldReader::object(std::string_view key) {
  const Json* value = find(key);
  if (!value) return nullptr;
  if (!value->is_object()) {
    fail(key, fmt::format("must be an object, not {}", type_name(*value)));
    return nullptr;
  }
  return value;
}

}  // namespace sluice
