// Runs steps on the CPU with ggml: graphs that are kept and replayed, threads of
// its own, attention over KV blocks, and sampling by the same threads.
//
// Owned and used by one engine's loop. Idle threads sleep. A graph serves every
// step of its shape and those that are smaller by up to an eighth, whose missing
// rows are computed for nothing: a batch that shrinks as its sequences end, and
// mixed steps of about equal size, build nothing and allocate nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/ggml/architecture.h"
#include "model/ggml/attention.h"
#include "model/ggml/ggml_handles.h"
#include "model/ggml/graph.h"
#include "model/ggml/step_batch.h"
#include "model/ggml/weights.h"
#include "model/model.h"
#include "model/model_runner.h"

namespace sluice {

class GgmlRunner final : public ModelRunner, private AttentionNodes {
 public:
  // `config` and `weights` must outlive the runner. kInvalidArgument: an option
  // is out of its range; kInternal: no memory for the compute buffer.
  [[nodiscard]] static Result<std::unique_ptr<GgmlRunner>> make(const ModelConfig& config,
                                                                const Weights& weights,
                                                                const RunnerOptions& options);

  void bind(const KvView& kv) override;
  [[nodiscard]] Result<StepOutput> run(const StepInput& input) override;

  // Graphs built so far: a steady or shrinking batch does not raise it.
  [[nodiscard]] std::int64_t num_graphs_built() const { return num_graphs_built_; }
  [[nodiscard]] std::size_t compute_buffer_bytes() const;

 private:
  struct CachedGraph {
    GraphShape shape;
    StepGraph step;
    std::int64_t last_used = 0;
  };
  struct LayerCall {
    AttentionPlan* plan = nullptr;
    AttentionLayer layer;
    std::int32_t head_dim = 0;
  };

  GgmlRunner(const ModelConfig& config, const Weights& weights, const RunnerOptions& options);
  [[nodiscard]] Status reserve();
  [[nodiscard]] Result<CachedGraph*> graph_for(GraphShape shape);
  [[nodiscard]] CachedGraph* cached_for(GraphShape shape);
  // The shape to build for a step that no cached graph serves.
  [[nodiscard]] GraphShape roomy(GraphShape shape) const;
  [[nodiscard]] StepGraph build(GraphShape shape);
  void copy_blocks(const std::vector<BlockCopy>& copies) const;

  void begin(ggml_context*, GraphShape) override {}
  [[nodiscard]] ggml_tensor* store(ggml_context* context, ggml_cgraph* graph, std::size_t layer,
                                   ggml_tensor* k, ggml_tensor* v) override;
  [[nodiscard]] ggml_tensor* attend(ggml_context* context, std::size_t layer, ggml_tensor* q,
                                    ggml_tensor* stored) override;

  static void store_op(ggml_tensor* dst, int ith, int nth, void* userdata);
  static void attend_op(ggml_tensor* dst, int ith, int nth, void* userdata);
  static void sample_op(ggml_tensor* dst, int ith, int nth, void* userdata);

  const ModelConfig& config_;
  const Weights& weights_;
  const RunnerOptions options_;
  KvView kv_;

  GgmlThreads threads_;
  GgmlBackend backend_;
  GgmlAllocator allocator_;
  std::vector<CachedGraph> graphs_;  // few: searched from end to end
  std::int64_t num_steps_ = 0;
  std::int64_t num_graphs_built_ = 0;

  AttentionPlan plan_;
  std::vector<LayerCall> layer_calls_;  // the graphs' ops point at these
  StepBatch batch_;
};

}  // namespace sluice
