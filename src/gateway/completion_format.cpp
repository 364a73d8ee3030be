// text_completion, whole and as a stream.
#include "gateway/response_format.h"

namespace sluice {

namespace {

// The older form: parallel arrays, offsets into the choice's text.
void write_logprobs(JsonWriter& json, bool wanted, std::span<const LogprobText> entries) {
  json.key("logprobs");
  if (!wanted) {
    json.null();
    return;
  }
  json.begin_object().key("text_offset").begin_array();
  for (const LogprobText& entry : entries) json.value(entry.text_offset);
  json.end_array().key("token_logprobs").begin_array();
  for (const LogprobText& entry : entries) {
    if (entry.known) {
      json.value(entry.logprob);
    } else {
      json.null();
    }
  }
  json.end_array().key("tokens").begin_array();
  for (const LogprobText& entry : entries) json.value(entry.bytes);
  json.end_array().key("top_logprobs").begin_array();
  for (const LogprobText& entry : entries) {
    if (!entry.known) {
      json.null();
      continue;
    }
    json.begin_object();
    bool listed = false;
    for (const auto& [bytes, logprob] : entry.top) {
      json.member(bytes, logprob);
      listed |= bytes == entry.bytes;
    }
    if (!listed) json.member(entry.bytes, entry.logprob);  // the chosen token is always there
    json.end_object();
  }
  json.end_array().end_object();
}

class CompletionFormat final : public ResponseFormat {
 public:
  explicit CompletionFormat(FormatOptions options)
      : options_(std::move(options)), id_(make_id("cmpl-")), created_(unix_time()) {
    JsonWriter json(head_);
    json.begin_object().member("id", id_).member("object", "text_completion");
    json.member("created", created_).member("model", options_.model);
    json.member("system_fingerprint", options_.fingerprint).key("choices").begin_array();
  }

  void begin(std::span<const Choice>, std::string&) override {}

  void progress(const Choice& choice, const Increment& increment, std::string& out) override {
    if (increment.empty()) return;
    out.append("data: ").append(head_);
    JsonWriter json(out);
    json.begin_object().member("index", choice.index()).member("text", increment.text);
    write_logprobs(json, choice.wants_logprobs(), increment.logprobs);
    if (choice.wants_token_ids()) {
      if (increment.first) write_tokens(json, "prompt_token_ids", choice.prompt());
      write_tokens(json, "token_ids", increment.token_ids);
    }
    if (increment.finished) write_stop_reason(json, choice);
    json.key("finish_reason");
    json.string_or_null(increment.finished ? choice.finish_reason() : std::string_view());
    json.end_object();
    out += ']';
    if (options_.continuous_usage) {
      out += ",\"usage\":";
      JsonWriter usage(out);
      write_usage(usage, usage_of(choice));
    } else if (options_.include_usage) {
      out += ",\"usage\":null";
    }
    append_timings(out, options_, usage_of(choice));
    out += "}\n\n";
  }

  void prompt_progress(const Choice& choice, const PromptProgress& progress,
                       std::string& out) override {
    out.append("data: ").append(head_);
    JsonWriter json(out);
    json.begin_object().member("index", choice.index()).member("text", "");
    json.key("logprobs").null().key("finish_reason").null().end_object().end_array();
    write_prompt_progress(json, progress);
    out += "}\n\n";
  }

  void end(std::span<const Choice>, const Usage& usage, std::string& out) override {
    if (options_.include_usage) {
      out.append("data: ").append(head_).append("],\"usage\":");
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
    std::string out = head_;
    for (const Choice& choice : choices) {
      if (&choice != &choices.front()) out += ',';
      JsonWriter json(out);
      json.begin_object().member("index", choice.index());
      json.member("text", choice.text());
      write_logprobs(json, choice.wants_logprobs(), choice.logprobs());
      write_prompt_logprobs(json, choice);
      if (choice.wants_token_ids()) {
        write_tokens(json, "prompt_token_ids", choice.prompt());
        write_tokens(json, "token_ids", choice.token_ids());
      }
      write_stop_reason(json, choice);
      json.member("finish_reason", choice.finish_reason()).end_object();
    }
    out += "],\"usage\":";
    JsonWriter json(out);
    write_usage(json, usage);
    append_timings(out, options_, usage);
    out += '}';
    return out;
  }

 private:
  const FormatOptions options_;
  const std::string id_;
  const std::int64_t created_;
  std::string head_;  // a response up to its choices
};

}  // namespace

std::unique_ptr<ResponseFormat> make_completion_format(FormatOptions options) {
  return std::make_unique<CompletionFormat>(std::move(options));
}

}  // namespace sluice
