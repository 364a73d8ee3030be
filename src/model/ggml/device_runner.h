// Runs steps on a device that ggml has a backend for: weights and KV in its memory,
// attention of stock operations, sampling by host threads.
//
// What the device cannot do, or keeps no weight for, ggml's scheduler leaves to the
// CPU. The graph of the last step is kept while the next one's has the same shape.
// Owned and used by one engine's loop.
#pragma once

#include <cstdint>
#include <memory>

#include "model/ggml/architecture.h"
#include "model/ggml/device_kv.h"
#include "model/ggml/ggml_handles.h"
#include "model/ggml/graph.h"
#include "model/ggml/step_batch.h"
#include "model/ggml/stock_attention.h"
#include "model/ggml/weights.h"
#include "model/model.h"
#include "model/model_runner.h"

namespace sluice {

class DeviceRunner final : public ModelRunner {
 public:
  // `config` and `weights`, which lie on `device`, must outlive the runner.
  // kInternal: the device does not start.
  [[nodiscard]] static Result<std::unique_ptr<DeviceRunner>> make(const ModelConfig& config,
                                                                  const Weights& weights,
                                                                  const RunnerOptions& options,
                                                                  ggml_backend_dev_t device);

  // A view of a GgmlDeviceKv of the same device.
  void bind(const KvView& kv) override;
  [[nodiscard]] Result<StepOutput> run(const StepInput& input) override;

  [[nodiscard]] std::int64_t num_graphs_built() const { return num_graphs_built_; }
  // Of the last step's graph: operations that the device did, and that the CPU did.
  struct Split {
    int device_ops = 0;
    int host_ops = 0;
  };
  [[nodiscard]] Split split() const;

 private:
  DeviceRunner(const ModelConfig& config, const Weights& weights, const RunnerOptions& options);
  [[nodiscard]] Status start(ggml_backend_dev_t device);
  // Sizes the compute buffers for the largest step over all blocks.
  [[nodiscard]] Status reserve();
  void build(GraphShape shape, std::int32_t places);
  [[nodiscard]] Status prepare(GraphShape shape);
  static void sample_op(ggml_tensor* dst, int ith, int nth, void* userdata);

  const ModelConfig& config_;
  const Weights& weights_;
  const RunnerOptions options_;
  GgmlBackend device_;  // null: the CPU alone
  GgmlBackend host_;
  GgmlScheduler scheduler_;
  KvView kv_;
  GgmlDeviceKv* device_kv_ = nullptr;
  Status reserved_;

  StockAttention attention_;
  StepBatch batch_;
  StepGraph step_;
  GraphShape shape_;         // of step_
  std::int32_t places_ = 0;  // of gathered blocks, in step_
  std::int64_t num_graphs_built_ = 0;
};

}  // namespace sluice
