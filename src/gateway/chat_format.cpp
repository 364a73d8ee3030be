// chat.completion and chat.completion.chunk.
#include <fmt/format.h>

#include "gateway/response_format.h"

namespace sluice {

namespace {

void write_token(JsonWriter& json, std::string_view bytes, float logprob) {
  json.member("token", bytes).member("logprob", logprob);
  json.key("bytes").begin_array();
  for (const char c : bytes) json.value(static_cast<int>(static_cast<unsigned char>(c)));
  json.end_array();
}

void write_logprobs(JsonWriter& json, bool wanted, std::span<const LogprobText> entries) {
  json.key("logprobs");
  if (!wanted) {
    json.null();
    return;
  }
  json.begin_object().key("content").begin_array();
  for (const LogprobText& entry : entries) {
    json.begin_object();
    write_token(json, entry.bytes, entry.logprob);
    json.key("top_logprobs").begin_array();
    for (const auto& [bytes, logprob] : entry.top) {
      json.begin_object();
      write_token(json, bytes, logprob);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().key("refusal").null().end_object();
}

void write_tool_deltas(JsonWriter& json, const std::vector<ChatDelta::ToolDelta>& calls) {
  json.key("tool_calls").begin_array();
  for (const auto& delta : calls) {
    json.begin_object().member("index", delta.index);
    if (!delta.call.id.empty()) json.member("id", delta.call.id).member("type", "function");
    json.key("function").begin_object();
    if (!delta.call.name.empty()) json.member("name", delta.call.name);
    json.member("arguments", delta.call.arguments).end_object().end_object();
  }
  json.end_array();
}

void write_delta(JsonWriter& json, const ChatDelta& delta) {
  json.begin_object();
  if (!delta.reasoning.empty()) json.member("reasoning_content", delta.reasoning);
  if (!delta.content.empty()) json.member("content", delta.content);
  if (!delta.tool_calls.empty()) write_tool_deltas(json, delta.tool_calls);
  json.end_object();
}

class ChatFormat final : public ResponseFormat {
 public:
  explicit ChatFormat(FormatOptions options)
      : options_(std::move(options)), id_(make_id("chatcmpl-")), created_(unix_time()) {
    JsonWriter json(chunk_head_);
    chunk_head_ = "data: ";
    write_head(json, "chat.completion.chunk");
    json.key("choices").begin_array();
  }

  void begin(std::span<const Choice> choices, std::string& out) override {
    for (const Choice& choice : choices) {
      chunk(choice, R"({"role":"assistant","content":null})", {}, out);
    }
  }

  void progress(const Choice& choice, const Increment& increment, std::string& out) override {
    Parts parts{.logprobs = increment.logprobs, .token_ids = increment.token_ids};
    for (const ChatDelta& delta : increment.deltas) {
      scratch_.clear();
      JsonWriter json(scratch_);
      write_delta(json, delta);
      // With vLLM's usage in every chunk each has more tokens than the one before: there the end
      // comes with the last text, as vLLM has it.
      const bool last = &delta == &increment.deltas.back();
      if (last && increment.finished && options_.continuous_usage) {
        parts.finish_reason = choice.finish_reason();
      }
      chunk(choice, scratch_, parts, out);
      parts.logprobs = {};
      parts.token_ids = {};
    }
    if (!parts.logprobs.empty() || !parts.token_ids.empty()) {
      chunk(choice, R"({"content":""})", parts, out);
    }
    // Else the end has a chunk of its own, without a text, as OpenAI has it.
    if (!increment.finished || !parts.finish_reason.empty()) return;
    chunk(choice, "{}", {.finish_reason = choice.finish_reason()}, out);
  }

  void prompt_progress(const Choice& choice, const PromptProgress& progress,
                       std::string& out) override {
    out += chunk_head_;
    JsonWriter json(out);
    json.begin_object().member("index", choice.index()).key("delta").raw("{}");
    json.key("logprobs").null().key("finish_reason").null().end_object().end_array();
    write_prompt_progress(json, progress);
    out += "}\n\n";
  }

  void end(std::span<const Choice>, const Usage& usage, std::string& out) override {
    if (options_.include_usage) {
      out += chunk_head_;
      out += "],\"usage\":";
      JsonWriter json(out);
      write_usage(json, usage);
      append_timings(out, options_, usage);
      out += "}\n\n";
    }
    write_sse(out, "[DONE]");
  }

  void error(const ApiError& error, std::string& out) override {
    write_sse(out, to_json(error));
    write_sse(out, "[DONE]");
  }

  std::string whole(std::span<const Choice> choices, const Usage& usage) override {
    std::string out;
    JsonWriter json(out);
    json.begin_object();
    write_head(json, "chat.completion");
    json.key("choices").begin_array();
    for (const Choice& choice : choices) write_choice(json, choice);
    json.end_array();
    write_prompt_logprobs(json, choices.front());
    if (choices.front().wants_token_ids()) {
      write_tokens(json, "prompt_token_ids", choices.front().prompt());
    }
    json.key("usage");
    write_usage(json, usage);
    append_timings(out, options_, usage);
    append_verbose(out);
    out += '}';
    return out;
  }

 private:
  // What a chunk has beside its delta.
  struct Parts {
    std::span<const LogprobText> logprobs;
    std::span<const Token> token_ids;
    std::string_view finish_reason;
  };

  // Opens the object if the text is a chunk's; members only.
  void write_head(JsonWriter& json, std::string_view object) {
    const bool is_chunk = object.ends_with("chunk");
    if (is_chunk) json.begin_object();
    json.member("id", id_).member("object", object).member("created", created_);
    json.member("model", options_.model).member("system_fingerprint", options_.fingerprint);
  }

  void chunk(const Choice& choice, std::string_view delta, const Parts& parts, std::string& out) {
    out += chunk_head_;
    JsonWriter json(out);
    json.begin_object().member("index", choice.index()).key("delta").raw(delta);
    const bool has_text = parts.finish_reason.empty() || !parts.logprobs.empty();
    write_logprobs(json, choice.wants_logprobs() && has_text, parts.logprobs);
    if (!parts.token_ids.empty()) write_tokens(json, "token_ids", parts.token_ids);
    if (!parts.finish_reason.empty()) write_stop_reason(json, choice);
    json.key("finish_reason").string_or_null(parts.finish_reason).end_object();
    out += ']';
    if (options_.continuous_usage) {
      out += ",\"usage\":";
      JsonWriter usage(out);
      write_usage(usage, usage_of(choice));
    } else if (options_.include_usage) {
      out += ",\"usage\":null";
    }
    append_timings(out, options_, usage_of(choice));
    if (!parts.finish_reason.empty()) append_verbose(out);
    out += "}\n\n";
  }

  // What the conversation became, where the client wants to see it.
  void append_verbose(std::string& out) const {
    if (!options_.shown_prompt) return;
    out += ",\"__verbose\":";
    JsonWriter json(out);
    json.begin_object().member("prompt", *options_.shown_prompt).end_object();
  }

  static void write_choice(JsonWriter& json, const Choice& choice) {
    const ChatMessage& message = choice.message();
    json.begin_object().member("index", choice.index());
    json.key("message").begin_object().member("role", "assistant");
    json.key("content");
    if (message.content.empty() && !message.tool_calls.empty()) {
      json.null();
    } else {
      json.value(message.content);
    }
    json.key("refusal").null().key("annotations").begin_array().end_array();
    if (!message.reasoning.empty()) json.member("reasoning_content", message.reasoning);
    if (!message.tool_calls.empty()) {
      json.key("tool_calls").begin_array();
      for (const ToolCall& call : message.tool_calls) {
        json.begin_object().member("id", call.id).member("type", "function").key("function");
        json.begin_object().member("name", call.name).member("arguments", call.arguments);
        json.end_object().end_object();
      }
      json.end_array();
    }
    json.end_object();
    write_logprobs(json, choice.wants_logprobs(), choice.logprobs());
    if (choice.wants_token_ids()) write_tokens(json, "token_ids", choice.token_ids());
    write_stop_reason(json, choice);
    json.member("finish_reason", choice.finish_reason()).end_object();
  }

  const FormatOptions options_;
  const std::string id_;
  const std::int64_t created_;
  std::string chunk_head_;  // a chunk up to its choices: the same for all of a stream
  std::string scratch_;
};

}  // namespace

std::unique_ptr<ResponseFormat> make_chat_format(FormatOptions options) {
  return std::make_unique<ChatFormat>(std::move(options));
}

}  // namespace sluice
