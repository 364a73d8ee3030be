#include "gateway/generation_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/rng.h"

namespace sluice {

namespace {

std::uint64_t random_seed() {
  thread_local Rng rng{std::random_device{}() + (std::uint64_t{std::random_device{}()} << 32)};
  return rng();
}

// Choice 0 draws what a request without `n` would.
std::uint64_t derived_seed(std::uint64_t seed, std::int32_t choice) {
  if (choice == 0) return seed;
  return Rng(seed + static_cast<std::uint64_t>(choice) * 0x9e3779b97f4a7c15ULL)();
}

FormatOptions format_options(const GatewayContext& context, const GenerationCall& call) {
  return {context.parse.model_id, context.fingerprint, call.include_usage,
          call.continuous_usage,  call.timings,        std::nullopt};
}

// The room that is left for output, or why there is none.
ApiResult<std::int32_t> output_room(const GatewayContext& context, std::size_t prompt_tokens,
                                    const std::string& param) {
  if (prompt_tokens == 0) return bad_request("the prompt has no tokens", param, "empty_prompt");
  const auto limit = static_cast<std::size_t>(context.context_tokens);
  if (prompt_tokens < limit) return static_cast<std::int32_t>(limit - prompt_tokens);
  ApiError error;
  error.message = fmt::format(
      "this model's maximum context length is {} tokens, but the prompt has {} tokens and at "
      "least one must be left for the answer",
      limit, prompt_tokens);
  error.param = param;
  error.code = "context_length_exceeded";  // OpenAI's; the type and the numbers are llama.cpp's
  error.type = "exceed_context_size_error";
  error.prompt_tokens = static_cast<std::int64_t>(prompt_tokens);
  error.context_tokens = context.context_tokens;
  return tl::unexpected(std::move(error));
}

// A grammar that does not parse is the client's error, now and not in an engine.
ApiResult<void> check_sampling(const GatewayContext& context, const SamplingParams& sampling,
                               const std::string& param) {
  if (sampling.grammar.gbnf.empty()) return {};
  if (auto sampler = context.model.samplers().make(sampling, {}); !sampler) {
    return tl::unexpected(to_api_error(sampler.error(), param));
  }
  return {};
}

std::unique_ptr<Request> make_request(const GatewayContext& context, const GenerationCall& call,
                                      const std::vector<Token>& prompt, std::int32_t max_tokens,
                                      std::int32_t choice) {
  auto request = std::make_unique<Request>();
  request->prompt = prompt;
  request->max_tokens = max_tokens;
  request->priority = call.priority;
  request->length_class = call.length_class;
  request->length_hint = call.length_hint;
  request->report_progress = call.progress && call.stream;
  request->sampling = call.sampling;
  request->sampling.min_tokens = std::min(call.sampling.min_tokens, max_tokens);
  request->sampling.seed = call.has_seed ? derived_seed(call.sampling.seed, choice) : random_seed();
  request->arrival = context.clock.now();
  return request;
}

std::string prompt_text(const GatewayContext& context, const std::vector<Token>& tokens) {
  Detokenizer detokenizer(context.model.tokenizer(), /*special=*/true);
  std::string text;
  for (const Token token : tokens) text += detokenizer.push(token);
  return text + detokenizer.finish();
}

// Cuts a prompt to the length that the client says; true if it was longer.
bool truncate(const GatewayContext& context, const GenerationCall& call,
              std::vector<Token>& tokens) {
  if (!call.truncate_prompt) return false;
  const auto left = context.context_tokens - std::max(1, call.max_tokens.value_or(1));
  const auto limit = static_cast<std::size_t>(*call.truncate_prompt > 0 ? *call.truncate_prompt
                                                                        : std::max(1, left));
  if (tokens.size() <= limit) return false;
  if (call.truncate_right) {
    tokens.resize(limit);
  } else {
    tokens.erase(tokens.begin(), tokens.end() - static_cast<std::ptrdiff_t>(limit));
  }
  return true;
}

// A word is banned as it stands and after a space: these are different tokens.
ApiResult<void> ban_words(const GatewayContext& context, GenerationCall& call) {
  for (const std::string& word : call.bad_words) {
    for (const std::string& form : {word, " " + word}) {
      auto tokens = context.model.tokenizer().tokenize(form, {.add_special = false});
      if (!tokens) return tl::unexpected(to_api_error(tokens.error(), "bad_words"));
      if (!tokens->empty()) call.sampling.banned_sequences.push_back(std::move(*tokens));
    }
  }
  return {};
}

// What a choice of either kind takes over from the call. `prompt` is kept where it is a part of
// the answer.
ChoiceOptions choice_options(const GenerationCall& call, const std::vector<Token>& prompt,
                             std::int32_t max_tokens) {
  ChoiceOptions options;
  options.prompt_tokens = static_cast<std::int32_t>(prompt.size());
  options.max_tokens = max_tokens;
  options.stops = call.stops;
  options.include_stop = call.include_stop;
  options.stop_tokens = call.sampling.stop_tokens;
  options.keep_special = call.keep_special;
  options.want_logprobs = call.sampling.num_logprobs >= 0;
  options.want_prompt_logprobs = call.prompt_logprobs;
  options.want_token_ids = call.return_token_ids;
  options.tokens_as_ids = call.tokens_as_ids;
  options.prompt_only = max_tokens == 0;
  if (call.return_token_ids) options.prompt = prompt;
  return options;
}

struct TokenizedPrompt {
  std::string text;  // for echo
  std::vector<Token> tokens;
  std::int32_t max_tokens = 0;
};

// What a text begins with: the model's own begin-of-sequence token or, of a model
// that has none, the separator that OpenAI names.
Result<std::vector<Token>> beginning(const Tokenizer& tokenizer) {
  auto tokens = tokenizer.tokenize("", {.add_special = true});
  if (tokens && !tokens->empty()) return tokens;
  return tokenizer.tokenize("<|endoftext|>", {.parse_special = true});
}

ApiResult<TokenizedPrompt> tokenize_prompt(const GatewayContext& context,
                                           const CompletionCall& call, Prompt& prompt) {
  TokenizedPrompt result;
  if (auto* tokens = std::get_if<std::vector<Token>>(&prompt)) {
    result.tokens = std::move(*tokens);
    (void)truncate(context, call.generation, result.tokens);
    if (call.echo) result.text = prompt_text(context, result.tokens);
  } else {
    const Tokenizer& tokenizer = context.model.tokenizer();
    auto* text = std::get_if<std::string>(&prompt);
    if (text != nullptr) result.text = std::move(*text);
    auto tokens_of_text = text == nullptr
                              ? beginning(tokenizer)
                              : tokenizer.tokenize(result.text, {.add_special = call.add_special,
                                                                 .parse_special = true});
    if (!tokens_of_text) return tl::unexpected(to_api_error(tokens_of_text.error(), "prompt"));
    result.tokens = std::move(*tokens_of_text);
    if (truncate(context, call.generation, result.tokens)) {
      result.text = prompt_text(context, result.tokens);
    }
  }
  const auto room = output_room(context, result.tokens.size(), "prompt");
  if (!room) return tl::unexpected(room.error());
  result.max_tokens = std::min(call.generation.max_tokens.value_or(*room), *room);
  return result;
}

}  // namespace

ApiResult<TokenizedChat> tokenize_chat(const GatewayContext& context, const ChatRequest& chat) {
  auto prompt = context.model.chat().apply(chat);
  if (!prompt) return tl::unexpected(to_api_error(prompt.error(), "messages"));
  auto tokens = context.model.tokenizer().tokenize(prompt->text,
                                                   {.add_special = true, .parse_special = true});
  if (!tokens) return tl::unexpected(to_api_error(tokens.error(), "messages"));
  return TokenizedChat{std::move(*prompt), std::move(*tokens)};
}

ApiResult<GenerationJob> build_chat_job(const GatewayContext& context, ChatCall call) {
  auto chat = tokenize_chat(context, call.chat);
  if (!chat) return tl::unexpected(std::move(chat).error());
  GenerationCall& generation = call.generation;
  (void)truncate(context, generation, chat->tokens);
  if (auto ok = ban_words(context, generation); !ok) return tl::unexpected(ok.error());
  const auto room = output_room(context, chat->tokens.size(), "messages");
  if (!room) return tl::unexpected(room.error());
  const std::int32_t max_tokens = std::min(generation.max_tokens.value_or(*room), *room);
  generation.sampling.grammar = chat->prompt.grammar;
  const char* source = !call.chat.grammar.empty()       ? "grammar"
                       : !call.chat.json_schema.empty() ? "response_format"
                                                        : "tools";
  if (auto ok = check_sampling(context, generation.sampling, source); !ok) {
    return tl::unexpected(ok.error());
  }
  GenerationJob job;
  FormatOptions format = format_options(context, generation);
  if (generation.verbose) format.shown_prompt = prompt_text(context, chat->tokens);
  job.format = make_chat_format(std::move(format));
  job.stream = generation.stream;
  job.n = generation.n;
  auto& stops = generation.stops;
  stops.insert(stops.end(), chat->prompt.extra_stops.begin(), chat->prompt.extra_stops.end());
  std::erase(stops, std::string());
  for (std::int32_t i = 0; i < generation.n; ++i) {
    job.requests.push_back(make_request(context, generation, chat->tokens, max_tokens, i));
    ChoiceOptions options = choice_options(generation, chat->tokens, max_tokens);
    options.index = i;
    options.parser = context.model.chat().make_parser(chat->prompt);
    options.keep_special |= chat->prompt.keep_special;
    job.choices.emplace_back(std::move(options), context.model.tokenizer());
  }
  return job;
}

ApiResult<GenerationJob> build_messages_job(const GatewayContext& context, ChatCall call) {
  auto format = make_messages_format(format_options(context, call.generation));
  auto job = build_chat_job(context, std::move(call));
  if (job) job->format = std::move(format);
  return job;
}

ApiResult<GenerationJob> build_responses_job(const GatewayContext& context, ResponsesCall call) {
  auto format = make_responses_format(format_options(context, call.generation), call);
  auto job = build_chat_job(context, {std::move(call.generation), std::move(call.chat)});
  if (job) job->format = std::move(format);
  return job;
}

ApiResult<GenerationJob> build_completion_job(const GatewayContext& context, CompletionCall call) {
  GenerationCall& generation = call.generation;
  if (!call.json_schema.empty()) {
    auto grammar = context.model.chat().schema_to_grammar(call.json_schema);
    if (!grammar) return tl::unexpected(to_api_error(grammar.error(), "response_format"));
    generation.sampling.grammar.gbnf = std::move(*grammar);
  }
  if (auto ok = ban_words(context, generation); !ok) return tl::unexpected(ok.error());
  if (auto ok = check_sampling(context, generation.sampling, "grammar"); !ok) {
    return tl::unexpected(ok.error());
  }
  const std::int32_t each = std::max(call.best_of, generation.n);
  const bool want_logprobs = generation.sampling.num_logprobs >= 0;
  if (each > generation.n && !want_logprobs) generation.sampling.num_logprobs = 0;
  const auto count = static_cast<std::int64_t>(call.prompts.size()) * each;
  if (count > context.options.limits.max_requests) {
    return bad_request(
        fmt::format("{} prompts with n={} are {} generations, above the limit of {}",
                    call.prompts.size(), each, count, context.options.limits.max_requests),
        "n");
  }
  GenerationJob job;
  job.format = make_completion_format(format_options(context, generation));
  job.stream = generation.stream;
  job.n = each;
  job.keep = generation.n;
  for (Prompt& item : call.prompts) {
    auto prompt = tokenize_prompt(context, call, item);
    if (!prompt) return tl::unexpected(std::move(prompt).error());
    for (std::int32_t i = 0; i < each; ++i) {
      // The prompt alone may be what is asked about: its log probabilities need a step.
      const bool idle = prompt->max_tokens == 0 && generation.sampling.prompt_logprobs < 0;
      job.requests.push_back(idle ? nullptr
                                  : make_request(context, generation, prompt->tokens,
                                                 std::max(1, prompt->max_tokens), i));
      ChoiceOptions options = choice_options(generation, prompt->tokens, prompt->max_tokens);
      options.index = static_cast<std::int32_t>(job.choices.size());
      options.want_logprobs = want_logprobs;
      if (call.echo) {
        options.echo = prompt->text;
        if (options.want_logprobs) options.prompt = prompt->tokens;
      }
      job.choices.emplace_back(std::move(options), context.model.tokenizer());
    }
  }
  return job;
}

void keep_best(GenerationJob& job) {
  if (job.keep == 0 || job.keep >= job.n) return;
  std::vector<Choice> best;
  for (auto first = job.choices.begin(); first != job.choices.end(); first += job.n) {
    std::vector<Choice*> group;
    for (auto choice = first; choice != first + job.n; ++choice) group.push_back(&*choice);
    std::stable_sort(group.begin(), group.end(), [](const Choice* a, const Choice* b) {
      return a->mean_logprob() > b->mean_logprob();
    });
    for (std::int32_t i = 0; i < job.keep; ++i) {
      best.push_back(std::move(*group[static_cast<std::size_t>(i)]));
      best.back().set_index(static_cast<std::int32_t>(best.size()) - 1);
    }
  }
  job.choices.swap(best);
}

}  // namespace sluice
