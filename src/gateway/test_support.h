// What the gateway's tests stand on: a byte-level model, a scripted cluster on a
// thread of its own, and an HTTP client over real sockets.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cluster/serving.h"
#include "cluster/telemetry.h"
#include "gateway/gateway.h"
#include "model/model.h"

namespace sluice::test {

// Token b is the byte b; 256 ends the model's turn; 257 begins a text.
inline constexpr Token kEnd = 256;
inline constexpr Token kBegin = 257;

class ByteTokenizer final : public Tokenizer {
 public:
  Result<std::vector<Token>> tokenize(std::string_view text, TokenizeOptions) const override;
  std::string piece(Token token, bool special) const override;
  std::int32_t vocabulary_size() const override { return 258; }
  bool is_end_of_generation(Token token) const override { return token == kEnd; }
};

// "role:content;" for each message, then "assistant:". Output that begins with
// "CALL name {...}" is a tool call when there are tools.
class PlainChat final : public ChatTemplate {
 public:
  Result<ChatPrompt> apply(const ChatRequest& request) const override;
  std::unique_ptr<ChatParser> make_parser(const ChatPrompt& prompt) const override;
  Result<std::string> schema_to_grammar(std::string_view schema) const override;
};

// Knows a bad grammar by the word "bad".
class FakeSamplers final : public SamplerFactory {
 public:
  Result<std::unique_ptr<Sampler>> make(const SamplingParams& params,
                                        std::span<const Token> prompt) const override;
};

class FakeModel final : public Model {
 public:
  FakeModel();
  const ModelInfo& info() const override { return info_; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  const ChatTemplate& chat() const override { return chat_; }
  const SamplerFactory& samplers() const override { return samplers_; }
  Result<std::unique_ptr<DeviceKv>> make_device_kv(const KvLayout&, std::int32_t) const override {
    return nullptr;
  }
  Result<std::unique_ptr<ModelRunner>> make_runner(const RunnerOptions&) const override {
    return fail(ErrorCode::kInternal, "no runner");
  }

 private:
  ModelInfo info_;
  ByteTokenizer tokenizer_;
  PlainChat chat_;
  FakeSamplers samplers_;
};

// How the cluster answers one request.
struct Script {
  std::string reply = "Hello world";
  bool endless = false;                              // the reply again and again
  Error refuse_submit{ErrorCode::kInternal, {}, 0};  // with a message: submit() fails
  Error fail{ErrorCode::kInternal, {}, 0};           // with a message: an error event ...
  std::int32_t fail_after = 0;                       // ... after that many tokens
  std::int32_t cached_tokens = 0;
};

class FakeServing final : public Serving {
 public:
  explicit FakeServing(TokenSink& sink, Duration step = std::chrono::microseconds(200));
  ~FakeServing() override;

  Status submit(std::unique_ptr<Request> request) override;
  void cancel(RequestId id) override;
  std::shared_ptr<const ClusterSnapshot> snapshot() const override;
  bool ready() const override { return is_ready; }

  void set_script(std::function<Script(const Request&)> script);
  void set_script(Script script) {
    set_script([script](const Request&) { return script; });
  }
  [[nodiscard]] std::vector<Request> submitted() const;
  [[nodiscard]] std::int32_t cancelled() const;
  [[nodiscard]] std::int32_t running() const;
  // Waits until nothing runs; false after ten seconds.
  [[nodiscard]] bool wait_idle() const;

  std::atomic<bool> is_ready{true};
  ClusterSnapshot state;  // what snapshot() copies, with the running set

 private:
  struct Sequence {
    Request request;
    Script script;
    std::int32_t generated = 0;
  };
  void loop(const std::stop_token& stop);
  static TokenEvent progress_event(const Sequence& sequence);
  TokenEvent next_event(Sequence& sequence) const;

  TokenSink& sink_;
  const Duration step_;
  mutable std::mutex mutex_;
  std::function<Script(const Request&)> script_ = [](const Request&) { return Script{}; };
  std::map<RequestId, Sequence> running_;
  std::vector<TokenEvent> endings_;  // of cancelled sequences
  std::vector<Request> submitted_;
  std::int32_t cancelled_ = 0;
  std::jthread thread_;
};

class FakeTelemetry final : public Telemetry {
 public:
  void on_inter_token(Duration) override { ++inter_tokens; }
  void on_finished(const RequestRecord& record) override {
    const std::lock_guard lock(mutex_);
    records_.push_back(record);
  }
  void on_rejected(std::string_view reason) override {
    const std::lock_guard lock(mutex_);
    rejected_.emplace_back(reason);
  }
  std::string render() const override { return "# HELP up 1\nup 1\n"; }
  std::vector<RequestRecord> records() const {
    const std::lock_guard lock(mutex_);
    return records_;
  }
  std::vector<std::string> rejected() const {
    const std::lock_guard lock(mutex_);
    return rejected_;
  }
  std::atomic<int> inter_tokens{0};

 private:
  mutable std::mutex mutex_;
  std::vector<RequestRecord> records_;
  std::vector<std::string> rejected_;
};

struct Response {
  int status = 0;                              // 0: the connection ended instead
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks put together
  bool complete = false;                       // ended as HTTP says, not by a lost connection
};

// A blocking client of one connection.
class Client final {
 public:
  explicit Client(std::uint16_t port, int receive_buffer = 0);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool send(std::string_view bytes);
  Response read();
  // Reads until `text` has come, from the body or anywhere; false: the end came first.
  bool read_until(std::string_view text);
  Response request(std::string_view method, std::string_view path, std::string_view body = {},
                   std::string_view headers = {});
  Response post(std::string_view path, std::string_view body) {
    return request("POST", path, body);
  }
  void half_close();
  // Closes with a reset instead of a farewell.
  void reset();
  [[nodiscard]] bool at_end();  // the server has closed

 private:
  bool fill();
  int fd_ = -1;
  std::string buffer_;
};

[[nodiscard]] std::string http_text(std::string_view method, std::string_view path,
                                    std::string_view body = {}, std::string_view headers = {});

// A gateway over the fakes, started on a free port. Any model's name is taken
// unless the options give one.
struct Bench {
  explicit Bench(GatewayOptions options = {}, Duration step = std::chrono::microseconds(200));
  ~Bench();
  FakeModel model;
  SteadyClock clock;
  FakeTelemetry telemetry;
  Gateway gateway;
  FakeServing serving;
  [[nodiscard]] Client client() const { return Client(gateway.port()); }
  Response post(std::string_view path, std::string_view body) const {
    return Client(gateway.port()).post(path, body);
  }
  Response get(std::string_view path) const { return Client(gateway.port()).request("GET", path); }
};

}  // namespace sluice::test
