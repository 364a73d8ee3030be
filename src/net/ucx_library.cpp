#include "net/ucx_library.h"

#if SLUICE_UCX

#include <dlfcn.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <ucs/debug/log_def.h>

#include <array>
#include <cstdarg>
#include <cstdio>

namespace sluice {
namespace {

// A connection that breaks is an error to it, and a daily affair here.
ucs_log_func_rc_t log(const char*, unsigned, const char*, ucs_log_level_t level,
                      const ucs_log_component_config_t*, const char* message, va_list arguments) {
  std::array<char, 512> text{};
  std::vsnprintf(text.data(), text.size(), message, arguments);
  if (level == UCS_LOG_LEVEL_FATAL) {
    spdlog::error("UCX: {}", text.data());
    return UCS_LOG_FUNC_RC_CONTINUE;
  }
  spdlog::debug("UCX: {}", text.data());
  return UCS_LOG_FUNC_RC_STOP;
}

Result<UcxLibrary> load() {
  void* handle = ::dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return fail(ErrorCode::kUnavailable, ::dlerror());
  UcxLibrary library;
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    if (function == nullptr) missing = name;
  };
  decltype(&::ucs_log_push_handler) push_handler = nullptr;
  find("ucp_init_version", library.init_version);
  find("ucp_cleanup", library.cleanup);
  find("ucp_config_read", library.config_read);
  find("ucp_config_modify", library.config_modify);
  find("ucp_config_release", library.config_release);
  find("ucp_worker_create", library.worker_create);
  find("ucp_worker_destroy", library.worker_destroy);
  find("ucp_worker_progress", library.worker_progress);
  find("ucp_worker_get_efd", library.worker_get_efd);
  find("ucp_worker_arm", library.worker_arm);
  find("ucp_worker_signal", library.worker_signal);
  find("ucp_worker_set_am_recv_handler", library.set_am_recv_handler);
  find("ucp_listener_create", library.listener_create);
  find("ucp_listener_query", library.listener_query);
  find("ucp_listener_reject", library.listener_reject);
  find("ucp_listener_destroy", library.listener_destroy);
  find("ucp_ep_create", library.ep_create);
  find("ucp_ep_close_nbx", library.ep_close);
  find("ucp_am_send_nbx", library.am_send);
  find("ucp_am_recv_data_nbx", library.am_recv_data);
  find("ucp_request_free", library.request_free);
  find("ucs_status_string", library.status_string);
  find("ucs_log_push_handler", push_handler);
  if (missing != nullptr) {
    return fail(ErrorCode::kUnavailable, fmt::format("libucp.so.0 has no {}", missing));
  }
  push_handler(log);
  return library;
}

}  // namespace

Result<const UcxLibrary*> load_ucx() {
  static const Result<UcxLibrary> library = load();
  if (!library) return fail(library.error().code, library.error().message);
  return &*library;
}

}  // namespace sluice

#endif  // SLUICE_UCX
