// What the rest of sluice needs to know of a loaded model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/kv_layout.h"

namespace sluice {

struct ModelInfo {
  std::string id;            // what clients call it: the file's name without .gguf
  std::string architecture;  // "llama", "qwen3", ...
  std::string name;          // general.name of the file
  std::string quantization;  // the type of most weights, "Q4_K"
  std::int64_t num_parameters = 0;
  std::size_t weight_bytes = 0;
  std::int32_t num_layers = 0;
  std::int32_t num_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t embedding_size = 0;
  std::int32_t vocabulary_size = 0;
  std::int32_t trained_context = 0;  // tokens
  std::int32_t sliding_window = 0;   // tokens; 0: none
  KvLayout kv_layout;                // with the default block size
};

}  // namespace sluice
