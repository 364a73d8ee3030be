// The file of --api-keys: who may call, and how much.
//
//   - key: sk-first
//     name: research
//     requests-per-minute: 600       # limits may be left out: none
//     tokens-per-minute: 200000
//     concurrent-requests: 32
#pragma once

#include <string>
#include <vector>

#include "gateway/gateway.h"

namespace sluice {

// Throws with the file's name and what is wrong in it.
[[nodiscard]] std::vector<ApiKey> read_api_keys(const std::string& file);

}  // namespace sluice
