#include "net/instance_registry.h"

#include <fmt/format.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "net/gateway_directory.h"
#include "net/gathered_writes.h"
#include "net/proto/cluster.grpc.pb.h"
#include "net/protocol.h"
#include "net/security.h"
#include "net/thread_name.h"
#include "net/wire.h"

namespace sluice {
namespace {

using FromInstance = proto::FromInstance;
using ToInstance = proto::ToInstance;
using ServerStream = grpc::ServerBidiReactor<FromInstance, ToInstance>;

// Answers a call with a status and nothing else.
class RefusedCall final : public ServerStream {
 public:
  explicit RefusedCall(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// What an instance is, once it has said so.
struct Identity {
  std::string name;
  Placement placement;
  std::uint64_t process = 0;
  std::string address;  // at which its peers reach it, or empty
  std::uint64_t kv_layout = 0;
};

class Session;

// What a session needs of the registry. Any thread.
class SessionOwner {
 public:
  virtual ~SessionOwner() = default;
  virtual grpc::Status admit(const std::shared_ptr<Session>& session,
                             const proto::Hello& hello) = 0;
  virtual void on_message(const Identity& from, FromInstance& message, std::string& wrong) = 0;
  // The last call for an admitted session, `why` it is over.
  virtual void on_closed(const Identity& from, const std::string& why) = 0;
  virtual void on_done(Session& session) = 0;
};

// One instance's stream. Lives until OnDone().
class Session final : public ServerStream, public std::enable_shared_from_this<Session> {
 public:
  Session(SessionOwner& owner, grpc::CallbackServerContext& context, const Clock& clock)
      : owner_(owner),
        context_(context),
        clock_(clock),
        writes_([this](const ToInstance& message) { StartWrite(&message); }) {}

  void begin(std::shared_ptr<Session> self) {
    self_ = std::move(self);
    hear();
    StartRead(&incoming_);
  }

  bool send(std::size_t bytes, const std::function<void(ToInstance&)>& fill) {
    return writes_.add(bytes, fill);
  }
  void become(Identity identity) { identity_ = std::move(identity); }
  [[nodiscard]] const Identity& identity() const { return identity_; }
  [[nodiscard]] Duration silence() const {
    return clock_.now() - TimePoint(Duration(heard_.load(std::memory_order_relaxed)));
  }

  // Ends the stream: at once, or (refused) with the reason as the last word. Again does nothing.
  void close(const std::string& why, const grpc::Status& status = grpc::Status::CANCELLED) {
    if (closed_.exchange(true)) return;
    writes_.close();
    if (admitted_.load()) owner_.on_closed(identity_, why);
    if (status.error_code() == grpc::StatusCode::CANCELLED) context_.TryCancel();
    Finish(status);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return close("its stream broke");
    hear();
    std::string wrong;
    if (!admitted_.load()) {
      const grpc::Status status = owner_.admit(shared_from_this(), incoming_.hello());
      if (!status.ok()) return close("refused", status);
      admitted_.store(true);
      // Whoever closed it meanwhile found nothing to tell of.
      if (closed_.load()) owner_.on_closed(identity_, "its stream broke");
    } else {
      owner_.on_message(identity_, incoming_, wrong);
    }
    if (!wrong.empty()) {
      return close(wrong, {grpc::StatusCode::INVALID_ARGUMENT, wrong});
    }
    if (incoming_.leaving()) return close("it has left", grpc::Status::OK);
    if (!closed_.load()) StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return close("its stream broke");
    writes_.written();
  }
  void OnCancel() override { close("its stream broke"); }
  void OnDone() override {
    owner_.on_done(*this);
    self_.reset();
  }
  void hear() { heard_.store(clock_.now().time_since_epoch().count(), std::memory_order_relaxed); }

  SessionOwner& owner_;
  grpc::CallbackServerContext& context_;
  const Clock& clock_;
  GatheredWrites<ToInstance> writes_;
  FromInstance incoming_;
  Identity identity_;  // fixed once admitted_
  std::atomic<bool> admitted_{false};
  std::atomic<bool> closed_{false};
  std::atomic<Duration::rep> heard_{0};
  std::shared_ptr<Session> self_;
};

}  // namespace

class InstanceRegistry::Impl final : public proto::Cluster::CallbackService, public SessionOwner {
 public:
  Impl(RegistryOptions options, SchedulerInbox& scheduler, const Clock& clock)
      : options_(std::move(options)),
        limits_{.vocabulary = options_.vocabulary},
        scheduler_(scheduler),
        clock_(clock) {}

  Status listen() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(options_.listen, server_credentials(options_.security), &port);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (!server_ || port == 0) {
      return fail(ErrorCode::kUnavailable,
                  fmt::format("cannot listen for instances at {}", options_.listen));
    }
    port_ = static_cast<std::uint16_t>(port);
    watch_ = std::thread([this] { watch(); });
    return {};
  }

  void stop() {
    if (!server_) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    stop_changed_.notify_all();
    watch_.join();
    for (const auto& session : sessions()) session->close("the gateway is stopping");
    server_->Shutdown();
    std::unique_lock lock(mutex_);
    stop_changed_.wait(lock, [this] { return open_.empty(); });
    lock.unlock();
    server_.reset();
  }

  bool send(const Placement& to, std::size_t bytes, const std::function<void(ToInstance&)>& fill) {
    const std::shared_ptr<Session> session = find(to);
    return session && session->send(bytes, fill);
  }

  bool submit(const Placement& to, std::unique_ptr<Request>& request) {
    const std::size_t bytes = 512 + 5 * (request->prompt.size() + request->output.size()) +
                              request->sampling.grammar.gbnf.size();
    const bool sent = send(to, bytes, [&](ToInstance& message) {
      encode(*request, clock_.now(), *message.add_commands()->mutable_submit());
    });
    if (!sent) return false;
    if (request->attempt > 0) {
      spdlog::warn("request {} ({:016x}) goes on at instance {} after {} tokens, attempt {}",
                   request->trace_id, request->id.value, to.instance.value, request->output.size(),
                   request->attempt + 1);
    } else {
      spdlog::debug("request {} ({:016x}) is placed on instance {}", request->trace_id,
                    request->id.value, to.instance.value);
    }
    request.reset();
    return true;
  }

  void abandon(const Placement& placement) {
    if (const auto session = find(placement)) session->close("it does not report");
  }

  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] const RegistryOptions& options() const { return options_; }

 private:
  // Heartbeats, and the end of leases.
  void watch() {
    set_thread_name("registry");
    std::unique_lock lock(mutex_);
    while (!stop_changed_.wait_for(lock, options_.lease / 4, [this] { return stopping_; })) {
      lock.unlock();
      for (const auto& session : sessions()) {
        if (session->silence() > options_.lease) {
          session->close(
              fmt::format("nothing came of it for {:.1f} s", to_seconds(session->silence())));
        } else {
          (void)session->send(0, [](ToInstance&) {});
        }
      }
      lock.lock();
    }
  }

  [[nodiscard]] std::vector<std::shared_ptr<Session>> sessions() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Session>> all;
    for (const auto& [key, session] : open_) all.push_back(session);
    return all;
  }

  [[nodiscard]] std::shared_ptr<Session> find(const Placement& placement) {
    const std::lock_guard lock(mutex_);
    const auto it = placed_.find(placement.instance);
    if (it == placed_.end()) return nullptr;
    return it->second->identity().placement.incarnation == placement.incarnation ? it->second
                                                                                 : nullptr;
  }

  // --- the service

  grpc::ServerBidiReactor<FromInstance, ToInstance>* Attach(
      grpc::CallbackServerContext* context) override {
    if (!authorized(options_.security, context->client_metadata())) {
      spdlog::warn("{} called without the cluster's token", context->peer());
      return new RefusedCall({grpc::StatusCode::UNAUTHENTICATED, "the cluster token is wrong"});
    }
    const auto session = std::make_shared<Session>(*this, *context, clock_);
    {
      const std::lock_guard lock(mutex_);
      if (stopping_)
        return new RefusedCall({grpc::StatusCode::UNAVAILABLE, "the gateway is stopping"});
      open_.emplace(session.get(), session);
    }
    session->begin(session);
    return session.get();
  }

  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const proto::DrainRequest* request,
                                  proto::DrainReply* reply) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    if (!authorized(options_.security, context->client_metadata())) {
      reactor->Finish({grpc::StatusCode::UNAUTHENTICATED, "the cluster token is wrong"});
      return reactor;
    }
    bool sent = false;
    std::set<std::string> known;
    for (const auto& session : attached()) {
      const Identity& identity = session->identity();
      known.insert(identity.name);
      if (identity.name != request->instance()) continue;
      sent = session->send(16, [](ToInstance& m) { m.add_commands()->set_drain(true); });
      reply->set_instance(identity.placement.instance.value);
    }
    reactor->Finish(sent ? grpc::Status::OK
                         : grpc::Status{grpc::StatusCode::NOT_FOUND,
                                        fmt::format("no instance is called '{}'; there are: {}",
                                                    request->instance(), fmt::join(known, ", "))});
    return reactor;
  }

  // --- sessions

  [[nodiscard]] std::vector<std::shared_ptr<Session>> attached() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<Session>> all;
    for (const auto& [id, session] : placed_) all.push_back(session);
    return all;
  }

  grpc::Status check(const proto::Hello& hello) const {
    const auto refuse = [](std::string why) {
      return grpc::Status{grpc::StatusCode::FAILED_PRECONDITION, std::move(why)};
    };
    if (hello.protocol() != kProtocol) {
      return refuse(fmt::format("this gateway speaks protocol {}, the instance {}", kProtocol,
                                hello.protocol()));
    }
    if (hello.name().empty() || hello.name().size() > kMaxName) {
      return refuse(fmt::format("an instance's name has 1 to {} bytes, this one {}", kMaxName,
                                hello.name().size()));
    }
    if (hello.role() > static_cast<std::uint32_t>(Role::kDecode)) {
      return refuse(fmt::format("there is no role {}", hello.role()));
    }
    if (hello.model() != options_.model) {
      return refuse(
          fmt::format("this gateway serves {} (fingerprint {:016x}), the instance {} ({:016x})",
                      options_.model_name, options_.model, hello.model_name(), hello.model()));
    }
    if (hello.context() < options_.context) {
      return refuse(fmt::format(
          "this gateway offers a context of {} tokens, the instance holds {}: give both the same "
          "--context",
          options_.context, hello.context()));
    }
    return grpc::Status::OK;
  }

  grpc::Status admit(const std::shared_ptr<Session>& session, const proto::Hello& hello) override {
    if (auto status = check(hello); !status.ok()) {
      spdlog::error("instance {}: {}", hello.name(), status.error_message());
      return status;
    }
    if (!hello.address().empty() && !parse_host_port(hello.address())) {
      return {grpc::StatusCode::INVALID_ARGUMENT,
              fmt::format("\"{}\" is no address for peers", hello.address())};
    }
    Identity identity{hello.name(), {}, hello.process(), hello.address(), hello.kv_layout()};
    std::shared_ptr<Session> former;
    {
      const std::lock_guard lock(mutex_);
      const auto id = static_cast<std::uint32_t>(ids_.size());
      identity.placement.instance = ids_.try_emplace(hello.name(), id).first->second;
      const auto it = placed_.find(identity.placement.instance);
      if (it != placed_.end()) {
        // The same process by another of this gateway's addresses, or before its broken
        // stream was noticed here.
        if (it->second->identity().process == hello.process()) {
          return {grpc::StatusCode::ALREADY_EXISTS, "this instance is attached already"};
        }
        former = it->second;
      }
    }
    if (former) former->close("another process took its name");
    {
      const std::lock_guard lock(mutex_);
      identity.placement.incarnation = Incarnation{++incarnations_};
      session->become(identity);
      placed_[identity.placement.instance] = session;
    }
    spdlog::info("instance {} ({}, {}) has joined", identity.placement.instance.value,
                 identity.name, role_name(static_cast<Role>(hello.role())));
    (void)session->send(64, [&](ToInstance& message) {
      proto::Welcome& welcome = *message.mutable_welcome();
      welcome.set_instance(identity.placement.instance.value);
      welcome.set_incarnation(identity.placement.incarnation.value);
      welcome.set_gateway(options_.gateway);
      welcome.set_lease_ns(options_.lease.count());
      welcome.set_process(options_.process);
    });
    tell_peers();
    return grpc::Status::OK;
  }

  // Under the lock, so that the last one said is the last one true.
  void tell_peers() {
    const std::lock_guard lock(mutex_);
    proto::PeerList list;
    for (const auto& [id, session] : placed_) {
      const Identity& identity = session->identity();
      if (identity.address.empty()) continue;
      proto::Peer& peer = *list.add_peers();
      peer.set_name(identity.name);
      peer.set_address(identity.address);
      peer.set_process(identity.process);
      peer.set_kv_layout(identity.kv_layout);
    }
    for (const auto& [id, session] : placed_) {
      (void)session->send(64 * static_cast<std::size_t>(list.peers_size()),
                          [&](ToInstance& message) { *message.mutable_peers() = list; });
    }
  }

  [[nodiscard]] std::optional<Placement> placement_of(std::uint64_t process) {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, session] : placed_) {
      if (session->identity().process == process) return session->identity().placement;
    }
    return std::nullopt;
  }

  // Where a request runs that was handed over.
  void on_runs_at(const Identity& from, const proto::RunsAt& message) {
    const RequestId request{message.request()};
    const auto where = message.process() == 0 ? from.placement : placement_of(message.process());
    if (where) {
      scheduler_.push_urgent(RunsAtMessage{request, message.attempt(), *where});
      return;
    }
    // It went to one that is gone: it goes on elsewhere.
    EventsMessage lost;
    TokenEvent& event = lost.events.emplace_back();
    event.request = request;
    event.attempt = message.attempt();
    event.finish = FinishReason::kError;
    event.error = {ErrorCode::kUnavailable,
                   fmt::format("{} handed it over to an instance that is gone", from.name), 0};
    scheduler_.push_urgent(std::move(lost));
  }

  void on_message(const Identity& from, FromInstance& message, std::string& wrong) override {
    for (const proto::RunsAt& m : message.runs_at()) on_runs_at(from, m);
    EventsMessage events;
    for (const proto::TokenEvent& event : message.events()) {
      auto decoded = decode(event, limits_);
      if (!decoded) return wrong.assign(decoded.error().message), void();
      events.events.push_back(std::move(*decoded));
    }
    if (!events.events.empty()) scheduler_.push_urgent(std::move(events));
    if (!message.has_report()) return;
    const TimePoint now = clock_.now();
    auto report = decode(message.report(), now, limits_);
    if (!report) return wrong.assign(report.error().message), void();
    report->instance = from.placement.instance;
    report->incarnation = from.placement.incarnation;
    ReportMessage told{std::move(*report), nullptr, nullptr, from.name};
    if (message.has_stats()) {
      auto stats = decode(message.stats(), now, limits_);
      if (!stats) return wrong.assign(stats.error().message), void();
      told.stats = std::make_shared<const EngineStats>(std::move(*stats));
    }
    if (message.has_handoffs()) {
      const auto placement = [this](std::uint64_t process) { return placement_of(process); };
      auto handoffs = decode(message.handoffs(), now, from.placement.instance, placement, limits_);
      if (!handoffs) return wrong.assign(handoffs.error().message), void();
      told.handoffs = std::make_shared<const HandoffReport>(std::move(*handoffs));
    }
    scheduler_.push_urgent(std::move(told));
  }

  void on_closed(const Identity& from, const std::string& why) override {
    {
      const std::lock_guard lock(mutex_);
      const auto it = placed_.find(from.placement.instance);
      if (it != placed_.end() &&
          it->second->identity().placement.incarnation == from.placement.incarnation) {
        placed_.erase(it);
      }
    }
    tell_peers();
    spdlog::warn("instance {} ({}) is gone: {}", from.placement.instance.value, from.name, why);
    scheduler_.push_urgent(GoneMessage{
        from.placement.instance, from.placement.incarnation,
        Error{ErrorCode::kUnavailable, fmt::format("instance {} is gone: {}", from.name, why), 0}});
  }

  void on_done(Session& session) override {
    const std::lock_guard lock(mutex_);  // to the end: stop() may destroy all of this then
    open_.erase(&session);
    stop_changed_.notify_all();
  }

  const RegistryOptions options_;
  const WireLimits limits_;
  SchedulerInbox& scheduler_;
  const Clock& clock_;
  std::unique_ptr<grpc::Server> server_;
  std::uint16_t port_ = 0;
  std::thread watch_;

  std::mutex mutex_;
  std::condition_variable stop_changed_;
  // All below guarded by mutex_.
  bool stopping_ = false;
  std::uint64_t incarnations_ = 0;
  std::map<std::string, InstanceId> ids_;                    // by name, for this gateway's life
  std::map<InstanceId, std::shared_ptr<Session>> placed_;    // admitted ones
  std::map<const Session*, std::shared_ptr<Session>> open_;  // all, until they are done
};

Result<std::unique_ptr<InstanceRegistry>> InstanceRegistry::start(RegistryOptions options,
                                                                  SchedulerInbox& scheduler,
                                                                  const Clock& clock) {
  auto impl = std::make_unique<Impl>(std::move(options), scheduler, clock);
  TRY_STATUS(impl->listen());
  return std::unique_ptr<InstanceRegistry>(new InstanceRegistry(std::move(impl)));
}

InstanceRegistry::InstanceRegistry(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
InstanceRegistry::~InstanceRegistry() {
  stop();
}

std::uint16_t InstanceRegistry::port() const {
  return impl_->port();
}
void InstanceRegistry::stop() {
  impl_->stop();
}
bool InstanceRegistry::submit(const Placement& placement, std::unique_ptr<Request>& request) {
  return impl_->submit(placement, request);
}
void InstanceRegistry::cancel(const Placement& placement, RequestId request) {
  (void)impl_->send(placement, 16, [&](proto::ToInstance& message) {
    message.add_commands()->set_cancel(request.value);
  });
}
void InstanceRegistry::abandon(const Placement& placement) {
  impl_->abandon(placement);
}

}  // namespace sluice
