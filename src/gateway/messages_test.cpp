// Anthropic's Messages over real sockets.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "gateway/request_parser.h"
#include "gateway/test_support.h"

namespace sluice::test {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPath = "/v1/messages";

std::string body(const std::string& more = {}) {
  return R"({"model":"fake","max_tokens":30,"messages":[{"role":"user","content":"Hi"}])" + more +
         "}";
}

std::vector<Json> events_of(const std::string& text) {
  std::vector<Json> events;
  for (std::size_t at = text.find("data: "); at != std::string::npos;
       at = text.find("data: ", at + 1)) {
    events.push_back(Json::parse(text.substr(at + 6, text.find('\n', at) - at - 6)));
  }
  return events;
}

TEST(Messages, AnswerWhole) {
  Bench bench;
  bench.serving.set_script({.reply = "Hello", .cached_tokens = 3});
  const Response response = bench.post(kPath, body());
  ASSERT_EQ(response.status, 200) << response.body;
  const Json json = Json::parse(response.body);
  EXPECT_EQ(json["type"], "message");
  EXPECT_EQ(json["role"], "assistant");
  EXPECT_EQ(json["content"][0]["text"], "Hello");
  EXPECT_EQ(json["stop_reason"], "end_turn");
  EXPECT_TRUE(json["stop_sequence"].is_null());
  EXPECT_EQ(json["usage"]["input_tokens"], 15) << "without the cached ones";
  EXPECT_EQ(json["usage"]["cache_read_input_tokens"], 3);
}

TEST(Messages, StopReasons) {
  Bench bench;
  bench.serving.set_script({.reply = "one two"});
  const auto answer = [&](const std::string& text) {
    return Json::parse(bench.post(kPath, text).body);
  };
  const Json stopped = answer(body(R"(,"stop_sequences":[" t"])"));
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], " t");
  EXPECT_EQ(stopped["content"][0]["text"], "one");
  const Json cut =
      answer(R"({"model":"fake","max_tokens":2,"messages":[{"role":"user","content":"Hi"}]})");
  EXPECT_EQ(cut["stop_reason"], "max_tokens");
}

TEST(Messages, StreamBlockByBlock) {
  Bench bench;
  bench.serving.set_script({.reply = "Hi"});
  const Response response = bench.post(kPath, body(R"(,"stream":true)"));
  ASSERT_EQ(response.status, 200) << response.body;
  std::string types;
  for (const Json& event : events_of(response.body)) {
    types += event["type"].get<std::string>() + " ";
  }
  EXPECT_EQ(types,
            "message_start content_block_start content_block_delta content_block_delta "
            "content_block_stop message_delta message_stop ");
  const auto events = events_of(response.body);
  EXPECT_TRUE(events[0]["message"]["content"].empty());
  EXPECT_EQ(events[2]["delta"].dump(), R"({"type":"text_delta","text":"H"})");
  EXPECT_EQ(events[5]["delta"]["stop_reason"], "end_turn");
  EXPECT_NE(response.body.find("event: message_stop\ndata: {"), std::string::npos);
}

TEST(Messages, ToolUse) {
  Bench bench;
  bench.serving.set_script({.reply = R"(CALL roll {"n":2})"});
  const std::string tools =
      R"(,"tools":[{"name":"roll","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"})";
  const Json json = Json::parse(bench.post(kPath, body(tools)).body);
  ASSERT_EQ(json["stop_reason"], "tool_use") << json.dump();
  EXPECT_EQ(json["content"][0]["name"], "roll");
  EXPECT_EQ(json["content"][0]["input"]["n"], 2);
  std::string input;
  for (const Json& event : events_of(bench.post(kPath, body(tools + R"(,"stream":true)")).body)) {
    if (event["type"] == "content_block_delta") input += event["delta"]["partial_json"];
  }
  EXPECT_EQ(input, R"({"n":2})");
}

TEST(Messages, ErrorsInTheirOwnForm) {
  Bench bench;
  struct Case {
    const char* body;
    const char* says;
  };
  for (const Case& c : {
           Case{"7", "object"},
           Case{R"({"model":"fake","messages":[{"role":"user","content":"Hi"}]})", "max_tokens"},
           Case{R"({"model":"fake","max_tokens":1,"messages":[]})", "at least one"},
           Case{R"({"model":"fake","max_tokens":1,"messages":[{"role":"tool"}]})", "role"},
           Case{R"({"model":"fake","max_tokens":1,"messages":[{"role":"user","content":)"
                R"([{"type":"image"}]}]})",
                "image input is not supported"},
           Case{R"({"model":"fake","max_tokens":1,"messages":[{"role":"user","content":)"
                R"([{"type":"tool_result","tool_use_id":"t","content":[{"type":"image"}]}]}]})",
                "image input is not supported"},
           Case{R"({"model":"fake","max_tokens":1,"messages":[{"role":"assistant","content":)"
                R"([{"type":"thinking"}]}]})",
                "thinking"},
           Case{R"({"model":"fake","max_tokens":1,"system":7,"messages":[]})", "system"},
           Case{R"({"model":"fake","max_tokens":1,"tool_choice":{"type":"x"},)"
                R"("messages":[{"role":"user","content":"Hi"}]})",
                "tool_choice.type"},
       }) {
    const Response response = bench.post(kPath, c.body);
    EXPECT_EQ(response.status, 400) << c.body;
    const Json json = Json::parse(response.body);
    EXPECT_EQ(json["type"], "error");
    EXPECT_EQ(json["error"]["type"], "invalid_request_error");
    EXPECT_NE(json["error"]["message"].get<std::string>().find(c.says), std::string::npos)
        << json.dump();
  }
  Script busy;
  busy.fail = {ErrorCode::kBusy, "the queue is full", 7};
  bench.serving.set_script(busy);
  const Response response = bench.post(kPath, body());
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(Json::parse(response.body)["error"]["type"], "rate_limit_error");
}

TEST(Messages, BlocksBecomeAChat) {
  GatewayLimits limits;
  const ParseContext context{limits, "m", {}, true, 100};
  const auto call = parse_messages(
      R"({"max_tokens":9,"system":[{"type":"text","text":"Be brief"}],"messages":[)"
      R"({"role":"user","content":"Roll"},)"
      R"({"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},)"
      R"({"type":"tool_use","id":"t1","name":"roll","input":{"n":2}}]},)"
      R"({"role":"user","content":[{"type":"text","text":"There:"},)"
      R"({"type":"tool_result","tool_use_id":"t1","content":"3 and 4"}]}]})",
      context);
  ASSERT_TRUE(call) << call.error().message;
  const Json messages = Json::parse(call->chat.messages_json);
  ASSERT_EQ(messages.size(), 5U) << messages.dump();
  EXPECT_EQ(messages[0]["role"], "system");
  EXPECT_EQ(messages[2]["tool_calls"][0]["function"]["arguments"], R"({"n":2})");
  EXPECT_EQ(messages[2]["reasoning_content"], "hm");
  EXPECT_EQ(messages[3]["role"], "tool") << "a result comes right after its call";
  EXPECT_EQ(messages[3]["content"], "3 and 4");
  EXPECT_EQ(messages[4]["content"][0]["text"], "There:");
  EXPECT_EQ(call->generation.max_tokens, 9);
}

TEST(Messages, CountTokens) {
  Bench bench;
  const Response response =
      bench.post("/v1/messages/count_tokens",
                 R"({"model":"fake","messages":[{"role":"user","content":"Hi"}]})");
  EXPECT_EQ(response.body, R"({"input_tokens":18})");
}

}  // namespace
}  // namespace sluice::test
