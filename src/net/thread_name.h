// Names the calling thread, for debuggers and `top -H`.
#pragma once

#include <pthread.h>

#include <string>

namespace sluice {

inline void set_thread_name(const std::string& name) {
  constexpr std::size_t kMaxLength = 15;  // what the kernel keeps
  pthread_setname_np(pthread_self(), name.substr(0, kMaxLength).c_str());
}

}  // namespace sluice
