#include "http_get.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>

#include "net/gateway_directory.h"

namespace sluice {
namespace {

struct Socket {
  int descriptor = -1;
  Socket() = default;
  Socket(const Socket&) = delete;
  ~Socket() {
    if (descriptor >= 0) close(descriptor);
  }
};

bool connect_to(const HostPort& at, Socket& connection) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(at.host.c_str(), at.port.c_str(), &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    Socket attempt;
    attempt.descriptor = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    const timeval limit{5, 0};
    setsockopt(attempt.descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (connect(attempt.descriptor, a->ai_addr, a->ai_addrlen) != 0) continue;
    std::swap(connection.descriptor, attempt.descriptor);
    return true;
  }
  return false;
}

}  // namespace

Result<std::string> http_get(const std::string& url, const std::string& path,
                             const std::string& api_key) {
  if (url.rfind("https://", 0) == 0) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: only http:// is spoken here", url));
  }
  constexpr std::string_view kScheme = "http://";
  std::string authority = url.rfind(kScheme, 0) == 0 ? url.substr(kScheme.size()) : url;
  authority.resize(std::min(authority.size(), authority.find('/')));
  TRY(const HostPort at, parse_host_port(authority));
  Socket connection;
  if (!connect_to(at, connection)) {
    return fail(ErrorCode::kUnavailable, fmt::format("nobody answers at {}", url));
  }
  const std::string key = api_key.empty() ? "" : "Authorization: Bearer " + api_key + "\r\n";
  const std::string request = fmt::format(
      "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{}\r\n", path, authority, key);
  if (send(connection.descriptor, request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return fail(ErrorCode::kUnavailable, fmt::format("{} does not listen", url));
  }
  std::string answer;
  std::array<char, 1 << 16> buffer{};
  for (ssize_t count = 0;
       (count = recv(connection.descriptor, buffer.data(), buffer.size(), 0)) > 0;) {
    answer.append(buffer.data(), static_cast<std::size_t>(count));
  }
  const auto body = answer.find("\r\n\r\n");
  if (answer.rfind("HTTP/1.1 ", 0) != 0 || body == std::string::npos) {
    return fail(ErrorCode::kUnavailable, fmt::format("no HTTP answer from {}", url));
  }
  if (const std::string status = answer.substr(9, 3); status != "200") {
    return fail(ErrorCode::kInternal, fmt::format("{}{} answers {}", url, path, status));
  }
  return answer.substr(body + 4);
}

}  // namespace sluice
