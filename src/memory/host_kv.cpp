#include "memory/host_kv.h"

#include <utility>

#include "base/check.h"

namespace sluice {
namespace {

void copy_blocks(const KvView& from, std::span<const BlockId> sources, const KvView& to,
                 std::span<const BlockId> targets) {
  CHECK_EQ(sources.size(), targets.size());
  const std::size_t bytes = from.layout.block_bytes();
  for (std::size_t i = 0; i < sources.size(); ++i) {
    CHECK(sources[i].value >= 0 && sources[i].value < from.num_blocks);
    CHECK(targets[i].value >= 0 && targets[i].value < to.num_blocks);
    // One of the two is the host's.
    if (from.base != nullptr) {
      to.write(targets[i], {from.at(sources[i]), bytes});
    } else {
      from.read(sources[i], {to.at(targets[i]), bytes});
    }
  }
}

class ArenaHostKv final : public HostKv {
 public:
  ArenaHostKv(const KvView& device, KvArena host) : device_(device), host_(std::move(host)) {
    CHECK(device_.layout == host_.view().layout);
  }
  [[nodiscard]] std::int32_t num_blocks() const override { return host_.view().num_blocks; }
  void save(std::span<const BlockId> device, std::span<const BlockId> host) override {
    copy_blocks(device_, device, host_.view(), host);
  }
  void restore(std::span<const BlockId> host, std::span<const BlockId> device) override {
    copy_blocks(host_.view(), host, device_, device);
  }

 private:
  const KvView device_;
  const KvArena host_;
};

}  // namespace

std::unique_ptr<HostKv> make_arena_host_kv(const KvView& device, KvArena host) {
  return std::make_unique<ArenaHostKv>(device, std::move(host));
}

}  // namespace sluice
