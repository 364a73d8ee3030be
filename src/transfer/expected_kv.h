// What peers may write just now: blocks, each under the key of its reservation.
//
// The receiving side of a transfer between processes asks it for every piece, so that
// one that comes late never writes a block that has found another owner. A value; who
// shares it between threads guards it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "transfer/handoff_key.h"

namespace sluice {

class ExpectedKv final {
 public:
  void expect(const HandoffKey& key, std::span<const BlockId> blocks);
  void close(RequestId request);
  // kNotFound: nothing is reserved for the key; kInvalidArgument: a block is not among
  // those that are.
  [[nodiscard]] Status check(const HandoffKey& key, std::span<const BlockId> blocks) const;
  // Another one: an answer of check() may have changed.
  [[nodiscard]] std::uint64_t version() const { return version_; }

 private:
  struct Reserved {
    HandoffKey key;
    std::vector<BlockId> blocks;  // sorted
  };
  std::map<RequestId, Reserved> reserved_;
  std::uint64_t version_ = 0;
};

}  // namespace sluice
