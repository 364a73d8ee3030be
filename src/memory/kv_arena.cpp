#include "memory/kv_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"

namespace sluice {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kSmallPage = 4096;
constexpr std::size_t kChunkBytes = std::size_t{64} << 20;

// The file's descriptor, or -1. Its size is sealed: who maps it can rely on that.
int make_file(std::size_t bytes) {
  const int file = ::memfd_create("sluice-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return -1;
  if (::ftruncate(file, static_cast<off_t>(bytes)) == 0 &&
      ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    return file;
  }
  ::close(file);
  return -1;
}

double mebibytes(std::size_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace

Result<KvArena> KvArena::create(const KvLayout& layout, std::int32_t num_blocks, ArenaKind kind) {
  const std::size_t block_bytes = layout.block_bytes();
  if (layout.num_layers <= 0 || layout.num_kv_heads <= 0 || layout.head_dim_k <= 0 ||
      layout.head_dim_v <= 0 || layout.block_tokens <= 0 || num_blocks <= 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a KV memory of {} blocks of {} tokens, {} layers, {} heads of {} and "
                            "{} elements: every number must be at least 1",
                            num_blocks, layout.block_tokens, layout.num_layers, layout.num_kv_heads,
                            layout.head_dim_k, layout.head_dim_v));
  }
  const auto count = static_cast<std::size_t>(num_blocks);
  if (block_bytes > (std::numeric_limits<std::ptrdiff_t>::max() - 2 * kHugePage) / count) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} KV blocks of {} bytes are more than an address space holds", count,
                            block_bytes));
  }
  KvArena arena;
  arena.layout_ = layout;
  arena.num_blocks_ = num_blocks;
  arena.bytes_ = count * block_bytes;
  const std::size_t bytes = (arena.bytes_ + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
  const bool shared = kind == ArenaKind::kShared;
  if (shared) arena.descriptor_ = make_file(bytes);
  void* mapping = MAP_FAILED;
  if (!shared || arena.descriptor_ >= 0) {
    mapping = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, arena.descriptor_, 0);
  }
  if (mapping == MAP_FAILED) {
    return fail(
        ErrorCode::kNeverFits,
        fmt::format("the system does not give {:.0f} MiB for KV memory ({} blocks of {:.2f} "
                    "MiB): {}",
                    mebibytes(bytes), count, mebibytes(block_bytes), std::strerror(errno)));
  }
  arena.mapping_ = static_cast<std::byte*>(mapping);
  arena.mapping_bytes_ = bytes;
  const std::size_t into = reinterpret_cast<std::uintptr_t>(mapping) % kHugePage;
  arena.base_ = arena.mapping_ + (into == 0 ? 0 : kHugePage - into);
  // A wish: where huge pages are off, small ones work as well.
  static_cast<void>(::madvise(mapping, bytes, MADV_HUGEPAGE));
  return arena;
}

KvArena::KvArena(KvArena&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_bytes_(std::exchange(other.mapping_bytes_, 0)),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      layout_(other.layout_),
      num_blocks_(std::exchange(other.num_blocks_, 0)) {}

KvArena& KvArena::operator=(KvArena&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(layout_, other.layout_);
  std::swap(num_blocks_, other.num_blocks_);
  return *this;
}

KvArena::~KvArena() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

ArenaFile KvArena::file() const {
  if (descriptor_ < 0) return {};
  return {descriptor_, static_cast<std::size_t>(base_ - mapping_), bytes_};
}

KvView KvArena::view() const {
  return {.base = base_, .layout = layout_, .num_blocks = num_blocks_};
}

std::size_t KvArena::num_chunks() const {
  return (bytes_ + kChunkBytes - 1) / kChunkBytes;
}

Status KvArena::touch_chunk(std::size_t chunk) const {
  CHECK_LT(chunk, num_chunks());
  std::byte* begin = base_ + chunk * kChunkBytes;
  const std::size_t bytes = std::min(kChunkBytes, bytes_ - chunk * kChunkBytes);
#ifdef MADV_POPULATE_WRITE
  const std::size_t pages = (bytes + kSmallPage - 1) / kSmallPage * kSmallPage;
  if (::madvise(begin, pages, MADV_POPULATE_WRITE) == 0) return {};
  if (errno == ENOMEM || errno == EFAULT) {
    return fail(
        ErrorCode::kNeverFits,
        fmt::format("out of memory at {:.0f} of {:.0f} MiB of KV memory: {}",
                    mebibytes(chunk * kChunkBytes), mebibytes(bytes_), std::strerror(errno)));
  }
#endif
  for (std::size_t i = 0; i < bytes; i += kSmallPage) {  // an older system: page by page
    *static_cast<volatile std::byte*>(begin + i) = std::byte{0};
  }
  return {};
}

Status KvArena::touch() const {
  for (std::size_t chunk = 0; chunk < num_chunks(); ++chunk) TRY_STATUS(touch_chunk(chunk));
  return {};
}

}  // namespace sluice
