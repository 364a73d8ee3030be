// Anthropic's Messages: one answer as a list of blocks, or as events about them.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "gateway/json_reader.h"
#include "gateway/response_format.h"

namespace sluice {

namespace {

enum class Block : std::uint8_t { kNone, kThinking, kText, kToolUse };

std::string_view stop_reason(const Choice& choice) {
  if (choice.finish() == FinishReason::kLength) return "max_tokens";
  if (choice.finish_reason() == "tool_calls") return "tool_use";
  return choice.stop_reason() ? "stop_sequence" : "end_turn";
}

std::string stop_sequence(const Choice& choice) {
  return choice.stop_reason() ? choice.stop_reason()->text : std::string();
}

// A prompt's tokens are counted once: those that were cached apart.
void write_usage_block(JsonWriter& json, const Usage& usage) {
  json.key("usage").begin_object();
  json.member("input_tokens", usage.prompt_tokens - usage.cached_tokens);
  json.member("cache_creation_input_tokens", 0);
  json.member("cache_read_input_tokens", usage.cached_tokens);
  json.member("output_tokens", usage.completion_tokens);
  for (const char* key :
       {"cache_creation", "inference_geo", "output_tokens_details", "server_tool_use"}) {
    json.key(key).null();
  }
  json.member("service_tier", "standard").end_object();
}

void write_text(JsonWriter& json, std::string_view text) {
  json.begin_object().member("type", "text").member("text", text);
  json.key("citations").null().end_object();
}

void write_thinking(JsonWriter& json, std::string_view text) {
  json.begin_object().member("type", "thinking").member("thinking", text);
  json.member("signature", "").end_object();
}

// `input` is JSON; text that is none (the answer was cut) becomes an empty object.
void write_tool_use(JsonWriter& json, const ToolCall& call, std::string_view input) {
  json.begin_object().member("type", "tool_use").member("id", call.id);
  json.member("name", call.name).key("input").raw(input);
  json.key("caller").begin_object().member("type", "direct").end_object().end_object();
}

class MessagesFormat final : public ResponseFormat {
 public:
  explicit MessagesFormat(FormatOptions options)
      : options_(std::move(options)), id_(make_id("msg_")) {}

  void begin(std::span<const Choice> choices, std::string& out) override {
    event(out, "message_start", [&](JsonWriter& json) {
      json.key("message");
      open_message(json);
      close_message(json, nullptr, usage_of(choices[0]));
    });
  }

  void progress(const Choice& choice, const Increment& increment, std::string& out) override {
    for (const ChatDelta& delta : increment.deltas) {
      if (!delta.reasoning.empty()) {
        open_block(Block::kThinking, 0, {}, out);
        write_delta(out, "thinking_delta", "thinking", delta.reasoning);
      }
      if (!delta.content.empty()) {
        open_block(Block::kText, 0, {}, out);
        write_delta(out, "text_delta", "text", delta.content);
      }
      for (const auto& call : delta.tool_calls) {
        open_block(Block::kToolUse, call.index, call.call, out);
        if (!call.call.arguments.empty()) {
          write_delta(out, "input_json_delta", "partial_json", call.call.arguments);
        }
      }
    }
    if (!increment.finished) return;
    if (num_blocks_ == 0) open_block(Block::kText, 0, {}, out);
    close_block(out);
    event(out, "message_delta", [&](JsonWriter& json) {
      json.key("delta").begin_object().member("stop_reason", stop_reason(choice));
      json.key("stop_sequence").string_or_null(stop_sequence(choice)).end_object();
      write_usage_block(json, usage_of(choice));
    });
  }

  void end(std::span<const Choice>, const Usage&, std::string& out) override {
    event(out, "message_stop", [](JsonWriter&) {});
  }

  void error(const ApiError& error, std::string& out) override {
    out.append("event: error\ndata: ").append(messages_error(error).body).append("\n\n");
  }

  HttpResponse refusal(const ApiError& error) const override { return messages_error(error); }

  std::string whole(std::span<const Choice> choices, const Usage& usage) override {
    const ChatMessage& message = choices[0].message();
    std::string out;
    JsonWriter json(out);
    open_message(json);
    if (!message.reasoning.empty()) write_thinking(json, message.reasoning);
    if (!message.content.empty() || message.tool_calls.empty()) write_text(json, message.content);
    for (const ToolCall& call : message.tool_calls) {
      write_tool_use(json, call, parse_json_object(call.arguments, 100) ? call.arguments : "{}");
    }
    close_message(json, &choices[0], usage);
    return out;
  }

 private:
  template <class Write>
  static void event(std::string& out, std::string_view type, Write write) {
    out += fmt::format("event: {}\ndata: ", type);
    JsonWriter json(out);
    json.begin_object().member("type", type);
    write(json);
    json.end_object();
    out += "\n\n";
  }

  // Up to the list of its blocks.
  void open_message(JsonWriter& json) const {
    json.begin_object().member("id", id_).member("type", "message").member("role", "assistant");
    json.member("model", options_.model).key("content").begin_array();
  }
  static void close_message(JsonWriter& json, const Choice* choice, const Usage& usage) {
    json.end_array();
    json.key("stop_reason").string_or_null(choice ? stop_reason(*choice) : std::string_view());
    json.key("stop_sequence").string_or_null(choice ? stop_sequence(*choice) : std::string());
    json.key("stop_details").null().key("container").null();
    write_usage_block(json, usage);
    json.end_object();
  }

  // One block is open at a time; tool calls have one each.
  void open_block(Block kind, std::int32_t tool, const ToolCall& call, std::string& out) {
    if (open_ == kind && open_tool_ == tool) return;
    close_block(out);
    open_ = kind;
    open_tool_ = tool;
    event(out, "content_block_start", [&](JsonWriter& json) {
      json.member("index", num_blocks_).key("content_block");
      if (kind == Block::kThinking) write_thinking(json, "");
      if (kind == Block::kText) write_text(json, "");
      if (kind == Block::kToolUse) write_tool_use(json, call, "{}");
    });
  }

  void close_block(std::string& out) {
    if (open_ == Block::kNone) return;
    event(out, "content_block_stop", [&](JsonWriter& json) { json.member("index", num_blocks_); });
    open_ = Block::kNone;
    ++num_blocks_;
  }

  void write_delta(std::string& out, std::string_view type, std::string_view key,
                   std::string_view text) const {
    event(out, "content_block_delta", [&](JsonWriter& json) {
      json.member("index", num_blocks_).key("delta").begin_object();
      json.member("type", type).member(key, text).end_object();
    });
  }

  const FormatOptions options_;
  const std::string id_;
  Block open_ = Block::kNone;
  std::int32_t open_tool_ = 0;
  std::int32_t num_blocks_ = 0;  // that are closed: the index of the open one
};

// Anthropic's names of the kinds of errors.
std::string_view error_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

HttpResponse messages_error(const ApiError& error) {
  HttpResponse response = to_response(error);
  response.body.clear();
  JsonWriter json(response.body);
  json.begin_object().member("type", "error").key("error").begin_object();
  json.member("type", error_type(error.status)).member("message", error.message).end_object();
  json.key("request_id").null().end_object();
  return response;
}

std::unique_ptr<ResponseFormat> make_messages_format(FormatOptions options) {
  return std::make_unique<MessagesFormat>(std::move(options));
}

}  // namespace sluice
