// Models, tokenizing, templates, Responses, the state and the page.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "gateway/test_support.h"

namespace sluice::test {
namespace {

using Json = nlohmann::ordered_json;

TEST(Endpoints, Models) {
  Bench bench({.model_id = "org/name", .model_aliases = {"other"}, .context_tokens = 77});
  const Json list = Json::parse(bench.get("/v1/models").body);
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "org/name");
  EXPECT_EQ(list["data"][0]["max_model_len"], 77);
  EXPECT_EQ(Json::parse(bench.get("/v1/models/org%2Fname").body)["object"], "model");
  EXPECT_EQ(bench.get("/v1/models/other").status, 200);
  EXPECT_EQ(Json::parse(bench.get("/v1/models/none").body)["error"]["code"], "model_not_found");
}

TEST(Endpoints, TokenizeAndBack) {
  Bench bench;
  const Json tokens = Json::parse(bench.post("/tokenize", R"({"content":"aé"})").body);
  EXPECT_EQ(tokens["tokens"], Json({97, 0xC3, 0xA9}));
  const Json pieces =
      Json::parse(bench.post("/tokenize", R"({"content":"aé","with_pieces":true})").body);
  EXPECT_EQ(pieces["tokens"][0], Json({{"id", 97}, {"piece", "a"}}));
  EXPECT_EQ(pieces["tokens"][1]["piece"], Json::array({0xC3}));
  EXPECT_EQ(Json::parse(bench.post("/detokenize", R"({"tokens":[97,195,169]})").body)["content"],
            "aé");
  EXPECT_EQ(bench.post("/detokenize", R"({"tokens":[999]})").status, 400);
  EXPECT_EQ(bench.post("/tokenize", R"({})").status, 400);
  const Json prompt = Json::parse(
      bench.post("/apply-template", R"({"messages":[{"role":"user","content":"Hi"}]})").body);
  EXPECT_EQ(prompt["prompt"], "user:Hi;assistant:");
}

TEST(Endpoints, TemplatesAndGrammarsMayRefuse) {
  Bench bench;
  struct Case {
    const char* path;
    const char* body;
    const char* fragment;
  };
  for (const Case& c :
       {Case{"/v1/chat/completions", R"({"messages":[{"role":"user","content":"refuse me"}]})",
             "template refuses"},
        Case{"/apply-template", R"({"messages":[{"role":"user","content":"refuse me"}]})",
             "template refuses"},
        Case{"/v1/chat/completions",
             R"({"messages":[{"role":"user","content":"x"}],"grammar":"bad"})", "does not parse"},
        Case{"/v1/completions", R"({"prompt":"x","grammar":"bad"})", "does not parse"},
        Case{
            "/v1/completions",
            R"({"prompt":"x","response_format":{"type":"json_object","schema":{"type":"hiccup"}}})",
            "hiccup"},
        Case{"/v1/completions", R"({"prompt":""})", "no tokens"},
        Case{"/v1/completions", R"({"prompt":["a",[]]})", "no tokens"}}) {
    const Response response = bench.post(c.path, c.body);
    EXPECT_EQ(response.status, 400);
    EXPECT_NE(response.body.find(c.fragment), std::string::npos) << response.body;
  }
  EXPECT_TRUE(bench.serving.submitted().empty());
}

TEST(Endpoints, TooLongPromptsNameBothNumbers) {
  Bench bench({.context_tokens = 50});
  for (const std::size_t size : {50u, 51u, 5'000u}) {
    const Response response =
        bench.post("/v1/completions", fmt::format(R"({{"prompt":"{}"}})", std::string(size, 'x')));
    EXPECT_EQ(response.status, 400);
    const Json error = Json::parse(response.body)["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded");
    EXPECT_EQ(error["type"], "exceed_context_size_error");
    EXPECT_EQ(error["n_prompt_tokens"], size);
    EXPECT_EQ(error["n_ctx"], 50);
  }
  EXPECT_EQ(bench.post("/v1/completions", fmt::format(R"({{"prompt":"{}"}})", std::string(49, 'x')))
                .status,
            200);
}

TEST(Endpoints, ResponsesTellTimingsOnRequest) {
  Bench bench;
  bench.serving.set_script({.reply = "Hi"});
  const std::string stream =
      bench.post("/v1/responses", R"({"input":"Hi","stream":true,"timings_per_token":true})").body;
  std::vector<int> made;
  for (std::size_t at = stream.find("data: "); at != std::string::npos;
       at = stream.find("data: ", at + 1)) {
    const Json event = Json::parse(stream.substr(at + 6, stream.find('\n', at) - at - 6));
    if (event.contains("timings")) made.push_back(event["timings"]["predicted_n"].get<int>());
  }
  EXPECT_EQ(made, (std::vector<int>{1, 2, 3})) << "of two texts, and of the end";
}

TEST(Endpoints, ResponsesWhole) {
  Bench bench;
  bench.serving.set_script({.reply = "Hello"});
  const Json json = Json::parse(bench.post("/v1/responses", R"({"input":"Hi"})").body);
  EXPECT_EQ(json["object"], "response");
  EXPECT_EQ(json["status"], "completed");
  EXPECT_EQ(json["output"][0]["content"][0]["text"], "Hello");
  EXPECT_EQ(json["usage"]["output_tokens"], 6);
  const Json cut =
      Json::parse(bench.post("/v1/responses", R"({"input":"Hi","max_output_tokens":2})").body);
  EXPECT_EQ(cut["status"], "incomplete");
  EXPECT_EQ(cut["incomplete_details"]["reason"], "max_output_tokens");
}

TEST(Endpoints, ResponsesStreamIsNumberedAndBalanced) {
  Bench bench;
  bench.serving.set_script({.reply = "Hey"});
  const Response response = bench.post("/v1/responses", R"({"input":"Hi","stream":true})");
  std::vector<std::string> types;
  std::string text;
  int number = 0;
  for (std::size_t at = 0; at < response.body.size();) {
    const std::size_t end = response.body.find("\n\n", at);
    const std::string block = response.body.substr(at, end - at);
    const Json event = Json::parse(block.substr(block.find("data: ") + 6));
    EXPECT_EQ("event: " + event["type"].get<std::string>(), block.substr(0, block.find('\n')));
    EXPECT_EQ(event["sequence_number"], number++);
    types.push_back(event["type"]);
    if (types.back() == "response.output_text.delta") text += event["delta"];
    at = end + 2;
  }
  EXPECT_EQ(text, "Hey");
  EXPECT_EQ(types, (std::vector<std::string>{
                       "response.created", "response.in_progress", "response.output_item.added",
                       "response.content_part.added", "response.output_text.delta",
                       "response.output_text.delta", "response.output_text.delta",
                       "response.output_text.done", "response.content_part.done",
                       "response.output_item.done", "response.completed"}));
}

TEST(Endpoints, StateOfTheCluster) {
  Bench bench;
  InstanceSnapshot instance;
  instance.report.instance = InstanceId{3};
  instance.report.outlook = {{bench.clock.now(), 5, 7}};
  instance.report.device = {1000, 400, 0.25};
  instance.stats.kv.total_blocks = 12;
  instance.stats.window.plan.grants = {{SequenceId{9}, 64, 2}};
  instance.stats.running.resize(1);
  instance.stats.running[0].request = RequestId{~std::uint64_t{0}};
  bench.serving.state.instances = {instance};
  Decision decision;
  decision.policy = "forecast";
  decision.candidates.resize(2);
  bench.serving.state.decisions = {decision, decision};
  const Json memory = Json::parse(bench.get("/debug/memory").body);
  EXPECT_EQ(memory["instances"][0]["instance"], 3);
  EXPECT_EQ(memory["instances"][0]["blocks"]["total"], 12);
  EXPECT_EQ(memory["instances"][0]["device"]["free_bytes"], 400);
  EXPECT_EQ(memory["instances"][0]["device"]["busy"], 0.25);
  EXPECT_EQ(memory["instances"][0]["window"]["grants"][0]["until_tokens"], 64);
  EXPECT_EQ(memory["instances"][0]["running"][0]["request"], "ffffffffffffffff");
  const Json decisions = Json::parse(bench.get("/debug/decisions").body);
  EXPECT_EQ(decisions["decisions"].size(), 2u);
  EXPECT_EQ(decisions["decisions"][0]["candidates"].size(), 2u);
}

TEST(Endpoints, PageAndMetrics) {
  Bench bench;
  const Response page = bench.get("/");
  EXPECT_TRUE(page.headers.at("content-type").starts_with("text/html"));
  EXPECT_NE(page.body.find("app.js"), std::string::npos);
  EXPECT_EQ(page.body.find("http://"), page.body.find("http://www.w3.org")) << "no network";
  EXPECT_GT(bench.get("/app.js").body.size(), 1'000u);
  EXPECT_GT(bench.get("/style.css").body.size(), 1'000u);
  EXPECT_EQ(bench.get("/metrics").body, "# HELP up 1\nup 1\n");
  EXPECT_EQ(bench.get("/version").body, R"({"version":"0.1.0"})");
  EXPECT_EQ(Bench({.page = false}).get("/").status, 404);
}

}  // namespace
}  // namespace sluice::test
