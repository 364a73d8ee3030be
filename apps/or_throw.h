// Start-up errors are exceptions, caught in main: one line and exit code 2.
#pragma once

#include <stdexcept>
#include <utility>

#include "base/result.h"

namespace sluice {

template <class T>
T or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

inline void or_throw(Status status) {
  if (!status) throw std::runtime_error(status.error().message);
}

}  // namespace sluice
