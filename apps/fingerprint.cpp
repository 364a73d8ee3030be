#include "fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string_view>
#include <vector>

namespace sluice {
namespace {

constexpr std::uint64_t kStart = 0xcbf29ce484222325ULL;
constexpr std::size_t kHead = std::size_t{16} << 20;  // bytes that are read whole
constexpr std::size_t kPage = 4096;
constexpr std::size_t kPages = 1024;

// Eight bytes at a time; what is left over one by one.
std::uint64_t mix(std::uint64_t hash, std::string_view bytes) {
  std::size_t i = 0;
  const auto fold = [&hash](std::uint64_t word) {
    hash = (hash ^ word) * 0xff51afd7ed558ccdULL;
    hash ^= hash >> 32;
  };
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    bytes.copy(reinterpret_cast<char*>(&word), 8, i);
    fold(word);
  }
  for (; i < bytes.size(); ++i) fold(static_cast<unsigned char>(bytes[i]));
  return hash;
}

}  // namespace

Result<std::uint64_t> file_fingerprint(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto size = static_cast<std::size_t>(std::max<std::streamoff>(0, file.tellg()));
  std::vector<char> buffer(std::min(size, kHead));
  std::uint64_t hash = mix(kStart, std::to_string(size));
  const auto read = [&](std::size_t at, std::size_t count) {
    file.seekg(static_cast<std::streamoff>(at));
    file.read(buffer.data(), static_cast<std::streamsize>(count));
    hash = mix(hash, {buffer.data(), count});
  };
  if (file) read(0, buffer.size());
  if (size > buffer.size() + kPage) {
    const std::size_t step = std::max(kPage, (size - buffer.size()) / kPages);
    for (std::size_t at = buffer.size(); at + kPage <= size; at += step) read(at, kPage);
  }
  if (!file) return fail(ErrorCode::kNotFound, fmt::format("{} cannot be read", path));
  return hash;
}

std::uint64_t layout_fingerprint(const KvLayout& layout) {
  return mix(kStart, fmt::format("{} {} {} {} {} {}", layout.num_layers, layout.num_kv_heads,
                                 layout.head_dim_k, layout.head_dim_v, layout.block_tokens,
                                 static_cast<int>(layout.type)));
}

}  // namespace sluice
