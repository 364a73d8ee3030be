// What a GGUF file says of its model, without loading it.
#pragma once

#include "base/result.h"
#include "model/ggml/architecture.h"
#include "model/ggml/gguf_file.h"
#include "model/model_info.h"

namespace sluice {

[[nodiscard]] Result<ModelInfo> describe_model(const GgufFile& file, const ModelConfig& config);

// Whether libllama can read the vocabulary: it asserts where a file contradicts
// itself. kInvalidArgument otherwise, with the key that is wrong.
[[nodiscard]] Status check_vocabulary(const GgufFile& file);

}  // namespace sluice
