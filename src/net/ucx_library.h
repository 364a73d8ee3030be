// UCX, loaded when it is wanted: the program runs without it, and while nobody asks for it
// nothing of it (threads, hooks, shared memory) is in the process. Internal to net/.
#pragma once

#if SLUICE_UCX

#include <ucp/api/ucp.h>

#include "base/result.h"

namespace sluice {

// The calls that are used of it; the library stays loaded for the process's life.
struct UcxLibrary {
  decltype(&::ucp_init_version) init_version = nullptr;
  decltype(&::ucp_cleanup) cleanup = nullptr;
  decltype(&::ucp_config_read) config_read = nullptr;
  decltype(&::ucp_config_modify) config_modify = nullptr;
  decltype(&::ucp_config_release) config_release = nullptr;
  decltype(&::ucp_worker_create) worker_create = nullptr;
  decltype(&::ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&::ucp_worker_progress) worker_progress = nullptr;
  decltype(&::ucp_worker_get_efd) worker_get_efd = nullptr;
  decltype(&::ucp_worker_arm) worker_arm = nullptr;
  decltype(&::ucp_worker_signal) worker_signal = nullptr;
  decltype(&::ucp_worker_set_am_recv_handler) set_am_recv_handler = nullptr;
  decltype(&::ucp_listener_create) listener_create = nullptr;
  decltype(&::ucp_listener_query) listener_query = nullptr;
  decltype(&::ucp_listener_reject) listener_reject = nullptr;
  decltype(&::ucp_listener_destroy) listener_destroy = nullptr;
  decltype(&::ucp_ep_create) ep_create = nullptr;
  decltype(&::ucp_ep_close_nbx) ep_close = nullptr;
  decltype(&::ucp_am_send_nbx) am_send = nullptr;
  decltype(&::ucp_am_recv_data_nbx) am_recv_data = nullptr;
  decltype(&::ucp_request_free) request_free = nullptr;
  const char* (*status_string)(ucs_status_t) = nullptr;  // of libucs
};

// kUnavailable: it is not installed, or another version. What it logs goes to this program's log.
[[nodiscard]] Result<const UcxLibrary*> load_ucx();

}  // namespace sluice

#endif  // SLUICE_UCX
