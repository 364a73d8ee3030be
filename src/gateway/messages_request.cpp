// Anthropic's Messages: a request as the conversation of a chat.
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "gateway/request_fields.h"

namespace sluice {

namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

Json text_part(const std::string& text) {
  return {{"type", "text"}, {"text", text}};
}

// A text, or blocks of text, as the content of a chat's message; null: not that.
Json text_content(const Json& content) {
  if (content.is_string()) return content;
  if (!content.is_array()) return {};
  Json parts = Json::array();
  for (const Json& block : content) {
    if (!block.is_object() || block.value("type", Json()) != "text" || !block.contains("text") ||
        !block["text"].is_string()) {
      return {};
    }
    parts.push_back(text_part(block["text"].get_ref<const std::string&>()));
  }
  return parts;
}

// What one message's blocks become: results of tools are messages of their own, in front.
struct Turn {
  Json results = Json::array();
  Json message;
  std::string reasoning;  // earlier thoughts, for templates that show them
};

void add_tool_result(FieldReader& block, Turn& turn) {
  const auto id = block.string("tool_use_id");
  if (!id) return block.fail("tool_use_id", "is missing");
  const Json* given = block.find("content");
  Json content = given ? text_content(*given) : Json("");
  if (content.is_null()) {
    return block.fail("content", "must be text: image input is not supported by this model");
  }
  turn.results.push_back({{"role", "tool"}, {"tool_call_id", *id}, {"content", content}});
}

void add_tool_use(FieldReader& block, Turn& turn) {
  const auto id = block.string("id");
  const auto name = block.string("name");
  const Json* input = block.object("input");
  if (!id || !name || !input) return block.fail("input", "must stand beside 'id' and 'name'");
  Json call = {{"id", *id}, {"type", "function"}};
  call["function"] = {{"name", *name}, {"arguments", dump_json(*input)}};
  turn.message["tool_calls"].push_back(std::move(call));
}

void add_block(FieldReader& block, Turn& turn) {
  const auto type = block.string("type");
  if (!type) return block.fail("type", "is missing");
  if (*type == "text") {
    const auto text = block.string("text");
    if (!text) return block.fail("text", "is missing");
    turn.message["content"].push_back(text_part(*text));
  } else if (*type == "tool_result") {
    add_tool_result(block, turn);
  } else if (*type == "tool_use") {
    add_tool_use(block, turn);
  } else if (*type == "thinking") {
    const auto text = block.string("thinking");
    if (!text) return block.fail("thinking", "is missing");
    turn.reasoning += *text;
  } else if (*type != "redacted_thinking") {  // nobody here can read it
    block.fail("type", fmt::format("is '{}', but this model reads text only: image input is not "
                                   "supported",
                                   type->substr(0, 40)));
  }
}

void add_message(FieldReader& message, Json& messages) {
  const auto role = message.string("role");
  if (message.failed()) return;
  if (!role || (*role != "user" && *role != "assistant" && *role != "system")) {
    return message.fail("role", "must be user, assistant or system");
  }
  const Json* content = message.find("content");
  if (!content || content->is_string()) {
    messages.push_back({{"role", *role}, {"content", content ? *content : Json()}});
    return;
  }
  const Json* blocks = message.array("content", 4'096);
  if (!blocks) return;
  Turn turn;
  turn.message = {{"role", *role}, {"content", Json::array()}};
  for (std::size_t i = 0; i < blocks->size() && !message.failed(); ++i) {
    const std::string key = fmt::format("content[{}]", i);
    if (!(*blocks)[i].is_object()) return message.fail(key, "must be an object");
    FieldReader block((*blocks)[i], message.name(key + "."));
    add_block(block, turn);
    if (block.failed()) return message.fail(block.error());
  }
  if (*role == "assistant" && !turn.reasoning.empty()) {
    turn.message["reasoning_content"] = turn.reasoning;
  }
  for (Json& result : turn.results) messages.push_back(std::move(result));
  if (turn.message["content"].empty()) {
    if (!turn.message.contains("tool_calls") && !turn.results.empty()) return;
    turn.message["content"] = turn.message.contains("tool_calls") ? Json() : Json("");
  }
  messages.push_back(std::move(turn.message));
}

Json to_messages(FieldReader& fields, const ParseContext& context) {
  Json messages = Json::array();
  if (const Json* system = fields.find("system")) {
    const Json content = text_content(*system);
    if (content.is_null()) fields.fail("system", "must be a string or an array of text blocks");
    messages.push_back({{"role", "system"}, {"content", content}});
  }
  const Json* given =
      fields.array("messages", static_cast<std::size_t>(context.limits.max_messages));
  if (fields.failed()) return messages;
  if (!given || given->empty()) {
    fields.fail("messages", "must be an array with at least one message");
    return messages;
  }
  for (std::size_t i = 0; i < given->size() && !fields.failed(); ++i) {
    const std::string key = fmt::format("messages[{}]", i);
    if (!(*given)[i].is_object()) {
      fields.fail(key, "must be an object");
      break;
    }
    FieldReader message((*given)[i], key + ".");
    add_message(message, messages);
    if (message.failed()) fields.fail(message.error());
  }
  return messages;
}

// {name, description, input_schema} as {type: function, function: {...}}.
Json to_tools(FieldReader& fields, const Json& given) {
  Json tools = Json::array();
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string key = fmt::format("tools[{}]", i);
    const Json& tool = given[i];
    if (!tool.is_object()) {
      fields.fail(key, "must be an object");
      break;
    }
    const Json type = tool.value("type", Json("custom"));
    if (!type.is_null() && type != "custom") {
      fields.fail(key + ".type", "other than 'custom' is not supported");
      break;
    }
    Json function = Json::object();
    for (const auto& [from, to] :
         {std::pair("name", "name"), std::pair("description", "description"),
          std::pair("input_schema", "parameters")}) {
      if (tool.contains(from)) function[to] = tool[from];
    }
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

void read_choice(FieldReader& fields, Json& conversation) {
  const Json* choice = fields.object("tool_choice");
  if (!choice) return;
  FieldReader inner(*choice, "tool_choice.");
  const std::string type = inner.string("type").value_or("");
  if (type == "auto" || type == "none") {
    conversation["tool_choice"] = type;
  } else if (type == "any") {
    conversation["tool_choice"] = "required";
  } else if (type == "tool") {
    const auto name = inner.string("name");
    if (!name) inner.fail("name", "is missing");
    conversation["tool_choice"] = {{"type", "function"}, {"name", name.value_or("")}};
  } else {
    inner.fail("type", "must be auto, any, tool or none");
  }
  const bool one_call = inner.boolean("disable_parallel_tool_use").value_or(false);
  conversation["parallel_tool_calls"] = !one_call;
  if (inner.failed()) fields.fail(inner.error());
}

Json to_conversation(FieldReader& fields, const ParseContext& context) {
  Json conversation = Json::object();
  conversation["messages"] = to_messages(fields, context);
  const auto limit = static_cast<std::size_t>(context.limits.max_tools);
  if (const Json* tools = fields.array("tools", limit)) {
    conversation["tools"] = to_tools(fields, *tools);
  }
  read_choice(fields, conversation);
  if (const Json* thinking = fields.object("thinking")) {
    const bool on = thinking->value("type", Json()) != "disabled";
    if (!on) conversation["reasoning_effort"] = "none";
  }
  return conversation;
}

void read_chat(FieldReader& fields, const ParseContext& context, ChatRequest& chat) {
  read_model(fields, context);
  const Json conversation = to_conversation(fields, context);
  if (fields.failed()) return;
  FieldReader inner(conversation);
  read_conversation(inner, context, chat);
  if (inner.failed()) fields.fail(inner.error());
}

}  // namespace

ApiResult<ChatCall> parse_messages(std::string_view body, const ParseContext& context) {
  auto json = parse_json_object(body, context.limits.max_json_depth);
  if (!json) return tl::unexpected(std::move(json).error());
  ChatCall call;
  FieldReader fields(*json);
  read_chat(fields, context, call.chat);
  const auto most = fields.integer("max_tokens", 1, kMaxInt32);
  if (!most) fields.fail("max_tokens", "is missing");
  // Its name for stop strings is its own; what is left is read as everywhere.
  Json common = *json;
  common.erase("stop_sequences");
  if (const Json* stops = fields.array("stop_sequences", 1'024)) common["stop"] = *stops;
  FieldReader generation(common);
  read_generation(generation, context, call.generation);
  call.generation.n = 1;
  if (generation.failed()) fields.fail(generation.error());
  require_model(fields, context);
  if (fields.failed()) return tl::unexpected(fields.error());
  return call;
}

ApiResult<ChatRequest> parse_messages_conversation(std::string_view body,
                                                   const ParseContext& context) {
  auto json = parse_json_object(body, context.limits.max_json_depth);
  if (!json) return tl::unexpected(std::move(json).error());
  ChatRequest chat;
  FieldReader fields(*json);
  read_chat(fields, context, chat);
  if (fields.failed()) return tl::unexpected(fields.error());
  return chat;
}

}  // namespace sluice
