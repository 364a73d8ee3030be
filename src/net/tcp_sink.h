// The receiving end of one connection that carries KV (net/tcp_transfer.h). Belongs to the
// thread "kv". Internal to net/.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>

#include "net/tcp_frames.h"
#include "net/tcp_shared.h"

namespace sluice {

class TcpSink {
 public:
  virtual ~TcpSink() = default;
  virtual void close() = 0;
};

// `admit`: the caller has shown this secret; false: it is not welcome. `ended`: the last call.
struct TcpSinkEvents {
  std::function<bool(const std::shared_ptr<TcpSink>&, const KvSecret&)> admit;
  std::function<void()> ended;
};

void serve_tcp_source(TcpShared& shared, boost::asio::ip::tcp::socket socket, TcpSinkEvents events);

}  // namespace sluice
