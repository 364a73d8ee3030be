#include "device/shared_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <utility>

namespace sluice {
namespace {

std::string loader_words() {
  const char* words = ::dlerror();
  return words == nullptr ? "no reason given" : words;
}

}  // namespace

Result<SharedLibrary> SharedLibrary::load(const std::string& file) {
  SharedLibrary library;
  library.file_ = file;
  library.handle_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library.handle_ == nullptr) return fail(ErrorCode::kNotFound, loader_words());
  return library;
}

SharedLibrary::SharedLibrary(SharedLibrary&& other) noexcept
    : file_(std::move(other.file_)), handle_(std::exchange(other.handle_, nullptr)) {}

SharedLibrary& SharedLibrary::operator=(SharedLibrary&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(handle_, other.handle_);
  return *this;
}

SharedLibrary::~SharedLibrary() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

Result<void*> SharedLibrary::symbol(const char* name) const {
  void* const found = ::dlsym(handle_, name);
  if (found != nullptr) return found;
  return fail(ErrorCode::kNotFound, fmt::format("{} has no {}", file_, name));
}

}  // namespace sluice
