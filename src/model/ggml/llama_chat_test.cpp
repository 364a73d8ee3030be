#include <gtest/gtest.h>
#include <llama.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "model/ggml/text_test_models.h"
#include "model/grammar_state.h"

namespace sluice {
namespace {

constexpr const char* kUser = R"([{"role":"user","content":"What is the weather in Rome?"}])";
constexpr const char* kWeather = R"([{"type":"function","function":{"name":"get_weather",
  "description":"Weather of a city","parameters":{"type":"object",
  "properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}}},
  {"type":"function","function":{"name":"noop"}}])";

struct FreeModel {
  void operator()(llama_model* model) const { llama_model_free(model); }
};

// SmolLM2's vocabulary with any template; null: the model is not there.
const llama_model* vocabulary() {
  static const auto model = []() -> std::unique_ptr<llama_model, FreeModel> {
    const std::string path = testing::smollm2_path();
    if (testing::text_model(path) == nullptr) return nullptr;
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    return std::unique_ptr<llama_model, FreeModel>(
        llama_model_load_from_file(path.c_str(), params));
  }();
  return model.get();
}

std::string all_text(const std::vector<ChatDelta>& deltas, std::string ChatDelta::*field) {
  std::string text;
  for (const ChatDelta& delta : deltas) text += delta.*field;
  return text;
}

struct Parsed {
  ChatMessage message;
  std::vector<ChatDelta> deltas;
};

// Pushes `output` in pieces of `step` bytes.
Parsed parse(const ChatTemplate& chat, const ChatPrompt& prompt, const std::string& output,
             std::size_t step) {
  const auto parser = chat.make_parser(prompt);
  Parsed parsed;
  for (std::size_t at = 0; at < output.size(); at += step) {
    for (auto& delta : parser->push(output.substr(at, step))) parsed.deltas.push_back(delta);
  }
  for (auto& delta : parser->finish()) parsed.deltas.push_back(delta);
  parsed.message = parser->message();
  return parsed;
}

// What a client puts together from the deltas is the message.
void expect_deltas_make_message(const Parsed& parsed) {
  EXPECT_EQ(all_text(parsed.deltas, &ChatDelta::content), parsed.message.content);
  EXPECT_EQ(all_text(parsed.deltas, &ChatDelta::reasoning), parsed.message.reasoning);
  std::vector<ToolCall> calls;
  for (const ChatDelta& delta : parsed.deltas) {
    for (const auto& [index, call] : delta.tool_calls) {
      const auto at = static_cast<std::size_t>(index);
      ASSERT_LE(at, calls.size());
      if (at == calls.size()) {
        EXPECT_FALSE(call.id.empty());
        EXPECT_FALSE(call.name.empty());
        calls.push_back(call);
      } else {
        EXPECT_TRUE(call.id.empty() && call.name.empty());
        calls[at].arguments += call.arguments;
      }
    }
  }
  ASSERT_EQ(calls.size(), parsed.message.tool_calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].id, parsed.message.tool_calls[i].id);
    EXPECT_EQ(calls[i].name, parsed.message.tool_calls[i].name);
    EXPECT_EQ(calls[i].arguments, parsed.message.tool_calls[i].arguments);
  }
}

bool grammar_takes(const GrammarSpec& spec, const std::string& text) {
  const auto grammar = Grammar::compile(spec.gbnf);
  EXPECT_TRUE(grammar.has_value()) << grammar.error().message;
  if (!grammar) return false;
  GrammarState state(*grammar, nullptr);
  return state.accept_text(spec.prefill + text) && state.can_end();
}

TEST(LlamaChat, ModelsOwnTemplate) {
  SLUICE_SMOLLM2_OR_SKIP(model);
  struct Case {
    std::string messages, text;
  };
  const std::string system =
      "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
      "Face<|im_end|>\n";
  for (const Case& c : std::vector<Case>{
           {R"([{"role":"user","content":"hi"}])",
            system + "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"},
           {R"([{"role":"developer","content":"be brief"},{"role":"user","content":[
                {"type":"text","text":"a"},{"type":"text","text":"b"}]}])",
            "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
            "<|im_start|>assistant\n"},
           {R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},
                {"role":"user","content":"c"}])",
            system + "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
                     "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"},
       }) {
    ChatRequest request;
    request.messages_json = c.messages;
    const auto prompt = model.chat().apply(request);
    ASSERT_TRUE(prompt.has_value()) << prompt.error().message;
    EXPECT_EQ(prompt->text, c.text);
    EXPECT_TRUE(prompt->grammar.gbnf.empty());
    EXPECT_TRUE(prompt->parser_spec.empty());
    request.add_generation_prompt = false;
    const auto bare = model.chat().apply(request);
    ASSERT_TRUE(bare.has_value());
    EXPECT_EQ(bare->text + "<|im_start|>assistant\n", c.text);
  }
}

TEST(LlamaChat, TheLastMessageIsContinuedHoweverItIsWritten) {
  SLUICE_SMOLLM2_OR_SKIP(model);
  for (const auto& [content, end] : std::vector<std::pair<std::string, std::string>>{
           {R"("Red, gre")", "Red, gre"},
           {R"([{"type":"text","text":"Red"},{"type":"text","text":"gre"}])", "Red\n\ngre"}}) {
    ChatRequest request;
    request.messages_json =
        R"([{"role":"user","content":"hi"},{"role":"assistant","content":)" + content + "}]";
    request.add_generation_prompt = false;
    request.continue_final = true;
    const auto prompt = model.chat().apply(request);
    ASSERT_TRUE(prompt.has_value()) << prompt.error().message;
    EXPECT_TRUE(prompt->text.ends_with("<|im_start|>assistant\n" + end)) << prompt->text;
  }
}

TEST(LlamaChat, PlainTextPassesThroughInConstantTime) {
  SLUICE_SMOLLM2_OR_SKIP(model);
  ChatRequest request;
  request.messages_json = kUser;
  const auto prompt = model.chat().apply(request);
  ASSERT_TRUE(prompt.has_value());
  const std::string output = "It <tool_call>{\"is\"</think>\n sunny.  ";
  const Parsed parsed = parse(model.chat(), *prompt, output, 1);
  EXPECT_EQ(parsed.message.content, output);
  EXPECT_EQ(parsed.deltas.size(), output.size());  // each piece at once
  expect_deltas_make_message(parsed);
}

TEST(LlamaChat, SaysWhatIsWrongWithMessages) {
  SLUICE_SMOLLM2_OR_SKIP(model);
  struct Case {
    std::string messages, message;
  };
  std::string deep = R"([{"role":"user","content":)";
  for (int i = 0; i < 10'000; ++i) deep += "[";
  for (const auto& [messages, message] : std::vector<Case>{
           {"", "not valid JSON"},
           {"{", "not valid JSON"},
           {"{}", "must be an array"},
           {"[]", "not empty"},
           {"[1]", "messages[0] must be an object"},
           {R"([{"content":"a"}])", "messages[0].role"},
           {R"([{"role":"robot","content":"a"}])", "messages[0].role is \"robot\""},
           {R"([{"role":7,"content":"a"}])", "messages[0].role must be a string"},
           {R"([{"role":"user"}])", "messages[0].content is missing"},
           {R"([{"role":"user","content":null}])", "messages[0].content is missing"},
           {R"([{"role":"user","content":5}])", "must be a string or an array"},
           {R"([{"role":"user","content":[5]}])", "content[0] must be an object"},
           {R"([{"role":"user","content":[{"type":"text"}]}])", "content[0].text must be a string"},
           {R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
            "is of type \"image_url\": this model reads text only"},
           {R"([{"role":"assistant","tool_calls":5}])", "tool_calls must be an array"},
           {R"([{"role":"assistant","tool_calls":[{"type":"function"}]}])",
            "function must be an object"},
           {R"([{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]}])",
            "name is missing"},
           {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"[1]"}}]}])",
            "arguments must be a JSON object"},
           {R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}])",
            "arguments is not valid JSON"},
           {"[{\"role\":\"user\",\"content\":\"\xFF\"}]", "not valid UTF-8"},
           {deep, "nested deeper than 64"},
       }) {
    ChatRequest request;
    request.messages_json = messages;
    const auto prompt = model.chat().apply(request);
    ASSERT_FALSE(prompt.has_value()) << messages;
    EXPECT_EQ(prompt.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(prompt.error().message.find(message), std::string::npos) << prompt.error().message;
  }
}

TEST(LlamaChat, SaysWhatIsWrongWithTheRest) {
  SLUICE_SMOLLM2_OR_SKIP(model);
  const auto message = [&](auto change) {
    ChatRequest request;
    request.messages_json = kUser;
    change(request);
    const auto prompt = model.chat().apply(request);
    EXPECT_FALSE(prompt.has_value());
    if (prompt) return std::string();
    EXPECT_EQ(prompt.error().code, ErrorCode::kInvalidArgument);
    return prompt.error().message;
  };
  using R = ChatRequest;
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos ? std::string() : text;
  };
  EXPECT_EQ(has(message([](R& r) { r.tools_json = "{}"; }), "tools must be an array"), "");
  EXPECT_EQ(has(message([](R& r) { r.tools_json = "[{}]"; }), "tools[0].type"), "");
  EXPECT_EQ(has(message([](R& r) { r.tools_json = R"([{"type":"function","function":{}}])"; }),
                "tools[0].function.name"),
            "");
  EXPECT_EQ(has(message([](R& r) { r.tool_choice = "required"; }), "there are no tools"), "");
  EXPECT_EQ(has(message([](R& r) { r.tool_choice = "maybe"; }), "auto, required or none"), "");
  EXPECT_EQ(has(message([](R& r) {
                  r.tools_json = kWeather;
                  r.forced_tool = "fly";
                }),
                "\"fly\", which is not in tools"),
            "");
  EXPECT_EQ(has(message([](R& r) {
                  r.json_schema = "{}";
                  r.grammar = "root ::= \"a\"";
                }),
                "not both"),
            "");
  EXPECT_EQ(has(message([](R& r) {
                  r.tools_json = kWeather;
                  r.grammar = "root ::= \"a\"";
                }),
                "not both"),
            "");
  EXPECT_EQ(has(message([](R& r) { r.template_kwargs_json = "[]"; }), "must be an object"), "");
  EXPECT_EQ(has(message([](R& r) { r.template_kwargs_json = R"({"messages":[]})"; }),
                "must not set messages"),
            "");
  EXPECT_EQ(has(message([](R& r) { r.template_kwargs_json = R"({"enable_thinking":"x"})"; }),
                "must be a boolean"),
            "");
  EXPECT_EQ(has(message([](R& r) { r.json_schema = "[]"; }), "must be a JSON object"), "");
}

TEST(LlamaChat, SchemaBecomesAGrammar) {
  SLUICE_SMOLLM2_OR_SKIP(model);
  struct Case {
    std::string schema;
    std::vector<std::string> yes, no;
  };
  for (const Case& c : std::vector<Case>{
           {R"({})", {"{}", R"({"a": [1]})"}, {"[]", "1"}},
           {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},
                "required":["a","b"],"additionalProperties":false})",
            {R"({"a": 1, "b": "x"})", R"({"a":-5,"b":""})"},
            {"{}", R"({"a": 1})", R"({"a": "1", "b": "x"})", R"({"a": 1, "b": "x", "c": 1})"}},
           {R"({"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":2})",
            {"[true]", "[true, false]"},
            {"[]", "[true, true, true]", "[1]"}},
           {R"({"enum":["red","green",3,null]})", {"\"red\"", "3", "null"}, {"\"blue\"", "4"}},
           {R"({"anyOf":[{"type":"integer"},{"type":"null"}]})", {"12", "null"}, {"\"a\"", "1.5"}},
           {R"({"type":"integer","minimum":3,"maximum":12})", {"3", "12", "7"}, {"2", "13", "100"}},
           {R"({"type":"string","pattern":"^[A-Z]{2}[0-9]+$"})",
            {"\"AB1\"", "\"ZZ99\""},
            {"\"A1\"", "\"ab1\""}},
           {R"({"type":"string","minLength":2,"maxLength":3})",
            {"\"ab\"", "\"abc\""},
            {"\"a\"", "\"abcd\""}},
           {R"({"type":"string","format":"date"})", {"\"2026-11-30\""}, {"\"yesterday\""}},
           {R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"next":{"anyOf":[
                {"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["next"]}}})",
            {R"({"next": {"next": null}})"},
            {R"({"next": 1})"}},
           {R"({"const":{"a":[1,2]}})", {R"({"a":[1,2]})"}, {"{}"}},
       }) {
    const auto gbnf = model.chat().schema_to_grammar(c.schema);
    ASSERT_TRUE(gbnf.has_value()) << c.schema << ": " << gbnf.error().message;
    GrammarSpec spec;
    spec.gbnf = *gbnf;
    for (const auto& text : c.yes) EXPECT_TRUE(grammar_takes(spec, text)) << c.schema << text;
    for (const auto& text : c.no) EXPECT_FALSE(grammar_takes(spec, text)) << c.schema << text;
  }
}

TEST(LlamaChat, SchemasThatAGrammarCannotHold) {
  SLUICE_SMOLLM2_OR_SKIP(model);
  struct Case {
    std::string schema, message;
  };
  std::string deep, wide = R"({"type":"object","properties":{)", many = R"({"anyOf":[)";
  for (int i = 0; i < 70; ++i) deep += R"({"type":"array","items":)";
  deep += "{}";
  for (int i = 0; i < 70; ++i) deep += "}";
  for (int i = 0; i < 300; ++i) wide += "\"p" + std::to_string(i) + "\":{},";
  wide += "\"z\":{}}}";
  for (int i = 0; i < 5001; ++i) many += "{},";
  many += "{}]}";
  for (const auto& [schema, message] : std::vector<Case>{
           {"", "not valid JSON"},
           {"[]", "must be a JSON object"},
           {"5", "must be a JSON object"},
           {"{\"type\":\"strin\"}", "strin"},
           {R"({"type":5})", "type"},
           {R"({"type":"object","properties":[]})", "must be an object"},
           {R"({"type":"object","properties":{"a":5}})", "schema.properties.a must be an object"},
           {R"({"not":{"type":"string"}})", "`not` is not supported"},
           {R"({"type":"object","properties":{"a":{"type":"array","uniqueItems":true}}})",
            "schema.properties.a: `uniqueItems` is not supported"},
           {R"({"type":"number","minimum":3})", "type integer only"},
           {R"({"type":"integer","minimum":1e300})", "2^53"},
           {R"({"type":"string","maxLength":100000})", "from 0 to 10000"},
           {R"({"type":"string","maxLength":-1})", "from 0 to 10000"},
           {R"_({"type":"string","pattern":"^a(?=b)$"})_", "pattern"},
           {R"_({"type":"string","pattern":"^(a$"})_", "pattern"},
           {R"({"$ref":"http://example.com/x"})", "$ref"},
           {R"({"$ref":"#/nowhere"})", "$ref"},
           {R"({"allOf":[{}],"properties":{}})", "`allOf` beside `properties`"},
           {R"({"enum":[]})", "enum"},
           {deep, "nested deeper than 64"},
           {wide, "the limit is 256"},
           {many, "more than 5000 parts"},
           {std::string(600'000, ' '), "the limit is 524288"},
       }) {
    const auto gbnf = model.chat().schema_to_grammar(schema);
    ASSERT_FALSE(gbnf.has_value()) << schema.substr(0, 100) << *gbnf;
    EXPECT_EQ(gbnf.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(gbnf.error().message.find(message), std::string::npos) << gbnf.error().message;
  }
}

TEST(LlamaChat, SchemaConstrainsTheAnswer) {
  SLUICE_SMOLLM2_OR_SKIP(model);
  ChatRequest request;
  request.messages_json = kUser;
  request.json_schema =
      R"({"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]})";
  const auto prompt = model.chat().apply(request);
  ASSERT_TRUE(prompt.has_value());
  EXPECT_FALSE(prompt->grammar.lazy);
  EXPECT_TRUE(grammar_takes(prompt->grammar, R"({"x": 5})"));
  EXPECT_FALSE(grammar_takes(prompt->grammar, "five"));
  EXPECT_EQ(parse(model.chat(), *prompt, R"({"x": 5})", 1).message.content, R"({"x": 5})");
}

// The default model's template says nothing of tools.
TEST(LlamaChat, ToolsForATemplateThatKnowsNone) {
  SLUICE_SMOLLM2_OR_SKIP(model);
  ChatRequest request;
  request.messages_json = kUser;
  request.tools_json = kWeather;
  const std::string call =
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
  const auto automatic = model.chat().apply(request);
  ASSERT_TRUE(automatic.has_value()) << automatic.error().message;
  EXPECT_NE(automatic->text.find("\"get_weather\""), std::string::npos);
  EXPECT_NE(automatic->text.find("<|im_start|>assistant\n"), std::string::npos);
  EXPECT_TRUE(automatic->grammar.lazy);
  EXPECT_FALSE(automatic->grammar.trigger_words.empty());
  EXPECT_TRUE(grammar_takes(automatic->grammar, call));
  EXPECT_FALSE(grammar_takes(automatic->grammar, "<tool_call>\n{\"name\": \"fly\"}\n</tool_call>"));

  for (const std::size_t step : {1UL, 3UL, 1000UL}) {
    const Parsed parsed = parse(model.chat(), *automatic, "Let me see. " + call, step);
    expect_deltas_make_message(parsed);
    ASSERT_EQ(parsed.message.tool_calls.size(), 1U);
    EXPECT_EQ(parsed.message.tool_calls[0].name, "get_weather");
    EXPECT_EQ(parsed.message.tool_calls[0].arguments, "{\"city\": \"Rome\"}");
    EXPECT_EQ(parsed.message.content.substr(0, 11), "Let me see.");
    const Parsed text = parse(model.chat(), *automatic, "It is sunny.", step);
    EXPECT_EQ(text.message.content, "It is sunny.");
    EXPECT_TRUE(text.message.tool_calls.empty());
    expect_deltas_make_message(text);
  }

  request.tool_choice = "required";
  const auto required = model.chat().apply(request);
  ASSERT_TRUE(required.has_value());
  EXPECT_FALSE(required->grammar.lazy);
  EXPECT_TRUE(grammar_takes(required->grammar, call));
  EXPECT_FALSE(grammar_takes(required->grammar, "It is sunny."));
  // A small model would talk until its limit: the first token belongs to the call already.
  EXPECT_FALSE(grammar_takes(required->grammar, "It is sunny. " + call));
  EXPECT_FALSE(grammar_takes(required->grammar, ""));
  EXPECT_FALSE(grammar_takes(required->grammar, call + "\n" + call));
  EXPECT_EQ(parse(model.chat(), *required, call, 3).message.tool_calls.size(), 1U);

  request.forced_tool = "noop";
  const auto forced = model.chat().apply(request);
  ASSERT_TRUE(forced.has_value());
  EXPECT_FALSE(grammar_takes(forced->grammar, call));
  EXPECT_TRUE(grammar_takes(forced->grammar,
                            "<tool_call>\n{\"name\": \"noop\", \"arguments\": {}}\n</tool_call>"));

  request.forced_tool.clear();
  request.tool_choice = "none";
  const auto none = model.chat().apply(request);
  ASSERT_TRUE(none.has_value());
  EXPECT_TRUE(none->grammar.gbnf.empty());
  EXPECT_EQ(parse(model.chat(), *none, call, 5).message.content, call);
}

TEST(LlamaChat, ConversationsWithToolResults) {
  SLUICE_SMOLLM2_OR_SKIP(model);
  ChatRequest request;
  request.tools_json = kWeather;
  request.messages_json = R"([{"role":"user","content":"Weather?"},
    {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":
      {"name":"get_weather","arguments":"{\"city\":\"Rome\"}"}}]},
    {"role":"tool","tool_call_id":"c1","content":"sunny"},
    {"role":"tool","tool_call_id":"c2","content":[{"type":"text","text":"warm"}]}])";
  const auto prompt = model.chat().apply(request);
  ASSERT_TRUE(prompt.has_value()) << prompt.error().message;
  EXPECT_NE(prompt->text.find("<|im_start|>assistant\n<tool_call>\n{\"name\": \"get_weather\", "
                              "\"arguments\": {\"city\":\"Rome\"}}\n</tool_call><|im_end|>\n"
                              "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n"
                              "<tool_response>\nwarm\n</tool_response><|im_end|>\n"),
            std::string::npos)
      << prompt->text;
}

TEST(LlamaChat, TextThatIsNotInTheFormatIsNotLost) {
  SLUICE_SMOLLM2_OR_SKIP(model);
  ChatRequest request;
  request.messages_json = kUser;
  request.tools_json = kWeather;
  const auto prompt = model.chat().apply(request);
  ASSERT_TRUE(prompt.has_value());
  for (const std::string output :
       {"<tool_call>\nnonsense", "<tool_call>", "a <tool_call>\n{\"name\": \"fly\"", "\n\n", "",
        "</tool_call>",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": 5}\n</tool_call>"}) {
    for (const std::size_t step : {1UL, 7UL}) {
      const Parsed parsed = parse(model.chat(), *prompt, output, step);
      if (parsed.message.tool_calls.empty()) {
        // White space around may go; nothing else.
        std::string trimmed = output, got = parsed.message.content;
        std::erase_if(trimmed, [](char c) { return c == ' ' || c == '\n'; });
        std::erase_if(got, [](char c) { return c == ' ' || c == '\n'; });
        EXPECT_EQ(got, trimmed);
      }
    }
  }
  // Cut off in the middle of the arguments: the call stays as far as it came.
  const Parsed cut =
      parse(model.chat(), *prompt,
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Ro", 1);
  ASSERT_EQ(cut.message.tool_calls.size(), 1U);
  EXPECT_EQ(cut.message.tool_calls[0].name, "get_weather");
  EXPECT_EQ(cut.message.tool_calls[0].arguments.substr(0, 8), "{\"city\":");
}

// Templates that llama.cpp ships, over SmolLM2's vocabulary: what a model of the
// family would write, and what becomes of it.
struct Family {
  const char* file;
  const char* call;      // get_weather of Rome
  const char* thinking;  // empty: none; else a text that begins with reasoning "hmm"
};

class Families : public ::testing::TestWithParam<Family> {};

TEST_P(Families, CallsToolsAndThinks) {
  const Family& family = GetParam();
  const std::string path =
      testing::test_file("SLUICE_LLAMA_SOURCE", std::string("models/templates/") + family.file);
  if (path.empty()) GTEST_SKIP() << "no such template below the folder SLUICE_LLAMA_SOURCE";
  if (vocabulary() == nullptr) GTEST_SKIP() << "no SmolLM2 in the folder SLUICE_TEST_MODELS";
  std::ifstream file(path);
  const std::string source{std::istreambuf_iterator<char>(file), {}};
  const auto chat = make_llama_chat(*vocabulary(), source);
  ASSERT_TRUE(chat.has_value()) << chat.error().message;

  ChatRequest request;
  request.messages_json = R"([{"role":"system","content":"Be brief."},
    {"role":"user","content":"What is the weather in Rome?"}])";
  const auto plain = (*chat)->apply(request);
  ASSERT_TRUE(plain.has_value()) << plain.error().message;
  EXPECT_NE(plain->text.find("What is the weather in Rome?"), std::string::npos);
  const Parsed text = parse(**chat, *plain, "It is sunny.", 2);
  EXPECT_EQ(text.message.content, "It is sunny.");
  expect_deltas_make_message(text);

  if (*family.thinking != '\0') {
    const Parsed thought = parse(**chat, *plain, family.thinking, 2);
    EXPECT_EQ(thought.message.content, "Sunny.");
    EXPECT_NE(thought.message.reasoning.find("hmm"), std::string::npos);
    expect_deltas_make_message(thought);
  }

  request.tools_json = kWeather;
  const auto tools = (*chat)->apply(request);
  ASSERT_TRUE(tools.has_value()) << tools.error().message;
  EXPECT_NE(tools->text.find("get_weather"), std::string::npos);
  for (const std::size_t step : {1UL, 4UL, 1000UL}) {
    const Parsed called = parse(**chat, *tools, family.call, step);
    ASSERT_EQ(called.message.tool_calls.size(), 1U) << called.message.content;
    EXPECT_EQ(called.message.tool_calls[0].name, "get_weather");
    EXPECT_NE(called.message.tool_calls[0].arguments.find("Rome"), std::string::npos);
    expect_deltas_make_message(called);
  }

  request.tool_choice = "required";
  const auto required = (*chat)->apply(request);
  ASSERT_TRUE(required.has_value()) << required.error().message;
  EXPECT_FALSE(required->grammar.lazy);
  EXPECT_TRUE(grammar_takes(required->grammar, family.call));
  EXPECT_FALSE(grammar_takes(required->grammar, "It is sunny."));

  request.tools_json.clear();
  request.tool_choice = "auto";
  request.json_schema =
      R"({"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]})";
  const auto schema = (*chat)->apply(request);
  ASSERT_TRUE(schema.has_value()) << schema.error().message;
  EXPECT_TRUE(grammar_takes(schema->grammar, R"({"x": 5})"));
  EXPECT_EQ(parse(**chat, *schema, R"({"x": 5})", 1).message.content, R"({"x": 5})");
}

INSTANTIATE_TEST_SUITE_P(
    LlamaCpp, Families,
    ::testing::Values(
        Family{"Qwen-Qwen2.5-7B-Instruct.jinja",
               "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
               "\"Rome\"}}\n</tool_call>",
               ""},
        Family{"Qwen-Qwen3-0.6B.jinja",
               "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
               "\"Rome\"}}\n</tool_call>",
               "<think>\nhmm\n</think>\n\nSunny."},
        Family{"meta-llama-Llama-3.1-8B-Instruct.jinja",
               "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}}", ""},
        Family{"meta-llama-Llama-3.2-3B-Instruct.jinja",
               "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}}", ""},
        Family{"NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja",
               "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
               "\"Rome\"}}\n</tool_call>",
               ""},
        Family{"google-gemma-2-2b-it.jinja",
               "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
               "\"Rome\"}}\n</tool_call>",
               ""},
        Family{"microsoft-Phi-3.5-mini-instruct.jinja",
               "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
               "\"Rome\"}}\n</tool_call>",
               ""},
        Family{
            "mistralai-Mistral-Nemo-Instruct-2407.jinja",
            "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}, \"id\": "
            "\"123456789\"}]",
            ""}),
    [](const auto& instance) {
      std::string name = instance.param.file;
      for (char& c : name) {
        if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
      }
      return name;
    });

TEST(LlamaChat, ATemplateThatDoesNotParse) {
  if (vocabulary() == nullptr) GTEST_SKIP() << "no SmolLM2 in the folder SLUICE_TEST_MODELS";
  const auto chat = make_llama_chat(*vocabulary(), "{% for x in %}");
  ASSERT_FALSE(chat.has_value());
  EXPECT_EQ(chat.error().code, ErrorCode::kInvalidArgument);
}

TEST(LlamaChat, ATemplateThatRefuses) {
  if (vocabulary() == nullptr) GTEST_SKIP() << "no SmolLM2 in the folder SLUICE_TEST_MODELS";
  const auto chat = make_llama_chat(
      *vocabulary(),
      "{% for m in messages %}{% if m.content == 'no' %}{{ raise_exception('not this') }}{% endif "
      "%}{{ m.role + ': ' + m.content }}\n{% endfor %}assistant:");
  ASSERT_TRUE(chat.has_value());
  ChatRequest request;
  request.messages_json = R"([{"role":"user","content":"no"}])";
  const auto prompt = (*chat)->apply(request);
  ASSERT_FALSE(prompt.has_value());
  EXPECT_EQ(prompt.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(prompt.error().message.find("not this"), std::string::npos);
}

}  // namespace
}  // namespace sluice
