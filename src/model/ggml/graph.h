// One step's compute graph, for any supported architecture.
//
// A graph depends on the numbers of rows and outputs only: which tokens, where
// their KV lies and who samples are inputs and callbacks, so that a steady batch
// replays its graph. Sampling is a custom op that calls back; attention is what
// the device's AttentionNodes make of it.
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

// How a layer's attention becomes nodes: what devices differ in. Lives as long as
// the graphs made with it.
class AttentionNodes {
 public:
  virtual ~AttentionNodes() = default;

  // Once a graph, before its layers: for inputs that all of them share.
  virtual void begin(ggml_context* context, GraphShape shape) = 0;
  // Adds to the graph what writes the rows' K and V, [dim, head, token], into the
  // cache. The result goes to attend(), which it precedes.
  [[nodiscard]] virtual ggml_tensor* store(ggml_context* context, ggml_cgraph* graph,
                                           std::size_t layer, ggml_tensor* k, ggml_tensor* v) = 0;
  // Q is [dim, head, token], the result [dim * head, token].
  [[nodiscard]] virtual ggml_tensor* attend(ggml_context* context, std::size_t layer,
                                            ggml_tensor* q, ggml_tensor* stored) = 0;
};

struct GraphHooks {
  AttentionNodes* attention = nullptr;
  ggml_custom_op_t sample = nullptr;  // src[0]: logits [vocabulary, output]
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
