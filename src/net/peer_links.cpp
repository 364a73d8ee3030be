#include "net/peer_links.h"

#include <fmt/format.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "net/gateway_directory.h"
#include "net/gateway_links.h"
#include "net/kv_connections.h"
#include "net/peer_hello.h"
#include "net/peer_stream.h"
#include "net/process_id.h"
#include "net/protocol.h"
#include "net/shared_arena.h"
#include "net/thread_name.h"
#include "net/wire.h"

namespace sluice {
namespace {

using proto::PeerMessage;

constexpr Duration kLook = std::chrono::milliseconds(100);
constexpr Duration kFirstRetry = std::chrono::milliseconds(100);
constexpr Duration kLastRetry = std::chrono::seconds(5);
constexpr Duration kRefusedRetry = std::chrono::seconds(30);  // it will say no again
constexpr Duration kCallLimit = std::chrono::seconds(5);      // until it is welcomed
constexpr Duration kNoLink = std::chrono::seconds(1);  // until a gateway may be known there too

}  // namespace

class PeerLinks::Impl final : public proto::Peers::CallbackService, public PeerStreamOwner {
 public:
  Impl(PeerOptions options, const Clock& clock)
      : options_(std::move(options)),
        limits_{.vocabulary = options_.vocabulary},
        clock_(clock),
        hello_(make_hello(options_)) {}

  Status start(EngineLoop& engine, GatewayLinks& gateways, KvWayList kv) {
    engine_ = &engine;
    gateways_ = &gateways;
    kv_ = std::move(kv);
    if (takes()) {
      grpc::ServerBuilder builder;
      int port = 0;
      builder.AddListeningPort(options_.listen, server_credentials(options_.security), &port);
      builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
      builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
      // Sources ask often whether it is there.
      builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
      builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
      builder.RegisterService(this);
      server_ = builder.BuildAndStart();
      if (!server_ || port == 0) {
        return fail(ErrorCode::kUnavailable,
                    fmt::format("cannot listen for other instances at {}", options_.listen));
      }
      TRY(const HostPort at, parse_host_port(options_.listen));
      const bool v6 = at.host.find(':') != std::string::npos;
      address_ = !options_.advertise.empty()
                     ? options_.advertise
                     : fmt::format("{}:{}", v6 ? "[" + at.host + "]" : at.host, port);
    }
    thread_ = std::thread([this] { run(); });
    return {};
  }

  void stop() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
    for (const auto& stream : streams()) stream->end();
    if (server_) server_->Shutdown();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_.empty(); });
    lock.unlock();
    server_.reset();
    forget_done();
  }

  [[nodiscard]] const std::string& address() const { return address_; }

  void set_peers(std::uint64_t gateway, std::vector<PeerInfo> peers) {
    const std::lock_guard lock(mutex_);
    told_[gateway] = std::move(peers);
    list_targets();
    changed_.notify_all();
  }
  void forget_peers(std::uint64_t gateway) {
    const std::lock_guard lock(mutex_);
    told_.erase(gateway);
    list_targets();
  }
  [[nodiscard]] std::uint64_t process_of(InstanceId instance, std::optional<Incarnation> of) const {
    if (instance == kSelf.instance) return options_.process;
    const std::lock_guard lock(mutex_);
    for (const auto& [name, known] : known_) {
      const auto& [id, incarnation] = known.placement;
      if (id == instance && (!of || *of == incarnation)) return known.process;
    }
    return kNoProcess;
  }

  // --- the engine's loop

  void send(HandoffMail&& mail) {
    const bool to_target = said_by_source(mail.message);
    const auto stream = find(to_target, {mail.to.instance, mail.to.incarnation});
    if (!stream) return;  // as a message that is lost
    const bool sent = stream->send(wire_size(mail.message), [&](PeerMessage& message) {
      encode(mail.message, clock_.now(), *message.add_words());
    });
    if (!sent) stream->end();
  }

  bool send(const KvPeer& to, KvMessage&& message) {
    const auto* piece = std::get_if<KvPiece>(&message);
    const auto stream = find(piece != nullptr, to);
    if (!stream) return false;
    const std::size_t bytes =
        piece == nullptr ? 64 : 128 + piece->bytes.size() + 10 * piece->to.size();
    const bool sent =
        stream->send(bytes, [&](PeerMessage& m) { encode(std::move(message), *m.add_words()); });
    if (!sent) stream->end();
    return sent;
  }

  // Open, and to this very incarnation; `outgoing`: as its source.
  std::shared_ptr<PeerStream> find(bool outgoing, const KvPeer& peer) {
    const std::lock_guard lock(mutex_);
    const auto& all = outgoing ? out_ : in_;
    const auto it = all.find(peer.instance);
    if (it == all.end() || !it->second->open()) return nullptr;
    return it->second->identity().placement.incarnation == peer.incarnation ? it->second : nullptr;
  }

  void runs_at(const RequestOrigin& origin, const Placement& placement) {
    if (placement != kSelf) {
      gateways_->runs_there(origin, process_of(placement.instance, placement.incarnation));
    } else if (!gateways_->runs_here(origin)) {
      engine_->cancel(origin.request);  // its gateway is gone, and its client with it
    }
  }
  void left(RequestId request) { gateways_->left(request); }

  void seek_targets() {
    const std::lock_guard lock(mutex_);
    seeking_ = true;
    list_targets();
    changed_.notify_all();
  }

  void share(const LoadReport& report) {
    if (!takes()) return;
    std::vector<std::shared_ptr<PeerStream>> sources;
    {
      const std::lock_guard lock(mutex_);
      last_report_ = report;
      last_report_->seen.clear();
      for (const auto& [instance, stream] : in_) sources.push_back(stream);
    }
    for (const auto& stream : sources) {
      if (!send_report(*stream, report)) stream->end();
    }
  }

  void ended() {
    for (const auto& stream : streams()) {
      (void)stream->send(0, [](PeerMessage& message) { message.set_leaving(true); });
    }
  }

 private:
  // A peer by its name.
  struct Known {
    Placement placement;
    std::uint64_t process = 0;
    bool gone = false;    // the engine was told so: the next time it is another incarnation
    TimePoint unheard{};  // since when it has had no stream as a source; max: it has one
  };
  // One that takes sequences over, called again and again while it is listed.
  struct Target {
    PeerInfo info;
    std::shared_ptr<PeerStream> call;  // null: between two calls
    TimePoint called{};
    TimePoint next_try{};
    Duration retry = kFirstRetry;
    bool listed = true;
    std::string told;  // the last failure that was logged
  };

  [[nodiscard]] bool takes() const {
    return options_.role != Role::kPrefill && !options_.listen.empty();
  }
  [[nodiscard]] bool hands_over() const { return options_.role == Role::kPrefill || seeking_; }

  [[nodiscard]] std::vector<std::shared_ptr<PeerStream>> streams() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<PeerStream>> all;
    for (const auto& [key, stream] : open_) all.push_back(stream);
    return all;
  }
  void forget_done() {
    std::vector<std::shared_ptr<PeerStream>> done;
    const std::lock_guard lock(mutex_);
    std::swap(done, done_);
  }

  // --- who is there; under mutex_

  // Those that any gateway lists; who is listed no more is called no more.
  void list_targets() {
    for (auto& [process, target] : targets_) target.listed = false;
    if (!hands_over()) return;
    for (const auto& [gateway, peers] : told_) {
      for (const PeerInfo& peer : peers) {
        if (peer.process == options_.process) continue;
        if (peer.kv_layout != options_.kv_layout) {
          if (strangers_.insert(peer.process).second) {
            spdlog::warn("instance {} lays its KV out otherwise: nothing is handed over to it",
                         peer.name);
          }
          continue;
        }
        Target& target = targets_[peer.process];
        target.info = peer;
        target.listed = true;
      }
    }
    std::erase_if(targets_, [this](const auto& entry) {
      const Target& target = entry.second;
      if (target.listed || target.call) return false;
      tell_gone(target, "no gateway knows it any more");
      return true;
    });
  }

  // Its present incarnation; a former one is gone.
  Placement identify(const std::string& name, std::uint64_t process) {
    const auto next = static_cast<std::uint32_t>(known_.size() + 1);
    const auto [it, fresh] = known_.try_emplace(name);
    Known& known = it->second;
    if (fresh) {
      known.placement = {InstanceId{next}, Incarnation{1}};
      known.process = process;
      known.unheard = TimePoint::max();
    } else if (known.process != process || known.gone) {
      if (!known.gone) engine_->peer_gone(known.placement);
      ++known.placement.incarnation.value;
      known.process = process;
      known.gone = false;
      known.unheard = TimePoint::max();
    }
    return known.placement;
  }

  void tell_gone(const PeerIdentity& peer, const std::string& why) {
    const auto it = known_.find(peer.name);
    if (it == known_.end() || it->second.gone || it->second.placement != peer.placement) return;
    it->second.gone = true;
    spdlog::warn("instance {} is gone: {}", peer.name, why);
    engine_->peer_gone(peer.placement);
  }

  void tell_gone(const Target& target, const std::string& why) {
    const auto known = known_.find(target.info.name);
    if (known == known_.end() || known->second.process != target.info.process) return;
    tell_gone({known->second.placement, known->second.process, known->first}, why);
  }

  // --- the thread that calls

  void run() {
    set_thread_name("peers");
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      changed_.wait_for(lock, kLook);
      if (stopping_) return;
      std::vector<std::pair<std::shared_ptr<PeerStream>, PeerMessage>> calls;
      std::vector<std::shared_ptr<PeerStream>> late;
      for (auto& [process, target] : targets_) {
        if (target.call) {
          const bool waits = !target.call->was_open();
          if (waits && clock_.now() - target.called > kCallLimit) late.push_back(target.call);
          continue;
        }
        if (!target.listed || clock_.now() < target.next_try) continue;
        calls.emplace_back(make(target), hello_);
        calls.back().second.mutable_hello()->set_to(process);
      }
      for (auto& [name, known] : known_) {
        const bool lapsed = !known.gone && known.unheard != TimePoint::max() &&
                            clock_.now() - known.unheard > options_.lease;
        if (lapsed && !out_.contains(known.placement.instance)) {
          tell_gone({known.placement, known.process, name}, "it does not call any more");
        }
      }
      lock.unlock();
      forget_done();
      for (const auto& stream : late) stream->end();
      for (const auto& [stream, hello] : calls) begin_call(stream, hello);
      lock.lock();
    }
  }

  std::shared_ptr<PeerStream> make(Target& target) {
    const auto at = parse_host_port(target.info.address);
    target.call = make_call(*this, target.info.address, at ? at->host : "", options_.security);
    target.called = clock_.now();
    open_.emplace(target.call.get(), target.call);
    return target.call;
  }

  // --- the service

  grpc::ServerBidiReactor<PeerMessage, PeerMessage>* HandOver(
      grpc::CallbackServerContext* context) override {
    if (!authorized(options_.security, context->client_metadata())) {
      spdlog::warn("{} called without the cluster's token", context->peer());
      return refuse_peer({grpc::StatusCode::UNAUTHENTICATED, "the cluster token is wrong"});
    }
    const AcceptedPeer accepted = accept_peer(*this, *context);
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) {
        return refuse_peer({grpc::StatusCode::UNAVAILABLE, "the instance is stopping"});
      }
      open_.emplace(accepted.stream.get(), accepted.stream);
    }
    begin_accepted(accepted);
    return accepted.reactor;
  }

  grpc::Status on_first(const std::shared_ptr<PeerStream>& stream, PeerMessage& message) override {
    return stream->outgoing() ? welcomed(stream, message) : admit(stream, message.hello());
  }

  grpc::Status admit(const std::shared_ptr<PeerStream>& stream, const proto::PeerHello& hello) {
    if (auto status = check_hello(hello, options_); !status.ok()) {
      spdlog::error("instance {}: {}", hello.name(), status.error_message());
      return status;
    }
    if (hello.has_arena()) stream->arena = open_arena(hello.arena());
    if (!stream->arena) {
      for (KvConnections* way : kv_) stream->kv_secrets.push_back(way->admit());
    }
    std::optional<LoadReport> report;
    std::shared_ptr<PeerStream> former;
    {
      const std::lock_guard lock(mutex_);
      const Placement placement = identify(hello.name(), hello.process());
      stream->become({placement, hello.process(), hello.name()});
      known_[hello.name()].unheard = TimePoint::max();
      former = std::exchange(in_[placement.instance], stream);
      report = last_report_;
    }
    if (former) former->end();
    spdlog::info("instance {} hands over to this one{}", hello.name(),
                 stream->arena ? "; its KV is read in place" : "");
    (void)stream->send(64, [&](PeerMessage& m) { say_welcome(*stream, kv_, m); });
    if (report) (void)send_report(*stream, *report);
    return grpc::Status::OK;
  }

  grpc::Status welcomed(const std::shared_ptr<PeerStream>& stream, PeerMessage& message) {
    if (!message.has_welcome())
      return {grpc::StatusCode::FAILED_PRECONDITION, "a target's stream begins with its welcome"};
    stream->reads_ours = message.welcome().reads_arena();
    {
      const std::lock_guard lock(mutex_);
      Target* target = target_of(*stream);
      if (target == nullptr) return grpc::Status::CANCELLED;
      target->retry = kFirstRetry;
      target->told.clear();
      const PeerInfo& info = target->info;
      stream->become({identify(info.name, info.process), info.process, info.name});
      out_[stream->identity().placement.instance] = stream;
      call_for_kv(kv_, *stream, info.address, message.welcome());
      spdlog::info("instance {} takes over from this one{}", info.name,
                   stream->reads_ours ? "; it reads KV in place" : "");
    }
    message.clear_welcome();
    return on_message(*stream, message);
  }

  Target* target_of(const PeerStream& stream) {
    for (auto& [process, target] : targets_) {
      if (target.call.get() == &stream) return &target;
    }
    return nullptr;
  }

  bool send_report(PeerStream& stream, const LoadReport& report) {
    return stream.send(4096, [&](PeerMessage& message) {
      const google::protobuf::RepeatedField<std::uint64_t> seen = message.report().seen();
      message.clear_report();
      encode(report, *message.mutable_report());
      message.mutable_report()->mutable_seen()->MergeFrom(seen);
    });
  }

  // --- what peers say

  grpc::Status on_message(PeerStream& stream, PeerMessage& message) override {
    const auto wrong = [](const Error& error) {
      return grpc::Status{grpc::StatusCode::INVALID_ARGUMENT, error.message};
    };
    const PeerIdentity& from = stream.identity();
    const TimePoint now = clock_.now();
    if (message.has_report()) {
      auto report = decode(message.report(), now, limits_);
      if (!report) return wrong(report.error());
      report->instance = from.placement.instance;
      report->incarnation = from.placement.incarnation;
      engine_->hear(std::move(*report));
    }
    for (proto::Word& m : *message.mutable_words()) {
      const std::uint64_t gateway = m.ask().gateway();
      auto word = decode(m, now, options_.kv, limits_);
      if (!word) return wrong(word.error());
      if (said_by_source(*word) == stream.outgoing()) {
        return wrong({ErrorCode::kInvalidArgument, "a word of the other side", 0});
      }
      if (auto* kv = std::get_if<KvMessage>(&*word)) {
        engine_->deliver({from.placement.instance, from.placement.incarnation}, std::move(*kv));
        continue;
      }
      auto& words = std::get<HandoffMessage>(*word);
      if (m.has_ask() && !gateways_->serves(gateway)) {
        refuse(stream, key_of(words));
        continue;
      }
      engine_->deliver({from.placement, kSelf, std::move(words)});
    }
    if (message.leaving()) {
      const std::lock_guard lock(mutex_);
      tell_gone(from, "it has ended");
    }
    return grpc::Status::OK;
  }

  // Who asks hands over for a gateway that this instance has no way to, at present.
  void refuse(PeerStream& stream, const HandoffKey& key) {
    const HandoffMessage no =
        Refused{key,
                RefusalKind::kNotBefore,
                kNoLink,
                {ErrorCode::kUnavailable, "there is no link to the request's gateway here", 0}};
    (void)stream.send(256, [&](PeerMessage& m) { encode(no, clock_.now(), *m.add_words()); });
  }

  void on_broken(PeerStream& stream) override {
    for (std::size_t i = 0; i < stream.kv_secrets.size(); ++i) kv_[i]->forget(stream.kv_secrets[i]);
    const std::lock_guard lock(mutex_);
    const PeerIdentity& peer = stream.identity();
    auto& all = stream.outgoing() ? out_ : in_;
    const auto it = all.find(peer.placement.instance);
    if (it == all.end() || it->second.get() != &stream) return;
    all.erase(it);
    if (stream.outgoing()) {
      for (KvConnections* way : kv_) {
        way->disconnect({peer.placement.instance, peer.placement.incarnation});
      }
      engine_->way_lost({peer.placement.instance, peer.placement.incarnation});
    } else if (const auto known = known_.find(peer.name); known != known_.end()) {
      known->second.unheard = clock_.now();
    }
  }

  void on_done(std::shared_ptr<PeerStream> stream, const grpc::Status& status) override {
    const std::lock_guard lock(mutex_);  // to the end: stop() may destroy all of this then
    if (Target* target = target_of(*stream)) {
      called(*target, *stream, status);
      if (!target->listed) targets_.erase(target->info.process);
    }
    open_.erase(stream.get());
    done_.push_back(std::move(stream));
    changed_.notify_all();
  }

  // A call has ended. Whom nothing reached, though it was there before, is gone; so is who is
  // listed no more.
  void called(Target& target, const PeerStream& stream, const grpc::Status& status) {
    const bool was_open = stream.was_open();
    const bool refused = status.error_code() == grpc::StatusCode::FAILED_PRECONDITION ||
                         status.error_code() == grpc::StatusCode::UNAUTHENTICATED;
    target.call.reset();
    target.next_try = clock_.now();
    if (was_open && target.listed) return;  // once more, at once
    target.next_try += refused ? kRefusedRetry : target.retry;
    target.retry = std::min(2 * target.retry, kLastRetry);
    tell_gone(target, status.error_message());
    if (!stopping_ && std::exchange(target.told, status.error_message()) != target.told) {
      spdlog::warn("instance {} at {}: {}", target.info.name, target.info.address, target.told);
    }
  }

  const PeerOptions options_;
  const WireLimits limits_;
  const Clock& clock_;
  const PeerMessage hello_;
  EngineLoop* engine_ = nullptr;
  GatewayLinks* gateways_ = nullptr;
  KvWayList kv_;  // those that this instance has
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // All below guarded by mutex_.
  bool stopping_ = false;
  bool seeking_ = false;                                   // whatever its role, it hands over
  std::map<std::uint64_t, std::vector<PeerInfo>> told_;    // by gateway
  std::map<std::uint64_t, Target> targets_;                // by process
  std::set<std::uint64_t> strangers_;                      // processes of another layout
  std::map<std::string, Known> known_;                     // by name, for this process's life
  std::map<InstanceId, std::shared_ptr<PeerStream>> out_;  // open ones, as their source
  std::map<InstanceId, std::shared_ptr<PeerStream>> in_;   // open ones, as their target
  std::map<const PeerStream*, std::shared_ptr<PeerStream>> open_;  // all, until they are done
  std::vector<std::shared_ptr<PeerStream>> done_;                  // to be destroyed
  std::optional<LoadReport> last_report_;
};

PeerLinks::PeerLinks(PeerOptions options, const Clock& clock)
    : impl_(std::make_unique<Impl>(std::move(options), clock)) {}
PeerLinks::~PeerLinks() {
  stop();
}

Status PeerLinks::start(EngineLoop& engine, GatewayLinks& gateways, KvWayList kv) {
  return impl_->start(engine, gateways, std::move(kv));
}
void PeerLinks::stop() {
  impl_->stop();
}
std::string PeerLinks::address() const {
  return impl_->address();
}
void PeerLinks::set_peers(std::uint64_t gateway, std::vector<PeerInfo> peers) {
  impl_->set_peers(gateway, std::move(peers));
}
void PeerLinks::forget_peers(std::uint64_t gateway) {
  impl_->forget_peers(gateway);
}
std::uint64_t PeerLinks::process_of(InstanceId instance) const {
  return impl_->process_of(instance, std::nullopt);
}
void PeerLinks::send(HandoffMail&& mail) {
  impl_->send(std::move(mail));
}
void PeerLinks::runs_at(const RequestOrigin& origin, const Placement& placement) {
  impl_->runs_at(origin, placement);
}
void PeerLinks::left(RequestId request) {
  impl_->left(request);
}
void PeerLinks::seek_targets() {
  impl_->seek_targets();
}
void PeerLinks::share(const LoadReport& report) {
  impl_->share(report);
}
void PeerLinks::ended() {
  impl_->ended();
}
bool PeerLinks::send(const KvPeer& to, KvMessage&& message) {
  return impl_->send(to, std::move(message));
}
bool PeerLinks::reads_ours(const KvPeer& peer) {
  const auto stream = impl_->find(/*outgoing=*/true, peer);
  return stream && stream->reads_ours;
}
std::shared_ptr<const PeerArena> PeerLinks::arena_of(const KvPeer& peer) {
  const auto stream = impl_->find(/*outgoing=*/false, peer);
  return stream ? stream->arena : nullptr;
}

}  // namespace sluice
