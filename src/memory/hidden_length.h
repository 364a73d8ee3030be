// An output length that only a benchmark knows: when a request will end.
//
// Anybody may carry it; only the oracle's admission rule can read it (and whoever
// is named a friend here). That no other policy sees the answer is therefore
// checked by the compiler.
#pragma once

#include <cstdint>

namespace sluice {

class HiddenLength final {
 public:
  HiddenLength() = default;  // not known
  explicit HiddenLength(std::int32_t tokens) : tokens_(tokens) {}

 private:
  friend class OracleRule;
  std::int32_t tokens_ = -1;  // of output, in all
};

}  // namespace sluice
