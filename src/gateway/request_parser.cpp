#include "gateway/request_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "gateway/request_fields.h"

namespace sluice {

namespace {

constexpr std::int32_t kDefaultCompletionTokens = 16;

// Parses the body and runs `read` over its fields; the first error wins.
template <class Call, class Read>
ApiResult<Call> parse_with(std::string_view body, const ParseContext& context, Read read) {
  auto json = parse_json_object(body, context.limits.max_json_depth);
  if (!json) return tl::unexpected(std::move(json).error());
  Call call;
  FieldReader fields(*json);
  read(fields, call);
  if (fields.failed()) return tl::unexpected(fields.error());
  return call;
}

void require_some_tokens(FieldReader& fields, const GenerationCall& call) {
  if (call.max_tokens == 0) fields.fail("max_tokens", "must be at least 1");
}

void read_best_of(FieldReader& fields, const ParseContext& context, CompletionCall& call) {
  const GenerationCall& generation = call.generation;
  call.best_of = static_cast<std::int32_t>(
      fields.integer("best_of", 1, context.limits.max_choices).value_or(generation.n));
  if (call.best_of < generation.n) {
    fields.fail("best_of", fmt::format("is {}, below n={}", call.best_of, generation.n));
  }
  if (call.best_of > generation.n && generation.stream) {
    fields.fail("best_of", "above 'n' is not available when 'stream' is true");
  }
}

void read_chat_logprobs(FieldReader& fields, const ParseContext& context, SamplingParams& s) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, context.limits.max_logprobs);
  if (top.value_or(0) > 0 && !wanted) {
    fields.fail("top_logprobs", "is allowed only when 'logprobs' is true");
  }
  if (wanted) s.num_logprobs = static_cast<std::int32_t>(top.value_or(0));
}

void add_prompt(FieldReader& fields, const ParseContext& context, const std::string& key,
                const Json& item, std::vector<Prompt>& prompts) {
  if (item.is_string()) {
    prompts.emplace_back(item.get<std::string>());
  } else if (item.is_array()) {
    if (auto tokens = read_token_list(fields, context, key, item)) {
      prompts.emplace_back(std::move(*tokens));
    }
  } else {
    fields.fail(key,
                fmt::format("must be a string or an array of tokens, not {}", item.type_name()));
  }
}

void read_prompts(FieldReader& fields, const ParseContext& context, std::vector<Prompt>& prompts) {
  const Json* prompt = fields.find("prompt");
  if (fields.failed()) return;
  if (!prompt) {
    if (!fields.is_null("prompt")) return fields.fail("prompt", "is missing");
    return void(prompts.emplace_back(std::monostate()));
  }
  const bool several = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  if (!several) return add_prompt(fields, context, "prompt", *prompt, prompts);
  if (prompt->size() > static_cast<std::size_t>(context.limits.max_prompts)) {
    return fields.fail("prompt", fmt::format("has {} prompts, above the limit of {}",
                                             prompt->size(), context.limits.max_prompts));
  }
  for (std::size_t i = 0; i < prompt->size() && !fields.failed(); ++i) {
    add_prompt(fields, context, fmt::format("prompt[{}]", i), (*prompt)[i], prompts);
  }
}

}  // namespace

ApiResult<ChatCall> parse_chat(std::string_view body, const ParseContext& context) {
  return parse_with<ChatCall>(body, context, [&](FieldReader& fields, ChatCall& call) {
    read_model(fields, context);
    read_conversation(fields, context, call.chat);
    read_generation(fields, context, call.generation);
    require_some_tokens(fields, call.generation);
    read_chat_logprobs(fields, context, call.generation.sampling);
    read_constraint(fields, context, call.chat.json_schema, call.chat.grammar);
    check_unused(fields);
    require_model(fields, context);
  });
}

ApiResult<CompletionCall> parse_completion(std::string_view body, const ParseContext& context) {
  return parse_with<CompletionCall>(body, context, [&](FieldReader& fields, CompletionCall& call) {
    read_model(fields, context);
    read_prompts(fields, context, call.prompts);
    read_generation(fields, context, call.generation);
    SamplingParams& sampling = call.generation.sampling;
    if (const auto n = fields.integer("logprobs", 0, context.limits.max_logprobs)) {
      sampling.num_logprobs = static_cast<std::int32_t>(*n);
    }
    call.echo = fields.boolean("echo").value_or(false);
    if (call.echo && sampling.num_logprobs >= 0) {
      sampling.prompt_logprobs = std::max(sampling.prompt_logprobs, sampling.num_logprobs);
    }
    read_best_of(fields, context, call);
    call.add_special = fields.boolean("add_special_tokens").value_or(true);
    // As OpenAI has it; a chat without a limit goes on to the end of its turn.
    const bool limited = fields.find("n_predict") || fields.find("max_tokens");
    if (!limited && sampling.forced_length == 0) {
      call.generation.max_tokens = kDefaultCompletionTokens;
    }
    read_constraint(fields, context, call.json_schema, sampling.grammar.gbnf);
    check_unused(fields);
    require_model(fields, context);
  });
}

ApiResult<TokenizeCall> parse_tokenize(std::string_view body, const ParseContext& context) {
  return parse_with<TokenizeCall>(body, context, [&](FieldReader& fields, TokenizeCall& call) {
    auto text = fields.string("content");
    if (!text && fields.find("prompt")) {  // vLLM's form, with its own default
      text = fields.string("prompt");
      call.add_special = fields.boolean("add_special_tokens").value_or(true);
    }
    call.add_special = fields.boolean("add_special").value_or(call.add_special);
    call.parse_special = fields.boolean("parse_special").value_or(true);
    call.with_pieces = fields.boolean("with_pieces").value_or(false);
    if (!text && fields.find("messages")) {
      read_conversation(fields, context, call.chat.emplace());
      call.add_special = fields.boolean("add_special_tokens").value_or(false);
    } else if (!text) {
      fields.fail("content", "is missing");
    }
    call.text = text.value_or("");
  });
}

ApiResult<std::vector<Token>> parse_detokenize(std::string_view body, const ParseContext& context) {
  return parse_with<std::vector<Token>>(
      body, context, [&](FieldReader& fields, std::vector<Token>& tokens) {
        const Json* items = fields.array("tokens", context.limits.max_body_bytes);
        if (!items) return fields.fail("tokens", "is missing");
        if (auto list = read_token_list(fields, context, "tokens", *items)) tokens = *list;
      });
}

ApiResult<ChatRequest> parse_conversation(std::string_view body, const ParseContext& context) {
  return parse_with<ChatRequest>(body, context, [&](FieldReader& fields, ChatRequest& chat) {
    read_conversation(fields, context, chat);
    read_constraint(fields, context, chat.json_schema, chat.grammar);
  });
}

}  // namespace sluice
