#include "net/shared_arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace sluice {
namespace {

// One kernel, and one numbering of its processes.
std::string this_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat processes {};
  if (boot.empty() || ::stat("/proc/self/ns/pid", &processes) != 0) return "";
  return fmt::format("{}/{}", boot, processes.st_ino);
}

class Descriptor final {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  [[nodiscard]] int get() const { return value_; }

 private:
  int value_;
};

class MappedArena final : public PeerArena {
 public:
  MappedArena(void* mapping, std::size_t mapped, std::size_t offset)
      : mapping_(static_cast<const std::byte*>(mapping)), mapped_(mapped), offset_(offset) {}
  ~MappedArena() override { ::munmap(const_cast<std::byte*>(mapping_), mapped_); }
  [[nodiscard]] std::span<const std::byte> bytes() const override {
    return {mapping_ + offset_, mapped_ - offset_};
  }

 private:
  const std::byte* mapping_;
  const std::size_t mapped_;
  const std::size_t offset_;
};

}  // namespace

std::optional<proto::SharedArena> offer_arena(const ArenaFile& file) {
  struct stat seen {};
  if (file.descriptor < 0 || ::fstat(file.descriptor, &seen) != 0) return std::nullopt;
  proto::SharedArena offer;
  offer.set_host(this_host());
  offer.set_pid(::getpid());
  offer.set_file(file.descriptor);
  offer.set_inode(seen.st_ino);
  offer.set_offset(file.offset);
  offer.set_bytes(file.bytes);
  return offer;
}

std::shared_ptr<const PeerArena> open_arena(const proto::SharedArena& offer) {
  if (offer.host().empty() || offer.host() != this_host()) return nullptr;
  const std::string path = fmt::format("/proc/{}/fd/{}", offer.pid(), offer.file());
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat seen {};
  if (file.get() < 0 || ::fstat(file.get(), &seen) != 0 || seen.st_ino != offer.inode()) {
    return nullptr;
  }
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  const auto size = static_cast<std::uint64_t>(seen.st_size);
  const bool whole = offer.offset() <= size && offer.bytes() <= size - offer.offset();
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || !whole || offer.bytes() == 0) return nullptr;
  const std::size_t mapped = offer.offset() + offer.bytes();
  void* mapping = ::mmap(nullptr, mapped, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapping == MAP_FAILED) return nullptr;
  return std::make_shared<MappedArena>(mapping, mapped, offer.offset());
}

}  // namespace sluice
