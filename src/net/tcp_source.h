// The sending end of one connection that carries KV (net/tcp_transfer.h). Belongs to the
// thread "kv". Internal to net/.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "net/tcp_frames.h"
#include "net/tcp_shared.h"

namespace sluice {

class TcpSource {
 public:
  virtual ~TcpSource() = default;
  // Until the connection is welcome it waits.
  virtual void add(std::shared_ptr<KvJob> job) = 0;
  // Of one of its jobs: it was cancelled.
  virtual void look() = 0;
  // All that it has fails.
  virtual void close() = 0;
};

struct TcpSourceEvents {
  std::function<void()> welcome;
  std::function<void(const std::string& why)> broken;  // the last; not after close()
};

// Calls `host`.
[[nodiscard]] std::shared_ptr<TcpSource> call_tcp_sink(boost::asio::io_context& context,
                                                       TcpShared& shared, const std::string& host,
                                                       const std::string& port,
                                                       const KvSecret& secret,
                                                       TcpSourceEvents events);

}  // namespace sluice
