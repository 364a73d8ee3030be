#include "net/ucx_worker.h"

#if SLUICE_UCX

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace sluice {
namespace {

constexpr std::size_t kMaxSpare = 32;
constexpr Duration kClosing = std::chrono::seconds(2);
constexpr int kTurns = 64;  // of UCX, before others of the thread have theirs

// The first address of a name; it may ask a server.
Result<sockaddr_storage> resolve(const std::string& host, const std::string& port, bool passive) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE : 0;
  addrinfo* found = nullptr;
  const int rc = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (rc != 0) return fail(ErrorCode::kUnavailable, ::gai_strerror(rc));
  sockaddr_storage address{};
  std::memcpy(&address, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

ucs_sock_addr_t view(const sockaddr_storage& address) {
  const bool v6 = address.ss_family == AF_INET6;
  return {.addr = reinterpret_cast<const sockaddr*>(&address),
          .addrlen = static_cast<socklen_t>(v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in))};
}

}  // namespace

Error UcxWorker::error(const char* what, ucs_status_t status) const {
  return {ErrorCode::kUnavailable, fmt::format("{}: {}", what, ucx_.status_string(status)), 0};
}

Result<std::unique_ptr<UcxWorker>> UcxWorker::create(const UcxLibrary& ucx, bool any_network,
                                                     std::size_t max_payload, UcxEvents& events) {
  std::unique_ptr<UcxWorker> worker(new UcxWorker(ucx, max_payload, events));
  TRY_STATUS(worker->open(any_network));
  return worker;
}

Status UcxWorker::open(bool any_network) {
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx_.config_read(nullptr, nullptr, &config);
  // Without RDMA nothing of its TCP is to listen.
  if (status == UCS_OK && !any_network) status = ucx_.config_modify(config, "TLS", "ib");
  if (status == UCS_OK) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    params.name = "sluice";
    status = ucx_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  }
  if (config != nullptr) ucx_.config_release(config);
  if (status != UCS_OK) return tl::unexpected(error("UCX finds no network", status));
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucx_.worker_create(context_, &params, &worker_);
  if (status != UCS_OK) return tl::unexpected(error("UCX opens no network", status));
  for (unsigned id = 0; id < kIds; ++id) {
    handlers_[id] = {this, id};
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                         UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = id;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    handler.arg = &handlers_[id];
    handler.cb = [](void* arg, const void* header, std::size_t header_bytes, void* data,
                    std::size_t bytes, const ucp_am_recv_param_t* param) {
      const auto& [worker, number] = *static_cast<Handler*>(arg);
      return worker->arrived(number, {static_cast<const std::byte*>(header), header_bytes}, data,
                             bytes, *param);
    };
    status = ucx_.set_am_recv_handler(worker_, &handler);
    if (status != UCS_OK) return tl::unexpected(error("UCX takes no messages", status));
  }
  status = ucx_.worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return tl::unexpected(error("UCX wakes nobody", status));
  return {};
}

UcxWorker::~UcxWorker() {
  if (listener_ != nullptr) ucx_.listener_destroy(listener_);
  for (const ucp_conn_request_h request : asked_) accept(request);
  while (!open_.empty()) end(open_.begin()->first);
  for (const TimePoint until = SteadyClock().now() + kClosing;
       closing_ > 0 && SteadyClock().now() < until;) {
    ucx_.worker_progress(worker_);
  }
  if (worker_ != nullptr) ucx_.worker_destroy(worker_);
  if (context_ != nullptr) ucx_.cleanup(context_);
}

// --- Endpoints -------------------------------------------------------------------

Result<int> UcxWorker::listen(const std::string& host, const std::string& port) {
  TRY(const sockaddr_storage at, resolve(host, port, /*passive=*/true));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = view(at);
  params.conn_handler.arg = this;
  params.conn_handler.cb = [](ucp_conn_request_h request, void* arg) {
    static_cast<UcxWorker*>(arg)->asked_.push_back(request);
  };
  const ucs_status_t status = ucx_.listener_create(worker_, &params, &listener_);
  if (status != UCS_OK) return tl::unexpected(error("UCX does not listen", status));
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  (void)ucx_.listener_query(listener_, &attributes);
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&attributes.sockaddr);
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&attributes.sockaddr);
  return ntohs(attributes.sockaddr.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
}

ucp_ep_params_t UcxWorker::endpoint_params() {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = this;
  params.err_handler.cb = [](void* arg, ucp_ep_h endpoint, ucs_status_t status) {
    static_cast<UcxWorker*>(arg)->break_later(endpoint, status);
  };
  return params;
}

Result<ucp_ep_h> UcxWorker::connect(const std::string& host, const std::string& port) {
  TRY(const sockaddr_storage at, resolve(host, port, /*passive=*/false));
  ucp_ep_params_t params = endpoint_params();
  params.field_mask |= UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = view(at);
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = ucx_.ep_create(worker_, &params, &endpoint);
  if (status != UCS_OK) return tl::unexpected(error("UCX does not connect", status));
  add(endpoint);
  return endpoint;
}

void UcxWorker::accept(ucp_conn_request_h request) {
  ucp_ep_params_t params = endpoint_params();
  params.field_mask |= UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = ucx_.ep_create(worker_, &params, &endpoint);
  if (status != UCS_OK) return spdlog::debug("UCX: {}", error("not accepted", status).message);
  add(endpoint);
  events_.accepted(endpoint);
}

void UcxWorker::trust(ucp_ep_h endpoint) {
  if (const auto it = open_.find(endpoint); it != open_.end()) it->second.trusted = true;
}

void UcxWorker::close(ucp_ep_h endpoint) {
  to_close_.push_back(endpoint);
}

void UcxWorker::break_later(ucp_ep_h endpoint, ucs_status_t status) {
  broken_.emplace_back(endpoint, ucx_.status_string(status));
}

// By force: what is on its way there ends as well, and its buffers are free then.
void UcxWorker::end(ucp_ep_h endpoint) {
  if (open_.erase(endpoint) == 0) return;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.user_data = this;
  param.cb.send = [](void* request, ucs_status_t, void* self) {
    auto* worker = static_cast<UcxWorker*>(self);
    --worker->closing_;
    worker->ucx_.request_free(request);
  };
  if (UCS_PTR_IS_PTR(ucx_.ep_close(endpoint, &param))) ++closing_;
}

// What came up while UCX was at work, and may not be done from within.
bool UcxWorker::settle() {
  bool any = false;
  while (!asked_.empty() || !broken_.empty() || !to_close_.empty()) {
    any = true;
    for (const ucp_conn_request_h request : std::exchange(asked_, {})) accept(request);
    for (const ucp_ep_h endpoint : std::exchange(to_close_, {})) end(endpoint);
    for (const auto& [endpoint, why] : std::exchange(broken_, {})) {
      if (!open_.contains(endpoint)) continue;
      end(endpoint);
      events_.broken(endpoint, why);
    }
  }
  return any;
}

void UcxWorker::progress(Duration patience) {
  int turns = 0;
  while (turns < kTurns && ucx_.worker_progress(worker_) != 0) ++turns;
  // The owner may have something to do now, or has to be elsewhere sooner.
  if (settle() || turns > 0 || ucx_.worker_arm(worker_) != UCS_OK) return;
  pollfd descriptor{.fd = event_fd_, .events = POLLIN, .revents = 0};
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(patience).count();
  (void)::poll(&descriptor, 1, static_cast<int>(std::clamp<std::int64_t>(ms, 0, 60'000)));
}

// --- Messages --------------------------------------------------------------------

std::vector<std::byte> UcxWorker::buffer(std::size_t bytes) {
  std::vector<std::byte> result;
  if (!spare_.empty()) {
    result = std::move(spare_.back());
    spare_.pop_back();
  }
  result.resize(bytes);
  return result;
}

void UcxWorker::recycle(std::vector<std::byte> buffer) {
  if (buffer.capacity() > 0 && spare_.size() < kMaxSpare) spare_.push_back(std::move(buffer));
}

UcxWorker::Message& UcxWorker::add_message(ucp_ep_h endpoint, unsigned id,
                                           std::span<const std::byte> header,
                                           std::vector<std::byte> payload) {
  auto owned = std::make_unique<Message>();
  Message& message = *owned;
  message.worker = this;
  message.endpoint = endpoint;
  message.number = open_.at(endpoint).number;
  message.id = id;
  message.header_bytes = header.size();
  std::copy(header.begin(), header.end(), message.header.begin());
  message.payload = std::move(payload);
  messages_.emplace(&message, std::move(owned));
  return message;
}

void UcxWorker::done(Message& message) {
  recycle(std::move(message.payload));
  messages_.erase(&message);
}

void UcxWorker::send(ucp_ep_h to, unsigned id, std::span<const std::byte> header,
                     std::vector<std::byte> payload) {
  if (!open_.contains(to)) return recycle(std::move(payload));
  Message& message = add_message(to, id, header, std::move(payload));
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_AM_SEND_FLAG_REPLY;  // so that the other side knows who has sent it
  param.user_data = &message;
  param.cb.send = [](void* request, ucs_status_t, void* user_data) {
    Message& sent = *static_cast<Message*>(user_data);
    sent.worker->ucx_.request_free(request);
    sent.worker->done(sent);
  };
  void* request = ucx_.am_send(to, id, message.header.data(), message.header_bytes,
                               message.payload.data(), message.payload.size(), &param);
  if (UCS_PTR_IS_PTR(request)) return;
  if (UCS_PTR_IS_ERR(request)) break_later(to, UCS_PTR_STATUS(request));
  done(message);
}

ucs_status_t UcxWorker::arrived(unsigned id, std::span<const std::byte> header, void* data,
                                std::size_t bytes, const ucp_am_recv_param_t& param) {
  const bool told = (param.recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
  const auto from = told ? open_.find(param.reply_ep) : open_.end();
  if (from == open_.end()) return UCS_OK;
  const bool large = (param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  Endpoint& endpoint = from->second;
  const bool fits = endpoint.coming == 0 || endpoint.coming + bytes <= kMaxComing;
  if (header.size() > kMaxHeader || bytes > max_payload_ ||
      (large && !(endpoint.trusted && fits))) {
    break_later(from->first, UCS_ERR_EXCEEDS_LIMIT);
    return UCS_OK;
  }
  if (!large) {
    events_.message(id, from->first, header, {static_cast<const std::byte*>(data), bytes});
    return UCS_OK;
  }
  Message& message = add_message(from->first, id, header, buffer(bytes));
  endpoint.coming += bytes;
  ucp_request_param_t receive{};
  receive.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  receive.user_data = &message;
  receive.cb.recv_am = [](void* request, ucs_status_t status, std::size_t, void* user_data) {
    Message& received = *static_cast<Message*>(user_data);
    received.worker->ucx_.request_free(request);
    received.worker->received(received, status);
  };
  void* request =
      ucx_.am_recv_data(worker_, data, message.payload.data(), message.payload.size(), &receive);
  if (UCS_PTR_IS_ERR(request)) {
    break_later(from->first, UCS_PTR_STATUS(request));
    done(message);
  }
  return UCS_INPROGRESS;
}

void UcxWorker::received(Message& message, ucs_status_t status) {
  const auto from = open_.find(message.endpoint);
  if (from != open_.end() && from->second.number == message.number) {
    from->second.coming -= message.payload.size();
    if (status == UCS_OK) {
      events_.message(message.id, from->first,
                      std::span(message.header).first(message.header_bytes), message.payload);
    } else {
      break_later(from->first, status);
    }
  }
  done(message);
}

}  // namespace sluice

#endif  // SLUICE_UCX
