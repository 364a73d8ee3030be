// Invariants. A failed CHECK is our own bug and stops the process in every
// build; input from a client, peer or file must never reach one.
#pragma once

#include <fmt/format.h>

#include <string>
#include <type_traits>

namespace sluice::internal {

[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const std::string& detail);

template <class T>
auto printable(const T& value) {
  if constexpr (requires { value.value; }) {
    return value.value;
  } else if constexpr (std::is_enum_v<T>) {
    return static_cast<std::underlying_type_t<T>>(value);
  } else {
    return value;
  }
}

template <class A, class B>
[[noreturn]] void check_op_failed(const char* file, int line, const char* expression, const A& a,
                                  const B& b) {
  check_failed(file, line, expression,
               fmt::format("left {}, right {}", printable(a), printable(b)));
}

}  // namespace sluice::internal

#define CHECK(condition)                                                    \
  do {                                                                      \
    if (!(condition)) [[unlikely]]                                          \
      ::sluice::internal::check_failed(__FILE__, __LINE__, #condition, {}); \
  } while (false)

#define SLUICE_CHECK_OP(a, op, b)                                                          \
  do {                                                                                     \
    const auto& check_a_ = (a);                                                            \
    const auto& check_b_ = (b);                                                            \
    if (!(check_a_ op check_b_)) [[unlikely]]                                              \
      ::sluice::internal::check_op_failed(__FILE__, __LINE__, #a " " #op " " #b, check_a_, \
                                          check_b_);                                       \
  } while (false)

#define CHECK_EQ(a, b) SLUICE_CHECK_OP(a, ==, b)
#define CHECK_NE(a, b) SLUICE_CHECK_OP(a, !=, b)
#define CHECK_LE(a, b) SLUICE_CHECK_OP(a, <=, b)
#define CHECK_LT(a, b) SLUICE_CHECK_OP(a, <, b)
#define CHECK_GE(a, b) SLUICE_CHECK_OP(a, >=, b)
#define CHECK_GT(a, b) SLUICE_CHECK_OP(a, >, b)

// Checks that cost more than a comparison: debug builds only.
#ifdef NDEBUG
#define DCHECK(condition) \
  do {                    \
  } while (false)
#else
#define DCHECK(condition) CHECK(condition)
#endif
