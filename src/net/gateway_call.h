// An instance's stream to one gateway, as long as it lasts. Any thread. Internal to net/.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/time.h"
#include "net/gateway_directory.h"
#include "net/gathered_writes.h"
#include "net/proto/cluster.grpc.pb.h"
#include "net/protocol.h"
#include "net/security.h"

namespace sluice {

class GatewayCall;

// What a call needs of the links. Any thread.
class GatewayCallOwner {
 public:
  virtual ~GatewayCallOwner() = default;
  virtual void on_welcome(GatewayCall& call, const proto::Welcome& welcome) = 0;
  virtual void on_peers(GatewayCall& call, const proto::PeerList& peers) = 0;
  virtual void on_command(const std::shared_ptr<GatewayCall>& call, proto::Command& command) = 0;
  virtual void on_broken(GatewayCall& call) = 0;  // nothing comes of it any more
  // Its last word. It is handed over to be destroyed by a thread that is not gRPC's: the
  // last channel waits for those threads to end.
  virtual void on_done(std::shared_ptr<GatewayCall> call, const grpc::Status& status) = 0;
};

// One stream to one gateway. Lives until OnDone().
class GatewayCall final : public grpc::ClientBidiReactor<proto::FromInstance, proto::ToInstance>,
                          public std::enable_shared_from_this<GatewayCall> {
 public:
  GatewayCall(GatewayCallOwner& owner, GatewayAddress to, const ClusterSecurity& security,
              const Clock& clock)
      : owner_(owner),
        to_(std::move(to)),
        clock_(clock),
        writes_([this](const proto::FromInstance& message) { StartWrite(&message); }) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    if (security.tls()) arguments.SetSslTargetNameOverride(to_.host);
    const auto channel =
        grpc::CreateCustomChannel(to_.address, channel_credentials(security), arguments);
    stub_ = proto::Cluster::NewStub(channel);
    authorize(security, context_);
  }

  void begin(const std::shared_ptr<GatewayCall>& self,
             const std::function<void(proto::FromInstance&)>& hello) {
    self_ = self;
    hear();
    stub_->async()->Attach(&context_, this);
    AddHold();  // writes come from outside of the reactions
    StartRead(&incoming_);
    StartCall();
    (void)writes_.add(0, hello);
  }

  // False: the gateway does not read fast enough, or the call is over.
  template <class Fill>
  bool send(std::size_t bytes, const Fill& fill) {
    return writes_.add(bytes, fill);
  }

  // Nothing is sent or heard from now on. Again does nothing.
  void end() {
    if (ended_.exchange(true)) return;
    writes_.close();
    owner_.on_broken(*this);
    context_.TryCancel();
    RemoveHold();
  }

  void welcome(const proto::Welcome& welcome, Duration lease) {
    gateway_ = welcome.gateway();
    process_ = welcome.process();
    lease_ns_.store(lease.count());
    welcomed_.store(true);
  }
  // For the links' thread: once every quarter of the lease.
  [[nodiscard]] bool heartbeat_due() {
    const TimePoint now = clock_.now();
    if (!welcomed() || now - heartbeat_ < lease() / 4) return false;
    heartbeat_ = now;
    return true;
  }
  [[nodiscard]] bool welcomed() const { return welcomed_.load() && !ended_.load(); }
  [[nodiscard]] bool was_welcomed() const { return welcomed_.load(); }
  [[nodiscard]] const std::string& gateway() const { return gateway_; }
  [[nodiscard]] std::uint64_t process() const { return process_; }
  [[nodiscard]] const std::string& address() const { return to_.address; }
  [[nodiscard]] Duration lease() const { return Duration(lease_ns_.load()); }
  [[nodiscard]] Duration silence() const {
    return clock_.now() - TimePoint(Duration(heard_.load(std::memory_order_relaxed)));
  }

 private:
  static constexpr Duration kWelcomeLimit = std::chrono::seconds(5);

  void OnReadDone(bool ok) override {
    if (!ok) return end();
    hear();
    if (incoming_.has_welcome() && !welcomed_.load()) owner_.on_welcome(*this, incoming_.welcome());
    if (incoming_.has_peers() && welcomed()) owner_.on_peers(*this, incoming_.peers());
    const auto self = shared_from_this();
    for (proto::Command& command : *incoming_.mutable_commands()) {
      if (!ended_.load()) owner_.on_command(self, command);
    }
    if (ended_.load()) return;
    incoming_.Clear();
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return end();
    writes_.written();
  }
  void OnDone(const grpc::Status& status) override {
    end();
    owner_.on_done(std::move(self_), status);
  }
  void hear() { heard_.store(clock_.now().time_since_epoch().count(), std::memory_order_relaxed); }

  GatewayCallOwner& owner_;
  const GatewayAddress to_;
  const Clock& clock_;
  grpc::ClientContext context_;
  std::unique_ptr<proto::Cluster::Stub> stub_;
  GatheredWrites<proto::FromInstance> writes_;
  proto::ToInstance incoming_;
  std::string gateway_;        // fixed once welcomed_
  std::uint64_t process_ = 0;  // as well
  std::atomic<Duration::rep> lease_ns_{kWelcomeLimit.count()};
  std::atomic<bool> welcomed_{false};
  std::atomic<bool> ended_{false};
  std::atomic<Duration::rep> heard_{0};
  TimePoint heartbeat_{};  // of the links' thread
  std::shared_ptr<GatewayCall> self_;
};

}  // namespace sluice
