#include "reference.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>

namespace sluice {
namespace {

constexpr std::size_t kOneCall = std::size_t{128} << 10;  // as iperf3's

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool receive(int socket, void* to, std::size_t bytes) {
  for (std::size_t got = 0; got < bytes;) {
    const ssize_t n = ::recv(socket, static_cast<char*>(to) + got, bytes - got, 0);
    if (n <= 0) return false;
    got += static_cast<std::size_t>(n);
  }
  return true;
}

void send_all(int socket, const void* from, std::size_t bytes) {
  for (std::size_t sent = 0; sent < bytes;) {
    const ssize_t n = ::send(socket, static_cast<const char*>(from) + sent,
                             std::min(kOneCall, bytes - sent), MSG_NOSIGNAL);
    if (n <= 0) throw std::runtime_error("the plain socket broke");
    sent += static_cast<std::size_t>(n);
  }
}

TimePoint now() {
  return SteadyClock().now();
}

}  // namespace

SocketSink::SocketSink(std::span<std::byte> memory)
    : memory_(memory), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof(address);
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  if (listener_ < 0 || ::bind(listener_, plain, size) != 0 || ::listen(listener_, 1) != 0 ||
      ::getsockname(listener_, plain, &size) != 0) {
    throw std::runtime_error("cannot listen on the loopback");
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { serve(); });
}

SocketSink::~SocketSink() {
  thread_.join();
  ::close(listener_);
}

void SocketSink::serve() {
  const int socket = ::accept(listener_, nullptr, nullptr);
  std::uint64_t bytes = 0;
  while (receive(socket, &bytes, sizeof(bytes)) && bytes <= memory_.size() &&
         receive(socket, memory_.data(), bytes)) {
    send_all(socket, "", 1);
  }
  ::close(socket);
}

SocketSource::SocketSource(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  const sockaddr_in address = loopback(port);
  const int yes = 1;
  if (socket_ < 0 ||
      ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)) != 0) {
    throw std::runtime_error("cannot connect to the loopback");
  }
}

SocketSource::~SocketSource() {
  ::close(socket_);
}

Duration SocketSource::send(std::span<const std::byte> bytes) {
  const TimePoint begin = now();
  const std::uint64_t count = bytes.size();
  send_all(socket_, &count, sizeof(count));
  send_all(socket_, bytes.data(), bytes.size());
  char answer = 0;
  if (!receive(socket_, &answer, 1)) throw std::runtime_error("the plain socket broke");
  return now() - begin;
}

Duration copy(std::span<const std::byte> from, std::byte* to) {
  const TimePoint begin = now();
  std::memcpy(to, from.data(), from.size());
  return now() - begin;
}

}  // namespace sluice
