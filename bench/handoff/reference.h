// What the machine itself can do, for comparison: a plain loopback socket, and memcpy.
#pragma once

#include <cstddef>
#include <span>
#include <thread>

#include "base/time.h"

namespace sluice {

// Takes what comes on a connection into `memory`, again and again, and answers each lot
// with a byte. In a thread of its own, until the other side closes.
class SocketSink final {
 public:
  explicit SocketSink(std::span<std::byte> memory);
  ~SocketSink();
  [[nodiscard]] int port() const { return port_; }

 private:
  void serve();

  const std::span<std::byte> memory_;
  int listener_ = -1;
  int port_ = 0;
  std::thread thread_;
};

class SocketSource final {
 public:
  explicit SocketSource(int port);
  ~SocketSource();
  // Until the answer has come.
  [[nodiscard]] Duration send(std::span<const std::byte> bytes);

 private:
  int socket_ = -1;
};

[[nodiscard]] Duration copy(std::span<const std::byte> from, std::byte* to);

}  // namespace sluice
