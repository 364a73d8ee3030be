#include "end.h"

#include <fmt/format.h>
#include <grpcpp/server_builder.h>

#include <stdexcept>
#include <thread>
#include <utility>

#include "net/protocol.h"
#include "net/shared_arena.h"

namespace sluice {

using proto::PeerMessage;

HandoffEnd::HandoffEnd(const KvArena& arena, const PeerTransferOptions& options)
    : kv_{1, arena.view().layout}, transfer_(arena.view(), options, *this) {
  if (auto offer = offer_arena(arena.file())) {
    *hello_.mutable_hello()->mutable_arena() = std::move(*offer);
  }
}

HandoffEnd::~HandoffEnd() {
  if (!stream_) return;
  stream_->end();
  std::vector<std::shared_ptr<PeerStream>> ended;
  ended_.wait_and_drain(ended, std::chrono::seconds(10));
  if (server_) server_->Shutdown();
}

int HandoffEnd::listen() {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", server_credentials({}), &port);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  if (!server_ || port == 0) throw std::runtime_error("cannot listen on the loopback");
  return port;
}

void HandoffEnd::call(int port) {
  stream_ = make_call(*this, fmt::format("127.0.0.1:{}", port), "127.0.0.1", {});
  begin_call(stream_, hello_);
  std::vector<std::shared_ptr<PeerStream>> opened;
  opened_.wait_and_drain(opened, std::chrono::seconds(10));
  if (opened.empty()) throw std::runtime_error("the other process does not answer");
}

Status HandoffEnd::start(TransferTicket ticket, const TransferTarget& target,
                         std::vector<BlockMove> moves) {
  done_.clear();
  TRY_STATUS(transfer_.start(ticket, target, std::move(moves)));
  transfer_.poll(done_);
  return {};
}

// --- The loop --------------------------------------------------------------------

void HandoffEnd::run(Duration step, const std::function<bool()>& done) {
  while (!done()) {
    const bool works = step > Duration::zero();
    if (works || transfer_.busy()) {
      if (works) std::this_thread::sleep_for(step);
      inbox_.drain(news_);
    } else {
      inbox_.wait_and_drain(news_, std::chrono::seconds(1));
    }
    for (News& news : news_) handle(news);
    transfer_.poll(done_);
  }
}

void HandoffEnd::handle(News& news) {
  auto* word = std::get_if<PeerWord>(&news);
  if (word == nullptr) {
    over_ = true;
    transfer_.peer_lost(kOther);
  } else if (auto* kv = std::get_if<KvMessage>(word)) {
    transfer_.on_message(kOther, std::move(*kv));
  } else if (const auto* beat = std::get_if<Beat>(&std::get<HandoffMessage>(*word))) {
    say(Alive{beat->key, clock_.now()});
  } else {
    answered_ = true;
  }
}

Duration HandoffEnd::round_trip() {
  const TimePoint begin = clock_.now();
  answered_ = false;
  say(Beat{});
  run({}, [this] { return answered_ || over_; });
  return clock_.now() - begin;
}

void HandoffEnd::say(const HandoffMessage& message) {
  (void)stream_->send(wire_size(message),
                      [&](PeerMessage& m) { encode(message, clock_.now(), *m.add_words()); });
}

bool HandoffEnd::send(const KvPeer&, KvMessage&& message) {
  const auto* piece = std::get_if<KvPiece>(&message);
  const std::size_t bytes = piece == nullptr ? 64 : 128 + piece->bytes.size();
  return stream_->send(bytes, [&](PeerMessage& m) { encode(std::move(message), *m.add_words()); });
}

// --- What gRPC's threads say -----------------------------------------------------

grpc::ServerBidiReactor<PeerMessage, PeerMessage>* HandoffEnd::HandOver(
    grpc::CallbackServerContext* context) {
  const AcceptedPeer accepted = accept_peer(*this, *context);
  begin_accepted(accepted);
  return accepted.reactor;
}

grpc::Status HandoffEnd::on_first(const std::shared_ptr<PeerStream>& stream, PeerMessage& message) {
  stream->become({{kOther.instance, kOther.incarnation}, 1, "other"});
  if (stream->outgoing()) {
    stream->reads_ours = message.welcome().reads_arena();
  } else {
    if (message.hello().has_arena()) stream->arena = open_arena(message.hello().arena());
    stream_ = stream;
    (void)stream->send(16, [&](PeerMessage& m) {
      m.mutable_welcome()->set_reads_arena(stream->arena != nullptr);
    });
  }
  opened_.push_urgent(std::shared_ptr<PeerStream>(stream));
  return grpc::Status::OK;
}

grpc::Status HandoffEnd::on_message(PeerStream&, PeerMessage& message) {
  for (proto::Word& m : *message.mutable_words()) {
    auto word = decode(m, clock_.now(), kv_, {});
    if (!word) return {grpc::StatusCode::INVALID_ARGUMENT, word.error().message};
    inbox_.push_urgent(std::move(*word));
  }
  return grpc::Status::OK;
}

void HandoffEnd::on_broken(PeerStream&) {
  inbox_.push_urgent(Broken{});
}

void HandoffEnd::on_done(std::shared_ptr<PeerStream> stream, const grpc::Status&) {
  ended_.push_urgent(std::move(stream));
}

}  // namespace sluice
