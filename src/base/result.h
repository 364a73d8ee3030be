// How sluice says that something failed.
//
// A "no" that is a normal answer is an optional or an enum; the world failing
// (peer, disk, bad input) is a Result; our own bug is a CHECK. See
// docs/architecture.md, "Errors".
#pragma once

#include <cstdint>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace sluice {

// Equal in meaning to gRPC's codes of the same names. Busy, never-fits,
// transport, peer-gone, bad input and internal stay apart from the engine to
// the client.
enum class ErrorCode : std::uint8_t {
  kInvalidArgument,   // the request itself is wrong; sending it again is futile
  kNotFound,          // no such model, route or sequence
  kUnauthenticated,   // the key is missing or wrong
  kNeverFits,         // needs more than this system has, whatever the load
  kBusy,              // would fit at another time: queue or inbox full
  kDeadlineExceeded,  // waited as long as it was allowed to
  kCancelled,         // the client left or asked to stop
  kUnavailable,       // draining, or an instance is gone
  kTransport,         // the network or a peer's memory failed
  kInternal,          // a bug that did not have to stop the process
};

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;             // one sentence, with the number of the limit that was met
  std::int32_t retry_after_s = 0;  // > 0: when a busy system expects room, in seconds
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

[[nodiscard]] inline tl::unexpected<Error> fail(ErrorCode code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message), 0});
}

}  // namespace sluice

// TRY(auto x, expression): binds the value, or returns the error from here.
#define SLUICE_TRY_CONCAT_(a, b) a##b
#define SLUICE_TRY_NAME_(a, b) SLUICE_TRY_CONCAT_(a, b)
#define SLUICE_TRY_(name, declaration, ...)                    \
  auto name = (__VA_ARGS__);                                   \
  if (!name) return ::tl::unexpected(std::move(name).error()); \
  declaration = std::move(*name)
#define TRY(declaration, ...) \
  SLUICE_TRY_(SLUICE_TRY_NAME_(try_result_, __LINE__), declaration, __VA_ARGS__)

// TRY_STATUS(expression): returns the error from here, if there is one.
#define TRY_STATUS(...)                                        \
  do {                                                         \
    if (auto try_status_ = (__VA_ARGS__); !try_status_)        \
      return ::tl::unexpected(std::move(try_status_).error()); \
  } while (false)
