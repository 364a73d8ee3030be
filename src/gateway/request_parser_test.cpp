#include "gateway/request_parser.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/rng.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

const GatewayLimits kLimits;
const ParseContext kContext{.limits = kLimits,
                            .model_id = "m",
                            .model_aliases = {"alias"},
                            .accept_any_model = false,
                            .vocabulary_size = 100};

std::string chat(const std::string& more) {
  return R"({"model":"m","messages":[{"role":"user","content":"Hi"}])" + more + "}";
}
std::string text(const std::string& more) {
  return R"({"prompt":"Hi")" + more + "}";
}

struct Bad {
  const char* more;
  const char* param;
  const char* fragment;
  int status = 400;
};

void expect_bad(const ApiError& error, const Bad& bad) {
  EXPECT_EQ(error.status, bad.status);
  EXPECT_EQ(error.param, bad.param);
  EXPECT_NE(error.message.find(bad.fragment), std::string::npos) << error.message;
  const Json json = Json::parse(to_json(error))["error"];
  for (const char* key : {"message", "type", "param", "code"}) EXPECT_TRUE(json.contains(key));
}

// What chat and text completions share.
const Bad kShared[] = {
    {R"(,"model":"x")", "model", "this server has 'm'", 404},
    {R"(,"model":7)", "model", "must be a string, not number"},
    {R"(,"temperature":"hot")", "temperature", "must be a number, not string"},
    {R"(,"temperature":2.1)", "temperature", "between 0 and 2"},
    {R"(,"temperature":-0.1)", "temperature", "between 0 and 2"},
    {R"(,"temperature":1e999)", "", "not valid JSON"},
    {R"(,"top_p":1.01)", "top_p", "between 0 and 1"},
    {R"(,"top_k":1.5)", "top_k", "must be an integer, not 1.5"},
    {R"(,"min_p":true)", "min_p", "must be a number, not boolean"},
    {R"(,"presence_penalty":3)", "presence_penalty", "between -2 and 2"},
    {R"(,"frequency_penalty":-3)", "frequency_penalty", "between -2 and 2"},
    {R"(,"repetition_penalty":0)", "repetition_penalty", "above 0"},
    {R"(,"n":0)", "n", "between 1 and 128"},
    {R"(,"n":129)", "n", "between 1 and 128"},
    {R"(,"n":18446744073709551615)", "n", "between 1 and 128"},
    {R"(,"n":1e30)", "n", "between 1 and 128"},
    {R"(,"max_tokens":-2)", "max_tokens", "between -1 and 2147483647"},
    {R"(,"max_tokens":3000000000)", "max_tokens", "between -1 and 2147483647"},
    {R"(,"max_tokens":5,"min_tokens":6)", "min_tokens", "above max_tokens 5"},
    {R"(,"seed":"x")", "seed", "must be an integer"},
    {R"(,"seed":9223372036854775808)", "seed", "9223372036854775807"},
    {R"(,"stop":7)", "stop", "must be a string or an array of strings, not number"},
    {R"(,"stop":["a",null])", "stop", "not null"},
    {R"(,"stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])",
     "stop", "limit of 16"},
    {R"(,"stream":"yes")", "stream", "must be a boolean, not string"},
    {R"(,"stream_options":{})", "stream_options", "only when 'stream'"},
    {R"(,"stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage",
     "must be a boolean"},
    {R"(,"logit_bias":[1])", "logit_bias", "must be a map"},
    {R"(,"logit_bias":{"x":1})", "logit_bias", "not a token id"},
    {R"(,"logit_bias":{"100":1})", "logit_bias", "not in [0, 100)"},
    {R"(,"logit_bias":{"1":101})", "logit_bias", "between -100 and 100"},
    {R"(,"logit_bias":{"1":"x"})", "logit_bias", "numbers"},
    {R"(,"response_format":"json")", "response_format", "must be an object"},
    {R"(,"response_format":{"type":"poem"})", "response_format.type", "must be text, json_object"},
    {R"(,"response_format":{"type":"json_schema"})", "response_format.json_schema", "is missing"},
    {R"(,"response_format":{"type":"json_schema","json_schema":{"name":"x"}})",
     "response_format.json_schema.schema", "is missing"},
    {R"(,"response_format":{"type":"json_object","schema":7})", "response_format.schema",
     "must be a JSON schema"},
    {R"(,"grammar":7)", "grammar", "must be a string"},
    {R"(,"grammar":"root ::= \"a\"","response_format":{"type":"json_object"})", "grammar",
     "cannot both"},
    {R"(,"guided_regex":"[a")", "guided_regex", "without its ]"},
    {R"(,"structured_outputs":{"regex":{}})", "structured_outputs.regex", "must be a string"},
    {R"(,"stop_token_ids":[100])", "stop_token_ids", "not a token in [0, 100)"},
    {R"(,"allowed_token_ids":7)", "allowed_token_ids", "must be an array"},
    {R"(,"bad_words":[""])", "bad_words", "1 to 1024 bytes"},
    {R"(,"prompt_logprobs":-1)", "prompt_logprobs", "between 0 and 20"},
    {R"(,"prompt_logprobs":1,"stream":true)", "prompt_logprobs", "'stream' is true"},
    {R"(,"truncate_prompt_tokens":0)", "truncate_prompt_tokens", "at least 1, or -1"},
    {R"(,"truncation_side":"top")", "truncation_side", "left or right"},
    {R"(,"user":7)", "user", "must be a string"},
    {R"(,"metadata":"x")", "metadata", "must be an object"},
    {R"(,"suffix":"x")", "suffix", "not supported", 404},
};

TEST(RequestParser, SharedFieldsThatAreWrong) {
  for (const Bad& bad : kShared) {
    SCOPED_TRACE(bad.more);
    const auto as_chat = parse_chat(chat(bad.more), kContext);
    ASSERT_FALSE(as_chat);
    expect_bad(as_chat.error(), bad);
    const auto as_text = parse_completion(text(bad.more), kContext);
    ASSERT_FALSE(as_text);
    expect_bad(as_text.error(), bad);
  }
}

TEST(RequestParser, ChatsThatAreWrong) {
  const Bad cases[] = {
      {R"({})", "messages", "at least one message"},
      {R"({"messages":null})", "messages", "at least one message"},
      {R"({"messages":[]})", "messages", "at least one message"},
      {R"({"messages":"Hi"})", "messages", "must be an array, not string"},
      {R"({"messages":[7]})", "messages[0]", "must be an object, not number"},
      {R"({"messages":[{"content":"x"}]})", "messages[0].role", "is missing"},
      {R"({"messages":[{"role":7,"content":"x"}]})", "messages[0].role", "must be a string"},
      {R"({"messages":[{"role":"king","content":"x"}]})", "messages[0].role", "is 'king'"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content", "is missing"},
      {R"({"messages":[{"role":"user","content":7}]})", "messages[0].content", "not number"},
      {R"({"messages":[{"role":"user","content":[7]}]})", "messages[0].content[0]", "object"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "messages[0].content[0].type", "reads text only"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
       "messages[0].content[0].text", "must be a string"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{}]}]})",
       "messages[0].tool_calls[0].function", "must be an object"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}]})",
       "messages[0].tool_calls[0].function.arguments", "must be a string"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"type":"custom"}]}]})",
       "messages[0].tool_calls[0].custom", "must be an object"},
      {R"({"messages":[{"role":"assistant","tool_calls":[)"
       R"({"type":"custom","custom":{"name":"a"}}]}]})",
       "messages[0].tool_calls[0].custom.input", "must be a string"},
      {R"({"messages":[{"role":"assistant","function_call":{"name":"f"}}]})",
       "messages[0].function_call.arguments", "must be a string"},
      {R"({"messages":[{"role":"function","content":"x"}]})", "messages[0].name",
       "must be a string"},
      {R"({"messages":[{"role":"user","content":"x"}],"max_tokens":0})", "max_tokens",
       "at least 1"},
      {R"({"messages":[{"role":"user","content":"x"}],"logprobs":1})", "logprobs", "boolean"},
      {R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":1})", "top_logprobs",
       "only when 'logprobs'"},
      {R"({"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":21})",
       "top_logprobs", "between 0 and 20"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":{}})", "tools", "must be an array"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"magic"}]})",
       "tools[0].type", "only functions", 404},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function"}]})",
       "tools[0].function", "is missing"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"a b"}}]})",
       "tools[0].function.name", "1 to 64"},
      {R"({"messages":[{"role":"user","content":"x"}],"tool_choice":"required"})", "tool_choice",
       "no tools"},
      {R"({"messages":[{"role":"user","content":"x"}],"tool_choice":"some"})", "tool_choice",
       "must be none, auto, required"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"a"}}],)"
       R"("tool_choice":{"type":"function","function":{"name":"b"}}})",
       "tool_choice", "not among the tools"},
      {R"({"messages":[{"role":"user","content":"x"}],"modalities":["audio"]})", "modalities",
       "not supported", 404},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.more);
    const auto call = parse_chat(bad.more, kContext);
    ASSERT_FALSE(call);
    expect_bad(call.error(), bad);
  }
}

TEST(RequestParser, PromptsThatAreWrong) {
  const Bad cases[] = {
      {R"({})", "prompt", "is missing"},
      {R"({"prompt":7})", "prompt", "must be a string or an array of tokens"},
      {R"({"prompt":{}})", "prompt", "must be a string or an array of tokens"},
      {R"({"prompt":[1,"a"]})", "prompt", "not a token in [0, 100)"},
      {R"({"prompt":["a",1]})", "prompt[1]", "must be a string or an array of tokens"},
      {R"({"prompt":[1.5]})", "prompt", "not a token"},
      {R"({"prompt":[-1]})", "prompt", "not a token"},
      {R"({"prompt":[100]})", "prompt", "not a token"},
      {R"({"prompt":[[1],[18446744073709551615]]})", "prompt[1]", "not a token"},
      {R"({"prompt":"a","logprobs":21})", "logprobs", "between 0 and 20"},
      {R"({"prompt":"a","echo":1})", "echo", "must be a boolean"},
  };
  for (const Bad& bad : cases) {
    SCOPED_TRACE(bad.more);
    const auto call = parse_completion(bad.more, kContext);
    ASSERT_FALSE(call);
    expect_bad(call.error(), bad);
  }
  std::string many = R"({"prompt":["a")";
  for (int i = 0; i < 1'024; ++i) many += R"(,"a")";
  const auto call = parse_completion(many + "]}", kContext);
  ASSERT_FALSE(call);
  EXPECT_NE(call.error().message.find("limit of 1024"), std::string::npos);
}

TEST(RequestParser, BodiesThatAreNotObjects) {
  const std::string deep = R"({"messages":)" + std::string(100'000, '[');
  std::string wide = "{";
  for (int i = 0; i <= 1'024; ++i) wide += fmt::format(R"("{}":1,)", i);
  struct Case {
    std::string body;
    const char* fragment;
  };
  for (const Case& c :
       {Case{"", "not valid JSON"}, Case{"{", "not valid JSON"},
        Case{"null", "must be a JSON object"}, Case{"[]", "must be a JSON object"},
        Case{"{\"a\":1}{}", "not valid JSON"}, Case{"{\"a\":\"\xff\"}", "UTF-8"},
        Case{"{\"a\":\"\\ud800\"}", "not valid JSON"}, Case{"NaN", "not valid JSON"},
        Case{std::string("\0\1", 2), "not valid JSON"}, Case{deep, "100 levels"},
        Case{wide + "\"x\":1}", "1024 keys"}}) {
    const auto call = parse_chat(c.body, kContext);
    ASSERT_FALSE(call);
    EXPECT_EQ(call.error().status, 400);
    EXPECT_NE(call.error().message.find(c.fragment), std::string::npos) << call.error().message;
  }
}

TEST(RequestParser, AModelIsAskedFor) {
  const auto call = parse_completion(R"({"prompt":"x"})", kContext);
  ASSERT_FALSE(call);
  expect_bad(call.error(), {"", "model", "is missing; this server has 'm'"});
  ParseContext any = kContext;
  any.accept_any_model = true;
  EXPECT_TRUE(parse_completion(R"({"prompt":"x"})", any));
  EXPECT_TRUE(parse_completion(R"({"prompt":"x","model":"whatever"})", any));
}

TEST(RequestParser, AnOutputsLengthIsTakenByABenchmarkOnly) {
  const std::string body = R"({"model":"m","prompt":"x","sluice_output_length":7})";
  const auto refused = parse_completion(body, kContext);
  ASSERT_FALSE(refused);
  expect_bad(refused.error(), {"", "sluice_output_length", "--benchmark"});
  ParseContext benchmark = kContext;
  benchmark.benchmark = true;
  const auto call = parse_completion(body, benchmark);
  ASSERT_TRUE(call) << call.error().message;
  EXPECT_EQ(call->generation.sampling.forced_length, 7);
  EXPECT_FALSE(call->generation.max_tokens) << "memory is planned without it";
}

TEST(RequestParser, AnExpectedLengthIsTaken) {
  const auto call = parse_completion(
      R"({"model":"m","prompt":"x","sluice_length_hint":300,"sluice_length_class":"summaries"})",
      kContext);
  ASSERT_TRUE(call) << call.error().message;
  EXPECT_EQ(call->generation.length_hint, 300);
  EXPECT_EQ(call->generation.length_class, "summaries");
  for (const char* bad : {R"("sluice_length_hint":0)", R"("sluice_length_hint":"long")",
                          R"("sluice_length_class":7)"}) {
    EXPECT_FALSE(parse_completion(fmt::format(R"({{"model":"m","prompt":"x",{}}})", bad), kContext))
        << bad;
  }
  const auto refused =
      parse_completion(fmt::format(R"({{"model":"m","prompt":"x","sluice_length_class":"{}"}})",
                                   std::string(65, 'a')),
                       kContext);
  ASSERT_FALSE(refused);
  expect_bad(refused.error(), {"", "sluice_length_class", "64"});
}

TEST(RequestParser, AnAssistantAndAFunctionMayHaveSaidNothing) {
  const auto call = parse_chat(
      R"({"model":"m","messages":[{"role":"assistant"},{"role":"assistant","content":null},)"
      R"({"role":"function","name":"f","content":null}]})",
      kContext);
  ASSERT_TRUE(call) << call.error().message;
  for (const Json& message : Json::parse(call->chat.messages_json)) {
    EXPECT_EQ(message["content"], "");
  }
}

TEST(RequestParser, AFunctionOfBeforeToolsIsATool) {
  const auto call =
      parse_chat(R"({"model":"m","messages":[{"role":"user","content":"x"},)"
                 R"({"role":"assistant","function_call":{"name":"f","arguments":"{}"}},)"
                 R"({"role":"function","name":"f","content":"7"}]})",
                 kContext);
  ASSERT_TRUE(call) << call.error().message;
  const Json messages = Json::parse(call->chat.messages_json);
  ASSERT_EQ(messages[1]["tool_calls"].size(), 1U);
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_FALSE(messages[1].contains("function_call"));
  EXPECT_EQ(messages[2]["role"], "tool");
  EXPECT_EQ(messages[2]["tool_call_id"], messages[1]["tool_calls"][0]["id"]);
}

TEST(RequestParser, ACallOfACustomToolIsOneOfAFunction) {
  const auto call = parse_chat(
      R"({"model":"m","messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[)"
      R"({"id":"1","type":"custom","custom":{"name":"sh","input":"ls \"a\""}}]}]})",
      kContext);
  ASSERT_TRUE(call) << call.error().message;
  const Json made = Json::parse(call->chat.messages_json)[1]["tool_calls"][0];
  EXPECT_EQ(made["type"], "function");
  EXPECT_EQ(made["function"]["name"], "sh");
  EXPECT_EQ(Json::parse(made["function"]["arguments"].get<std::string>())["input"], "ls \"a\"");
}

TEST(RequestParser, ArgumentsThatAreNoJsonAreTakenAsText) {
  for (const std::string& said : {std::string("{\"city\": \"Par"), std::string("ls -l")}) {
    const Json asked = {{"role", "assistant"},
                        {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", said}}}}}}};
    const auto call =
        parse_chat(Json({{"model", "m"}, {"messages", Json::array({asked})}}).dump(), kContext);
    ASSERT_TRUE(call) << call.error().message;
    const Json made = Json::parse(call->chat.messages_json)[0]["tool_calls"][0]["function"];
    EXPECT_EQ(Json::parse(made["arguments"].get<std::string>())["input"], said);
  }
}

TEST(RequestParser, APromptOfNullIsTheBeginningOfAText) {
  const auto call = parse_completion(R"({"model":"m","prompt":null})", kContext);
  ASSERT_TRUE(call) << call.error().message;
  ASSERT_EQ(call->prompts.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(call->prompts.front()));
}

TEST(RequestParser, NullMeansAbsent) {
  for (const char* key : {"temperature", "top_p", "n", "seed", "stop", "stream", "stream_options",
                          "logit_bias", "max_tokens", "max_completion_tokens", "tools",
                          "tool_choice", "response_format", "user", "metadata", "logprobs"}) {
    EXPECT_TRUE(parse_chat(chat(fmt::format(R"(,"{}":null)", key)), kContext)) << key;
  }
}

TEST(RequestParser, ReadsAllOfAChat) {
  const auto call = parse_chat(
      chat(R"(,"model":"alias","temperature":0.5,"top_p":0,"top_k":40,"min_p":0.1,"seed":-1,)"
           R"("max_completion_tokens":9,"max_tokens":5,"stop":"x","n":2,"stream":true,)"
           R"("stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":4,)"
           R"("logit_bias":{"7":-100},"repeat_penalty":1.1,"min_tokens":2,"ignore_eos":true,)"
           R"("unknown":{"a":[1]},"tools":[{"type":"function","function":{"name":"f",)"
           R"("parameters":{"b":1,"a":2}}}],)"
           R"("tool_choice":{"type":"function","function":{"name":"f"}},)"
           R"("chat_template_kwargs":{"enable_thinking":false})"),
      kContext);
  ASSERT_TRUE(call) << call.error().message;
  const GenerationCall& g = call->generation;
  EXPECT_FLOAT_EQ(g.sampling.temperature, 0.5F);
  EXPECT_GT(g.sampling.top_p, 0);
  EXPECT_EQ(g.sampling.top_k, 40);
  EXPECT_TRUE(g.has_seed);
  EXPECT_EQ(g.max_tokens, 9);
  EXPECT_EQ(g.stops, std::vector<std::string>{"x"});
  EXPECT_EQ(g.n, 2);
  EXPECT_TRUE(g.stream && g.include_usage);
  EXPECT_EQ(g.sampling.num_logprobs, 4);
  ASSERT_EQ(g.sampling.logit_bias.size(), 1u);
  EXPECT_EQ(g.sampling.logit_bias[0], (std::pair<Token, float>(7, -100.0F)));
  EXPECT_FLOAT_EQ(g.sampling.repetition_penalty, 1.1F);
  EXPECT_EQ(g.sampling.min_tokens, 2);
  EXPECT_TRUE(g.sampling.ignore_eos);
  EXPECT_EQ(call->chat.tool_choice, "required");
  EXPECT_EQ(call->chat.forced_tool, "f");
  EXPECT_NE(call->chat.tools_json.find(R"("parameters":{"b":1,"a":2})"), std::string::npos)
      << "a schema keeps its order";
  EXPECT_FALSE(call->chat.enable_thinking);
}

TEST(RequestParser, ReadsWhatVllmHasBeyondOpenAi) {
  const auto call = parse_completion(
      text(R"(,"model":"m","stop_token_ids":[5],"allowed_token_ids":[6,7],"logprob_token_ids":[8],)"
           R"("bad_words":["x"],"include_stop_str_in_output":true,"skip_special_tokens":false,)"
           R"("prompt_logprobs":2,"truncate_prompt_tokens":-1,"truncation_side":"right",)"
           R"("guided_regex":"a+","add_special_tokens":false)"),
      kContext);
  ASSERT_TRUE(call) << call.error().message;
  const GenerationCall& g = call->generation;
  EXPECT_EQ(g.sampling.stop_tokens, std::vector<Token>{5});
  EXPECT_EQ(g.sampling.allowed_tokens, (std::vector<Token>{6, 7}));
  EXPECT_EQ(g.sampling.logprob_tokens, std::vector<Token>{8});
  EXPECT_EQ(g.sampling.prompt_logprobs, 2);
  EXPECT_EQ(g.sampling.grammar.gbnf, R"(root ::= "a"+)");
  EXPECT_EQ(g.bad_words, std::vector<std::string>{"x"});
  EXPECT_TRUE(g.include_stop && g.keep_special && g.truncate_right && g.prompt_logprobs);
  EXPECT_EQ(g.truncate_prompt, 0);
  EXPECT_EQ(g.max_tokens, 16);
  EXPECT_FALSE(call->add_special);
}

TEST(RequestParser, RangeErrorsSayWhichBound) {
  const auto code = [](const std::string& more) {
    return parse_chat(chat(more), kContext).error().code;
  };
  EXPECT_EQ(code(R"(,"seed":9223372036854775808)"), "less_than_equal");
  EXPECT_EQ(code(R"(,"seed":-9223372036854775809)"), "greater_than_equal");
  EXPECT_EQ(code(R"(,"temperature":3)"), "less_than_equal");
  EXPECT_EQ(code(R"(,"temperature":-3)"), "greater_than_equal");
}

TEST(RequestParser, TheLastMessageIsContinuedOnRequest) {
  const auto call = parse_chat(chat(R"(,"continue_final_message":true)"), kContext);
  ASSERT_TRUE(call) << call.error().message;
  EXPECT_TRUE(call->chat.continue_final);
  EXPECT_FALSE(call->chat.add_generation_prompt);
  EXPECT_FALSE(
      parse_chat(chat(R"(,"continue_final_message":true,"add_generation_prompt":true)"), kContext));
}

TEST(RequestParser, ResponsesBecomeAChat) {
  const auto call = parse_responses(
      R"({"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"Hi"}]},)"
      R"({"type":"function_call","call_id":"c","name":"f","arguments":"{}"},)"
      R"({"type":"function_call_output","call_id":"c","output":"ok"}],"instructions":"Be brief",)"
      R"("max_output_tokens":9,"tools":[{"type":"function","name":"f","parameters":{}}],)"
      R"("text":{"format":{"type":"json_schema","name":"x","schema":{"type":"object"}}}})",
      kContext);
  ASSERT_TRUE(call) << call.error().message;
  const Json messages = Json::parse(call->chat.messages_json);
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[0]["content"], "Be brief");
  EXPECT_EQ(messages[1]["content"][0]["type"], "text");
  EXPECT_EQ(messages[2]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(messages[3]["role"], "tool");
  EXPECT_EQ(call->generation.max_tokens, 9);
  EXPECT_EQ(call->chat.json_schema, R"({"type":"object"})");
  EXPECT_EQ(Json::parse(call->chat.tools_json)[0]["function"]["name"], "f");
  for (const char* body :
       {R"({})", R"({"input":[]})", R"({"input":[7]})", R"({"input":[{"type":"item_reference"}]})",
        R"({"model":"m","input":"x","background":true})",
        R"({"model":"m","input":"x","previous_response_id":"r"})"}) {
    EXPECT_FALSE(parse_responses(body, kContext)) << body;
  }
}

// The parser lets nothing through that it was not given, whatever the bytes.
TEST(RequestParser, DamagedBodiesNeverHarm) {
  const std::string whole = chat(
      R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],)"
      R"("stop":["a","b"],"logit_bias":{"1":2},"stream":true,"stream_options":{},"n":3)");
  Rng rng(11);
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string body = whole;
    for (std::size_t i = 1 + rng.below(3); i > 0; --i) {
      const std::size_t at = rng.below(body.size());
      switch (rng.below(3)) {
        case 0: body[at] = static_cast<char>(rng()); break;
        case 1: body.erase(at, 1 + rng.below(8)); break;
        default: body.insert(at, body.substr(rng.below(body.size()), 1 + rng.below(12)));
      }
    }
    const auto call = parse_chat(body, kContext);
    if (!call) {
      ASSERT_GE(call.error().status, 400);
      ASSERT_FALSE(call.error().message.empty());
      ASSERT_TRUE(Json::accept(to_json(call.error())));
      continue;
    }
    ++accepted;
    ASSERT_GE(call->generation.n, 1);
    ASSERT_LE(call->generation.n, 128);
    ASSERT_TRUE(Json::accept(call->chat.messages_json));
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace sluice
