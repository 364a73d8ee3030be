#include "model/ggml/chat_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/utf8.h"

namespace sluice {
namespace {

template <class... Args>
tl::unexpected<Error> bad(fmt::format_string<Args...> format, Args&&... args) {
  return fail(ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

// A string member; empty where there is none or it is null.
Result<std::string> text_member(const common_json& object, const std::string& key,
                                const std::string& where) {
  if (!object.contains(key) || object.at(key).is_null()) return std::string();
  if (!object.at(key).is_string()) return bad("{}.{} must be a string", where, key);
  return object.at(key).get<std::string>();
}

Result<common_chat_msg_content_part> read_part(const common_json& part, const std::string& where) {
  if (!part.is_object()) return bad("{} must be an object", where);
  TRY(const std::string type, text_member(part, "type", where));
  if (type == "refusal") {
    TRY(std::string text, text_member(part, "refusal", where));
    return common_chat_msg_content_part{"text", std::move(text)};
  }
  if (type != "text" && type != "input_text" && type != "output_text") {
    return bad("{} is of type \"{}\": this model reads text only", where, type);
  }
  if (!part.contains("text") || !part.at("text").is_string()) {
    return bad("{}.text must be a string", where);
  }
  return common_chat_msg_content_part{"text", part.at("text").get<std::string>()};
}

Status read_content(const common_json& message, const std::string& where, common_chat_msg& into) {
  const bool absent = !message.contains("content") || message.at("content").is_null();
  if (absent) {
    if (into.role == "assistant") return {};
    return bad("{}.content is missing", where);
  }
  const common_json& content = message.at("content");
  if (content.is_string()) {
    into.content = content.get<std::string>();
    return {};
  }
  if (!content.is_array()) return bad("{}.content must be a string or an array of parts", where);
  for (std::size_t i = 0; i < content.size(); ++i) {
    TRY(auto part, read_part(content.at(i), fmt::format("{}.content[{}]", where, i)));
    into.content_parts.push_back(std::move(part));
  }
  return {};
}

Result<common_chat_tool_call> read_tool_call(const common_json& call, const std::string& where) {
  if (!call.is_object()) return bad("{} must be an object", where);
  TRY(const std::string type, text_member(call, "type", where));
  if (!type.empty() && type != "function") return bad("{}.type must be \"function\"", where);
  if (!call.contains("function") || !call.at("function").is_object()) {
    return bad("{}.function must be an object", where);
  }
  const common_json& function = call.at("function");
  common_chat_tool_call result;
  TRY(result.id, text_member(call, "id", where));
  TRY(result.name, text_member(function, "name", where + ".function"));
  if (result.name.empty()) return bad("{}.function.name is missing", where);
  result.arguments = "{}";
  if (function.contains("arguments") && !function.at("arguments").is_null()) {
    const common_json& arguments = function.at("arguments");
    if (!arguments.is_string() && !arguments.is_object()) {
      return bad("{}.function.arguments must be a string or an object", where);
    }
    result.arguments = arguments.is_string() ? arguments.get<std::string>() : arguments.dump();
    if (result.arguments.empty()) result.arguments = "{}";
  }
  // Templates parse it again, and print what they read.
  TRY(const common_json parsed, parse_json(result.arguments, where + ".function.arguments"));
  if (!parsed.is_object()) return bad("{}.function.arguments must be a JSON object", where);
  return result;
}

Result<common_chat_msg> read_message(const common_json& message, const std::string& where) {
  static constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user",
                                                             "assistant", "tool"};
  if (!message.is_object()) return bad("{} must be an object", where);
  common_chat_msg result;
  TRY(result.role, text_member(message, "role", where));
  if (std::find(kRoles.begin(), kRoles.end(), result.role) == kRoles.end()) {
    return bad("{}.role is \"{}\"; it must be system, developer, user, assistant or tool", where,
               result.role);
  }
  TRY_STATUS(read_content(message, where, result));
  TRY(result.tool_name, text_member(message, "name", where));
  TRY(result.tool_call_id, text_member(message, "tool_call_id", where));
  if (result.role != "assistant") return result;
  TRY(result.reasoning_content, text_member(message, "reasoning_content", where));
  if (!message.contains("tool_calls") || message.at("tool_calls").is_null()) return result;
  const common_json& calls = message.at("tool_calls");
  if (!calls.is_array()) return bad("{}.tool_calls must be an array", where);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    TRY(auto call, read_tool_call(calls.at(i), fmt::format("{}.tool_calls[{}]", where, i)));
    result.tool_calls.push_back(std::move(call));
  }
  return result;
}

Result<common_chat_tool> read_tool(const common_json& tool, const std::string& where) {
  if (!tool.is_object()) return bad("{} must be an object", where);
  TRY(const std::string type, text_member(tool, "type", where));
  if (type != "function") return bad("{}.type must be \"function\"", where);
  if (!tool.contains("function") || !tool.at("function").is_object()) {
    return bad("{}.function must be an object", where);
  }
  const common_json& function = tool.at("function");
  const std::string inside = where + ".function";
  common_chat_tool result;
  TRY(result.name, text_member(function, "name", inside));
  if (result.name.empty() || result.name.size() > kMaxNameBytes) {
    return bad("{}.name must have 1 to {} bytes", inside, kMaxNameBytes);
  }
  TRY(result.description, text_member(function, "description", inside));
  result.parameters = R"({"type":"object","properties":{}})";
  if (!function.contains("parameters") || function.at("parameters").is_null()) return result;
  const common_json& parameters = function.at("parameters");
  if (!parameters.is_object()) return bad("{}.parameters must be a JSON schema", inside);
  if (!parameters.empty()) result.parameters = parameters.dump();
  if (result.parameters.size() > kMaxSchemaBytes) {
    return bad("{}.parameters has {} bytes; the limit is {}", inside, result.parameters.size(),
               kMaxSchemaBytes);
  }
  return result;
}

// JSON libraries read and write by recursion: no deeper than this.
bool nested_too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxJsonNesting) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

}  // namespace

Result<common_json> parse_json(std::string_view text, const std::string& what) {
  if (!is_utf8(text)) return bad("{} is not valid UTF-8", what);
  if (nested_too_deep(text)) return bad("{} is nested deeper than {}", what, kMaxJsonNesting);
  try {
    return common_json::parse(std::string(text));
  } catch (const std::exception& e) {
    return bad("{} is not valid JSON: {}", what, e.what());
  }
}

Result<std::vector<common_chat_msg>> read_messages(std::string_view text) {
  TRY(const common_json json, parse_json(text, "messages"));
  if (!json.is_array() || json.empty()) return bad("messages must be an array that is not empty");
  std::vector<common_chat_msg> messages;
  for (std::size_t i = 0; i < json.size(); ++i) {
    TRY(auto message, read_message(json.at(i), fmt::format("messages[{}]", i)));
    messages.push_back(std::move(message));
  }
  return messages;
}

Result<std::vector<common_chat_tool>> read_tools(std::string_view text) {
  std::vector<common_chat_tool> tools;
  if (text.empty()) return tools;
  TRY(const common_json json, parse_json(text, "tools"));
  if (json.is_null()) return tools;
  if (!json.is_array()) return bad("tools must be an array");
  if (json.size() > kMaxTools) return bad("{} tools; the limit is {}", json.size(), kMaxTools);
  for (std::size_t i = 0; i < json.size(); ++i) {
    TRY(auto tool, read_tool(json.at(i), fmt::format("tools[{}]", i)));
    tools.push_back(std::move(tool));
  }
  return tools;
}

Result<std::map<std::string, std::string>> read_template_variables(std::string_view text) {
  static constexpr std::array<std::string_view, 5> kOurs = {"messages", "tools", "bos_token",
                                                            "eos_token", "add_generation_prompt"};
  std::map<std::string, std::string> variables;
  if (text.empty()) return variables;
  TRY(const common_json json, parse_json(text, "chat_template_kwargs"));
  if (json.is_null()) return variables;
  if (!json.is_object()) return bad("chat_template_kwargs must be an object");
  for (const auto& [key, value] : json.items()) {
    if (std::find(kOurs.begin(), kOurs.end(), key) != kOurs.end()) {
      return bad("chat_template_kwargs must not set {}", key);
    }
    variables[key] = value.dump();
  }
  return variables;
}

}  // namespace sluice
