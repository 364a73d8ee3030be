#include "net/peer_hello.h"

#include <fmt/format.h>

#include <utility>

#include "net/gateway_directory.h"
#include "net/protocol.h"
#include "net/shared_arena.h"

namespace sluice {

proto::PeerMessage make_hello(const PeerOptions& options) {
  proto::PeerMessage message;
  proto::PeerHello& hello = *message.mutable_hello();
  hello.set_protocol(kProtocol);
  hello.set_name(options.name);
  hello.set_process(options.process);
  hello.set_model(options.kv.model);
  hello.set_kv_layout(options.kv_layout);
  if (auto offer = offer_arena(options.arena)) *hello.mutable_arena() = std::move(*offer);
  return message;
}

grpc::Status check_hello(const proto::PeerHello& hello, const PeerOptions& options) {
  const auto refuse = [](std::string why) {
    return grpc::Status{grpc::StatusCode::FAILED_PRECONDITION, std::move(why)};
  };
  if (hello.protocol() != kProtocol) {
    return refuse(fmt::format("this instance speaks protocol {}, {} {}", kProtocol, hello.name(),
                              hello.protocol()));
  }
  if (hello.name().empty() || hello.name().size() > kMaxName) {
    return refuse(fmt::format("an instance's name has 1 to {} bytes, this one {}", kMaxName,
                              hello.name().size()));
  }
  if (hello.to() != options.process) return refuse("another process is at this address now");
  if (hello.model() != options.kv.model || hello.kv_layout() != options.kv_layout) {
    return refuse(fmt::format("the KV of {} is of another model or layout", hello.name()));
  }
  return grpc::Status::OK;
}

void say_welcome(const PeerStream& stream, const KvWayList& kv, proto::PeerMessage& message) {
  proto::PeerWelcome& welcome = *message.mutable_welcome();
  welcome.set_reads_arena(stream.arena != nullptr);
  for (std::size_t i = 0; i < stream.kv_secrets.size(); ++i) {
    proto::KvConnection& way = *welcome.add_kv();
    way.set_transport(kv[i]->transport());
    way.set_port(static_cast<std::uint32_t>(kv[i]->port()));
    way.set_secret(stream.kv_secrets[i]);
  }
}

void call_for_kv(const KvWayList& kv, const PeerStream& stream, const std::string& address,
                 const proto::PeerWelcome& welcome) {
  const auto at = parse_host_port(address);
  if (!at) return;
  const auto& [instance, incarnation] = stream.identity().placement;
  for (const proto::KvConnection& way : welcome.kv()) {
    if (way.port() == 0 || way.port() > 65535) continue;
    for (KvConnections* ours : kv) {
      if (way.transport() != ours->transport()) continue;
      ours->connect({instance, incarnation}, at->host, static_cast<int>(way.port()), way.secret());
    }
  }
}

}  // namespace sluice
