// Connections: keep-alive, limits, keys, slow and vanishing clients, draining.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "gateway/router.h"
#include "gateway/test_support.h"

namespace sluice::test {
namespace {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;

constexpr const char* kChat = "/v1/chat/completions";

std::string chat_body(const std::string& more = {}) {
  return R"({"messages":[{"role":"user","content":"Hi"}])" + more + "}";
}

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 2'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

GatewayOptions with(std::function<void(GatewayOptions&)> change) {
  GatewayOptions options;
  change(options);
  return options;
}

TEST(Http, PipelinedRequestsAreAnsweredInOrder) {
  Bench bench;
  Client client = bench.client();
  const std::string first = http_text("POST", kChat, chat_body(R"(,"max_tokens":3)"));
  client.send(first + http_text("GET", "/health") + first + http_text("GET", "/nothing"));
  EXPECT_EQ(Json::parse(client.read().body)["usage"]["completion_tokens"], 3);
  EXPECT_EQ(client.read().body, R"({"status":"ok"})");
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(client.read().status, 404);
  EXPECT_EQ(client.request("GET", "/health").status, 200);
}

TEST(Http, StreamsThenServesTheSameConnection) {
  Bench bench;
  Client client = bench.client();
  for (int i = 0; i < 3; ++i) {
    const Response response = client.post(kChat, chat_body(R"(,"stream":true)"));
    EXPECT_TRUE(response.complete);
    EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
  }
}

TEST(Http, OlderClientsGetTheStreamUnchunked) {
  Bench bench;
  Client client = bench.client();
  const std::string body = chat_body(R"(,"stream":true)");
  client.send(
      fmt::format("POST {} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}", kChat, body.size(), body));
  const Response response = client.read();
  EXPECT_FALSE(response.headers.contains("transfer-encoding"));
  EXPECT_TRUE(response.body.starts_with("data: {"));
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
}

TEST(Http, RequestIdsComeBackOrAreMade) {
  Bench bench;
  Client client = bench.client();
  EXPECT_EQ(client.request("GET", "/health", {}, "X-Request-Id: abc-1\r\n").headers["x-request-id"],
            "abc-1");
  const std::string made = client.request("GET", "/health").headers["x-request-id"];
  EXPECT_TRUE(made.starts_with("req-"));
  EXPECT_NE(client.request("GET", "/health").headers["x-request-id"], made);
  const std::string tall = "X-Request-Id: " + std::string(500, 'x') + "\r\n";
  EXPECT_TRUE(
      client.request("GET", "/health", {}, tall).headers["x-request-id"].starts_with("req-"));
}

TEST(Http, LimitsHaveTheirNumbers) {
  Bench bench(with([](GatewayOptions& o) {
    o.limits.max_body_bytes = 1'000;
    o.limits.max_header_bytes = 2'000;
  }));
  struct Case {
    std::string bytes;
    int status;
    const char* fragment;
  };
  const std::string long_header = "X: " + std::string(3'000, 'x') + "\r\n";
  for (const Case& c :
       {Case{http_text("POST", kChat, std::string(1'001, ' ')), 413, "1000 bytes"},
        Case{"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413, "1000 bytes"},
        Case{"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n500\r\n" +
                 std::string(0x500, ' '),
             413, "1000 bytes"},
        Case{http_text("GET", "/health", {}, long_header), 431, "2000 bytes"},
        Case{"GARBAGE\r\n\r\n", 400, "not an HTTP request"},
        Case{"GET /health HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400, "not an HTTP request"}}) {
    SCOPED_TRACE(c.bytes.substr(0, 40));
    Client client = bench.client();
    client.send(c.bytes);
    const Response response = client.read();
    EXPECT_EQ(response.status, c.status);
    EXPECT_NE(response.body.find(c.fragment), std::string::npos) << response.body;
    EXPECT_EQ(response.headers.at("connection"), "close");
    client.half_close();
    EXPECT_TRUE(client.at_end());
  }
  EXPECT_EQ(bench.get("/health").status, 200);
}

TEST(Http, ExpectedContinueIsAnswered) {
  Bench bench;
  Client client = bench.client();
  const std::string body = chat_body();
  client.send(fmt::format("POST {} HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
                          kChat, body.size()));
  EXPECT_EQ(client.read().status, 100);
  client.send(body);
  EXPECT_EQ(client.read().status, 200);
}

TEST(Http, SlowSendersAreToldAndClosed) {
  Bench bench(with([](GatewayOptions& o) {
    o.limits.header_timeout = 100ms;
    o.limits.body_timeout = 100ms;
    o.limits.idle_timeout = 200ms;
  }));
  Client header = bench.client();
  header.send("GET /health HTT");
  EXPECT_EQ(header.read().status, 408);
  Client body = bench.client();
  body.send("POST /tokenize HTTP/1.1\r\nContent-Length: 10\r\n\r\n{");
  const Response response = body.read();
  EXPECT_EQ(response.status, 408);
  EXPECT_NE(response.body.find("in time"), std::string::npos);
  Client idle = bench.client();
  EXPECT_EQ(idle.request("GET", "/health").status, 200);
  EXPECT_TRUE(idle.at_end());
}

TEST(Http, ConnectionsAreLimited) {
  Bench bench(with([](GatewayOptions& o) { o.limits.max_connections = 2; }));
  Client first = bench.client();
  EXPECT_EQ(first.request("GET", "/health").status, 200);
  {
    Client second = bench.client();
    EXPECT_EQ(second.request("GET", "/health").status, 200);
    Client third = bench.client();
    const Response refused = third.read();
    EXPECT_EQ(refused.status, 503);
    EXPECT_NE(refused.body.find("2 connections"), std::string::npos);
  }
  EXPECT_TRUE(eventually([&] { return bench.get("/health").status == 200; }));
}

TEST(Http, KeysAreAskedForWhereTheyMatter) {
  Bench bench(with([](GatewayOptions& o) {
    o.api_keys = {ApiKey{"first-key"}, ApiKey{"second"}};
  }));
  Client client = bench.client();
  for (const char* path : {"/health", "/ready", "/metrics", "/"}) {
    EXPECT_EQ(client.request("GET", path).status, 200) << path;
  }
  for (const char* path : {"/v1/models", "/debug/memory", "/debug/decisions", "/version"}) {
    EXPECT_EQ(client.request("GET", path).status, 401) << path;
  }
  struct Case {
    const char* header;
    int status;
  };
  for (const Case& c :
       {Case{"Authorization: Bearer first-key\r\n", 200},
        Case{"Authorization: bearer second\r\n", 200}, Case{"X-Api-Key: second\r\n", 200},
        Case{"Authorization: Bearer first-ke\r\n", 401},
        Case{"Authorization: Bearer first-key1\r\n", 401}, Case{"Authorization: Bearer \r\n", 401},
        Case{"Authorization: Basic first-key\r\n", 401}, Case{"X-Api-Key: third\r\n", 401}}) {
    const Response response = client.request("GET", "/v1/models", {}, c.header);
    EXPECT_EQ(response.status, c.status) << c.header;
    if (c.status == 401) {
      EXPECT_EQ(Json::parse(response.body)["error"]["code"], "invalid_api_key");
    }
  }
  EXPECT_EQ(client.request("OPTIONS", kChat, {}, "Origin: http://localhost:1\r\n").status, 200);
}

TEST(Http, OriginsOfThisHostMayCall) {
  Bench bench;
  struct Case {
    const char* origin;
    bool allowed;
  };
  for (const Case& c : {Case{"http://localhost:3000", true}, Case{"http://127.0.0.1", true},
                        Case{"http://[::1]:80", true}, Case{"http://localhost.evil.com", false},
                        Case{"https://evil.com", false}, Case{"null", false}}) {
    const Response response =
        bench.client().request("OPTIONS", kChat, {}, fmt::format("Origin: {}\r\n", c.origin));
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.headers.contains("access-control-allow-origin"), c.allowed) << c.origin;
  }
}

TEST(Http, RoutesKnowTheirMethods) {
  Bench bench;
  Client client = bench.client();
  const Response wrong = client.request("GET", kChat);
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
  EXPECT_EQ(client.request("GET", "/../etc").status, 404);
  EXPECT_EQ(client.request("GET", "/%zz").status, 404);
  client.send(http_text("HEAD", "/health"));
  EXPECT_TRUE(client.read_until("\r\n\r\n"));
}

TEST(Cancel, WhenTheClientGoesAway) {
  struct Case {
    const char* name;
    bool stream;
    bool wait_for_text;
    std::function<void(Client&)> leave;
  };
  const auto farewell = [](Client& client) { client.half_close(); };
  const auto reset = [](Client& client) { client.reset(); };
  for (const Case& c :
       {Case{"stream, end", true, true, farewell}, Case{"stream, reset", true, true, reset},
        Case{"whole, end", false, false, farewell}, Case{"whole, reset", false, false, reset}}) {
    SCOPED_TRACE(c.name);
    Bench bench;
    bench.serving.set_script({.reply = "x", .endless = true});
    Client client = bench.client();
    client.send(
        http_text("POST", kChat,
                  chat_body(fmt::format(R"(,"n":2,"max_tokens":2000000,"stream":{})", c.stream))));
    if (c.wait_for_text) {
      EXPECT_TRUE(client.read_until("\"content\":\"x\""));
    }
    ASSERT_TRUE(eventually([&] { return bench.serving.submitted().size() == 2; }));
    c.leave(client);
    EXPECT_TRUE(eventually([&] { return bench.gateway.active_requests() == 0; }));
    EXPECT_EQ(bench.serving.cancelled(), 2);
    for (const RequestRecord& record : bench.telemetry.records()) {
      EXPECT_EQ(record.finish, FinishReason::kCancelled);
    }
    EXPECT_EQ(bench.telemetry.records().size(), 2u);
  }
}

TEST(Cancel, WhenTheClientDoesNotRead) {
  Bench bench(with([](GatewayOptions& o) {
                o.context_tokens = 1'000'000;
                o.limits.send_buffer_bytes = 4'096;
                o.limits.max_unsent_tokens = 200;
              }),
              20us);
  bench.serving.set_script({.reply = "x", .endless = true});
  Client slow(bench.gateway.port(), 2'048);
  slow.send(http_text("POST", kChat, chat_body(R"(,"stream":true)")));
  EXPECT_TRUE(eventually([&] { return bench.serving.cancelled() == 1; }));
  EXPECT_TRUE(eventually([&] { return bench.gateway.active_requests() == 0; }));
  EXPECT_EQ(bench.get("/health").status, 200);
}

TEST(Cancel, WhenNothingCanBeWrittenForTooLong) {
  Bench bench(with([](GatewayOptions& o) {
                o.context_tokens = 1'000'000;
                o.limits.send_buffer_bytes = 4'096;
                o.limits.max_unsent_tokens = 100'000'000;
                o.limits.write_timeout = 200ms;
              }),
              20us);
  bench.serving.set_script({.reply = "x", .endless = true});
  Client slow(bench.gateway.port(), 2'048);
  slow.send(http_text("POST", kChat, chat_body(R"(,"stream":true)")));
  EXPECT_TRUE(eventually([&] { return bench.serving.cancelled() == 1; }));
}

TEST(Life, DrainingEndsWhatRunsAndTakesNothingNew) {
  Bench bench({}, 2ms);
  bench.serving.set_script({.reply = std::string(100, 'x')});
  Client client = bench.client();
  client.send(http_text("POST", kChat, chat_body(R"(,"stream":true)")));
  EXPECT_TRUE(client.read_until("\"content\":\"x\""));
  EXPECT_EQ(bench.get("/ready").status, 200);
  bench.gateway.begin_drain();
  EXPECT_FALSE(bench.gateway.wait_drained(Duration::zero()));
  EXPECT_EQ(bench.get("/ready").status, 503);
  EXPECT_EQ(bench.get("/health").status, 200);
  const Response late = bench.post(kChat, chat_body());
  EXPECT_EQ(late.status, 503);
  EXPECT_TRUE(late.headers.contains("retry-after"));
  EXPECT_TRUE(bench.gateway.wait_drained(10s));
  EXPECT_TRUE(client.read_until("data: [DONE]"));
}

TEST(Life, StoppingTellsEveryStream) {
  Bench bench;
  bench.serving.set_script({.reply = "x", .endless = true});
  Client stream = bench.client();
  stream.send(http_text("POST", kChat, chat_body(R"(,"stream":true,"max_tokens":1000)")));
  EXPECT_TRUE(stream.read_until("\"content\":\"x\""));
  Client whole = bench.client();
  whole.send(http_text("POST", kChat, chat_body(R"(,"max_tokens":1000)")));
  ASSERT_TRUE(eventually([&] { return bench.serving.submitted().size() == 2; }));
  bench.gateway.stop();
  const Response response = stream.read();
  EXPECT_TRUE(response.complete);
  EXPECT_NE(response.body.find("shutting down"), std::string::npos);
  EXPECT_EQ(whole.read().status, 503);
  EXPECT_EQ(bench.serving.cancelled(), 2);
  EXPECT_EQ(bench.gateway.active_requests(), 0);
  bench.gateway.stop();
}

TEST(Life, ReadinessIsTheClusters) {
  Bench bench;
  bench.serving.is_ready = false;
  EXPECT_EQ(bench.get("/ready").status, 503);
  bench.serving.is_ready = true;
  EXPECT_EQ(bench.get("/ready").status, 200);
}

TEST(Life, BadOptionsAreErrors) {
  FakeModel model;
  SteadyClock clock;
  FakeTelemetry telemetry;
  struct Case {
    std::function<void(GatewayOptions&)> change;
    ErrorCode code;
    const char* fragment;
  };
  Bench taken;
  for (const Case& c :
       {Case{[](GatewayOptions& o) { o.num_threads = 0; }, ErrorCode::kInvalidArgument, "1 and 64"},
        Case{[](GatewayOptions& o) { o.api_keys = {ApiKey{}}; }, ErrorCode::kInvalidArgument,
             "empty"},
        Case{[](GatewayOptions& o) { o.host = "203.0.113.1"; }, ErrorCode::kUnavailable,
             "203.0.113.1"},
        Case{[&](GatewayOptions& o) { o.port = taken.gateway.port(); }, ErrorCode::kUnavailable,
             "cannot listen"}}) {
    GatewayOptions options = with(c.change);
    Gateway gateway(options, model, clock, telemetry);
    FakeServing serving(gateway.sink());
    const Status status = gateway.start(serving);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, c.code);
    EXPECT_NE(status.error().message.find(c.fragment), std::string::npos) << status.error().message;
  }
}

TEST(Load, GenerationsAreLimited) {
  Bench bench(with([](GatewayOptions& o) { o.limits.max_requests = 3; }));
  bench.serving.set_script({.reply = "x", .endless = true});
  Client first = bench.client();
  first.send(http_text("POST", kChat, chat_body(R"(,"n":2,"stream":true)")));
  EXPECT_TRUE(first.read_until("data: "));
  const Response refused = bench.post(kChat, chat_body(R"(,"n":2)"));
  EXPECT_EQ(refused.status, 429);
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_NE(refused.body.find("limit of 3"), std::string::npos);
}

TEST(Load, FiveHundredStreamsAtOnce) {
  Bench bench(with([](GatewayOptions& o) { o.num_threads = 4; }), 1ms);
  bench.serving.set_script([](const Request& request) {
    return Script{.reply = std::string(20, static_cast<char>('a' + request.id.value % 26))};
  });
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 500; ++i) {
    clients.push_back(std::make_unique<Client>(bench.gateway.port()));
    ASSERT_TRUE(clients.back()->send(http_text("POST", kChat, chat_body(R"(,"stream":true)"))));
  }
  for (auto& client : clients) {
    const Response response = client->read();
    ASSERT_EQ(response.status, 200);
    EXPECT_TRUE(response.complete);
    std::size_t tokens = 0;
    for (std::size_t at = 0;
         (at = response.body.find("\"content\":\"", at)) != std::string::npos;) {
      ++tokens;
      at += 10;
    }
    EXPECT_EQ(tokens, 20u);
    EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
  }
  EXPECT_TRUE(bench.gateway.wait_drained(10s));
  EXPECT_EQ(bench.telemetry.records().size(), 500u);
}

}  // namespace
}  // namespace sluice::test
