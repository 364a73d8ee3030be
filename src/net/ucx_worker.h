// Messages over UCX: endpoints, what is sent on them, and what has come whole.
//
// Belongs to one thread, but for wake(). What it hears it tells from within progress(); close()
// may be called from there. Buffers are its own: they live until UCX has let go of them, however
// late that is. Internal to net/.
#pragma once

#if SLUICE_UCX

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "net/ucx_library.h"

namespace sluice {

class UcxEvents {
 public:
  virtual ~UcxEvents() = default;
  virtual void accepted(ucp_ep_h from) = 0;
  // Of an endpoint that is open; the views end with the call.
  virtual void message(unsigned id, ucp_ep_h from, std::span<const std::byte> header,
                       std::span<const std::byte> payload) = 0;
  // The last of it; not after close().
  virtual void broken(ucp_ep_h endpoint, const std::string& why) = 0;
};

class UcxWorker final {
 public:
  static constexpr unsigned kIds = 4;  // of messages, from 0
  static constexpr std::size_t kMaxHeader = 64;
  // That one endpoint has announced and not delivered; more ends it. One alone may be larger.
  static constexpr std::size_t kMaxComing = std::size_t{64} << 20;

  // `max_payload`: of a message. kUnavailable: UCX finds no network that may be used.
  [[nodiscard]] static Result<std::unique_ptr<UcxWorker>> create(const UcxLibrary& ucx,
                                                                 bool any_network,
                                                                 std::size_t max_payload,
                                                                 UcxEvents& events);
  ~UcxWorker();

  // The port.
  [[nodiscard]] Result<int> listen(const std::string& host, const std::string& port);
  [[nodiscard]] Result<ucp_ep_h> connect(const std::string& host, const std::string& port);
  void close(ucp_ep_h endpoint);
  // From now on large messages of this endpoint are taken.
  void trust(ucp_ep_h endpoint);

  // Room for a payload, with anything in it.
  [[nodiscard]] std::vector<std::byte> buffer(std::size_t bytes);
  void recycle(std::vector<std::byte> buffer);
  // In order. Where it fails the endpoint breaks.
  template <class Header>
  void send(ucp_ep_h to, unsigned id, const Header& header, std::vector<std::byte> payload = {}) {
    static_assert(sizeof(Header) <= kMaxHeader);
    send(to, id, std::as_bytes(std::span(&header, 1)), std::move(payload));
  }

  // Goes on with what there is; with nothing to do waits for news, wake() or so long.
  void progress(Duration patience);
  void wake() { (void)ucx_.worker_signal(worker_); }

 private:
  struct Endpoint {
    std::uint64_t number = 0;  // never used again, as its address may be
    bool trusted = false;
    std::size_t coming = 0;  // bytes
  };
  struct Handler {
    UcxWorker* worker = nullptr;
    unsigned id = 0;
  };
  // A message on its way out or in.
  struct Message {
    UcxWorker* worker = nullptr;
    ucp_ep_h endpoint = nullptr;
    std::uint64_t number = 0;  // the endpoint's
    unsigned id = 0;
    std::size_t header_bytes = 0;
    std::array<std::byte, kMaxHeader> header{};
    std::vector<std::byte> payload;
  };

  UcxWorker(const UcxLibrary& ucx, std::size_t max_payload, UcxEvents& events)
      : ucx_(ucx), max_payload_(max_payload), events_(events) {}
  [[nodiscard]] Status open(bool any_network);
  [[nodiscard]] Error error(const char* what, ucs_status_t status) const;
  void send(ucp_ep_h to, unsigned id, std::span<const std::byte> header,
            std::vector<std::byte> payload);
  [[nodiscard]] ucp_ep_params_t endpoint_params();
  void accept(ucp_conn_request_h request);
  void add(ucp_ep_h endpoint) { open_[endpoint].number = ++last_number_; }
  ucs_status_t arrived(unsigned id, std::span<const std::byte> header, void* data,
                       std::size_t bytes, const ucp_am_recv_param_t& param);
  void received(Message& message, ucs_status_t status);
  Message& add_message(ucp_ep_h endpoint, unsigned id, std::span<const std::byte> header,
                       std::vector<std::byte> payload);
  void done(Message& message);
  void break_later(ucp_ep_h endpoint, ucs_status_t status);
  bool settle();  // true: there was something
  void end(ucp_ep_h endpoint);

  const UcxLibrary& ucx_;
  const std::size_t max_payload_;
  UcxEvents& events_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  int event_fd_ = -1;
  std::array<Handler, kIds> handlers_{};
  std::map<ucp_ep_h, Endpoint> open_;
  std::uint64_t last_number_ = 0;
  std::vector<ucp_conn_request_h> asked_;
  std::vector<std::pair<ucp_ep_h, std::string>> broken_;
  std::vector<ucp_ep_h> to_close_;
  int closing_ = 0;
  std::map<Message*, std::unique_ptr<Message>> messages_;
  std::vector<std::vector<std::byte>> spare_;
};

}  // namespace sluice

#endif  // SLUICE_UCX
