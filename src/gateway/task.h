// The type of the gateway's coroutines.
#pragma once

// Boost 1.74's awaitable.hpp uses std::exchange without including it.
// clang-format off
#include <utility>
#include <boost/asio/awaitable.hpp>
// clang-format on

namespace sluice {

template <class T>
using Task = boost::asio::awaitable<T>;

}  // namespace sluice
