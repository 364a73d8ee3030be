#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>

#include "console.h"
#include "engine/engine.h"
#include "engines.h"
#include "model/model.h"
#include "options.h"
#include "or_throw.h"
#include "sizing.h"

namespace sluice {
namespace {

// Prints text as it comes; remembers how it ended.
class TerminalSink final : public TokenSink {
 public:
  TerminalSink(const Tokenizer& tokenizer, ChatParser* parser, bool special)
      : text_(tokenizer, special), parser_(parser) {}

  void on_tokens(std::vector<TokenEvent>&& events) override {
    for (const TokenEvent& event : events) {
      if (event.has_token) show(text_.push(event.token.token));
      if (event.finish == FinishReason::kNone) continue;
      show(text_.finish());
      if (parser_) print(parser_->finish());
      finish = event.finish;
      error = event.error;
    }
    std::fflush(stdout);
  }
  FinishReason finish = FinishReason::kNone;
  Error error;

 private:
  void show(const std::string& text) {
    if (parser_) {
      print(parser_->push(text));
    } else {
      std::fputs(text.c_str(), stdout);
    }
  }
  static void print(const std::vector<ChatDelta>& deltas) {
    for (const ChatDelta& delta : deltas) {
      std::fputs(delta.reasoning.c_str(), stdout);
      std::fputs(delta.content.c_str(), stdout);
    }
  }

  Detokenizer text_;
  ChatParser* const parser_;
};

ChatPrompt chat_prompt(const RunOptions& options, const Model& model, const std::string& text) {
  auto messages = nlohmann::json::array();
  if (!options.system.empty())
    messages.push_back({{"role", "system"}, {"content", options.system}});
  messages.push_back({{"role", "user"}, {"content", text}});
  ChatRequest request;
  request.messages_json = messages.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return or_throw(model.chat().apply(request));
}

std::string prompt_text(const RunOptions& options) {
  if (options.prompt != "-") return options.prompt;
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

}  // namespace

int run(const RunOptions& options) {
  start_logging(options.log_level);
  const Device device = device_of(options.device);
  const auto model = or_throw(load_gguf_model(
      {.path = options.model, .device = device.name, .on_progress = progress_of("loading")}));
  const std::string text = prompt_text(options);

  ChatPrompt prompt;
  std::unique_ptr<ChatParser> parser;
  if (options.raw) {
    prompt.text = text;
  } else {
    prompt = chat_prompt(options, *model, text);
    parser = model->chat().make_parser(prompt);
  }
  auto request = std::make_unique<Request>();
  request->id = RequestId{1};
  request->prompt = or_throw(model->tokenizer().tokenize(
      prompt.text, {.add_special = true, .parse_special = !options.raw}));

  ServeOptions wanted;  // sized for this one sequence
  wanted.threads = options.threads;
  wanted.max_running = 1;
  wanted.kv_type = options.kv_type;
  wanted.speculative = options.speculative;
  const auto tokens = static_cast<std::int32_t>(request->prompt.size()) + options.max_tokens;
  wanted.kv_memory = options.kv_memory > 0
                         ? options.kv_memory
                         : model->info().kv_layout.token_bytes() *
                               static_cast<std::size_t>(tokens + 2 * wanted.block_tokens);
  const Sizing sizing = or_throw(size_instance(wanted, model->info(), machine_of(device)));
  request->max_tokens = std::min(
      options.max_tokens, sizing.context - static_cast<std::int32_t>(request->prompt.size()));
  request->sampling.temperature = static_cast<float>(options.temperature);
  request->sampling.seed = options.seed != 0 ? options.seed : std::random_device{}();

  const KvMemory memory(*model, sizing, sizing.num_blocks);
  auto runner = or_throw(model->make_runner({.num_threads = sizing.threads,
                                             .max_step_tokens = sizing.max_batch_tokens,
                                             .max_step_outputs = step_outputs(sizing),
                                             .max_context = sizing.context}));
  runner->bind(memory.view());
  const SteadyClock clock;
  TerminalSink sink(model->tokenizer(), parser.get(), prompt.keep_special);
  Engine engine(engine_options(sizing, /*prefix_cache=*/false), *runner, model->samplers(), clock,
                sink);
  request->arrival = clock.now();
  engine.submit(std::move(request));
  while (!engine.idle()) engine.step();
  std::fputc('\n', stdout);
  if (sink.finish == FinishReason::kError) throw std::runtime_error(sink.error.message);
  return 0;
}

}  // namespace sluice
