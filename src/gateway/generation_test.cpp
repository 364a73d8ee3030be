// Chat and text completions over real sockets.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <regex>

#include "gateway/test_support.h"

namespace sluice::test {
namespace {

using Json = nlohmann::ordered_json;
using testing::Test;

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kText = "/v1/completions";

std::string chat_body(const std::string& more = {}) {
  return R"({"model":"fake","messages":[{"role":"user","content":"Hi"}])" + more + "}";
}

// What differs from run to run, made equal.
std::string masked(std::string text) {
  text = std::regex_replace(text, std::regex("(chatcmpl|cmpl)-[0-9a-f]{32}"), "$1-ID");
  return std::regex_replace(text, std::regex("\"created\":[0-9]+"), "\"created\":0");
}

std::vector<Json> events_of(const std::string& body) {
  std::vector<Json> events;
  for (std::size_t at = 0; at < body.size();) {
    const std::size_t end = body.find("\n\n", at);
    EXPECT_EQ(body.substr(at, 6), "data: ");
    const std::string data = body.substr(at + 6, end - at - 6);
    if (data != "[DONE]") events.push_back(Json::parse(data));
    at = end + 2;
  }
  return events;
}

std::string content_of(const std::vector<Json>& events) {
  std::string text;
  for (const Json& event : events) {
    if (!event.contains("choices") || event["choices"].empty()) continue;
    const Json& delta = event["choices"][0]["delta"];
    if (delta.contains("content") && delta["content"].is_string()) text += delta["content"];
  }
  return text;
}

TEST(Generation, HeadersSayHowImportantAndWhoseARequestIs) {
  struct Case {
    const char* objective;
    const char* more;
    std::int32_t priority;
  };
  GatewayOptions options;
  options.objectives = {{"batch", -5}, {"chat", 7}};
  Bench bench(options);
  for (const Case& c :
       {Case{"chat", "", 7}, Case{"batch", "", -5}, Case{"12", "", 12}, Case{"unheard-of", "", 0},
        Case{"5x", "", 0}, Case{"99999999", "", 1'000'000}, Case{"chat", R"(,"priority":3)", 3}}) {
    SCOPED_TRACE(c.objective);
    const std::string headers = fmt::format(
        "x-gateway-inference-objective: {}\r\nx-gateway-inference-fairness-id: a tenant\r\n",
        c.objective);
    EXPECT_EQ(bench.client().request("POST", kChat, chat_body(c.more), headers).status, 200);
    EXPECT_EQ(bench.serving.submitted().back().priority, c.priority);
    EXPECT_EQ(bench.serving.submitted().back().tenant, "a tenant");
  }
  const std::string tall = "x-gateway-inference-fairness-id: " + std::string(129, 'x') + "\r\n";
  const Response refused = bench.client().request("POST", kChat, chat_body(), tall);
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("limit of 128"), std::string::npos) << refused.body;
}

TEST(Chat, AnswersWhole) {
  Bench bench;
  bench.serving.set_script({.reply = "Hello", .cached_tokens = 3});
  const Response response = bench.post(kChat, chat_body());
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(
      masked(response.body),
      R"({"id":"chatcmpl-ID","object":"chat.completion","created":0,"model":"fake",)"
      R"("system_fingerprint":"b-sluice-0.1.0","choices":[{"index":0,"message":)"
      R"({"role":"assistant","content":"Hello","refusal":null,"annotations":[]},"logprobs":null,)"
      R"("finish_reason":"stop"}],"prompt_logprobs":null,)"
      R"("usage":{"prompt_tokens":18,"completion_tokens":6,)"
      R"("total_tokens":24,"prompt_tokens_details":{"cached_tokens":3}}})");
}

TEST(Chat, StreamsTheseBytes) {
  Bench bench;
  bench.serving.set_script({.reply = "Hi"});
  const Response response = bench.post(
      kChat, chat_body(R"(,"stream":true,"max_tokens":2,"stream_options":{"include_usage":true})"));
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_TRUE(response.complete);
  EXPECT_EQ(response.headers.at("content-type"), "text/event-stream; charset=utf-8");
  const std::string head =
      R"(data: {"id":"chatcmpl-ID","object":"chat.completion.chunk","created":0,"model":"fake",)"
      R"("system_fingerprint":"b-sluice-0.1.0","choices":[)";
  const auto chunk = [&head](const std::string& delta, const std::string& reason) {
    return fmt::format(
        "{}{{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":{}}}],\"usage\":null}}"
        "\n\n",
        head, delta, reason);
  };
  EXPECT_EQ(masked(response.body),
            chunk(R"({"role":"assistant","content":null})", "null") +
                chunk(R"({"content":"H"})", "null") + chunk(R"({"content":"i"})", "null") +
                chunk("{}", "\"length\"") + head +
                R"(],"usage":{"prompt_tokens":18,"completion_tokens":2,"total_tokens":20,)"
                R"("prompt_tokens_details":{"cached_tokens":0}}})"
                "\n\ndata: [DONE]\n\n");
}

TEST(Chat, StreamAndWholeAgree) {
  Bench bench;
  for (const std::string reply : {"x", "Grüße aus Köln 🙂!", "a\nb\"c\\d\x01"}) {
    bench.serving.set_script({.reply = reply});
    const Json whole = Json::parse(bench.post(kChat, chat_body()).body);
    const auto events = events_of(bench.post(kChat, chat_body(R"(,"stream":true)")).body);
    EXPECT_EQ(whole["choices"][0]["message"]["content"], reply);
    EXPECT_EQ(content_of(events), reply);
  }
}

TEST(Chat, StopStringsEndTheTextAndCancel) {
  Bench bench;
  struct Case {
    const char* reply;
    const char* stop;
    const char* text;
    bool cancels;
  };
  for (const Case& c :
       {Case{"one two three", R"("two")", "one ", true},
        Case{"one two three", R"(["zzz","e t"])", "on", true}, Case{"aaab", R"("aab")", "a", true},
        Case{"one tw", R"("two")", "one tw", false}}) {
    SCOPED_TRACE(c.reply);
    bench.serving.set_script({.reply = c.reply});
    for (const bool stream : {false, true}) {
      const std::int32_t before = bench.serving.cancelled();
      const std::string body = chat_body(fmt::format(R"(,"stop":{},"stream":{})", c.stop, stream));
      const Response response = bench.post(kChat, body);
      if (stream) {
        const auto events = events_of(response.body);
        EXPECT_EQ(content_of(events), c.text);
        EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "stop");
      } else {
        const Json json = Json::parse(response.body);
        EXPECT_EQ(json["choices"][0]["message"]["content"], c.text);
        EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
      }
      EXPECT_TRUE(bench.serving.wait_idle());
      // The engine may have ended by itself before the cancellation came.
      EXPECT_LE(bench.serving.cancelled(), before + (c.cancels ? 1 : 0));
    }
  }
}

TEST(Chat, ToolCallsComeWholeAndInPieces) {
  Bench bench;
  bench.serving.set_script({.reply = R"(CALL weather {"city":"Paris"})"});
  const std::string tools =
      R"(,"tools":[{"type":"function","function":{"name":"weather","parameters":{}}}])";
  const Json whole = Json::parse(bench.post(kChat, chat_body(tools)).body);
  const Json& choice = whole["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "weather");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"city":"Paris"})");

  std::string arguments;
  int named = 0;
  const auto events = events_of(bench.post(kChat, chat_body(tools + R"(,"stream":true)")).body);
  for (const Json& event : events) {
    const Json& delta = event["choices"][0]["delta"];
    if (!delta.contains("tool_calls")) continue;
    const Json& call = delta["tool_calls"][0];
    EXPECT_EQ(call["index"], 0);
    if (call.contains("id")) ++named;
    arguments += call["function"]["arguments"];
  }
  EXPECT_EQ(named, 1);
  EXPECT_EQ(arguments, R"({"city":"Paris"})");
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "tool_calls");
}

TEST(Chat, LogprobsCoverTheText) {
  Bench bench;
  bench.serving.set_script({.reply = "abc"});
  const std::string more = R"(,"logprobs":true,"top_logprobs":2)";
  const Json whole = Json::parse(bench.post(kChat, chat_body(more)).body);
  std::string joined;
  for (const Json& token : whole["choices"][0]["logprobs"]["content"]) {
    joined += token["token"];
    EXPECT_EQ(token["top_logprobs"].size(), 2u);
    EXPECT_FLOAT_EQ(token["logprob"].get<float>(), -0.5F);
  }
  EXPECT_EQ(joined, "abc");

  joined.clear();
  for (const Json& event :
       events_of(bench.post(kChat, chat_body(more + R"(,"stream":true)")).body)) {
    const Json& choice = event["choices"][0];
    if (!choice["logprobs"].is_object()) continue;
    for (const Json& token : choice["logprobs"]["content"]) joined += token["token"];
  }
  EXPECT_EQ(joined, "abc");
}

TEST(Chat, ManyChoicesHaveSeedsOfTheirOwn) {
  Bench bench;
  const Json json = Json::parse(bench.post(kChat, chat_body(R"(,"n":3,"seed":7)")).body);
  ASSERT_EQ(json["choices"].size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(json["choices"][i]["index"], i);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 18);  // a prompt counts once
  EXPECT_EQ(json["usage"]["completion_tokens"], 36);
  const auto requests = bench.serving.submitted();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].sampling.seed, 7u);
  EXPECT_NE(requests[1].sampling.seed, requests[2].sampling.seed);
  EXPECT_NE(requests[0].id, requests[1].id);
}

TEST(Chat, AsksForAllThatFitsUnlessTold) {
  Bench bench({.context_tokens = 100});
  EXPECT_EQ(bench.post(kChat, chat_body()).status, 200);
  EXPECT_EQ(bench.post(kChat, chat_body(R"(,"max_tokens":5)")).status, 200);
  EXPECT_EQ(bench.post(kChat, chat_body(R"(,"max_completion_tokens":5000)")).status, 200);
  const auto requests = bench.serving.submitted();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].max_tokens, 82);
  EXPECT_EQ(requests[1].max_tokens, 5);
  EXPECT_EQ(requests[2].max_tokens, 82);
}

TEST(Completions, TakeEveryFormOfPrompt) {
  Bench bench;
  struct Case {
    const char* prompt;
    std::size_t choices;
    std::vector<Token> first;
  };
  for (const Case& c : {Case{R"("ab")", 1, {97, 98}}, Case{R"(["ab"])", 1, {97, 98}},
                        Case{R"(["ab","c"])", 2, {97, 98}}, Case{"[1,2,3]", 1, {1, 2, 3}},
                        Case{"[[1,2],[3]]", 2, {1, 2}}}) {
    SCOPED_TRACE(c.prompt);
    const std::size_t before = bench.serving.submitted().size();
    const Response response = bench.post(kText, fmt::format(R"({{"prompt":{}}})", c.prompt));
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(Json::parse(response.body)["choices"].size(), c.choices);
    EXPECT_EQ(bench.serving.submitted()[before].prompt, c.first);
  }
}

TEST(Completions, EchoAndLegacyLogprobs) {
  Bench bench;
  bench.serving.set_script({.reply = "cd"});
  const std::string body = R"({"prompt":"ab","echo":true,"logprobs":1,"max_tokens":2)";
  const Json json = Json::parse(bench.post(kText, body + "}").body);
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["text"], "abcd");
  EXPECT_EQ(choice["logprobs"]["tokens"], Json({"a", "b", "c", "d"}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json({0, 1, 2, 3}));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json({nullptr, -0.25, -0.5, -0.5}));
  const Json& top = choice["logprobs"]["top_logprobs"];
  EXPECT_TRUE(top[0].is_null());
  EXPECT_EQ(top[1], Json({{"z", -0.125}, {"b", -0.25}}));
  EXPECT_EQ(top[2], Json({{"a", -0.5}, {"c", -0.5}})) << "the chosen token is always there";
  std::string streamed;
  for (const Json& event : events_of(bench.post(kText, body + R"(,"stream":true})").body)) {
    streamed += event["choices"][0]["text"];
  }
  EXPECT_EQ(streamed, "abcd");
  const Json none =
      Json::parse(bench.post(kText, R"({"prompt":"ab","echo":true,"max_tokens":0})").body);
  EXPECT_EQ(none["choices"][0]["text"], "ab");
  EXPECT_EQ(none["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(bench.serving.submitted().size(), 2U) << "nothing to compute for that";
}

TEST(Completions, AskedAboutThePromptAlone) {
  Bench bench;
  for (const char* stream : {"false", "true"}) {
    const std::string body = fmt::format(
        R"({{"prompt":"\u00e9b","echo":true,"logprobs":0,"max_tokens":0,"stream":{}}})", stream);
    const Response response = bench.post(kText, body);
    const Json json = *stream == 't' ? events_of(response.body)[0] : Json::parse(response.body);
    const Json& choice = json["choices"][0];
    EXPECT_EQ(choice["text"], "\u00e9b");
    EXPECT_EQ(choice["logprobs"]["token_logprobs"], Json({nullptr, -0.25, -0.25}));
    EXPECT_EQ(choice["logprobs"]["text_offset"], Json({0, 1, 1})) << "in characters, not bytes";
    EXPECT_EQ(choice["finish_reason"], "length");
    if (*stream == 'f') {
      EXPECT_EQ(json["usage"]["completion_tokens"], 0);
    }
  }
}

TEST(Completions, PromptLogprobsAreAFieldOfTheirOwn) {
  Bench bench;
  const std::string body = R"({"prompt":["ab","c"],"max_tokens":1,"prompt_logprobs":1})";
  const Json json = Json::parse(bench.post(kText, body).body);
  EXPECT_EQ(json["choices"][0]["prompt_logprobs"].dump(),
            R"([null,{"98":{"logprob":-0.25,"rank":2,"decoded_token":"b"},)"
            R"("122":{"logprob":-0.125,"rank":1,"decoded_token":"z"}}])");
  EXPECT_EQ(json["choices"][1]["prompt_logprobs"].dump(), "[null]");
  const Json chat = Json::parse(bench.post(kChat, chat_body(R"(,"prompt_logprobs":0)")).body);
  EXPECT_EQ(chat["prompt_logprobs"].size(), chat["usage"]["prompt_tokens"]);
  EXPECT_EQ(bench.post(kChat, chat_body(R"(,"prompt_logprobs":0,"stream":true)")).status, 400);
}

TEST(Completions, TokensOfPromptAndAnswer) {
  Bench bench;
  bench.serving.set_script({.reply = "cd"});
  const std::string body =
      R"({"prompt":[97,98,99,100],"max_tokens":2,"logprobs":1,"return_token_ids":true,)"
      R"("return_tokens_as_token_ids":true,"truncate_prompt_tokens":3)";
  const Json whole = Json::parse(bench.post(kText, body + "}").body)["choices"][0];
  EXPECT_EQ(whole["prompt_token_ids"], Json({98, 99, 100})) << "the end of it is kept";
  EXPECT_EQ(whole["token_ids"], Json({99, 100}));
  EXPECT_EQ(whole["logprobs"]["tokens"], Json({"token_id:99", "token_id:100"}));
  EXPECT_EQ(whole["logprobs"]["text_offset"], Json({0, 1}));
  const auto events = events_of(bench.post(kText, body + R"(,"stream":true})").body);
  EXPECT_EQ(events[0]["choices"][0]["prompt_token_ids"], whole["prompt_token_ids"]);
  EXPECT_FALSE(events[1]["choices"][0].contains("prompt_token_ids"));
  EXPECT_EQ(events[1]["choices"][0]["token_ids"], Json({100}));
  const Json right =
      Json::parse(bench.post(kText, body + R"(,"truncation_side":"right"})").body)["choices"][0];
  EXPECT_EQ(right["prompt_token_ids"], Json({97, 98, 99}));
}

TEST(Completions, WhatEndedThem) {
  Bench bench;
  bench.serving.set_script({.reply = "one. two"});
  const auto choice = [&](const std::string& more) {
    return Json::parse(bench.post(kText, R"({"prompt":"a",)" + more + "}").body)["choices"][0];
  };
  const Json stopped = choice(R"("stop":[". "])");
  EXPECT_EQ(stopped["text"], "one");
  EXPECT_EQ(stopped["stop_reason"], ". ");
  const Json included = choice(R"("stop":[". "],"include_stop_str_in_output":true)");
  EXPECT_EQ(included["text"], "one. ");
  const Json by_token = choice(R"("stop_token_ids":[256])");
  EXPECT_EQ(by_token["stop_reason"], 256);
  EXPECT_FALSE(choice(R"("max_tokens":3)").contains("stop_reason"));
}

TEST(Completions, WithoutALimitAreShort) {
  Bench bench;
  bench.serving.set_script({.endless = true});
  EXPECT_EQ(Json::parse(bench.post(kText, R"({"prompt":"a"})").body)["usage"]["completion_tokens"],
            16);
}

TEST(Completions, TheBestOfSeveral) {
  Bench bench;
  bench.serving.set_script([](const Request& request) {
    return Script{.reply = request.sampling.seed % 2 == 0 ? "even" : "odds"};
  });
  const Json json = Json::parse(
      bench.post(kText, R"({"prompt":["a","b"],"n":2,"best_of":5,"max_tokens":3})").body);
  EXPECT_EQ(bench.serving.submitted().size(), 10U);
  ASSERT_EQ(json["choices"].size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(json["choices"][i]["index"], i);
  EXPECT_TRUE(json["choices"][0]["logprobs"].is_null()) << "they were for us";
  EXPECT_EQ(json["usage"]["completion_tokens"], 30) << "what is dropped was generated";
  EXPECT_EQ(json["usage"]["prompt_tokens"], 2);
  for (const char* more : {R"("n":3,"best_of":2)", R"("best_of":2,"stream":true)"}) {
    EXPECT_EQ(bench.post(kText, fmt::format(R"({{"prompt":"a",{}}})", more)).status, 400);
  }
}

TEST(Completions, TimingsOnRequest) {
  Bench bench;
  const std::string more = R"(,"max_tokens":4,"timings_per_token":true)";
  const Json whole = Json::parse(bench.post(kChat, chat_body(more)).body)["timings"];
  EXPECT_EQ(whole["prompt_n"], 18);
  EXPECT_EQ(whole["predicted_n"], 4);
  EXPECT_GT(whole["predicted_per_second"], 0);
  const auto events = events_of(
      bench
          .post(kChat,
                chat_body(more + R"(,"stream":true,"stream_options":{"include_usage":true})"))
          .body);
  EXPECT_FALSE(events.front().contains("timings")) << "nothing is generated yet";
  for (std::size_t i = 1; i < events.size(); ++i) {
    const auto made = std::min<std::size_t>(i, 4);
    EXPECT_EQ(events[i]["timings"]["predicted_n"], made) << events[i].dump();
  }
}

TEST(Chat, UsageInEveryChunkGrows) {
  Bench bench;
  bench.serving.set_script({.reply = "Hello"});
  const std::string more = R"(,"stream":true,"max_tokens":3,"stream_options":)"
                           R"({"include_usage":true,"continuous_usage_stats":true})";
  const auto events = events_of(bench.post(kChat, chat_body(more)).body);
  ASSERT_EQ(events.size(), 5U) << "the role, three tokens, the usage of all";
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(events[static_cast<std::size_t>(i)]["usage"]["completion_tokens"], std::min(i, 3));
  }
  EXPECT_EQ(events[3]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(events[3]["choices"][0]["delta"]["content"], "l");
}

TEST(Chat, StreamsTellOfThePromptOnRequest) {
  Bench bench;
  bench.serving.set_script({.reply = "x", .cached_tokens = 5});
  const std::string more = R"(,"return_progress":true)";
  const std::string text = R"({"prompt":"abcdef","stream":true)";
  for (const auto& [path, body, total] :
       {std::tuple(kChat, chat_body(more + R"(,"stream":true)"), 18),
        std::tuple(kText, text + more + "}", 6)}) {
    const auto events = events_of(bench.post(path, body).body);
    std::vector<Json> told;
    for (const Json& event : events) {
      if (event.contains("prompt_progress")) told.push_back(event["prompt_progress"]);
    }
    ASSERT_EQ(told.size(), 1U);
    EXPECT_EQ(told[0]["total"], total);
    EXPECT_EQ(told[0]["cache"], 5);
    EXPECT_EQ(told[0]["processed"], total);
    EXPECT_GE(told[0]["time_ms"], 0);
  }
  EXPECT_EQ(bench.post(kChat, chat_body(more)).body.find("prompt_progress"), std::string::npos);
  EXPECT_EQ(bench.post(kText, text + "}").body.find("prompt_progress"), std::string::npos);
}

TEST(Chat, ShowsThePromptOnRequest) {
  Bench bench;
  bench.serving.set_script({.reply = "x"});
  const Json whole = Json::parse(bench.post(kChat, chat_body(R"(,"verbose":true)")).body);
  const Json shown = Json::parse(bench.post("/apply-template", chat_body()).body);
  EXPECT_EQ(whole["__verbose"]["prompt"], shown["prompt"]);
  const auto events =
      events_of(bench.post(kChat, chat_body(R"(,"verbose":true,"stream":true)")).body);
  EXPECT_EQ(events.back()["__verbose"]["prompt"], shown["prompt"]);
  EXPECT_FALSE(Json::parse(bench.post(kChat, chat_body()).body).contains("__verbose"));
}

TEST(Completions, BadWordsBecomeBannedTokens) {
  Bench bench;
  ASSERT_EQ(bench.post(kText, R"({"prompt":"a","bad_words":["no"]})").status, 200);
  const auto banned = bench.serving.submitted()[0].sampling.banned_sequences;
  EXPECT_EQ(banned, (std::vector<std::vector<Token>>{{'n', 'o'}, {' ', 'n', 'o'}}));
}

TEST(Invocations, AreWhatTheirBodySays) {
  Bench bench;
  const Json chat = Json::parse(bench.post("/invocations", chat_body()).body);
  EXPECT_EQ(chat["object"], "chat.completion");
  const Json text = Json::parse(bench.post("/invocations", R"({"prompt":"a"})").body);
  EXPECT_EQ(text["object"], "text_completion");
  EXPECT_EQ(bench.post("/invocations", "7").status, 400);
}

TEST(Errors, BeforeTheFirstTokenBecomeTheStatus) {
  Bench bench;
  struct Case {
    Error error;
    int status;
    const char* code;
  };
  for (const Case& c : {Case{{ErrorCode::kBusy, "the queue is full", 7}, 429, "busy"},
                        Case{{ErrorCode::kNeverFits, "needs 9 of 4 blocks", 0}, 400, "never_fits"},
                        Case{{ErrorCode::kUnavailable, "no instance", 0}, 503, "unavailable"},
                        Case{{ErrorCode::kInternal, "a bug", 0}, 500, "internal"}}) {
    for (const bool at_submit : {false, true}) {
      for (const bool stream : {false, true}) {
        Script script;
        (at_submit ? script.refuse_submit : script.fail) = c.error;
        bench.serving.set_script(script);
        const Response response =
            bench.post(kChat, chat_body(fmt::format(R"(,"stream":{})", stream)));
        EXPECT_EQ(response.status, c.status);
        const Json error = Json::parse(response.body)["error"];
        EXPECT_EQ(error["message"], c.error.message);
        EXPECT_EQ(error["code"], c.code);
        const auto retry = response.headers.find("retry-after");
        EXPECT_EQ(retry != response.headers.end(), c.status == 429 || c.status == 503);
        if (c.status == 429) {
          EXPECT_EQ(retry->second, "7");
        }
      }
    }
  }
  EXPECT_EQ(bench.telemetry.rejected().size(), 16u);
  EXPECT_TRUE(bench.telemetry.records().empty());
}

TEST(Errors, InAStreamAreAnEventAndAnEnd) {
  Bench bench;
  bench.serving.set_script({.reply = "Hello",
                            .fail = {ErrorCode::kInternal, "the instance is gone", 0},
                            .fail_after = 2});
  const Response response = bench.post(kChat, chat_body(R"(,"stream":true)"));
  EXPECT_EQ(response.status, 200);
  EXPECT_TRUE(response.complete);
  const auto events = events_of(response.body);
  EXPECT_EQ(content_of(events), "He");
  EXPECT_EQ(events.back()["error"]["message"], "the instance is gone");
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
  // Without a stream there is nothing to keep.
  EXPECT_EQ(bench.post(kChat, chat_body()).status, 500);
}

TEST(Errors, OneChoiceThatFailsCancelsTheOthers) {
  Bench bench;
  std::atomic<int> number{0};
  bench.serving.set_script([&number](const Request&) {
    Script script{.reply = "x", .endless = true};
    if (++number == 2) script.fail = {ErrorCode::kInternal, "lost", 0};
    return script;
  });
  EXPECT_EQ(bench.post(kChat, chat_body(R"(,"n":3)")).status, 500);
  EXPECT_TRUE(bench.serving.wait_idle());
  EXPECT_EQ(bench.serving.cancelled(), 2);
}

TEST(Records, SayWhatTheClientSaw) {
  Bench bench;
  bench.serving.set_script({.reply = "Hello", .cached_tokens = 3});
  ASSERT_EQ(bench.post(kChat, chat_body(R"(,"max_tokens":4)")).status, 200);
  const auto records = bench.telemetry.records();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].finish, FinishReason::kLength);
  EXPECT_EQ(records[0].prompt_tokens, 18);
  EXPECT_EQ(records[0].cached_tokens, 3);
  EXPECT_EQ(records[0].generated_tokens, 4);
  EXPECT_EQ(records[0].max_tokens, 4);
  EXPECT_GT(records[0].first_token.count(), 0);
  EXPECT_GE(records[0].total, records[0].first_token);
  EXPECT_EQ(bench.telemetry.inter_tokens, 3);
  EXPECT_TRUE(bench.gateway.wait_drained(std::chrono::seconds(10)));
}

}  // namespace
}  // namespace sluice::test
