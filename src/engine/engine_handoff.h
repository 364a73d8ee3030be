// What an engine needs to know of a sequence that comes from another instance.
// Plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "engine/request.h"

namespace sluice {

struct ArrivalRequest {
  std::unique_ptr<Request> request;
  std::vector<Token> generated;  // known so far
  std::int32_t room_tokens = 0;  // KV of at most so many tokens will come
};

struct Arrival {
  std::int32_t held_tokens = 0;  // of its beginning, here as a prefix already; whole blocks
  std::vector<BlockId> blocks;   // for [held_tokens, room_tokens)
};

struct ArrivalRefusal {
  bool never = false;  // nothing that ends here makes enough room
  Duration after{};    // else: when there may be room
  Error error;
};

// Where its other instance stopped.
struct ArrivedState {
  std::vector<Token> generated;  // all; at least one
  std::int32_t kv_tokens = 0;    // KV of [0, kv_tokens) is here
  std::int32_t cached_tokens = 0;
  bool announced = false;
};

}  // namespace sluice
