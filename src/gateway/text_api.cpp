// /v1/models, /tokenize, /detokenize, /apply-template: what the model's text side
// answers without generating.
#include <fmt/format.h>

#include <utility>

#include "gateway/api.h"
#include "gateway/generation_job.h"
#include "gateway/json_writer.h"
#include "model/utf8.h"

namespace sluice {

namespace {

void write_model(JsonWriter& json, const GatewayContext& context) {
  const ModelInfo& info = context.model.info();
  json.begin_object().member("id", context.parse.model_id).member("object", "model");
  json.member("created", context.created).member("owned_by", "sluice");
  json.member("max_model_len", context.context_tokens);
  json.key("aliases").begin_array();
  for (const std::string& alias : context.parse.model_aliases) json.value(alias);
  json.end_array().key("meta").begin_object();
  json.member("name", info.name).member("architecture", info.architecture);
  json.member("quantization", info.quantization).member("n_vocab", info.vocabulary_size);
  json.member("n_ctx", context.context_tokens).member("n_ctx_train", info.trained_context);
  json.member("n_embd", info.embedding_size).member("n_params", info.num_parameters);
  json.member("size", info.weight_bytes).end_object().end_object();
}

HttpResponse list_models(const GatewayContext& context, const HttpRequest&) {
  HttpResponse response;
  JsonWriter json(response.body);
  json.begin_object().member("object", "list").key("data").begin_array();
  write_model(json, context);
  json.end_array().end_object();
  return response;
}

HttpResponse one_model(const GatewayContext& context, const HttpRequest& request) {
  constexpr std::string_view kModels = "/models/";
  const std::string id = request.path.substr(request.path.find(kModels) + kModels.size());
  bool known = context.parse.accept_any_model || id == context.parse.model_id;
  for (const std::string& alias : context.parse.model_aliases) known |= id == alias;
  if (!known) {
    ApiError error;
    error.status = 404;
    error.message = fmt::format("the model '{}' does not exist here; this server has '{}'", id,
                                context.parse.model_id);
    error.param = "model";
    error.code = "model_not_found";
    return to_response(error);
  }
  HttpResponse response;
  JsonWriter json(response.body);
  write_model(json, context);
  return response;
}

// As text if it is some, else as bytes.
void write_piece(JsonWriter& json, const std::string& piece) {
  json.key("piece");
  if (is_utf8(piece)) {
    json.value(piece);
    return;
  }
  json.begin_array();
  for (const char c : piece) json.value(static_cast<int>(static_cast<unsigned char>(c)));
  json.end_array();
}

HttpResponse tokenize(const GatewayContext& context, const HttpRequest& request) {
  auto call = parse_tokenize(request.body, context.parse);
  if (!call) return to_response(call.error());
  if (call->chat) {
    auto prompt = context.model.chat().apply(*call->chat);
    if (!prompt) return to_response(to_api_error(prompt.error(), "messages"));
    call->text = std::move(prompt->text);
  }
  const Tokenizer& tokenizer = context.model.tokenizer();
  auto tokens = tokenizer.tokenize(
      call->text, {.add_special = call->add_special, .parse_special = call->parse_special});
  if (!tokens) return to_response(to_api_error(tokens.error(), "content"));
  HttpResponse response;
  JsonWriter json(response.body);
  json.begin_object().key("tokens").begin_array();
  for (const Token token : *tokens) {
    if (!call->with_pieces) {
      json.value(token);
      continue;
    }
    json.begin_object().member("id", token);
    write_piece(json, tokenizer.piece(token, true));
    json.end_object();
  }
  json.end_array().member("count", tokens->size());
  json.member("max_model_len", context.context_tokens).end_object();
  return response;
}

HttpResponse detokenize(const GatewayContext& context, const HttpRequest& request) {
  auto tokens = parse_detokenize(request.body, context.parse);
  if (!tokens) return to_response(tokens.error());
  std::string text;
  for (const Token token : *tokens) text += context.model.tokenizer().piece(token, true);
  HttpResponse response;
  JsonWriter json(response.body);
  json.begin_object().member("content", text).member("prompt", text).end_object();
  return response;
}

HttpResponse apply_template(const GatewayContext& context, const HttpRequest& request) {
  auto chat = parse_conversation(request.body, context.parse);
  if (!chat) return to_response(chat.error());
  auto prompt = context.model.chat().apply(*chat);
  if (!prompt) return to_response(to_api_error(prompt.error(), "messages"));
  HttpResponse response;
  JsonWriter json(response.body);
  json.begin_object().member("prompt", prompt->text).end_object();
  return response;
}

HttpResponse count_tokens(const GatewayContext& context, const HttpRequest& request) {
  auto chat = parse_conversation(request.body, context.parse);
  if (!chat) return to_response(chat.error());
  auto tokenized = tokenize_chat(context, *chat);
  if (!tokenized) return to_response(tokenized.error());
  HttpResponse response;
  JsonWriter json(response.body);
  json.begin_object().member("input_tokens", tokenized->tokens.size()).end_object();
  return response;
}

HttpResponse count_message_tokens(const GatewayContext& context, const HttpRequest& request) {
  auto chat = parse_messages_conversation(request.body, context.parse);
  if (!chat) return messages_error(chat.error());
  auto tokenized = tokenize_chat(context, *chat);
  if (!tokenized) return messages_error(tokenized.error());
  HttpResponse response;
  JsonWriter json(response.body);
  json.begin_object().member("input_tokens", tokenized->tokens.size()).end_object();
  return response;
}

}  // namespace

void add_text_routes(Router& router, GatewayContext& context) {
  using Answer = HttpResponse (*)(const GatewayContext&, const HttpRequest&);
  const auto add = [&](const char* method, const char* path, Answer answer) {
    const RouteHandler handler = [&context, answer](Exchange& exchange) -> Task<void> {
      const HttpResponse response = answer(context, exchange.request());
      co_await exchange.respond(response);
    };
    router.add({method, path, handler});
    router.add({method, std::string("/v1") + path, handler});
  };
  add("GET", "/models", list_models);
  add("GET", "/models/*", one_model);
  add("POST", "/tokenize", tokenize);
  add("POST", "/detokenize", detokenize);
  add("POST", "/apply-template", apply_template);
  add("POST", "/chat/completions/input_tokens", count_tokens);
  add("POST", "/messages/count_tokens", count_message_tokens);
}

}  // namespace sluice
