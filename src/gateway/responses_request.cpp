// OpenAI's Responses: its input as the messages of a chat.
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "gateway/request_fields.h"

namespace sluice {

namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

std::string text_member(const Json& item, const char* key) {
  const auto found = item.find(key);
  return found != item.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// A call joins the assistant's message before it, as chat completions have it.
void add_call(const Json& item, Json& messages) {
  if (messages.empty() || messages.back()["role"] != "assistant" ||
      !messages.back().contains("tool_calls")) {
    Json message = {{"role", "assistant"}, {"content", nullptr}};
    message["tool_calls"] = Json::array();
    messages.push_back(std::move(message));
  }
  Json call = {{"id", text_member(item, "call_id")}, {"type", "function"}};
  call["function"] = {{"name", text_member(item, "name")},
                      {"arguments", text_member(item, "arguments")}};
  messages.back()["tool_calls"].push_back(std::move(call));
}

// An item of `input`; false when it is of a kind that does not exist here.
bool add_item(const Json& item, Json& messages) {
  const std::string type = item.contains("type") ? text_member(item, "type") : "message";
  if (type == "message") {
    messages.push_back(item);
    messages.back().erase("type");
  } else if (type == "function_call") {
    add_call(item, messages);
  } else if (type == "function_call_output") {
    Json message = {{"role", "tool"}, {"tool_call_id", text_member(item, "call_id")}};
    message["content"] = item.contains("output") ? item["output"] : Json();
    messages.push_back(std::move(message));
  } else {
    return type == "reasoning";  // thoughts of earlier turns are not shown again
  }
  return true;
}

Json to_messages(FieldReader& fields, const ParseContext& context) {
  Json messages = Json::array();
  if (const auto instructions = fields.string("instructions")) {
    messages.push_back(Json{{"role", "system"}, {"content", *instructions}});
  }
  const Json* input = fields.find("input");
  if (fields.failed()) return messages;
  if (!input) {
    fields.fail("input", "is missing");
    return messages;
  }
  if (input->is_string()) {
    messages.push_back(Json{{"role", "user"}, {"content", *input}});
    return messages;
  }
  const Json* items = fields.array("input", static_cast<std::size_t>(context.limits.max_messages));
  if (!items) return messages;
  if (items->empty()) fields.fail("input", "must have at least one item");
  for (std::size_t i = 0; i < items->size() && !fields.failed(); ++i) {
    const std::string key = fmt::format("input[{}]", i);
    if (!(*items)[i].is_object()) {
      fields.fail(key, "must be an object");
    } else if (!add_item((*items)[i], messages)) {
      fields.fail(key + ".type", "is not supported");
    }
  }
  return messages;
}

void read_format(FieldReader& fields, const ParseContext& context, ResponsesCall& call) {
  const Json* text = fields.object("text");
  const auto format = text ? text->find("format") : Json::const_iterator();
  if (!text || format == text->end()) return;
  const Json wrapped = {{"response_format", *format}};
  FieldReader inner(wrapped, "text.");
  std::string grammar;
  read_constraint(inner, context, call.chat.json_schema, grammar);
  if (inner.failed()) return fields.fail(inner.error());
  call.echo.format_json = dump_json(*format);
}

// With every member that a strict reader of responses asks for.
std::string echoed_tools(const Json& tools) {
  Json echoed = Json::array();
  for (const Json& tool : tools) {
    Json flat = tool.contains("function") ? tool["function"] : tool;
    flat["type"] = "function";
    for (const char* key : {"description", "parameters", "strict"}) {
      if (!flat.contains(key)) flat[key] = nullptr;
    }
    echoed.push_back(std::move(flat));
  }
  return dump_json(echoed);
}

void refuse_unsupported(FieldReader& fields) {
  if (fields.find("previous_response_id")) {
    fields.fail("previous_response_id", "is not supported: responses are not stored");
  }
  if (fields.boolean("background").value_or(false)) {
    fields.fail("background", "is not supported");
  }
  if (const auto truncation = fields.string("truncation");
      truncation && *truncation != "disabled") {
    fields.fail("truncation", "other than 'disabled' is not supported");
  }
}

void read_responses(FieldReader& fields, const ParseContext& context, ResponsesCall& call) {
  read_model(fields, context);
  refuse_unsupported(fields);
  Json conversation = Json::object();
  conversation["messages"] = to_messages(fields, context);
  for (const char* key : {"tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs"}) {
    if (const Json* value = fields.find(key)) conversation[key] = *value;
  }
  if (const Json* reasoning = fields.object("reasoning")) {
    FieldReader inner(*reasoning, "reasoning.");
    if (const auto effort = inner.string("effort")) conversation["reasoning_effort"] = *effort;
    if (inner.failed()) fields.fail(inner.error());
  }
  if (fields.failed()) return;
  FieldReader inner(conversation);
  read_conversation(inner, context, call.chat);
  if (inner.failed()) return fields.fail(inner.error());

  GenerationCall& generation = call.generation;
  read_generation(fields, context, generation);
  generation.n = 1;
  if (const auto most = fields.integer("max_output_tokens", 1, kMaxInt32)) {
    generation.max_tokens = static_cast<std::int32_t>(*most);
  }
  if (generation.max_tokens == 0) fields.fail("max_tokens", "must be at least 1");
  if (const auto top = fields.integer("top_logprobs", 0, context.limits.max_logprobs);
      top.value_or(0) > 0) {
    generation.sampling.num_logprobs = static_cast<std::int32_t>(*top);
  }
  read_format(fields, context, call);
  check_unused(fields);
  require_model(fields, context);

  call.echo.instructions = fields.string("instructions");
  call.echo.max_output_tokens = generation.max_tokens;
  if (const Json* metadata = fields.find("metadata"))
    call.echo.metadata_json = dump_json(*metadata);
  if (const Json* choice = fields.find("tool_choice")) {
    call.echo.tool_choice_json = dump_json(*choice);
  }
  if (const Json* tools = fields.find("tools")) call.echo.tools_json = echoed_tools(*tools);
}

}  // namespace

ApiResult<ResponsesCall> parse_responses(std::string_view body, const ParseContext& context) {
  auto json = parse_json_object(body, context.limits.max_json_depth);
  if (!json) return tl::unexpected(std::move(json).error());
  ResponsesCall call;
  FieldReader fields(*json);
  read_responses(fields, context, call);
  if (fields.failed()) return tl::unexpected(fields.error());
  return call;
}

}  // namespace sluice
