// The fakes and the client of test_support.h, and what they promise.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "gateway/test_support.h"
#include "model/utf8.h"

namespace sluice::test {

using Json = nlohmann::ordered_json;

Result<std::vector<Token>> ByteTokenizer::tokenize(std::string_view text, TokenizeOptions) const {
  if (!is_utf8(text)) return fail(ErrorCode::kInvalidArgument, "the text is not UTF-8");
  std::vector<Token> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

std::string ByteTokenizer::piece(Token token, bool special) const {
  if (token < 256) return std::string(1, static_cast<char>(token));
  if (!special) return {};
  return token == kEnd ? "<end>" : "<begin>";
}

namespace {

class PlainParser final : public ChatParser {
 public:
  explicit PlainParser(bool tools) : tools_(tools) {}

  std::vector<ChatDelta> push(std::string_view text) override {
    raw_ += text;
    constexpr std::string_view kCall = "CALL ";
    if (tools_ && (raw_.starts_with(kCall) || kCall.starts_with(raw_))) return call_delta();
    ChatDelta delta;
    delta.content = raw_.substr(message_.content.size());
    message_.content = raw_;
    return {delta};
  }
  std::vector<ChatDelta> finish() override { return {}; }
  const ChatMessage& message() const override { return message_; }

 private:
  std::vector<ChatDelta> call_delta() {
    const auto space = raw_.find(' ', 5);
    if (raw_.size() < 6 || space == std::string::npos) return {};
    ChatDelta::ToolDelta delta;
    if (message_.tool_calls.empty()) {
      message_.tool_calls.push_back({"call_1", raw_.substr(5, space - 5), ""});
      delta.call = message_.tool_calls[0];
    }
    std::string& arguments = message_.tool_calls[0].arguments;
    delta.call.arguments = raw_.substr(space + 1 + arguments.size());
    arguments += delta.call.arguments;
    return {ChatDelta{{}, {}, {delta}}};
  }

  const bool tools_;
  std::string raw_;
  ChatMessage message_;
};

}  // namespace

Result<ChatPrompt> PlainChat::apply(const ChatRequest& request) const {
  const Json messages = Json::parse(request.messages_json);
  ChatPrompt prompt;
  for (const Json& message : messages) {
    std::string content;
    if (message.contains("content") && message["content"].is_array()) {
      for (const Json& part : message["content"]) content += part["text"].get<std::string>();
    } else if (message.contains("content") && message["content"].is_string()) {
      content = message["content"].get<std::string>();
    }
    if (content == "refuse me") return fail(ErrorCode::kInvalidArgument, "the template refuses");
    prompt.text += fmt::format("{}:{};", message["role"].get<std::string>(), content);
  }
  if (request.add_generation_prompt) prompt.text += "assistant:";
  prompt.grammar.gbnf = request.grammar;
  if (!request.json_schema.empty()) {
    TRY(prompt.grammar.gbnf, schema_to_grammar(request.json_schema));
  }
  prompt.parser_spec = request.tools_json.empty() || request.tool_choice == "none" ? "" : "tools";
  return prompt;
}

std::unique_ptr<ChatParser> PlainChat::make_parser(const ChatPrompt& prompt) const {
  return std::make_unique<PlainParser>(!prompt.parser_spec.empty());
}

Result<std::string> PlainChat::schema_to_grammar(std::string_view schema) const {
  if (schema.find("hiccup") != schema.npos) {
    return fail(ErrorCode::kInvalidArgument, "the schema has the unknown type hiccup");
  }
  return "root ::= " + std::string(schema);
}

Result<std::unique_ptr<Sampler>> FakeSamplers::make(const SamplingParams& params,
                                                    std::span<const Token>) const {
  class Nothing final : public Sampler {
    Status resume(std::span<const Token>) override { return {}; }
    Result<SampledToken> sample(std::span<float>) override {
      return fail(ErrorCode::kInternal, "not for sampling");
    }
  };
  if (params.grammar.gbnf.find("bad") != std::string::npos) {
    return fail(ErrorCode::kInvalidArgument, "the grammar does not parse at 'bad'");
  }
  return std::make_unique<Nothing>();
}

FakeModel::FakeModel() {
  info_.id = "fake";
  info_.architecture = "bytes";
  info_.vocabulary_size = 258;
  info_.trained_context = 2'048;
}

FakeServing::FakeServing(TokenSink& sink, Duration step) : sink_(sink), step_(step) {
  thread_ = std::jthread([this](const std::stop_token& stop) { loop(stop); });
}

FakeServing::~FakeServing() {
  thread_.request_stop();
  thread_.join();
}

Status FakeServing::submit(std::unique_ptr<Request> request) {
  const std::lock_guard lock(mutex_);
  Script script = script_(*request);
  if (!script.refuse_submit.message.empty()) {
    return tl::unexpected<Error>(script.refuse_submit);
  }
  submitted_.push_back(*request);
  running_.emplace(request->id, Sequence{*request, std::move(script), 0});
  return {};
}

void FakeServing::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto found = running_.find(id);
  if (found == running_.end()) return;
  TokenEvent event;
  event.request = id;
  event.index = found->second.generated;
  event.finish = FinishReason::kCancelled;
  endings_.push_back(event);
  running_.erase(found);
  ++cancelled_;
}

std::shared_ptr<const ClusterSnapshot> FakeServing::snapshot() const {
  const std::lock_guard lock(mutex_);
  return std::make_shared<ClusterSnapshot>(state);
}

void FakeServing::set_script(std::function<Script(const Request&)> script) {
  const std::lock_guard lock(mutex_);
  script_ = std::move(script);
}

std::vector<Request> FakeServing::submitted() const {
  const std::lock_guard lock(mutex_);
  return submitted_;
}

std::int32_t FakeServing::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

std::int32_t FakeServing::running() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int32_t>(running_.size());
}

bool FakeServing::wait_idle() const {
  for (int i = 0; i < 2'000 && running() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return running() == 0;
}

TokenEvent FakeServing::progress_event(const Sequence& s) {
  TokenEvent event;
  event.request = s.request.id;
  event.cached_tokens = s.script.cached_tokens;
  event.is_progress = true;
  event.computed_tokens = static_cast<std::int32_t>(s.request.prompt.size());
  return event;
}

TokenEvent FakeServing::next_event(Sequence& s) const {
  TokenEvent event;
  event.request = s.request.id;
  event.index = s.generated;
  event.cached_tokens = s.script.cached_tokens;
  if (!s.script.fail.message.empty() && s.generated >= s.script.fail_after) {
    event.finish = FinishReason::kError;
    event.error = s.script.fail;
    return event;
  }
  if (s.generated == 0 && s.request.sampling.prompt_logprobs >= 0) {
    for (std::size_t i = 1; i < s.request.prompt.size(); ++i) {
      ScoredToken score{s.request.prompt[i], -0.25F, 2, {}};
      if (s.request.sampling.prompt_logprobs > 0) score.top.push_back({'z', -0.125F});
      event.prompt_scores.push_back(std::move(score));
    }
  }
  const std::string& reply = s.script.reply;
  const auto at = static_cast<std::size_t>(s.generated);
  event.has_token = true;
  ++s.generated;
  if (at >= reply.size() && !s.script.endless) {
    event.token.token = kEnd;
    event.token.end_of_generation = true;
    event.finish = FinishReason::kStop;
    return event;
  }
  event.token.token = static_cast<unsigned char>(reply[at % reply.size()]);
  if (s.request.sampling.num_logprobs >= 0) {
    event.token.logprob = -0.5F;
    for (int i = 0; i < s.request.sampling.num_logprobs; ++i) {
      event.token.top.push_back({'a' + i, -0.5F - static_cast<float>(i)});
    }
  }
  if (s.generated >= s.request.max_tokens) event.finish = FinishReason::kLength;
  return event;
}

void FakeServing::loop(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::vector<TokenEvent> events;
    {
      const std::lock_guard lock(mutex_);
      events = std::exchange(endings_, {});
      for (auto it = running_.begin(); it != running_.end();) {
        if (it->second.request.report_progress && it->second.generated == 0) {
          events.push_back(progress_event(it->second));
        }
        events.push_back(next_event(it->second));
        it = events.back().finish == FinishReason::kNone ? std::next(it) : running_.erase(it);
      }
    }
    if (!events.empty()) sink_.on_tokens(std::move(events));
    std::this_thread::sleep_for(step_);
  }
}

Client::Client(std::uint16_t port, int receive_buffer) {
  fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
  if (receive_buffer > 0) {
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  }
  timeval limit{20, 0};  // a test that hangs fails instead
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  int one = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    ::close(std::exchange(fd_, -1));
  }
}

Client::~Client() {
  if (fd_ >= 0) ::close(fd_);
}

bool Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

bool Client::fill() {
  char bytes[16'384];
  const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
  if (n <= 0) return false;
  buffer_.append(bytes, static_cast<std::size_t>(n));
  return true;
}

bool Client::read_until(std::string_view text) {
  while (buffer_.find(text) == std::string::npos) {
    if (!fill()) return false;
  }
  return true;
}

Response Client::read() {
  Response response;
  while (buffer_.find("\r\n\r\n") == std::string::npos) {
    if (!fill()) return response;
  }
  const std::size_t head_size = buffer_.find("\r\n\r\n") + 4;
  std::string head = buffer_.substr(0, head_size);
  buffer_.erase(0, head_size);
  response.status = std::stoi(head.substr(9, 3));
  for (std::size_t line = head.find("\r\n") + 2; line + 2 < head.size();) {
    const std::size_t end = head.find("\r\n", line);
    const std::size_t colon = head.find(": ", line);
    std::string name = head.substr(line, colon - line);
    std::transform(name.begin(), name.end(), name.begin(), ::tolower);
    response.headers[name] = head.substr(colon + 2, end - colon - 2);
    line = end + 2;
  }
  if (response.status == 100) return response;  // the real answer follows
  if (response.headers.contains("content-length")) {
    const std::size_t size = std::stoul(response.headers["content-length"]);
    while (buffer_.size() < size && fill()) {
    }
    response.complete = buffer_.size() >= size;
    response.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
    return response;
  }
  if (!response.headers.contains("transfer-encoding")) {
    while (fill()) {
    }
    response.body = std::exchange(buffer_, {});
    response.complete = true;
    return response;
  }
  for (;;) {
    while (buffer_.find("\r\n") == std::string::npos) {
      if (!fill()) return response;
    }
    const std::size_t line = buffer_.find("\r\n");
    const std::size_t size = std::stoul(buffer_.substr(0, line), nullptr, 16);
    while (buffer_.size() < line + 2 + size + 2) {
      if (!fill()) return response;
    }
    response.body += buffer_.substr(line + 2, size);
    buffer_.erase(0, line + 2 + size + 2);
    if (size == 0) break;
  }
  response.complete = true;
  return response;
}

Response Client::request(std::string_view method, std::string_view path, std::string_view body,
                         std::string_view headers) {
  send(http_text(method, path, body, headers));
  return read();
}

void Client::half_close() {
  ::shutdown(fd_, SHUT_WR);
}

void Client::reset() {
  linger hard{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  ::close(std::exchange(fd_, -1));
}

bool Client::at_end() {
  char byte = 0;
  return buffer_.empty() && ::recv(fd_, &byte, 1, 0) == 0;
}

std::string http_text(std::string_view method, std::string_view path, std::string_view body,
                      std::string_view headers) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: test\r\n{}", method, path, headers);
  if (!body.empty() || method == "POST") {
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  }
  return text + "\r\n" + std::string(body);
}

namespace {
GatewayOptions on_free_port(GatewayOptions options) {
  options.port = 0;
  if (options.model_id.empty()) options.accept_any_model = true;  // bodies are shorter
  return options;
}
}  // namespace

Bench::Bench(GatewayOptions options, Duration step)
    : gateway(on_free_port(std::move(options)), model, clock, telemetry),
      serving(gateway.sink(), step) {
  const Status started = gateway.start(serving);
  EXPECT_TRUE(started) << started.error().message;
}

Bench::~Bench() {
  gateway.stop();
}

TEST(TestSupport, TheClientTellsLostConnectionsFromEnds) {
  Bench bench;
  Client client = bench.client();
  EXPECT_EQ(client.request("GET", "/health").status, 200);
  client.half_close();
  EXPECT_EQ(client.read().status, 0);
}

}  // namespace sluice::test
