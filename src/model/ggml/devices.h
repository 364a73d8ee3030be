// ggml's devices by the names of model/device.h.
#pragma once

#include <string>

#include "model/ggml/ggml_handles.h"

namespace sluice {

// Null: there is none of that name.
[[nodiscard]] ggml_backend_dev_t ggml_device(const std::string& name);

}  // namespace sluice
