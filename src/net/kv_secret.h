// What the caller of a connection for KV shows (net/kv_connections.h). Internal to net/.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>

namespace sluice {

inline constexpr std::size_t kKvSecretBytes = 16;
using KvSecret = std::array<char, kKvSecretBytes>;

inline KvSecret random_secret() {
  std::random_device device;
  KvSecret secret;
  for (std::size_t i = 0; i < secret.size(); i += sizeof(unsigned)) {
    const unsigned word = device();
    std::memcpy(&secret[i], &word, sizeof word);
  }
  return secret;
}

// In a time that says nothing about where two secrets differ.
inline bool equal(const KvSecret& a, const KvSecret& b) {
  int difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

// All zero, which no way is given, where `text` is not one.
inline KvSecret secret_of(const std::string& text) {
  KvSecret secret{};
  if (text.size() == secret.size()) std::memcpy(secret.data(), text.data(), secret.size());
  return secret;
}

}  // namespace sluice
