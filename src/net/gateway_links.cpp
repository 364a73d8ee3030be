#include "net/gateway_links.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "net/gateway_call.h"
#include "net/protocol.h"
#include "net/thread_name.h"
#include "net/wire.h"

namespace sluice {
namespace {

using proto::FromInstance;
using proto::ToInstance;

constexpr Duration kLook = std::chrono::milliseconds(200);  // at the directory and the streams
constexpr Duration kFirstRetry = std::chrono::milliseconds(200);
constexpr Duration kLastRetry = std::chrono::seconds(5);
constexpr Duration kRefusedRetry = std::chrono::seconds(30);  // it will say no again
constexpr Duration kFreshReport = std::chrono::seconds(2);

}  // namespace

class GatewayLinks::Impl final : public GatewayCallOwner {
 public:
  Impl(LinkOptions options, std::unique_ptr<GatewayDirectory> directory, const Clock& clock)
      : options_(std::move(options)),
        limits_{.vocabulary = options_.vocabulary},
        directory_(std::move(directory)),
        clock_(clock) {}

  void start(EngineLoop& engine, PeerLinks& peers) {
    engine_ = &engine;
    peers_ = &peers;
    thread_ = std::thread([this] { run(); });
  }

  void stop() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
    for (const auto& call : calls()) {
      if (!call->send(0, [](FromInstance& m) { m.set_leaving(true); })) call->end();
    }
    std::unique_lock lock(mutex_);
    // The gateways end the streams when they have heard it; who does not is cut off.
    if (!changed_.wait_for(lock, std::chrono::seconds(2), [this] { return open_.empty(); })) {
      lock.unlock();
      for (const auto& call : calls()) call->end();
      lock.lock();
    }
    changed_.wait(lock, [this] { return open_.empty(); });
    lock.unlock();
    forget_done();
  }

  [[nodiscard]] std::int32_t attached() {
    std::int32_t count = 0;
    for (const auto& call : calls()) count += call->welcomed() ? 1 : 0;
    return count;
  }
  [[nodiscard]] std::int32_t active() {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int32_t>(requests_.size());
  }
  [[nodiscard]] bool engine_ended() const { return engine_ended_.load(); }
  [[nodiscard]] bool drain_asked() const { return drain_asked_.load(); }

  // --- from the engine's loop

  void on_report(LoadReport&& report, std::shared_ptr<const EngineStats> stats,
                 const std::shared_ptr<const HandoffReport>& handoffs) {
    for (const auto& call : calls()) {
      if (call->welcomed()) send_report(*call, report, stats.get(), handoffs.get());
    }
    const std::lock_guard lock(mutex_);
    last_report_ = std::move(report);
    last_report_->seen.clear();
    if (stats) last_stats_ = std::move(stats);
    if (handoffs) last_handoffs_ = handoffs->stats;
  }

  // --- of handoffs

  [[nodiscard]] bool serves(std::uint64_t gateway) { return find_gateway(gateway) != nullptr; }

  bool runs_here(const RequestOrigin& origin) {
    const std::shared_ptr<GatewayCall> call = find_gateway(origin.gateway);
    if (!call) return false;
    {
      const std::lock_guard lock(mutex_);
      requests_[origin.request] = {call, origin.attempt, origin.trace_id};
    }
    spdlog::debug("request {} ({:016x}) runs here", origin.trace_id, origin.request.value);
    say_where(*call, origin, 0);
    return true;
  }
  void runs_there(const RequestOrigin& origin, std::uint64_t process) {
    if (const auto call = find_gateway(origin.gateway)) say_where(*call, origin, process);
  }
  void left(RequestId request) {
    const std::lock_guard lock(mutex_);
    requests_.erase(request);
  }

  void on_tokens(std::vector<TokenEvent>&& events) {
    std::map<std::shared_ptr<GatewayCall>, std::vector<const TokenEvent*>> by_call;
    {
      const std::lock_guard lock(mutex_);
      for (const TokenEvent& event : events) {
        const auto it = requests_.find(event.request);
        if (it == requests_.end() || it->second.attempt != event.attempt) continue;  // an orphan
        by_call[it->second.call].push_back(&event);
        if (event.finish == FinishReason::kNone) continue;
        spdlog::debug("request {} ({:016x}) has ended after {} tokens", it->second.trace_id,
                      event.request.value, event.index + (event.has_token ? 1 : 0));
        requests_.erase(it);
      }
    }
    for (const auto& [call, own] : by_call) {
      const bool sent = call->send(own.size() * 64, [&own = own](FromInstance& message) {
        for (const TokenEvent* event : own) encode(*event, *message.add_events());
      });
      if (!sent) call->end();  // it is too far behind
    }
  }

  void on_end(const Error& error) {
    {
      const std::lock_guard lock(mutex_);
      if (!stopping_) spdlog::error("the engine has ended: {}", error.message);
    }
    engine_ended_.store(true);
  }

 private:
  struct Taken {
    std::shared_ptr<GatewayCall> call;
    std::int32_t attempt = 0;
    std::string trace_id;
  };
  // A gateway that is called again and again while the directory names it.
  struct Link {
    std::shared_ptr<GatewayCall> call;  // null: between two calls
    TimePoint next_try{};
    Duration retry = kFirstRetry;
    std::string told;  // the last failure that was logged
  };

  [[nodiscard]] std::vector<std::shared_ptr<GatewayCall>> calls() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<GatewayCall>> all;
    for (const auto& [address, call] : open_) all.push_back(call);
    return all;
  }

  [[nodiscard]] std::shared_ptr<GatewayCall> find_gateway(std::uint64_t process) {
    for (auto& call : calls()) {
      if (call->welcomed() && call->process() == process) return call;
    }
    return nullptr;
  }

  static void say_where(GatewayCall& call, const RequestOrigin& origin, std::uint64_t process) {
    const bool sent = call.send(32, [&](FromInstance& message) {
      proto::RunsAt& m = *message.add_runs_at();
      m.set_request(origin.request.value);
      m.set_attempt(origin.attempt);
      m.set_process(process);
    });
    if (!sent) call.end();
  }

  void forget_done() {
    std::vector<std::shared_ptr<GatewayCall>> done;
    const std::lock_guard lock(mutex_);
    std::swap(done, done_);
  }

  // --- the thread that calls, and listens for silence

  void run() {
    set_thread_name("links");
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kLook, [this] { return stopping_; })) {
      lock.unlock();
      forget_done();
      const std::vector<GatewayAddress> wanted = directory_->addresses();
      for (const GatewayAddress& address : wanted) call_if_due(address);
      for (const auto& call : calls()) {
        const bool known = std::any_of(wanted.begin(), wanted.end(),
                                       [&](const auto& a) { return a.address == call->address(); });
        // A gateway that left the directory may only have lost its way to it: as long as it
        // is heard, it stays.
        if (call->silence() > call->lease()) {
          if (known) spdlog::warn("nothing came of the gateway at {}", call->address());
          call->end();
        } else if (call->heartbeat_due()) {
          (void)call->send(0, [](FromInstance&) {});
        }
      }
      lock.lock();
    }
  }

  void call_if_due(const GatewayAddress& address) {
    std::shared_ptr<GatewayCall> call;
    {
      const std::lock_guard lock(mutex_);
      Link& link = links_[address.address];
      if (link.call || clock_.now() < link.next_try) return;
      call = link.call = std::make_shared<GatewayCall>(*this, address, options_.security, clock_);
      open_.emplace(call.get(), call);
    }
    call->begin(call, [this](FromInstance& message) {
      proto::Hello& hello = *message.mutable_hello();
      hello.set_protocol(kProtocol);
      hello.set_name(options_.name);
      hello.set_role(static_cast<std::uint32_t>(options_.role));
      hello.set_model(options_.model);
      hello.set_kv_layout(options_.kv_layout);
      hello.set_model_name(options_.model_name);
      hello.set_process(options_.process);
      hello.set_address(peers_->address());
      hello.set_context(options_.context);
    });
  }

  // What waits already is replaced, but for the requests that it has seen.
  void send_report(GatewayCall& call, const LoadReport& report, const EngineStats* stats,
                   const HandoffReport* handoffs) {
    const bool sent = call.send(4096, [&](FromInstance& message) {
      const google::protobuf::RepeatedField<std::uint64_t> seen = message.report().seen();
      message.clear_report();
      encode(report, *message.mutable_report());
      message.mutable_report()->mutable_seen()->MergeFrom(seen);
      if (handoffs != nullptr) add_handoffs(*handoffs, report.measured_at, message);
      if (stats == nullptr) return;
      message.clear_stats();
      encode(*stats, report.measured_at, *message.mutable_stats());
    });
    if (!sent) call.end();
  }

  // As a report; the decisions of one that waits already stay.
  void add_handoffs(const HandoffReport& handoffs, TimePoint now, FromInstance& message) {
    constexpr int kMost = 256;
    const google::protobuf::RepeatedPtrField<proto::Decision> before =
        message.handoffs().decisions();
    message.clear_handoffs();
    const auto process_of = [this](InstanceId instance) { return peers_->process_of(instance); };
    encode(handoffs, now, process_of, *message.mutable_handoffs());
    auto& decisions = *message.mutable_handoffs()->mutable_decisions();
    const int room = kMost - decisions.size();
    for (const proto::Decision& d : before) {
      if (before.size() <= room) *decisions.Add() = d;
    }
  }

  // --- from the calls

  void on_peers(GatewayCall& call, const proto::PeerList& list) override {
    std::vector<PeerInfo> peers;
    for (const proto::Peer& peer : list.peers()) {
      if (peer.name().size() > kMaxName || !parse_host_port(peer.address())) continue;
      peers.push_back({peer.name(), peer.address(), peer.process(), peer.kv_layout()});
    }
    peers_->set_peers(call.process(), std::move(peers));
  }

  void on_welcome(GatewayCall& call, const proto::Welcome& welcome) override {
    const Duration lease(std::clamp<std::int64_t>(welcome.lease_ns(), Duration(kLook).count() * 4,
                                                  Duration(std::chrono::hours(1)).count()));
    call.welcome(welcome, lease);
    spdlog::info("joined gateway {} at {} as instance {}", welcome.gateway(), call.address(),
                 welcome.instance());
    std::optional<LoadReport> report;
    std::shared_ptr<const EngineStats> stats;
    std::optional<HandoffReport> handoffs;
    {
      const std::lock_guard lock(mutex_);
      Link& link = links_[call.address()];
      link.retry = kFirstRetry;
      link.told.clear();
      // Without waiting for the next one; but an engine that hangs is not to look well.
      if (last_report_ && clock_.now() - last_report_->measured_at < kFreshReport) {
        report = last_report_;
        stats = last_stats_;
        if (last_handoffs_) handoffs.emplace(HandoffReport{*last_handoffs_, {}});
      }
    }
    if (report) send_report(call, *report, stats.get(), handoffs ? &*handoffs : nullptr);
  }

  void on_command(const std::shared_ptr<GatewayCall>& call, proto::Command& command) override {
    switch (command.command_case()) {
      case proto::Command::kSubmit: return take(call, command.submit());
      case proto::Command::kCancel: {
        const RequestId id{command.cancel()};
        {
          const std::lock_guard lock(mutex_);
          const auto it = requests_.find(id);
          // Who is not known has perhaps been handed over, and is cancelled there.
          if (it != requests_.end() && it->second.call != call) return;
        }
        return engine_->cancel(id);
      }
      case proto::Command::kDrain:
        spdlog::info("gateway {} asks this instance to drain", call->gateway());
        drain_asked_.store(true);
        return engine_->drain();
      case proto::Command::COMMAND_NOT_SET: return;
    }
  }

  void take(const std::shared_ptr<GatewayCall>& call, const proto::Request& message) {
    auto decoded = decode(message, clock_.now(), limits_);
    if (!decoded) {
      return refuse(*call, RequestId{message.id()}, message.attempt(), decoded.error());
    }
    auto request = std::make_unique<Request>(std::move(*decoded));
    request->gateway = call->process();
    const RequestId id = request->id;
    const std::int32_t attempt = request->attempt;
    {
      const std::lock_guard lock(mutex_);
      const auto [it, fresh] = requests_.try_emplace(id, Taken{call, attempt, request->trace_id});
      if (!fresh) {
        return refuse(*call, id, attempt,
                      {ErrorCode::kUnavailable, "a request of this id runs here already", 0});
      }
    }
    spdlog::debug("request {} ({:016x}) has come, {} tokens and {} to generate", request->trace_id,
                  id.value, request->prompt.size() + request->output.size(), request->max_tokens);
    if (engine_->submit(request)) return;
    {
      const std::lock_guard lock(mutex_);
      requests_.erase(id);
    }
    refuse(*call, id, attempt, {ErrorCode::kBusy, "the instance's inbox is full", 1});
  }

  static void refuse(GatewayCall& call, RequestId id, std::int32_t attempt, const Error& error) {
    TokenEvent event;
    event.request = id;
    event.attempt = attempt;
    event.finish = FinishReason::kError;
    event.error = error;
    (void)call.send(256, [&](FromInstance& message) { encode(event, *message.add_events()); });
  }

  // Its requests are orphans: nobody waits for them.
  void on_broken(GatewayCall& call) override {
    std::vector<RequestId> orphans;
    {
      const std::lock_guard lock(mutex_);
      for (auto it = requests_.begin(); it != requests_.end();) {
        if (it->second.call.get() != &call) {
          ++it;
          continue;
        }
        orphans.push_back(it->first);
        it = requests_.erase(it);
      }
    }
    if (call.was_welcomed()) peers_->forget_peers(call.process());
    for (const RequestId id : orphans) engine_->cancel(id);
    if (!orphans.empty()) {
      spdlog::warn("gateway {} is gone; {} requests of it are cancelled", call.gateway(),
                   orphans.size());
    }
  }

  void on_done(std::shared_ptr<GatewayCall> call, const grpc::Status& status) override {
    const std::lock_guard lock(mutex_);  // to the end: stop() may destroy all of this then
    Link& link = links_[call->address()];
    link.call.reset();
    const bool refused = status.error_code() == grpc::StatusCode::FAILED_PRECONDITION ||
                         status.error_code() == grpc::StatusCode::UNAUTHENTICATED;
    link.next_try = clock_.now() + (refused ? kRefusedRetry : link.retry);
    link.retry = std::min(2 * link.retry, kLastRetry);
    const std::string why = status.error_message();
    if (!stopping_ && status.error_code() != grpc::StatusCode::ALREADY_EXISTS &&
        std::exchange(link.told, why) != why) {
      spdlog::log(refused ? spdlog::level::err : spdlog::level::warn, "the gateway at {}: {}",
                  call->address(), why.empty() ? "it has ended" : why);
    }
    open_.erase(call.get());
    done_.push_back(std::move(call));
    changed_.notify_all();
  }

  const LinkOptions options_;
  const WireLimits limits_;
  const std::unique_ptr<GatewayDirectory> directory_;
  const Clock& clock_;
  EngineLoop* engine_ = nullptr;
  PeerLinks* peers_ = nullptr;
  std::thread thread_;
  std::atomic<bool> engine_ended_{false};
  std::atomic<bool> drain_asked_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  // All below guarded by mutex_.
  bool stopping_ = false;
  std::map<std::string, Link> links_;                                // by address
  std::map<const GatewayCall*, std::shared_ptr<GatewayCall>> open_;  // until they are done
  std::vector<std::shared_ptr<GatewayCall>> done_;                   // to be destroyed
  std::unordered_map<RequestId, Taken> requests_;                    // that have not ended
  std::optional<LoadReport> last_report_;
  std::shared_ptr<const EngineStats> last_stats_;
  std::optional<HandoffStats> last_handoffs_;
};

GatewayLinks::GatewayLinks(LinkOptions options, std::unique_ptr<GatewayDirectory> directory,
                           const Clock& clock)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(directory), clock)) {}
GatewayLinks::~GatewayLinks() {
  stop();
}

void GatewayLinks::start(EngineLoop& engine, PeerLinks& peers) {
  impl_->start(engine, peers);
}
bool GatewayLinks::serves(std::uint64_t gateway) const {
  return impl_->serves(gateway);
}
bool GatewayLinks::runs_here(const RequestOrigin& origin) {
  return impl_->runs_here(origin);
}
void GatewayLinks::runs_there(const RequestOrigin& origin, std::uint64_t process) {
  impl_->runs_there(origin, process);
}
void GatewayLinks::left(RequestId request) {
  impl_->left(request);
}
void GatewayLinks::stop() {
  impl_->stop();
}
std::int32_t GatewayLinks::attached() const {
  return impl_->attached();
}
std::int32_t GatewayLinks::active() const {
  return impl_->active();
}
bool GatewayLinks::engine_ended() const {
  return impl_->engine_ended();
}
bool GatewayLinks::drain_asked() const {
  return impl_->drain_asked();
}
void GatewayLinks::on_report(LoadReport&& report, std::shared_ptr<const EngineStats> stats,
                             std::shared_ptr<const HandoffReport> handoffs) {
  impl_->on_report(std::move(report), std::move(stats), handoffs);
}
void GatewayLinks::on_tokens(std::vector<TokenEvent>&& events) {
  impl_->on_tokens(std::move(events));
}
void GatewayLinks::on_end(InstanceId, Incarnation, const Error& error) {
  impl_->on_end(error);
}

}  // namespace sluice
