// OpenAI's Responses: one answer as a list of items, or as numbered events.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "gateway/response_format.h"

namespace sluice {

namespace {

struct Item {
  enum class Kind : std::uint8_t { kReasoning, kMessage, kCall };
  Kind kind = Kind::kMessage;
  std::string id;
  std::string text;  // or the call's arguments
  ToolCall call;     // its id and name
  std::int32_t tool_index = -1;
  bool done = false;
};

void write_part(JsonWriter& json, const Item& item) {
  json.begin_object();
  if (item.kind == Item::Kind::kReasoning) {
    json.member("type", "reasoning_text").member("text", item.text);
  } else {
    json.member("type", "output_text").member("text", item.text);
    json.key("annotations").begin_array().end_array();
    json.key("logprobs").begin_array().end_array();
  }
  json.end_object();
}

void write_item(JsonWriter& json, const Item& item) {
  json.begin_object().member("id", item.id);
  const char* status = item.done ? "completed" : "in_progress";
  switch (item.kind) {
    case Item::Kind::kCall:
      json.member("type", "function_call").member("call_id", item.call.id);
      json.member("name", item.call.name).member("arguments", item.text);
      json.member("status", status).end_object();
      return;
    case Item::Kind::kReasoning:
      json.member("type", "reasoning").key("summary").begin_array().end_array();
      break;
    case Item::Kind::kMessage: json.member("type", "message").member("role", "assistant"); break;
  }
  json.member("status", status).key("content").begin_array();
  if (item.done) write_part(json, item);
  json.end_array().end_object();
}

void write_response_usage(JsonWriter& json, const Usage& usage) {
  json.begin_object().member("input_tokens", usage.prompt_tokens);
  json.key("input_tokens_details").begin_object();
  json.member("cached_tokens", usage.cached_tokens).end_object();
  json.member("output_tokens", usage.completion_tokens);
  json.key("output_tokens_details").begin_object().member("reasoning_tokens", 0).end_object();
  json.member("total_tokens", usage.prompt_tokens + usage.completion_tokens).end_object();
}

class ResponsesFormat final : public ResponseFormat {
 public:
  ResponsesFormat(FormatOptions options, const ResponsesCall& call)
      : options_(std::move(options)),
        echo_(call.echo),
        sampling_(call.generation.sampling),
        parallel_(call.chat.parallel_tool_calls),
        id_(make_id("resp_")),
        created_(unix_time()) {}

  void begin(std::span<const Choice>, std::string& out) override {
    for (const char* type : {"response.created", "response.in_progress"}) {
      event(out, type, [&](JsonWriter& json) {
        json.key("response");
        write_response(json, "in_progress", nullptr, nullptr);
      });
    }
  }

  void progress(const Choice& choice, const Increment& increment, std::string& out) override {
    for (const ChatDelta& delta : increment.deltas) {
      const Usage usage = usage_of(choice);
      if (!delta.reasoning.empty()) add_text(Item::Kind::kReasoning, delta.reasoning, usage, out);
      if (!delta.content.empty()) add_text(Item::Kind::kMessage, delta.content, usage, out);
      for (const auto& call : delta.tool_calls) add_call(call, out);
    }
    if (!increment.finished) return;
    if (items_.empty()) open({Item::Kind::kMessage, make_id("msg_"), {}, {}, -1, false}, out);
    close_last(out);
  }

  void prompt_progress(const Choice&, const PromptProgress& progress, std::string& out) override {
    event(out, "response.in_progress", [&](JsonWriter& json) {
      json.key("response");
      write_response(json, "in_progress", nullptr, nullptr);
      write_prompt_progress(json, progress);
    });
  }

  void end(std::span<const Choice> choices, const Usage& usage, std::string& out) override {
    const bool cut = choices[0].finish() == FinishReason::kLength;
    event(out, cut ? "response.incomplete" : "response.completed", [&](JsonWriter& json) {
      json.key("response");
      write_response(json, cut ? "incomplete" : "completed", &usage, nullptr);
      if (options_.timings) write_timings(json.key("timings"), usage);
    });
  }

  void error(const ApiError& error, std::string& out) override {
    event(out, "response.failed", [&](JsonWriter& json) {
      json.key("response");
      write_response(json, "failed", nullptr, &error);
    });
  }

  std::string whole(std::span<const Choice> choices, const Usage& usage) override {
    const ChatMessage& message = choices[0].message();
    if (!message.reasoning.empty()) {
      items_.push_back({Item::Kind::kReasoning, make_id("rs_"), message.reasoning, {}, -1, true});
    }
    if (!message.content.empty() || message.tool_calls.empty()) {
      items_.push_back({Item::Kind::kMessage, make_id("msg_"), message.content, {}, -1, true});
    }
    for (const ToolCall& call : message.tool_calls) {
      items_.push_back({Item::Kind::kCall, make_id("fc_"), call.arguments, call, 0, true});
    }
    std::string out;
    JsonWriter json(out);
    const bool cut = choices[0].finish() == FinishReason::kLength;
    write_response(json, cut ? "incomplete" : "completed", &usage, nullptr);
    return out;
  }

 private:
  template <class Write>
  void event(std::string& out, std::string_view type, Write write) {
    out += fmt::format("event: {}\ndata: ", type);
    JsonWriter json(out);
    json.begin_object().member("type", type).member("sequence_number", sequence_++);
    write(json);
    json.end_object();
    out += "\n\n";
  }

  // An event about the last item.
  template <class Write>
  void item_event(std::string& out, std::string_view type, bool part, Write write) {
    event(out, type, [&](JsonWriter& json) {
      json.member("item_id", items_.back().id).member("output_index", items_.size() - 1);
      if (part) json.member("content_index", 0);
      write(json);
    });
  }

  void open(Item item, std::string& out) {
    close_last(out);
    items_.push_back(std::move(item));
    event(out, "response.output_item.added", [&](JsonWriter& json) {
      json.member("output_index", items_.size() - 1).key("item");
      write_item(json, items_.back());
    });
    if (items_.back().kind == Item::Kind::kCall) return;
    item_event(out, "response.content_part.added", true, [&](JsonWriter& json) {
      json.key("part");
      write_part(json, items_.back());
    });
  }

  void close_last(std::string& out) {
    if (items_.empty() || items_.back().done) return;
    Item& item = items_.back();
    item.done = true;
    if (item.kind == Item::Kind::kCall) {
      item_event(out, "response.function_call_arguments.done", false, [&](JsonWriter& json) {
        json.member("name", item.call.name).member("arguments", item.text);
      });
    } else {
      const bool thought = item.kind == Item::Kind::kReasoning;
      item_event(out, thought ? "response.reasoning_text.done" : "response.output_text.done", true,
                 [&](JsonWriter& json) {
                   json.member("text", item.text);
                   if (!thought) json.key("logprobs").begin_array().end_array();
                 });
      item_event(out, "response.content_part.done", true, [&](JsonWriter& json) {
        json.key("part");
        write_part(json, item);
      });
    }
    event(out, "response.output_item.done", [&](JsonWriter& json) {
      json.member("output_index", items_.size() - 1).key("item");
      write_item(json, item);
    });
  }

  void add_text(Item::Kind kind, const std::string& text, const Usage& usage, std::string& out) {
    const bool thought = kind == Item::Kind::kReasoning;
    if (items_.empty() || items_.back().done || items_.back().kind != kind) {
      open({kind, make_id(thought ? "rs_" : "msg_"), {}, {}, -1, false}, out);
    }
    items_.back().text += text;
    item_event(out, thought ? "response.reasoning_text.delta" : "response.output_text.delta", true,
               [&](JsonWriter& json) {
                 json.member("delta", text);
                 if (!thought) json.key("logprobs").begin_array().end_array();
                 if (options_.timings) write_timings(json.key("timings"), usage);
               });
  }

  void add_call(const ChatDelta::ToolDelta& delta, std::string& out) {
    if (items_.empty() || items_.back().tool_index != delta.index) {
      open({Item::Kind::kCall, make_id("fc_"), {}, delta.call, delta.index, false}, out);
    }
    if (delta.call.arguments.empty()) return;
    items_.back().text += delta.call.arguments;
    item_event(out, "response.function_call_arguments.delta", false,
               [&](JsonWriter& json) { json.member("delta", delta.call.arguments); });
  }

  void write_response(JsonWriter& json, const char* status, const Usage* usage,
                      const ApiError* error) const {
    json.begin_object().member("id", id_).member("object", "response");
    json.member("created_at", created_).key("completed_at");
    if (std::string_view(status) == "completed") {
      json.value(unix_time());
    } else {
      json.null();
    }
    json.member("status", status).member("background", false);
    json.key("error");
    if (error) {
      json.begin_object().member("code", "server_error").member("message", error->message);
      json.end_object();
    } else {
      json.null();
    }
    json.key("incomplete_details");
    if (std::string_view(status) == "incomplete") {
      json.begin_object().member("reason", "max_output_tokens").end_object();
    } else {
      json.null();
    }
    write_echo(json);
    json.member("model", options_.model).key("output").begin_array();
    for (const Item& item : items_) write_item(json, item);
    json.end_array().key("usage");
    if (usage) {
      write_response_usage(json, *usage);
    } else {
      json.null();
    }
    json.end_object();
  }

  void write_echo(JsonWriter& json) const {
    json.key("instructions");
    if (echo_.instructions) {
      json.value(*echo_.instructions);
    } else {
      json.null();
    }
    json.key("max_output_tokens");
    if (echo_.max_output_tokens) {
      json.value(*echo_.max_output_tokens);
    } else {
      json.null();
    }
    json.key("metadata").raw(echo_.metadata_json.empty() ? "{}" : echo_.metadata_json);
    json.member("parallel_tool_calls", parallel_).key("previous_response_id").null();
    json.key("reasoning").begin_object().key("effort").null().key("summary").null().end_object();
    json.member("store", false).member("temperature", sampling_.temperature);
    json.key("text").begin_object().key("format");
    json.raw(echo_.format_json.empty() ? R"({"type":"text"})" : echo_.format_json).end_object();
    json.key("tool_choice")
        .raw(echo_.tool_choice_json.empty() ? "\"auto\"" : echo_.tool_choice_json);
    json.key("tools").raw(echo_.tools_json.empty() ? "[]" : echo_.tools_json);
    json.member("top_p", sampling_.top_p).member("truncation", "disabled");
    json.member("presence_penalty", sampling_.presence_penalty);
    json.member("frequency_penalty", sampling_.frequency_penalty);
    json.member("top_logprobs", std::max(0, sampling_.num_logprobs));
    json.member("service_tier", "default");
    for (const char* key : {"max_tool_calls", "safety_identifier", "prompt_cache_key"}) {
      json.key(key).null();
    }
  }

  const FormatOptions options_;
  const ResponsesEcho echo_;
  const SamplingParams sampling_;
  const bool parallel_;
  const std::string id_;
  const std::int64_t created_;
  std::int64_t sequence_ = 0;
  std::vector<Item> items_;
};

}  // namespace

std::unique_ptr<ResponseFormat> make_responses_format(FormatOptions options,
                                                      const ResponsesCall& call) {
  return std::make_unique<ResponsesFormat>(std::move(options), call);
}

}  // namespace sluice
