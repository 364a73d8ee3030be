// One step's compute graph, for any supported architecture.
//
// A graph depends on the numbers of rows and outputs only: which tokens, where
// their KV lies and who samples are inputs and callbacks, so that a steady batch
// replays its graph. Attention and sampling are custom ops that call back.
#pragma once

#include <cstdint>

#include "model/ggml/architecture.h"
#include "model/ggml/ggml_handles.h"
#include "model/ggml/weights.h"

namespace sluice {

struct GraphShape {
  std::int32_t num_tokens = 0;   // > 0
  std::int32_t num_outputs = 0;  // rows that get logits; 0: KV is written and no more

  friend auto operator<=>(const GraphShape&, const GraphShape&) = default;
};

// A layer's attention as the custom ops find it; lives as long as the graph.
struct AttentionOp {
  ggml_custom_op_t store = nullptr;   // src[0]: K, src[1]: V, both [dim, head, token]
  ggml_custom_op_t attend = nullptr;  // src[0]: Q [dim, head, token]; dst: [dim * head, token]
  void* userdata = nullptr;
};

struct GraphHooks {
  std::span<const AttentionOp> attention;  // one a layer
  ggml_custom_op_t sample = nullptr;       // src[0]: logits [vocabulary, output]
  void* sample_userdata = nullptr;
};

struct StepGraph {
  GgmlContext context;  // holds the nodes
  ggml_cgraph* graph = nullptr;
  ggml_tensor* tokens = nullptr;       // i32 [num_tokens]
  ggml_tensor* positions = nullptr;    // i32 [num_tokens]
  ggml_tensor* output_rows = nullptr;  // i32 [num_outputs]; null: all rows, or none
};

// `long_context`: use the rotary factors for contexts beyond the original one.
[[nodiscard]] StepGraph build_step_graph(const ModelConfig& config, const ModelTensors& weights,
                                         GraphShape shape, bool long_context,
                                         const GraphHooks& hooks);

}  // namespace sluice
