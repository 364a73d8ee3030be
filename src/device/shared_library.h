// A library that is loaded at run time, if it is there: what a device's maker installs with its
// driver, and a build cannot rely on. Stays loaded as long as the object lives.
#pragma once

#include <string>

#include "base/result.h"

namespace sluice {

class SharedLibrary final {
 public:
  // kNotFound: there is none of that name, with the loader's words.
  [[nodiscard]] static Result<SharedLibrary> load(const std::string& file);

  SharedLibrary(SharedLibrary&& other) noexcept;
  SharedLibrary& operator=(SharedLibrary&& other) noexcept;
  ~SharedLibrary();

  // Sets `function`; kNotFound: the library has none of that name.
  template <class F>
  [[nodiscard]] Status bind(const char* name, F*& function) const {
    TRY(void* const found, symbol(name));
    function = reinterpret_cast<F*>(found);
    return {};
  }
  [[nodiscard]] const std::string& file() const { return file_; }

 private:
  SharedLibrary() = default;
  [[nodiscard]] Result<void*> symbol(const char* name) const;

  std::string file_;
  void* handle_ = nullptr;
};

}  // namespace sluice
