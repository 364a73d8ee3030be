// text_completion, whole and as a stream.
#include "gateway/response_format.h"

namespace sluice {

namespace {

// The older form: parallel arrays, offsets into the choice's text.
void write_logprobs(JsonWriter& json, bool wanted, std::span<const LogprobText> entries,
                    std::size_t base_offset) {
  json.key("logprobs");
  if (!wanted) {
    json.null();
    return;
  }
  json.begin_object().key("text_offset").begin_array();
  for (const LogprobText& entry : entries) json.value(entry.text_offset + base_offset);
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

  void begin(std::span<const Choice> choices, std::string& out) override {
    for (const Choice& choice : choices) {
      if (!choice.echo().empty()) {
        chunk(choice, choice.echo(), choice.echo_logprobs(), 0, {}, out);
      }
    }
  }

  void progress(const Choice& choice, const Increment& increment, std::string& out) override {
    if (increment.empty()) return;
    chunk(choice, increment.text, increment.logprobs, choice.echo().size(),
          increment.finished ? choice.finish_reason() : std::string_view(), out);
  }

  void end(std::span<const Choice>, const Usage& usage, std::string& out) override {
    if (options_.include_usage) {
      out.append("data: ").append(head_).append("],\"usage\":");
      JsonWriter json(out);
      write_usage(json, usage);
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
      json.member("text", choice.echo() + choice.text());
      std::vector<LogprobText> logprobs = choice.echo_logprobs();
      for (LogprobText entry : choice.logprobs()) {
        entry.text_offset += choice.echo().size();
        logprobs.push_back(std::move(entry));
      }
      write_logprobs(json, choice.wants_logprobs(), logprobs, 0);
      json.member("finish_reason", choice.finish_reason()).end_object();
    }
    out += "],\"usage\":";
    JsonWriter json(out);
    write_usage(json, usage);
    out += '}';
    return out;
  }

 private:
  void chunk(const Choice& choice, std::string_view text, std::span<const LogprobText> logprobs,
             std::size_t base_offset, std::string_view finish_reason, std::string& out) {
    out.append("data: ").append(head_);
    JsonWriter json(out);
    json.begin_object().member("index", choice.index()).member("text", text);
    write_logprobs(json, choice.wants_logprobs(), logprobs, base_offset);
    json.key("finish_reason").string_or_null(finish_reason).end_object();
    out += ']';
    if (options_.continuous_usage) {
      out += ",\"usage\":";
      JsonWriter usage(out);
      write_usage(usage, usage_of(choice));
    } else if (options_.include_usage) {
      out += ",\"usage\":null";
    }
    out += "}\n\n";
  }

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
