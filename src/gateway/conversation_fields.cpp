// Messages and tools: what a chat template is given.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "gateway/request_fields.h"

namespace sluice {

namespace {

constexpr const char* kRoles[] = {"system", "developer", "user", "assistant", "tool", "function"};

void check_content(FieldReader& message, const Json& content) {
  if (content.is_string()) return;
  if (!content.is_array()) {
    return message.fail("content", fmt::format("must be a string or an array of parts, not {}",
                                               content.type_name()));
  }
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string key = fmt::format("content[{}]", i);
    const Json& part = content[i];
    if (!part.is_object()) {
      return message.fail(key, fmt::format("must be an object, not {}", part.type_name()));
    }
    const auto type = part.find("type");
    if (type == part.end() || !type->is_string()) {
      return message.fail(key + ".type", "must be a string");
    }
    const auto& name = type->get_ref<const std::string&>();
    if (name != "text" && name != "refusal" && name != "input_text" && name != "output_text") {
      return message.fail(key + ".type", fmt::format("is '{}', but this model reads text only",
                                                     name.substr(0, 40)));
    }
    const auto text = part.find(name == "refusal" ? "refusal" : "text");
    if (text == part.end() || !text->is_string()) {
      return message.fail(key + ".text", "must be a string");
    }
  }
}

// A call of a tool whose input is free text, made elsewhere and told as history.
bool is_custom(const Json& call) {
  return call.is_object() && call.contains("type") && call["type"] == "custom";
}

void check_custom_call(FieldReader& message, const std::string& key, const Json& call) {
  if (!call.contains("custom") || !call["custom"].is_object()) {
    return message.fail(key + ".custom", "must be an object");
  }
  for (const char* name : {"name", "input"}) {
    if (!call["custom"].contains(name) || !call["custom"][name].is_string()) {
      return message.fail(fmt::format("{}.custom.{}", key, name), "must be a string");
    }
  }
}

void check_tool_calls(FieldReader& message, const Json& calls) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const std::string key = fmt::format("tool_calls[{}]", i);
    const Json& call = calls[i];
    if (is_custom(call)) {
      check_custom_call(message, key, call);
      continue;
    }
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) {
      return message.fail(key + ".function", "must be an object");
    }
    const Json& function = call["function"];
    if (!function.contains("name") || !function["name"].is_string()) {
      return message.fail(key + ".function.name", "must be a string");
    }
    if (!function.contains("arguments") ||
        (!function["arguments"].is_string() && !function["arguments"].is_object())) {
      return message.fail(key + ".function.arguments", "must be a string");
    }
  }
}

// `function_call` and the role "function" are what tools were before they had ids.
void check_function_message(FieldReader& message, const std::string& role) {
  if (role == "function") {
    if (const auto name = message.string("name"); message.failed() || !name) {
      return message.fail("name", "must be a string");
    }
  }
  const Json* call = message.object("function_call");
  if (message.failed() || !call) return;
  for (const char* name : {"name", "arguments"}) {
    if (!call->contains(name) || !(*call)[name].is_string()) {
      return message.fail(fmt::format("function_call.{}", name), "must be a string");
    }
  }
}

void check_message(FieldReader& message) {
  const auto role = message.string("role");
  if (message.failed()) return;
  if (!role) return message.fail("role", "is missing");
  if (std::find(std::begin(kRoles), std::end(kRoles), *role) == std::end(kRoles)) {
    return message.fail("role", fmt::format("is '{}' but must be system, developer, user, "
                                            "assistant, tool or function",
                                            role->substr(0, 40)));
  }
  const Json* content = message.find("content");
  if (content) check_content(message, *content);
  const Json* calls = message.array("tool_calls", 1'024);
  if (calls) check_tool_calls(message, *calls);
  check_function_message(message, *role);
  if (message.failed() || content) return;
  // Calls of tools and functions, and what a function gave, may have none.
  const bool may_lack = *role == "assistant" || (*role == "function" && message.is_null("content"));
  if (!may_lack) message.fail("content", "is missing");
}

// What a model wrote as arguments need not be JSON, if it was cut short for one; a template takes
// nothing else.
void normalise_arguments(Json& call) {
  Json& arguments = call["function"]["arguments"];
  if (!arguments.is_string()) return;
  const auto& text = arguments.get_ref<const std::string&>();
  if (text.empty() || Json::parse(text, nullptr, false).is_object()) return;
  arguments = dump_json({{"input", text}});
}

// A function was called once at a time, so that its name can stand for the id.
void normalise_function(Json& message) {
  if (message["role"] == "function") {
    message["role"] = "tool";
    message["tool_call_id"] = message["name"];
  }
  const auto call = message.find("function_call");
  if (call == message.end()) return;
  if (call->is_object() && !message.contains("tool_calls")) {
    message["tool_calls"] =
        Json::array({{{"id", (*call)["name"]}, {"type", "function"}, {"function", *call}}});
  }
  message.erase("function_call");
}

// Templates know "system"; "developer" is its newer name. Responses' part types
// become those of chat completions, and a custom tool is a function of one text.
void normalise(Json& message) {
  normalise_function(message);
  if (const auto calls = message.find("tool_calls"); calls != message.end() && calls->is_array()) {
    for (Json& call : *calls) {
      if (!is_custom(call)) {
        normalise_arguments(call);
        continue;
      }
      call["function"] = {{"name", call["custom"]["name"]},
                          {"arguments", dump_json({{"input", call["custom"]["input"]}})}};
      call["type"] = "function";
      call.erase("custom");
    }
  }
  if (message["role"] == "developer") message["role"] = "system";
  auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    // An assistant that said nothing; templates want a text.
    if (!message.contains("tool_calls")) message["content"] = "";
    return;
  }
  if (!content->is_array()) return;
  for (Json& part : *content) {
    if (part["type"] == "refusal") part["text"] = part["refusal"];
    part["type"] = "text";
  }
}

void read_messages(FieldReader& fields, const ParseContext& context, ChatRequest& chat) {
  const Json* messages =
      fields.array("messages", static_cast<std::size_t>(context.limits.max_messages));
  if (fields.failed()) return;
  if (!messages || messages->empty()) {
    return fields.fail("messages", "must be an array with at least one message");
  }
  for (std::size_t i = 0; i < messages->size(); ++i) {
    const Json& item = (*messages)[i];
    if (!item.is_object()) {
      return fields.fail(fmt::format("messages[{}]", i),
                         fmt::format("must be an object, not {}", item.type_name()));
    }
    FieldReader message(item, fmt::format("messages[{}].", i));
    check_message(message);
    if (message.failed()) return fields.fail(message.error());
  }
  Json copy = *messages;
  for (Json& message : copy) normalise(message);
  chat.messages_json = dump_json(copy);
}

// A function's name must be fit for a grammar and for the client's code.
bool good_function_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == ':' || c == '/';
  });
}

void check_function(FieldReader& function) {
  const auto name = function.string("name");
  if (function.failed()) return;
  if (!name || !good_function_name(*name)) {
    return function.fail("name", "must be 1 to 64 letters, digits, '_', '-', '.', ':' or '/'");
  }
  (void)function.string("description");
  (void)function.object("parameters");
  (void)function.boolean("strict");
}

void check_tool(FieldReader& tool) {
  if (const auto type = tool.string("type"); type && *type != "function") {
    return tool.fail_incapable(
        "type", fmt::format("is '{}'; only functions are supported", type->substr(0, 40)));
  }
  const Json* function = tool.object("function");
  if (tool.failed()) return;
  if (!function) return tool.fail("function", "is missing");
  FieldReader inner(*function, tool.name("function."));
  check_function(inner);
  if (inner.failed()) tool.fail(inner.error());
}

void read_tool_choice(FieldReader& fields, const Json& tools, ChatRequest& chat) {
  const Json* choice = fields.find("tool_choice");
  if (!choice) return;
  if (choice->is_string()) {
    chat.tool_choice = choice->get<std::string>();
    if (chat.tool_choice != "auto" && chat.tool_choice != "none" &&
        chat.tool_choice != "required") {
      return fields.fail("tool_choice", fmt::format("is '{}' but must be none, auto, required or "
                                                    "a function",
                                                    chat.tool_choice.substr(0, 40)));
    }
  } else if (choice->is_object()) {
    const auto function = choice->find("function");
    const Json& named = function != choice->end() && function->is_object() ? *function : *choice;
    const auto name = named.find("name");
    if (name == named.end() || !name->is_string()) {
      return fields.fail("tool_choice.function.name", "must be a string");
    }
    chat.tool_choice = "required";
    chat.forced_tool = name->get<std::string>();
    const bool known = std::any_of(tools.begin(), tools.end(), [&](const Json& tool) {
      return tool["function"]["name"] == chat.forced_tool;
    });
    if (!known) {
      return fields.fail("tool_choice", fmt::format("names '{}', which is not among the tools",
                                                    chat.forced_tool.substr(0, 64)));
    }
  } else {
    return fields.fail("tool_choice", "must be a string or an object");
  }
  if (chat.tool_choice == "required" && tools.empty()) {
    fields.fail("tool_choice", "is given, but there are no tools");
  }
}

}  // namespace

void read_tools(FieldReader& fields, const ParseContext& context, ChatRequest& chat) {
  const auto limit = static_cast<std::size_t>(context.limits.max_tools);
  Json tools = Json::array();
  if (const Json* given = fields.array("tools", limit)) tools = *given;
  if (const Json* functions = fields.array("functions", limit)) {  // the older form
    for (const Json& function : *functions) {
      tools.push_back(Json{{"type", "function"}, {"function", function}});
    }
  }
  for (std::size_t i = 0; i < tools.size() && !fields.failed(); ++i) {
    if (!tools[i].is_object()) {
      return fields.fail(fmt::format("tools[{}]", i), "must be an object");
    }
    if (!tools[i].contains("function") && tools[i].contains("name")) {  // Responses' flat form
      Json flat = tools[i];
      flat.erase("type");
      tools[i] = Json{{"type", tools[i].value("type", Json("function"))}, {"function", flat}};
    }
    FieldReader tool(tools[i], fmt::format("tools[{}].", i));
    check_tool(tool);
    if (tool.failed()) return fields.fail(tool.error());
  }
  if (fields.failed()) return;
  read_tool_choice(fields, tools, chat);
  if (!tools.empty()) chat.tools_json = dump_json(tools);
  if (chat.tools_json.size() > context.limits.max_grammar_bytes) {
    fields.fail("tools", fmt::format("have {} bytes, above the limit of {}", chat.tools_json.size(),
                                     context.limits.max_grammar_bytes));
  }
  chat.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(false);
}

void read_conversation(FieldReader& fields, const ParseContext& context, ChatRequest& chat) {
  read_messages(fields, context, chat);
  read_tools(fields, context, chat);
  chat.continue_final = fields.boolean("continue_final_message").value_or(false);
  chat.add_generation_prompt =
      fields.boolean("add_generation_prompt").value_or(!chat.continue_final);
  if (chat.continue_final && chat.add_generation_prompt) {
    fields.fail("continue_final_message", "and 'add_generation_prompt' cannot both be true");
  }
  if (fields.string("reasoning_effort").value_or("") == "none") chat.enable_thinking = false;
  if (const Json* variables = fields.object("chat_template_kwargs")) {
    FieldReader inner(*variables, "chat_template_kwargs.");
    if (const Json* thinking = inner.find("enable_thinking"); thinking && thinking->is_boolean()) {
      chat.enable_thinking = thinking->get<bool>();
    }
    chat.template_kwargs_json = dump_json(*variables);
  }
}

}  // namespace sluice
