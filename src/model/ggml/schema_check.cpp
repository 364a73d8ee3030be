// Walks a JSON schema before it becomes a grammar. llama-common's converter leaves
// out what it does not know; here that is an error, since a client that asked for
// a schema relies on all of it.
#include <fmt/format.h>
#include <json-schema-to-grammar.h>

#include <array>
#include <cmath>
#include <string>

#include "model/ggml/chat_input.h"

namespace sluice {
namespace {

// Words that restrict and that no grammar of the converter expresses. Words that
// only describe (title, default, examples, format of another kind) are fine.
constexpr std::array<const char*, 17> kUnsupported = {"not",
                                                      "if",
                                                      "then",
                                                      "else",
                                                      "contains",
                                                      "minContains",
                                                      "maxContains",
                                                      "uniqueItems",
                                                      "multipleOf",
                                                      "patternProperties",
                                                      "propertyNames",
                                                      "minProperties",
                                                      "maxProperties",
                                                      "dependentRequired",
                                                      "dependentSchemas",
                                                      "unevaluatedProperties",
                                                      "unevaluatedItems"};
constexpr std::array<const char*, 4> kCounts = {"minItems", "maxItems", "minLength", "maxLength"};
constexpr std::array<const char*, 4> kBounds = {"minimum", "maximum", "exclusiveMinimum",
                                                "exclusiveMaximum"};
constexpr double kMaxBound = 9007199254740992.0;  // 2^53: doubles are exact below

class SchemaCheck {
 public:
  Status run(const common_json& schema) { return visit(schema, "schema"); }

 private:
  template <class... Args>
  static tl::unexpected<Error> bad(fmt::format_string<Args...> format, Args&&... args) {
    return fail(ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
  }

  Status visit(const common_json& schema, const std::string& where) {
    if (++nodes_ > kMaxSchemaNodes) {
      return bad("the schema has more than {} parts", kMaxSchemaNodes);
    }
    if (!schema.is_object()) return bad("{} must be an object", where);
    for (const char* word : kUnsupported) {
      if (!schema.contains(word)) continue;
      const common_json& value = schema.at(word);
      if (value.is_boolean() && !value.get<bool>()) continue;  // uniqueItems: false
      return bad("{}: `{}` is not supported", where, word);
    }
    TRY_STATUS(check_numbers(schema, where));
    TRY_STATUS(check_pattern(schema, where));
    TRY_STATUS(check_mixed(schema, where));
    return visit_children(schema, where);
  }

  static bool is_type(const common_json& schema, const char* name) {
    if (!schema.contains("type")) return false;
    const common_json& type = schema.at("type");
    if (type.is_string()) return type.get<std::string>() == name;
    if (!type.is_array()) return false;
    for (std::size_t i = 0; i < type.size(); ++i) {
      if (type.at(i).is_string() && type.at(i).get<std::string>() == name) return true;
    }
    return false;
  }

  static Status check_numbers(const common_json& schema, const std::string& where) {
    for (const char* word : kCounts) {
      if (!schema.contains(word)) continue;
      const common_json& value = schema.at(word);
      if (!value.is_number_integer() || value.get<double>() < 0.0 ||
          value.get<double>() > static_cast<double>(kMaxSchemaCount)) {
        return bad("{}.{} must be a whole number from 0 to {}", where, word, kMaxSchemaCount);
      }
    }
    for (const char* word : kBounds) {
      if (!schema.contains(word)) continue;
      const common_json& value = schema.at(word);
      if (!value.is_number() || !(std::abs(value.get<double>()) <= kMaxBound)) {
        return bad("{}.{} must be a number within 2^53", where, word);
      }
      if (!is_type(schema, "integer") || is_type(schema, "number")) {
        return bad("{}: `{}` is supported for the type integer only", where, word);
      }
    }
    return {};
  }

  // The converter takes any string for a pattern that it cannot read.
  static Status check_pattern(const common_json& schema, const std::string& where) {
    if (!schema.contains("pattern")) return {};
    if (!schema.at("pattern").is_string()) return bad("{}.pattern must be a string", where);
    for (const char* word : {"minLength", "maxLength", "format"}) {
      if (schema.contains(word))
        return bad("{}: `pattern` with `{}` is not supported", where, word);
    }
    const common_json one{{"type", "string"}, {"pattern", schema.at("pattern")}};
    if (json_schema_to_grammar(one, true).find("root ::= string\n") != std::string::npos) {
      return bad("{}: the pattern {} is not supported", where, schema.at("pattern").dump());
    }
    return {};
  }

  // Words that the converter would overlook beside another.
  static Status check_mixed(const common_json& schema, const std::string& where) {
    for (const char* word : {"$ref", "oneOf", "anyOf", "allOf"}) {
      if (!schema.contains(word)) continue;
      for (const char* other : {"properties", "items", "prefixItems", "pattern", "enum", "const",
                                "oneOf", "anyOf", "allOf", "$ref"}) {
        if (std::string_view(word) != other && schema.contains(other)) {
          return bad("{}: `{}` beside `{}` is not supported", where, word, other);
        }
      }
    }
    if (schema.contains("items") && schema.contains("prefixItems")) {
      return bad("{}: `items` beside `prefixItems` is not supported", where);
    }
    return {};
  }

  Status visit_list(const common_json& list, const std::string& where) {
    if (!list.is_array()) return bad("{} must be an array", where);
    for (std::size_t i = 0; i < list.size(); ++i) {
      TRY_STATUS(visit(list.at(i), fmt::format("{}[{}]", where, i)));
    }
    return {};
  }

  Status visit_named(const common_json& named, const std::string& where) {
    if (!named.is_object()) return bad("{} must be an object", where);
    if (named.size() > kMaxSchemaProperties) {
      return bad("{} has {} members; the limit is {}", where, named.size(), kMaxSchemaProperties);
    }
    for (const auto& [name, schema] : named.items()) {
      TRY_STATUS(visit(schema, where + "." + name));
    }
    return {};
  }

  Status visit_children(const common_json& schema, const std::string& where) {
    for (const char* word : {"properties", "$defs", "definitions"}) {
      if (schema.contains(word)) TRY_STATUS(visit_named(schema.at(word), where + "." + word));
    }
    for (const char* word : {"oneOf", "anyOf", "allOf", "prefixItems"}) {
      if (schema.contains(word)) TRY_STATUS(visit_list(schema.at(word), where + "." + word));
    }
    for (const char* word : {"items", "additionalProperties"}) {
      if (!schema.contains(word)) continue;
      const common_json& child = schema.at(word);
      if (child.is_array()) {
        TRY_STATUS(visit_list(child, where + "." + word));
      } else if (!child.is_boolean()) {
        TRY_STATUS(visit(child, where + "." + word));
      }
    }
    if (schema.contains("enum") && schema.at("enum").size() > kMaxSchemaNodes) {
      return bad("{}.enum has {} values; the limit is {}", where, schema.at("enum").size(),
                 kMaxSchemaNodes);
    }
    return {};
  }

  std::size_t nodes_ = 0;
};

}  // namespace

Result<common_json> read_schema(std::string_view text) {
  if (text.size() > kMaxSchemaBytes) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("the schema has {} bytes; the limit is {}",
                                                         text.size(), kMaxSchemaBytes));
  }
  TRY(common_json schema, parse_json(text, "the schema"));
  if (!schema.is_object()) {
    return fail(ErrorCode::kInvalidArgument, "the schema must be a JSON object");
  }
  if (schema.empty()) schema["type"] = "object";  // json_object mode without a schema
  try {
    TRY_STATUS(SchemaCheck().run(schema));
  } catch (const std::exception& e) {
    return fail(ErrorCode::kInvalidArgument, std::string("the schema is wrong: ") + e.what());
  }
  return schema;
}

}  // namespace sluice
