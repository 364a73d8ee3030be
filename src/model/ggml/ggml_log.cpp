#include "model/ggml/ggml_log.h"

#include <dlfcn.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <string_view>

#include "llama.h"

namespace sluice {
namespace {

void forward(ggml_log_level, const char* text, void*) {
  std::string_view line = text;
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.remove_suffix(1);
  // A lone dot is libllama's progress bar.
  if (line.empty() || line == ".") return;
  spdlog::debug("llama.cpp: {}", line);
}

}  // namespace

void route_ggml_logs_of(const std::string& folder) {
  void* library = dlopen((folder + "/libggml-base.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  // Never closed: backends stay as well.
  auto* set = reinterpret_cast<decltype(&ggml_log_set)>(dlsym(library, "ggml_log_set"));
  if (set != nullptr) set(forward, nullptr);
}

void route_ggml_logs() {
  static std::once_flag once;
  std::call_once(once, [] { llama_log_set(forward, nullptr); });
}

}  // namespace sluice
