// Products of packed weights as nodes of a ggml graph.
#pragma once

#include <ggml.h>

#include "model/ggml/packed_matrix.h"

namespace sluice {

// The columns of x (f32), rounded once for all matrices that they are to meet.
[[nodiscard]] ggml_tensor* round_columns_node(ggml_context* context, ggml_tensor* x);

// W x, f32; `rounded` is a round_columns_node(). `weights` outlives the graph.
[[nodiscard]] ggml_tensor* multiply_node(ggml_context* context, const PackedMatrix& weights,
                                         ggml_tensor* rounded);

}  // namespace sluice
