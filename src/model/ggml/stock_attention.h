// Attention made of stock ggml operations, for devices that have no kernels of ours.
//
// A step's K and V rows are scattered into the device's blocks. The blocks that any
// of its sequences sees are gathered once, however many share them, and all rows
// attend to all that was gathered, under a mask that says which row sees which token.
// The work is thus rows times the whole batch's context, not each row's own: right
// for a few sequences, wasteful for many long ones (docs/gpu.md).
//
// Belongs to a runner's loop: plan() a step, build or keep its graph, write() its
// inputs, run it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/ggml/architecture.h"
#include "model/ggml/attention_plan.h"
#include "model/ggml/device_kv.h"
#include "model/ggml/graph.h"

namespace sluice {

class StockAttention final : public AttentionNodes {
 public:
  explicit StockAttention(const ModelConfig& config);

  void bind(const GgmlDeviceKv& kv, const KvView& view);

  // Says which blocks the step's graph gathers, and how many: more than are seen, so
  // that a growing context keeps its graph for a while.
  [[nodiscard]] std::int32_t plan(std::span<const AttentionSequence> sequences);
  // As if a step saw every block: the largest graph there can be.
  [[nodiscard]] std::int32_t plan_all();
  // Fills the inputs of the graph that was built last.
  void write(std::span<const AttentionSequence> sequences);

  void begin(ggml_context* context, GraphShape shape) override;
  [[nodiscard]] ggml_tensor* store(ggml_context* context, ggml_cgraph* graph, std::size_t layer,
                                   ggml_tensor* k, ggml_tensor* v) override;
  [[nodiscard]] ggml_tensor* attend(ggml_context* context, std::size_t layer, ggml_tensor* q,
                                    ggml_tensor* stored) override;

 private:
  [[nodiscard]] std::int32_t blocks_seen(const AttentionSequence& sequence) const;
  [[nodiscard]] ggml_tensor* gather(ggml_context* context, std::size_t layer,
                                    std::int64_t first_head) const;
  void write_rows(std::span<const AttentionSequence> sequences);
  void write_tiles();
  void write_mask(ggml_tensor* mask, std::int32_t window,
                  std::span<const AttentionSequence> sequences);

  const ModelConfig& config_;
  const GgmlDeviceKv* kv_ = nullptr;
  KvLayout layout_;
  std::int32_t num_blocks_ = 0;

  std::vector<BlockId> gathered_;       // of the step, each once
  std::vector<std::int32_t> place_of_;  // a block's place among them, or -1
  std::int32_t room_ = 0;               // places in the graph

  // Inputs of the graph built last; no buffer: the graph does not use it.
  ggml_tensor* rows_ = nullptr;         // i64 [head * token]: where each K row goes
  ggml_tensor* tiles_ = nullptr;        // i32 [place * head]: what is gathered
  ggml_tensor* mask_ = nullptr;         // f16 [gathered token, token]: 0 or -inf
  ggml_tensor* window_mask_ = nullptr;  // the same for layers with a sliding window
  std::vector<std::int64_t> row_values_;
  std::vector<std::int32_t> tile_values_;
  std::vector<ggml_fp16_t> mask_values_;
};

}  // namespace sluice
