#include "transfer/expected_kv.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice {

void ExpectedKv::expect(const HandoffKey& key, std::span<const BlockId> blocks) {
  ++version_;
  Reserved& reserved = reserved_[key.request];
  reserved.key = key;
  reserved.blocks.assign(blocks.begin(), blocks.end());
  std::sort(reserved.blocks.begin(), reserved.blocks.end());
}

void ExpectedKv::close(RequestId request) {
  ++version_;
  reserved_.erase(request);
}

Status ExpectedKv::check(const HandoffKey& key, std::span<const BlockId> blocks) const {
  const auto it = reserved_.find(key.request);
  if (it == reserved_.end() || it->second.key != key) {
    return fail(ErrorCode::kNotFound, "nothing is reserved for this KV any more");
  }
  const std::vector<BlockId>& ours = it->second.blocks;
  for (const BlockId block : blocks) {
    if (!std::binary_search(ours.begin(), ours.end(), block)) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("block {} is not among the {} that are reserved", block.value, ours.size()));
    }
  }
  return {};
}

}  // namespace sluice
