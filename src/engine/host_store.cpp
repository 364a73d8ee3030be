#include "engine/host_store.h"

#include <algorithm>

#include "base/check.h"

namespace sluice {

HostStore::HostStore(HostKv* port, const Clock& clock, Duration block_copy)
    : port_(port),
      clock_(clock),
      pool_(port == nullptr ? 0 : port->num_blocks()),
      block_copy_(block_copy) {}

std::vector<BlockId> HostStore::save(std::span<const BlockId> device) {
  const auto count = static_cast<std::int32_t>(device.size());
  CHECK(has_room(count));
  std::vector<BlockId> table;
  pool_.allocate(count, table);
  const TimePoint begin = clock_.now();
  port_->save(device, table);
  observe(clock_.now() - begin, device.size());
  return table;
}

void HostStore::restore(std::vector<BlockId>& table, std::size_t first,
                        std::span<const BlockId> device) {
  CHECK_GE(device.size(), table.size());
  if (first < table.size()) {
    const std::size_t count = table.size() - first;
    const TimePoint begin = clock_.now();
    port_->restore(std::span(table).subspan(first), device.subspan(first, count));
    observe(clock_.now() - begin, count);
  }
  drop(table);
}

void HostStore::drop(std::vector<BlockId>& table) {
  for (const BlockId block : table) {
    const bool last = pool_.unref(block);
    CHECK(last);
    pool_.free(block);
  }
  table.clear();
}

// An aged mean, weighed by the size of the copy.
void HostStore::observe(Duration took, std::size_t blocks) {
  constexpr double kMemory = 64;  // blocks
  const double share = static_cast<double>(blocks) / (static_cast<double>(blocks) + kMemory);
  const double known = to_seconds(block_copy_);
  block_copy_ =
      from_seconds(known + share * (to_seconds(took) / static_cast<double>(blocks) - known));
}

}  // namespace sluice
