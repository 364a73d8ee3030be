#include "gateway/gateway.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "gateway/api.h"
#include "gateway/api_keys.h"
#include "gateway/context.h"
#include "gateway/generation_run.h"
#include "gateway/http_server.h"
#include "gateway/io_threads.h"
#include "gateway/response_format.h"
#include "gateway/router.h"
#include "gateway/tls.h"
#include "gateway/token_router.h"

namespace sluice {

namespace {

constexpr std::int32_t kMaxThreads = 64;
// Coroutines that see their connection closed end at once; this is for a
// handler in the middle of a long tokenization.
constexpr Duration kFarewell = std::chrono::seconds(1);
constexpr Duration kStopGrace = std::chrono::seconds(5);

Status check_options(const GatewayOptions& options) {
  const GatewayLimits& limits = options.limits;
  const auto positive = [](const char* name, auto value) -> Status {
    if (value > decltype(value){}) return {};
    return fail(ErrorCode::kInvalidArgument, fmt::format("{} must be above 0", name));
  };
  TRY_STATUS(positive("max_connections", limits.max_connections));
  TRY_STATUS(positive("max_requests", limits.max_requests));
  TRY_STATUS(positive("max_header_bytes", limits.max_header_bytes));
  TRY_STATUS(positive("max_body_bytes", limits.max_body_bytes));
  TRY_STATUS(positive("max_json_depth", limits.max_json_depth));
  TRY_STATUS(positive("max_unsent_tokens", limits.max_unsent_tokens));
  TRY_STATUS(positive("header_timeout", limits.header_timeout.count()));
  TRY_STATUS(positive("body_timeout", limits.body_timeout.count()));
  TRY_STATUS(positive("write_timeout", limits.write_timeout.count()));
  TRY_STATUS(positive("idle_timeout", limits.idle_timeout.count()));
  TRY_STATUS(check_api_keys(options.api_keys));
  if (options.num_threads < 1 || options.num_threads > kMaxThreads) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the gateway's threads are {} but must be between 1 and {}",
                            options.num_threads, kMaxThreads));
  }
  return {};
}

std::size_t thread_count(const GatewayOptions& options) {
  return static_cast<std::size_t>(std::clamp(options.num_threads, 1, kMaxThreads));
}

}  // namespace

class Gateway::Impl final {
 public:
  Impl(GatewayOptions options, const Model& model, const Clock& clock, Telemetry& telemetry)
      : options_(std::move(options)),
        threads_(thread_count(options_)),
        token_router_(threads_),
        keys_(options_.api_keys, clock),
        context_{.options = options_,
                 .model = model,
                 .clock = clock,
                 .telemetry = telemetry,
                 .router = token_router_,
                 .keys = keys_,
                 .parse = parse_context(model)},
        router_({keys_, options_.cors_origins}),
        server_(threads_, options_.limits,
                [this](Exchange& exchange) { return router_.handle(exchange); }) {
    context_.runs.resize(threads_.size());
    context_.context_tokens =
        options_.context_tokens > 0 ? options_.context_tokens : model.info().trained_context;
    context_.fingerprint = "b-sluice-" + options_.version;
    context_.created = unix_time();
    add_generation_routes(router_, context_);
    add_text_routes(router_, context_);
    add_admin_routes(router_, context_);
  }

  ~Impl() { stop(); }

  TokenSink& sink() { return token_router_; }

  Status start(Serving& serving) {
    TRY_STATUS(check_options(options_));
    const std::lock_guard lock(mutex_);
    if (state_ != State::kNew) return fail(ErrorCode::kInvalidArgument, "already started");
    context_.serving = &serving;
    TRY_STATUS(reload_certificate());
    TRY_STATUS(server_.listen(options_.host, options_.port));
    threads_.start();
    state_ = State::kRunning;
    return {};
  }

  std::uint16_t port() const { return server_.port(); }

  Status reload_certificate() {
    if (options_.tls.certificate.empty() && options_.tls.key.empty()) return {};
    TRY(auto tls, load_tls(options_.tls));
    server_.set_tls(std::move(tls));
    return {};
  }

  void begin_drain() { context_.draining = true; }
  std::int32_t active() const { return context_.active; }

  bool wait_drained(Duration limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (context_.active > 0 && !stopping_) {
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return context_.active == 0;
  }

  void stop() {
    stopping_ = true;
    context_.draining = true;
    const std::lock_guard lock(mutex_);
    if (state_ == State::kRunning) {
      tell_clients();
      server_.close();
      threads_.stop(kStopGrace);
    }
    state_ = State::kStopped;
  }

 private:
  enum class State : std::uint8_t { kNew, kRunning, kStopped };

  // No stream ends in silence: each gets an error, and a moment to take it.
  void tell_clients() {
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      boost::asio::post(threads_.context(i), [this, i] {
        const std::vector<GenerationRun*> runs(context_.runs[i].begin(), context_.runs[i].end());
        for (GenerationRun* run : runs) run->stop();
      });
    }
    const auto deadline = std::chrono::steady_clock::now() + kFarewell;
    while (context_.active > 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  ParseContext parse_context(const Model& model) const {
    return {options_.limits,
            options_.model_id.empty() ? model.info().id : options_.model_id,
            options_.model_aliases,
            options_.accept_any_model,
            model.tokenizer().vocabulary_size(),
            options_.benchmark};
  }

  const GatewayOptions options_;
  IoThreads threads_;
  TokenRouter token_router_;
  ApiKeys keys_;
  GatewayContext context_;
  Router router_;
  HttpServer server_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;           // start and stop
  State state_ = State::kNew;  // guarded by mutex_
};

Gateway::Gateway(GatewayOptions options, const Model& model, const Clock& clock,
                 Telemetry& telemetry)
    : impl_(std::make_unique<Impl>(std::move(options), model, clock, telemetry)) {}
Gateway::~Gateway() = default;

TokenSink& Gateway::sink() {
  return impl_->sink();
}
Status Gateway::start(Serving& serving) {
  return impl_->start(serving);
}
std::uint16_t Gateway::port() const {
  return impl_->port();
}
Status Gateway::reload_certificate() {
  return impl_->reload_certificate();
}
void Gateway::begin_drain() {
  impl_->begin_drain();
}
bool Gateway::wait_drained(Duration limit) {
  return impl_->wait_drained(limit);
}
std::int32_t Gateway::active_requests() const {
  return impl_->active();
}
void Gateway::stop() {
  impl_->stop();
}

}  // namespace sluice
