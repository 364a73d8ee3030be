#include "model/ggml/chat_parser.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace sluice {
namespace {

// Output that is the message: passed on as it comes.
class TextParser final : public ChatParser {
 public:
  std::vector<ChatDelta> push(std::string_view text) override {
    if (text.empty()) return {};
    message_.content += text;
    ChatDelta delta;
    delta.content = text;
    return {std::move(delta)};
  }
  std::vector<ChatDelta> finish() override { return {}; }
  const ChatMessage& message() const override { return message_; }

 private:
  ChatMessage message_;
};

// Ids need only differ from each other, also from those of other processes.
std::string new_call_id() {
  static std::atomic<std::uint64_t> counter{
      static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count())};
  Rng rng(counter.fetch_add(1, std::memory_order_relaxed));
  static constexpr std::string_view kLetters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string id = "call_";
  for (int i = 0; i < 24; ++i) id += kLetters[rng.below(kLetters.size())];
  return id;
}

// Output with reasoning, tool calls or markers. llama-common's parser reads the
// whole text each time, so it runs less often as the text grows.
class FormatParser final : public ChatParser {
 public:
  explicit FormatParser(common_chat_parser_params params) : params_(std::move(params)) {}

  std::vector<ChatDelta> push(std::string_view text) override {
    text_ += text;
    if (text_.size() < next_parse_) return {};
    next_parse_ = text_.size() + 1 + text_.size() / 256;
    std::vector<ChatDelta> deltas;
    if (auto parsed = parse(true)) report(*parsed, false, deltas);
    return deltas;
  }

  std::vector<ChatDelta> finish() override {
    std::vector<ChatDelta> deltas;
    auto parsed = parse(false);
    if (!parsed || !is_whole()) {
      // Cut off, or not in the format: calls stay as far as they came, and text
      // that belongs to nothing is content.
      if (auto partial = parse(true)) parsed = std::move(partial);
      if (!parsed) parsed = common_chat_msg();
      if (parsed->tool_calls.empty()) add_rest(*parsed);
    }
    report(*parsed, true, deltas);
    return deltas;
  }

  const ChatMessage& message() const override { return message_; }

 private:
  std::optional<common_chat_msg> parse(bool partial) const {
    try {
      return common_chat_parse(text_, partial, params_);
    } catch (const std::exception&) {
      return std::nullopt;  // finish() decides
    }
  }

  // The output is all that its format wants.
  bool is_whole() const {
    if (params_.parser.empty()) return true;
    try {
      common_peg_parse_context context(params_.generation_prompt + text_,
                                       COMMON_PEG_PARSE_FLAG_NONE);
      return params_.parser.parse(context).success();
    } catch (const std::exception&) {
      return false;
    }
  }

  // Adds what comes after the parsed content, and all if nothing was parsed.
  void add_rest(common_chat_msg& parsed) const {
    if (parsed.content.empty() && !parsed.reasoning_content.empty()) return;
    const std::size_t at = text_.rfind(parsed.content);
    if (at == std::string::npos) return;
    parsed.content = parsed.content.empty() ? text_ : text_.substr(at);
  }

  // Makes `shown` the new text. What was sent cannot be taken back: where the
  // parser changed its mind, nothing is sent.
  static std::string advance(std::string& shown, const std::string& now, bool last) {
    std::string added;
    if (now.size() >= shown.size() && now.compare(0, shown.size(), shown) == 0) {
      added = now.substr(shown.size());
      shown = now;
    } else if (last) {
      shown = now;
    }
    return added;
  }

  void report(const common_chat_msg& parsed, bool last, std::vector<ChatDelta>& deltas) {
    ChatDelta delta;
    delta.reasoning = advance(message_.reasoning, parsed.reasoning_content, last);
    delta.content = advance(message_.content, parsed.content, last);
    for (std::size_t i = 0; i < parsed.tool_calls.size(); ++i) {
      const auto& from = parsed.tool_calls[i];
      // A name may still grow until its arguments begin or another call follows.
      const bool settled = last || !from.arguments.empty() || i + 1 < parsed.tool_calls.size();
      if (i < message_.tool_calls.size()) {
        ToolCall& call = message_.tool_calls[i];
        if (last) call.name = from.name;
        std::string added = advance(call.arguments, from.arguments, last);
        if (!added.empty()) {
          delta.tool_calls.push_back({static_cast<std::int32_t>(i), {{}, {}, std::move(added)}});
        }
      } else if (settled && i == message_.tool_calls.size()) {
        ToolCall call{from.id.empty() ? new_call_id() : from.id, from.name, from.arguments};
        delta.tool_calls.push_back({static_cast<std::int32_t>(i), call});
        message_.tool_calls.push_back(std::move(call));
      }
    }
    if (!delta.content.empty() || !delta.reasoning.empty() || !delta.tool_calls.empty()) {
      deltas.push_back(std::move(delta));
    }
  }

  common_chat_parser_params params_;
  std::string text_;
  std::size_t next_parse_ = 0;
  ChatMessage message_;
};

}  // namespace

std::string write_parser_spec(const common_chat_params& params) {
  common_json spec = common_json::object();
  spec["format"] = static_cast<int>(params.format);
  spec["prompt"] = params.generation_prompt;
  spec["parser"] = params.parser;
  return spec.dump();
}

std::unique_ptr<ChatParser> make_chat_parser(const std::string& parser_spec) {
  if (parser_spec.empty()) return std::make_unique<TextParser>();
  try {
    const common_json spec = common_json::parse(parser_spec);
    common_chat_parser_params params;
    params.format = static_cast<common_chat_format>(spec.at("format").get<int>());
    params.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    params.generation_prompt = spec.at("prompt").get<std::string>();
    const std::string parser = spec.at("parser").get<std::string>();
    if (!parser.empty()) params.parser.load(parser);
    return std::make_unique<FormatParser>(std::move(params));
  } catch (const std::exception&) {
    return std::make_unique<TextParser>();  // not written by write_parser_spec
  }
}

}  // namespace sluice
