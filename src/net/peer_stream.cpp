#include "net/peer_stream.h"

#include <utility>

#include "net/protocol.h"

namespace sluice {
namespace {

using proto::PeerMessage;

constexpr int kKeepAliveMs = 5000;  // a peer whose machine is gone is noticed within two of them

class OutgoingPeer final : public PeerStream,
                           public grpc::ClientBidiReactor<PeerMessage, PeerMessage> {
 public:
  OutgoingPeer(PeerStreamOwner& owner, const std::string& address, const std::string& host,
               const ClusterSecurity& security)
      : PeerStream(owner, /*outgoing=*/true,
                   [this](const PeerMessage& message) { StartWrite(&message); }) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepAliveMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepAliveMs);
    if (security.tls()) arguments.SetSslTargetNameOverride(host);
    stub_ = proto::Peers::NewStub(
        grpc::CreateCustomChannel(address, channel_credentials(security), arguments));
    authorize(security, context_);
  }

  void begin(std::shared_ptr<PeerStream> self, const PeerMessage& hello) {
    self_ = std::move(self);
    stub_->async()->HandOver(&context_, this);
    AddHold();  // writes come from outside of the reactions
    StartRead(&incoming_);
    StartCall();
    (void)writes_.add(0, [&](PeerMessage& message) { message = hello; });
  }

  void end(const grpc::Status&) override {
    if (ended_.exchange(true)) return;
    writes_.close();
    owner_.on_broken(*this);
    context_.TryCancel();
    RemoveHold();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return end(grpc::Status::CANCELLED);
    if (take()) StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return end(grpc::Status::CANCELLED);
    writes_.written();
  }
  void OnDone(const grpc::Status& status) override {
    end(status);
    owner_.on_done(std::move(self_), status);
  }

  grpc::ClientContext context_;
  std::unique_ptr<proto::Peers::Stub> stub_;
};

class IncomingPeer final : public PeerStream,
                           public grpc::ServerBidiReactor<PeerMessage, PeerMessage> {
 public:
  IncomingPeer(PeerStreamOwner& owner, grpc::CallbackServerContext& context)
      : PeerStream(owner, /*outgoing=*/false,
                   [this](const PeerMessage& message) { StartWrite(&message); }),
        context_(context) {}

  void begin(std::shared_ptr<PeerStream> self) {
    self_ = std::move(self);
    StartRead(&incoming_);
  }

  void end(const grpc::Status& status) override {
    if (ended_.exchange(true)) return;
    writes_.close();
    owner_.on_broken(*this);
    if (status.error_code() == grpc::StatusCode::CANCELLED) context_.TryCancel();
    Finish(status);
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return end(grpc::Status::CANCELLED);
    if (take()) StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return end(grpc::Status::CANCELLED);
    writes_.written();
  }
  void OnCancel() override { end(grpc::Status::CANCELLED); }
  void OnDone() override { owner_.on_done(std::move(self_), grpc::Status::OK); }

  grpc::CallbackServerContext& context_;
};

class RefusedPeer final : public grpc::ServerBidiReactor<PeerMessage, PeerMessage> {
 public:
  explicit RefusedPeer(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerBidiReactor<PeerMessage, PeerMessage>* refuse_peer(const grpc::Status& status) {
  return new RefusedPeer(status);
}

bool PeerStream::take() {
  grpc::Status status;
  if (known_.load()) {
    status = owner_.on_message(*this, incoming_);
  } else {
    status = owner_.on_first(shared_from_this(), incoming_);
    // Whoever ended it meanwhile may have found nobody known.
    if (status.ok() && ended_.load()) owner_.on_broken(*this);
  }
  if (!status.ok()) end(status);
  if (ended_.load()) return false;
  incoming_.Clear();
  return true;
}

std::shared_ptr<PeerStream> make_call(PeerStreamOwner& owner, const std::string& address,
                                      const std::string& host, const ClusterSecurity& security) {
  return std::make_shared<OutgoingPeer>(owner, address, host, security);
}

void begin_call(const std::shared_ptr<PeerStream>& call, const PeerMessage& hello) {
  static_cast<OutgoingPeer&>(*call).begin(call, hello);
}

AcceptedPeer accept_peer(PeerStreamOwner& owner, grpc::CallbackServerContext& context) {
  auto stream = std::make_shared<IncomingPeer>(owner, context);
  return {stream.get(), stream};
}

void begin_accepted(const AcceptedPeer& accepted) {
  static_cast<IncomingPeer&>(*accepted.stream).begin(accepted.stream);
}

}  // namespace sluice
