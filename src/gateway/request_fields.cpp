#include "gateway/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/regex_grammar.h"

namespace sluice {

namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMinInt64 = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

template <class T, class U>
void assign(T& target, const std::optional<U>& value) {
  if (value) target = static_cast<T>(*value);
}

void read_sampling(FieldReader& fields, SamplingParams& s) {
  assign(s.temperature, fields.number("temperature", 0, 2));
  assign(s.top_k, fields.integer("top_k", -1, kMaxInt32));
  assign(s.top_p, fields.number("top_p", 0, 1));
  if (s.top_p <= 0) s.top_p = 1e-6F;  // the best token only
  assign(s.min_p, fields.number("min_p", 0, 1));
  assign(s.typical_p, fields.number("typical_p", 0, 1));
  assign(s.presence_penalty, fields.number("presence_penalty", -2, 2));
  assign(s.frequency_penalty, fields.number("frequency_penalty", -2, 2));
  assign(s.repetition_penalty, fields.number("repeat_penalty", 0, 10));
  assign(s.repetition_penalty, fields.number("repetition_penalty", 0, 10));
  if (s.repetition_penalty <= 0) fields.fail("repetition_penalty", "must be above 0");
  assign(s.repeat_last_n, fields.integer("repeat_last_n", -1, kMaxInt32));
  assign(s.min_tokens, fields.integer("min_tokens", 0, kMaxInt32));
  assign(s.ignore_eos, fields.boolean("ignore_eos"));
}

// {"50256": -100}, or llama.cpp's [[50256, -100]] with false for a ban.
void read_logit_bias(FieldReader& fields, const ParseContext& context, SamplingParams& s) {
  const Json* bias = fields.find("logit_bias");
  if (!bias) return;
  if (bias->size() > static_cast<std::size_t>(context.limits.max_logit_bias)) {
    return fields.fail("logit_bias", fmt::format("has {} entries, above the limit of {}",
                                                 bias->size(), context.limits.max_logit_bias));
  }
  const auto add = [&](std::int64_t token, const Json& value) {
    if (token < 0 || token >= context.vocabulary_size) {
      return fields.fail("logit_bias", fmt::format("has token {}, which is not in [0, {})", token,
                                                   context.vocabulary_size));
    }
    double number = -std::numeric_limits<double>::infinity();
    if (value.is_number()) {
      number = value.get<double>();
      if (!(std::abs(number) <= 100)) {
        return fields.fail("logit_bias", "must have values between -100 and 100");
      }
    } else if (!value.is_boolean() || value.get<bool>()) {
      return fields.fail("logit_bias", "must have numbers as values");
    }
    s.logit_bias.emplace_back(static_cast<Token>(token), static_cast<float>(number));
  };
  if (bias->is_object()) {
    for (const auto& [key, value] : bias->items()) {
      std::int64_t token = -1;
      const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), token);
      if (ec != std::errc() || end != key.data() + key.size()) {
        return fields.fail("logit_bias", fmt::format("has the key \"{}\", which is not a token id",
                                                     key.substr(0, 40)));
      }
      add(token, value);
    }
  } else if (bias->is_array()) {
    for (const Json& pair : *bias) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer()) {
        return fields.fail("logit_bias", "must be a map, or a list of [token id, bias]");
      }
      add(pair[0].get<std::int64_t>(), pair[1]);
    }
  } else {
    fields.fail("logit_bias", fmt::format("must be an object, not {}", bias->type_name()));
  }
}

}  // namespace

std::optional<Token> read_token(const Json& item, const ParseContext& context) {
  if (!item.is_number_integer()) return std::nullopt;
  if (item.is_number_unsigned() && item.get<std::uint64_t>() > INT32_MAX) return std::nullopt;
  const auto token = item.get<std::int64_t>();
  if (token < 0 || token >= context.vocabulary_size) return std::nullopt;
  return static_cast<Token>(token);
}

std::optional<std::vector<Token>> read_token_list(FieldReader& fields, const ParseContext& context,
                                                  std::string_view key, const Json& items) {
  std::vector<Token> tokens;
  tokens.reserve(items.size());
  for (const Json& item : items) {
    const auto token = read_token(item, context);
    if (!token) {
      fields.fail(key, fmt::format("has {}, which is not a token in [0, {})",
                                   dump_json(item).substr(0, 40), context.vocabulary_size));
      return std::nullopt;
    }
    tokens.push_back(*token);
  }
  return tokens;
}

namespace {

// Lists of tokens, as vLLM has them.
void read_token_limits(FieldReader& fields, const ParseContext& context, GenerationCall& call) {
  SamplingParams& s = call.sampling;
  const auto limit = static_cast<std::size_t>(context.limits.max_listed_tokens);
  const auto read = [&](const char* key, std::vector<Token>& into) {
    const Json* items = fields.array(key, limit);
    if (!items) return;
    if (auto tokens = read_token_list(fields, context, key, *items)) into = std::move(*tokens);
  };
  read("stop_token_ids", s.stop_tokens);
  read("allowed_token_ids", s.allowed_tokens);
  read("logprob_token_ids", s.logprob_tokens);
  if (const Json* words = fields.array("bad_words", limit)) {
    for (const Json& word : *words) {
      if (!word.is_string() || word.get_ref<const std::string&>().empty() ||
          word.get_ref<const std::string&>().size() > context.limits.max_stop_bytes) {
        return fields.fail("bad_words", fmt::format("must be strings of 1 to {} bytes",
                                                    context.limits.max_stop_bytes));
      }
      call.bad_words.push_back(word.get<std::string>());
    }
  }
}

// What is cut off a prompt, and what more is told of it and of the answer (vLLM's fields).
void read_extras(FieldReader& fields, const ParseContext& context, GenerationCall& call) {
  assign(call.include_stop, fields.boolean("include_stop_str_in_output"));
  if (const auto skip = fields.boolean("skip_special_tokens")) call.keep_special = !*skip;
  if (const auto keep = fields.integer("truncate_prompt_tokens", -1, kMaxInt32)) {
    if (*keep == 0) return fields.fail("truncate_prompt_tokens", "must be at least 1, or -1");
    call.truncate_prompt = static_cast<std::int32_t>(std::max<std::int64_t>(*keep, 0));
  }
  if (const auto side = fields.string("truncation_side")) {
    if (*side != "left" && *side != "right") {
      return fields.fail("truncation_side", "must be left or right");
    }
    call.truncate_right = *side == "right";
  }
  assign(call.return_token_ids, fields.boolean("return_token_ids"));
  assign(call.tokens_as_ids, fields.boolean("return_tokens_as_token_ids"));
  if (const auto n = fields.integer("prompt_logprobs", 0, context.limits.max_logprobs)) {
    call.sampling.prompt_logprobs = static_cast<std::int32_t>(*n);
    call.prompt_logprobs = true;
  }
}

void read_stops(FieldReader& fields, const ParseContext& context, std::vector<std::string>& stops) {
  const Json* stop = fields.find("stop");
  if (!stop) return;
  const auto add = [&](const Json& item) {
    if (!item.is_string()) {
      return fields.fail(
          "stop", fmt::format("must be a string or an array of strings, not {}", item.type_name()));
    }
    auto text = item.get<std::string>();
    if (text.size() > context.limits.max_stop_bytes) {
      return fields.fail("stop", fmt::format("has a string of {} bytes, above the limit of {}",
                                             text.size(), context.limits.max_stop_bytes));
    }
    if (!text.empty()) stops.push_back(std::move(text));
  };
  if (!stop->is_array()) return add(*stop);
  if (stop->size() > static_cast<std::size_t>(context.limits.max_stop_strings)) {
    return fields.fail("stop", fmt::format("has {} strings, above the limit of {}", stop->size(),
                                           context.limits.max_stop_strings));
  }
  for (const Json& item : *stop) add(item);
}

void read_max_tokens(FieldReader& fields, GenerationCall& call) {
  for (const char* key : {"n_predict", "max_tokens", "max_completion_tokens"}) {
    if (const auto value = fields.integer(key, -1, kMaxInt32)) {
      call.max_tokens = static_cast<std::int32_t>(*value);
    }
  }
  if (call.max_tokens == -1) call.max_tokens.reset();  // llama.cpp's "no limit"
  if (call.max_tokens && call.sampling.min_tokens > *call.max_tokens) {
    fields.fail("min_tokens", fmt::format("is {}, above max_tokens {}", call.sampling.min_tokens,
                                          *call.max_tokens));
  }
}

void read_streaming(FieldReader& fields, GenerationCall& call) {
  call.stream = fields.boolean("stream").value_or(false);
  const Json* options = fields.object("stream_options");
  if (!options) return;
  if (!call.stream) return fields.fail("stream_options", "is allowed only when 'stream' is true");
  FieldReader inner(*options, "stream_options.");
  call.include_usage = inner.boolean("include_usage").value_or(false);
  call.continuous_usage =
      inner.boolean("continuous_usage_stats").value_or(false) && call.include_usage;
  if (inner.failed()) fields.fail(inner.error());
}

}  // namespace

void read_model(FieldReader& fields, const ParseContext& context) {
  const auto model = fields.string("model");
  if (!model || context.accept_any_model || *model == context.model_id) return;
  const auto& aliases = context.model_aliases;
  if (std::find(aliases.begin(), aliases.end(), *model) != aliases.end()) return;
  ApiError error;
  error.status = 404;
  error.message = fmt::format("the model '{}' does not exist here; this server has '{}'",
                              model->substr(0, 200), context.model_id);
  error.param = "model";
  error.code = "model_not_found";
  fields.fail(std::move(error));
}

void require_model(FieldReader& fields, const ParseContext& context) {
  if (context.accept_any_model || fields.find("model")) return;
  fields.fail("model", fmt::format("is missing; this server has '{}'", context.model_id));
}

void read_generation(FieldReader& fields, const ParseContext& context, GenerationCall& call) {
  read_sampling(fields, call.sampling);
  read_logit_bias(fields, context, call.sampling);
  if (const auto seed = fields.integer("seed", kMinInt64, kMaxInt64)) {
    call.has_seed = true;
    call.sampling.seed = static_cast<std::uint64_t>(*seed);
  }
  read_max_tokens(fields, call);
  call.n =
      static_cast<std::int32_t>(fields.integer("n", 1, context.limits.max_choices).value_or(1));
  assign(call.timings, fields.boolean("timings_per_token"));
  assign(call.progress, fields.boolean("return_progress"));
  assign(call.verbose, fields.boolean("verbose"));
  read_stops(fields, context, call.stops);
  read_token_limits(fields, context, call);
  read_extras(fields, context, call);
  read_streaming(fields, call);
  if (call.stream && call.prompt_logprobs) {
    fields.fail("prompt_logprobs", "is not available when 'stream' is true");
  }
  assign(call.priority, fields.integer("priority", -kMostPriority, kMostPriority));
  assign(call.length_hint, fields.integer("sluice_length_hint", 1, kMaxInt32));
  call.length_class = fields.string("sluice_length_class").value_or("");
  if (call.length_class.size() > context.limits.max_length_class_bytes) {
    return fields.fail("sluice_length_class",
                       fmt::format("has {} bytes, above the limit of {}", call.length_class.size(),
                                   context.limits.max_length_class_bytes));
  }
  if (const auto length = fields.integer("sluice_output_length", 1, kMaxInt32)) {
    if (!context.benchmark) {
      return fields.fail("sluice_output_length", "is only for a server started with --benchmark");
    }
    call.sampling.forced_length = static_cast<std::int32_t>(*length);
  }
}

namespace {

std::string limited(FieldReader& fields, const ParseContext& context, std::string_view key,
                    std::string text) {
  if (text.size() > context.limits.max_grammar_bytes) {
    fields.fail(key, fmt::format("has {} bytes, above the limit of {}", text.size(),
                                 context.limits.max_grammar_bytes));
  }
  return text;
}

std::string read_schema(FieldReader& fields, const ParseContext& context, std::string_view key) {
  const Json* schema = fields.find(key);
  if (!schema) return {};
  if (!schema->is_object() && !schema->is_boolean()) {
    fields.fail(key, fmt::format("must be a JSON schema, not {}", schema->type_name()));
    return {};
  }
  return limited(fields, context, key, dump_json(*schema));
}

std::string gbnf_literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else {
      out.push_back(c);
    }
  }
  return out + "\"";
}

std::string read_choice(FieldReader& fields, const ParseContext& context, std::string_view key) {
  const Json* choices = fields.array(key, 1'024);
  if (!choices) return {};
  std::string grammar = "root ::= ";
  for (const Json& choice : *choices) {
    if (!choice.is_string()) {
      fields.fail(key, "must be an array of strings");
      return {};
    }
    if (&choice != &choices->front()) grammar += " | ";
    grammar += gbnf_literal(choice.get_ref<const std::string&>());
  }
  if (choices->empty()) fields.fail(key, "must have at least one string");
  return limited(fields, context, key, std::move(grammar));
}

void read_response_format(FieldReader& fields, const ParseContext& context,
                          std::string& json_schema) {
  const Json* format = fields.object("response_format");
  if (!format) return;
  FieldReader inner(*format, fields.name("response_format."));
  const auto type = inner.string("type");
  if (!type) {
    inner.fail("type", "is missing");
  } else if (*type == "json_object") {
    json_schema = read_schema(inner, context, "schema");
    if (json_schema.empty()) json_schema = R"({"type":"object"})";
  } else if (*type == "json_schema") {
    // Chat completions wrap the schema; Responses put it beside the type.
    const Json* wrapper = inner.object("json_schema");
    if (!wrapper && !inner.find("schema")) inner.fail("json_schema", "is missing");
    FieldReader schema(wrapper ? *wrapper : *format, inner.name(wrapper ? "json_schema." : ""));
    json_schema = read_schema(schema, context, "schema");
    if (json_schema.empty()) schema.fail("schema", "is missing");
    if (schema.failed()) inner.fail(schema.error());
  } else if (*type != "text") {
    inner.fail("type", fmt::format("is '{}' but must be text, json_object or json_schema",
                                   type->substr(0, 40)));
  }
  if (inner.failed()) fields.fail(inner.error());
}

// vLLM: structured_outputs.{json,json_object,choice,regex,grammar}, and the older guided_*.
void read_structured(FieldReader& fields, const ParseContext& context, std::string_view prefix,
                     std::string& json_schema, std::string& grammar) {
  const auto key = [&](const char* name) { return std::string(prefix) + name; };
  if (fields.find(key("json"))) json_schema = read_schema(fields, context, key("json"));
  if (fields.boolean(key("json_object")).value_or(false)) json_schema = R"({"type":"object"})";
  if (fields.find(key("choice"))) grammar = read_choice(fields, context, key("choice"));
  if (const auto text = fields.string(key("grammar"))) {
    grammar = limited(fields, context, key("grammar"), *text);
  }
  if (const auto regex = fields.string(key("regex"))) {
    auto gbnf = regex_to_gbnf(limited(fields, context, key("regex"), *regex));
    if (gbnf) {
      grammar = std::move(*gbnf);
    } else {
      fields.fail(key("regex"), gbnf.error().message);
    }
  }
}

}  // namespace

void read_constraint(FieldReader& fields, const ParseContext& context, std::string& json_schema,
                     std::string& grammar) {
  read_response_format(fields, context, json_schema);
  if (fields.find("json_schema")) json_schema = read_schema(fields, context, "json_schema");
  if (const auto text = fields.string("grammar")) {
    grammar = limited(fields, context, "grammar", *text);
  }
  read_structured(fields, context, "guided_", json_schema, grammar);
  if (const Json* structured = fields.object("structured_outputs")) {
    FieldReader inner(*structured, "structured_outputs.");
    read_structured(inner, context, "", json_schema, grammar);
    if (inner.failed()) fields.fail(inner.error());
  }
  if (!json_schema.empty() && !grammar.empty()) {
    fields.fail("grammar", "and a JSON schema cannot both be given");
  }
}

void check_unused(FieldReader& fields) {
  for (const char* key : {"user", "service_tier", "reasoning_effort", "verbosity",
                          "prompt_cache_key", "safety_identifier"}) {
    (void)fields.string(key);
  }
  for (const char* key : {"metadata", "prediction", "web_search_options"}) {
    (void)fields.object(key);
  }
  (void)fields.boolean("store");
  if (!fields.string("suffix").value_or("").empty()) {
    fields.fail_incapable("suffix", "is not supported by this model");
  }
  if (const Json* modalities = fields.array("modalities", 16)) {
    for (const Json& modality : *modalities) {
      if (modality != "text") {
        fields.fail_incapable("modalities", "other than [\"text\"] are not supported");
      }
    }
  }
}

}  // namespace sluice
