#include <chat.h>
#include <fmt/format.h>
#include <json-schema-to-grammar.h>
#include <llama.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model/ggml/chat_input.h"
#include "model/ggml/chat_parser.h"
#include "model/ggml/llama_text.h"

namespace sluice {
namespace {

// How a model whose own template knows no tools is shown them and told to call
// them. Its own template still writes the prompt; this one only tells
// llama-common the format of a call, from which it makes grammar and parser.
constexpr const char* kToolTemplate = R"({%- if tools %}<|im_start|>system
# Tools
<tools>{%- for tool in tools %}
{{ tool | tojson }}{%- endfor %}
</tools>
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.tool_calls %}<|im_start|>assistant
{%- if message.content %}
{{ message.content }}{%- endif %}
{%- for tool_call in message.tool_calls %}
<tool_call>
{"name": "{{ tool_call.function.name }}", "arguments": {{ tool_call.function.arguments | tojson }}}
</tool_call>{%- endfor %}<|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %})";

std::string describe_tools(const std::vector<common_chat_tool>& tools) {
  std::string text =
      "# Tools\n\nYou may call one or more functions to answer. Their signatures are in "
      "<tools></tools>:\n<tools>\n";
  for (const common_chat_tool& tool : tools) {
    text += common_chat_tools_to_json_oaicompat({tool}).at(0).dump() + "\n";
  }
  text +=
      "</tools>\n\nTo call a function, write a JSON object with its name and arguments in "
      "<tool_call></tool_call>:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
      "<arguments-object>}\n</tool_call>";
  return text;
}

// The conversation in words that every template knows: system, user, assistant.
std::vector<common_chat_msg> without_tools(const std::vector<common_chat_msg>& messages,
                                           const std::vector<common_chat_tool>& tools) {
  std::vector<common_chat_msg> plain;
  bool after_tool = false;
  for (const common_chat_msg& message : messages) {
    common_chat_msg next = message;
    const bool is_tool = message.role == "tool";
    next.content = message.render_content("\n");
    next.content_parts.clear();
    next.tool_calls.clear();
    next.tool_call_id.clear();
    next.tool_name.clear();
    if (is_tool) {
      next.role = "user";
      next.content = "<tool_response>\n" + next.content + "\n</tool_response>";
    }
    for (const common_chat_tool_call& call : message.tool_calls) {
      if (!next.content.empty()) next.content += "\n";
      next.content += "<tool_call>\n{\"name\": " + common_json::make(call.name).dump() +
                      ", \"arguments\": " + call.arguments + "}\n</tool_call>";
    }
    if (is_tool && after_tool) {
      plain.back().content += "\n" + next.content;  // templates want roles to alternate
    } else {
      plain.push_back(std::move(next));
    }
    after_tool = is_tool;
  }
  if (tools.empty()) return plain;
  if (plain.empty() || (plain[0].role != "system" && plain[0].role != "developer")) {
    common_chat_msg system;
    system.role = "system";
    plain.insert(plain.begin(), std::move(system));
  }
  if (!plain[0].content.empty()) plain[0].content += "\n\n";
  plain[0].content += describe_tools(tools);
  return plain;
}

// The parser keeps all of the output as content.
bool keeps_all(const std::string& parser) {
  if (parser.empty()) return true;
  const common_json spec = common_json::parse(parser);
  bool content = false;
  for (std::size_t i = 0; i < spec.at("parsers").size(); ++i) {
    const common_json& part = spec.at("parsers").at(i);
    const std::string type = part.at("type").get<std::string>();
    if (type == "until" && part.at("delimiters").empty()) continue;
    if (type == "tag" && part.at("tag").get<std::string>() == "content") {
      content = true;
    } else if (type != "epsilon" && type != "end" && type != "literal" && type != "sequence") {
      return false;
    }
  }
  return content;
}

class LlamaChat final : public ChatTemplate {
 public:
  LlamaChat(const llama_model& model, const std::string& chat_template)
      : vocab_(llama_model_get_vocab(&model)),
        templates_(common_chat_templates_init(&model, chat_template)),
        tool_format_(common_chat_templates_init(&model, kToolTemplate)) {
    const auto abilities = common_chat_templates_get_caps(templates_.get());
    const auto able = [&](const char* what) {
      const auto found = abilities.find(what);
      return found != abilities.end() && found->second;
    };
    knows_tools_ = able("supports_tools") && able("supports_tool_calls");
    plain_ = is_plain();
  }

  Result<ChatPrompt> apply(const ChatRequest& request) const override {
    TRY(auto inputs, read(request));
    std::string begun;  // of the answer
    try {
      if (request.continue_final) {
        begun = inputs.messages.back().render_content();  // which may be in parts
        inputs.messages.pop_back();
      }
      TRY(ChatPrompt prompt, apply_checked(request, std::move(inputs)));
      prompt.text += begun;
      return prompt;
    } catch (const std::exception& e) {
      return fail(ErrorCode::kInvalidArgument, std::string("the chat template: ") + e.what());
    }
  }

  std::unique_ptr<ChatParser> make_parser(const ChatPrompt& prompt) const override {
    return make_chat_parser(prompt.parser_spec);
  }

  Result<std::string> schema_to_grammar(std::string_view schema) const override {
    TRY(const common_json json, read_schema(schema));
    try {
      return json_schema_to_grammar(json, true);
    } catch (const std::exception& e) {
      return fail(ErrorCode::kInvalidArgument, e.what());
    }
  }

 private:
  // Output without tools and schema is text as it is, and llama-common's short way
  // to a prompt gives the same prompt as its long one.
  bool is_plain() const {
    common_chat_templates_inputs inputs;
    inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    for (const char* role : {"system", "user", "assistant", "user"}) {
      common_chat_msg message;
      message.role = role;
      message.content = std::string("probe of ") + role;
      inputs.messages.push_back(std::move(message));
    }
    try {
      const common_chat_params full = common_chat_templates_apply(templates_.get(), inputs);
      inputs.force_pure_content = true;
      const common_chat_params quick = common_chat_templates_apply(templates_.get(), inputs);
      return !full.supports_thinking && full.additional_stops.empty() &&
             full.prompt == quick.prompt && keeps_all(full.parser);
    } catch (const std::exception&) {
      return false;
    }
  }

  Result<common_chat_templates_inputs> read(const ChatRequest& request) const {
    common_chat_templates_inputs inputs;
    TRY(inputs.messages, read_messages(request.messages_json));
    TRY(inputs.tools, read_tools(request.tools_json));
    TRY_STATUS(choose_tools(request, inputs));
    TRY(inputs.chat_template_kwargs, read_template_variables(request.template_kwargs_json));
    inputs.enable_thinking = request.enable_thinking;
    const auto thinking = inputs.chat_template_kwargs.find("enable_thinking");
    if (thinking != inputs.chat_template_kwargs.end()) {
      if (thinking->second != "true" && thinking->second != "false") {
        return fail(ErrorCode::kInvalidArgument,
                    "chat_template_kwargs.enable_thinking must be a boolean");
      }
      inputs.enable_thinking = thinking->second == "true";
    }
    if (!request.json_schema.empty() && !request.grammar.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "a request has a JSON schema or a grammar, not both");
    }
    if (!request.grammar.empty() && calls_tools(inputs)) {
      return fail(ErrorCode::kInvalidArgument, "a request has tools or a grammar, not both");
    }
    if (!request.json_schema.empty()) {
      TRY(const common_json schema, read_schema(request.json_schema));
      inputs.json_schema = schema.dump();
    }
    inputs.add_generation_prompt = request.add_generation_prompt || request.continue_final;
    if (request.continue_final) {
      if (inputs.messages.back().role != "assistant" ||
          !inputs.messages.back().tool_calls.empty()) {
        return fail(ErrorCode::kInvalidArgument,
                    "continue_final_message needs a last message that is an assistant's text");
      }
    }
    inputs.parallel_tool_calls = request.parallel_tool_calls;
    inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    return inputs;
  }

  static bool calls_tools(const common_chat_templates_inputs& inputs) {
    return !inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
  }

  static Status choose_tools(const ChatRequest& request, common_chat_templates_inputs& inputs) {
    if (!request.forced_tool.empty()) {
      std::erase_if(inputs.tools,
                    [&](const common_chat_tool& tool) { return tool.name != request.forced_tool; });
      if (inputs.tools.empty()) {
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("tool_choice names the function \"{}\", which is not in tools",
                                request.forced_tool));
      }
      inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
      return {};
    }
    if (request.tool_choice == "required") {
      inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    } else if (request.tool_choice == "none") {
      inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_NONE;
    } else if (request.tool_choice != "auto" && !request.tool_choice.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("tool_choice is \"{}\"; it must be auto, required or none",
                              request.tool_choice));
    }
    if (inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED && inputs.tools.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "tool_choice is \"required\", but there are no tools");
    }
    return {};
  }

  Result<ChatPrompt> apply_checked(const ChatRequest& request,
                                   common_chat_templates_inputs inputs) const {
    const bool tools = calls_tools(inputs);
    if (!knows_tools_) return apply_plain_messages(request, std::move(inputs));
    if (!tools && plain_) return apply_plain(request, std::move(inputs));
    common_chat_params params = common_chat_templates_apply(templates_.get(), inputs);
    const std::string call = grammar_of_a_call(templates_.get(), std::move(inputs), params.grammar);
    return finish(request, std::move(params), call);
  }

  // For a call that must come, llama-common's grammar lets the model talk before it, without an
  // end if it likes. Its grammar of calls that may come starts where a call does; the same start
  // for this one makes the answer a call from the first token on. Empty: no call must come, or
  // the format has no such rule.
  static std::string grammar_of_a_call(const common_chat_templates* templates,
                                       common_chat_templates_inputs inputs,
                                       const std::string& required) {
    if (inputs.tools.empty() || inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_REQUIRED) return {};
    inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_AUTO;
    const common_chat_params lazy = common_chat_templates_apply(templates, inputs);
    if (!lazy.grammar_lazy) return {};
    std::string start = rule_body(lazy.grammar, "root");
    const bool one_call = !inputs.parallel_tool_calls && !rule_body(required, "tool-call").empty();
    if (one_call) start = "tool-call";
    if (rule_body(required, start).empty()) return {};
    const std::string head = "root ::= ";
    std::string grammar = "\n" + required;
    const std::size_t at = grammar.find("\n" + head);
    if (at == std::string::npos) return {};
    grammar.replace(at + 1, grammar.find('\n', at + 1) - at - 1, head + start);
    return grammar.substr(1);
  }

  // What stands right of ::= in a grammar as llama-common writes it, a rule a line; empty: no rule.
  static std::string rule_body(const std::string& grammar, const std::string& name) {
    const std::string text = "\n" + grammar;
    const std::string head = "\n" + name + " ::= ";
    const std::size_t at = text.find(head);
    if (at == std::string::npos) return {};
    const std::size_t begin = at + head.size();
    return text.substr(begin, text.find('\n', begin) - begin);
  }

  // For a template that knows no tools: they go into the text.
  Result<ChatPrompt> apply_plain_messages(const ChatRequest& request,
                                          common_chat_templates_inputs inputs) const {
    const bool tools = calls_tools(inputs);
    common_chat_templates_inputs format = inputs;
    inputs.messages =
        without_tools(inputs.messages, tools ? inputs.tools : std::vector<common_chat_tool>());
    inputs.tools.clear();
    if (!tools && plain_) return apply_plain(request, std::move(inputs));
    if (!tools) return finish(request, common_chat_templates_apply(templates_.get(), inputs));
    inputs.json_schema.clear();
    common_chat_params params = common_chat_templates_apply(tool_format_.get(), format);
    params.prompt = common_chat_templates_apply(templates_.get(), inputs).prompt;
    const std::string call =
        grammar_of_a_call(tool_format_.get(), std::move(format), params.grammar);
    return finish(request, std::move(params), call);
  }

  // No tools, and output that is text: the schema is all that there is to add.
  Result<ChatPrompt> apply_plain(const ChatRequest& request,
                                 common_chat_templates_inputs inputs) const {
    ChatPrompt prompt;
    prompt.grammar.gbnf = request.grammar;
    if (!inputs.json_schema.empty()) {
      prompt.grammar.gbnf = json_schema_to_grammar(common_json::parse(inputs.json_schema), true);
      inputs.json_schema.clear();
    }
    inputs.force_pure_content = true;
    prompt.text = common_chat_templates_apply(templates_.get(), inputs).prompt;
    return prompt;
  }

  // `call`: the grammar of an answer that is a tool call, if it must be one.
  Result<ChatPrompt> finish(const ChatRequest& request, common_chat_params params,
                            const std::string& call = {}) const {
    ChatPrompt prompt;
    prompt.parser_spec = write_parser_spec(params);
    prompt.text = std::move(params.prompt);
    prompt.extra_stops = std::move(params.additional_stops);
    if (!request.grammar.empty()) {
      prompt.grammar.gbnf = request.grammar;
    } else if (!call.empty()) {
      prompt.grammar.gbnf = call;
    } else if (!params.grammar.empty()) {
      set_grammar(params, prompt.grammar);
    }
    prompt.keep_special =
        std::any_of(params.preserved_tokens.begin(), params.preserved_tokens.end(),
                    [this](const auto& text) { return is_hidden(text); });
    return prompt;
  }

  // llama-common says which tokens and texts wake a grammar; see its sampling.cpp.
  static void set_grammar(const common_chat_params& params, GrammarSpec& grammar) {
    grammar.gbnf = params.grammar;
    grammar.lazy = params.grammar_lazy;
    if (!grammar.lazy) {
      grammar.prefill = params.generation_prompt;
      return;
    }
    for (const common_grammar_trigger& trigger : params.grammar_triggers) {
      switch (trigger.type) {
        case COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN:
          grammar.trigger_tokens.push_back(trigger.token);
          break;
        case COMMON_GRAMMAR_TRIGGER_TYPE_WORD:
          grammar.trigger_words.push_back(trigger.value);
          break;
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN:
          grammar.trigger_patterns.push_back(trigger.value);
          break;
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL: {
          const std::string& value = trigger.value;
          const bool begins = !value.empty() && value.front() == '^';
          const bool ends = !value.empty() && value.back() == '$';
          grammar.trigger_patterns.push_back((begins ? "" : "^") + value + (ends ? "" : "$"));
          break;
        }
      }
    }
  }

  // The text is one token whose text is not shown.
  bool is_hidden(const std::string& text) const {
    llama_token tokens[2];
    const std::int32_t n = llama_tokenize(
        vocab_, text.data(), static_cast<std::int32_t>(text.size()), tokens, 2, false, true);
    char piece[8];
    return n == 1 && llama_token_to_piece(vocab_, tokens[0], piece, sizeof(piece), 0, false) == 0;
  }

  const llama_vocab* vocab_;
  common_chat_templates_ptr templates_;
  common_chat_templates_ptr tool_format_;
  bool knows_tools_ = false;
  bool plain_ = false;
};

}  // namespace

Result<std::unique_ptr<ChatTemplate>> make_llama_chat(const llama_model& vocabulary,
                                                      const std::string& chat_template) {
  try {
    return std::make_unique<LlamaChat>(vocabulary, chat_template);
  } catch (const std::exception& e) {
    return fail(ErrorCode::kInvalidArgument,
                std::string("the chat template does not parse: ") + e.what());
  }
}

}  // namespace sluice
