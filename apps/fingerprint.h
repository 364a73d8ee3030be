// What tells whether two processes serve the same model.
#pragma once

#include <cstdint>
#include <string>

#include "base/kv_layout.h"
#include "base/result.h"

namespace sluice {

// Of a model file: its size, its beginning, where a GGUF file has the vocabulary and the
// chat template, and 1,024 pages spread over its weights. Milliseconds whatever the size;
// kNotFound: it cannot be read.
[[nodiscard]] Result<std::uint64_t> file_fingerprint(const std::string& path);

// Of how KV blocks are laid out: those who hand KV to each other have the same.
[[nodiscard]] std::uint64_t layout_fingerprint(const KvLayout& layout);

}  // namespace sluice
