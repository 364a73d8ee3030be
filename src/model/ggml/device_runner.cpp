#include "model/ggml/device_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/check.h"
#include "model/ggml/runner_options.h"

namespace sluice {
namespace {

void upload(ggml_tensor* tensor, const std::vector<std::int32_t>& values) {
  if (tensor == nullptr || tensor->buffer == nullptr) return;
  ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
}

}  // namespace

Result<std::unique_ptr<DeviceRunner>> DeviceRunner::make(const ModelConfig& config,
                                                         const Weights& weights,
                                                         const RunnerOptions& options,
                                                         ggml_backend_dev_t device) {
  TRY_STATUS(check_runner_options(options, config));
  std::unique_ptr<DeviceRunner> runner(new DeviceRunner(config, weights, options));
  TRY_STATUS(runner->start(device));
  return runner;
}

DeviceRunner::DeviceRunner(const ModelConfig& config, const Weights& weights,
                           const RunnerOptions& options)
    : config_(config),
      weights_(weights),
      options_(options),
      attention_(config),
      batch_(options, config.vocabulary_size) {}

Status DeviceRunner::start(ggml_backend_dev_t device) {
  host_.reset(ggml_backend_cpu_init());
  CHECK(host_ != nullptr);
  ggml_backend_cpu_set_n_threads(host_.get(), options_.num_threads);
  if (ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU ||
      ggml_backend_dev_backend_reg(device) != ggml_backend_cpu_reg()) {
    device_.reset(ggml_backend_dev_init(device, nullptr));
    if (device_ == nullptr) {
      return fail(ErrorCode::kInternal,
                  fmt::format("device {} does not start", ggml_backend_dev_name(device)));
    }
  }
  std::vector<ggml_backend_t> backends;
  if (device_ != nullptr) backends.push_back(device_.get());
  backends.push_back(host_.get());  // the last one takes what the others cannot do
  constexpr std::size_t kMaxNodes = 1 << 15;
  scheduler_.reset(ggml_backend_sched_new(backends.data(), nullptr,
                                          static_cast<int>(backends.size()), kMaxNodes,
                                          /*parallel=*/false, /*op_offload=*/false));
  CHECK(scheduler_ != nullptr);
  return {};
}

void DeviceRunner::bind(const KvView& kv) {
  KvLayout expected = config_.kv_layout();
  expected.block_tokens = kv.layout.block_tokens;
  CHECK(kv.layout == expected);
  device_kv_ = dynamic_cast<GgmlDeviceKv*>(kv.device);
  CHECK(device_kv_ != nullptr);
  kv_ = kv;
  attention_.bind(*device_kv_, kv);
  reserved_ = reserve();
}

Status DeviceRunner::reserve() {
  build({options_.max_step_tokens, std::min(options_.max_step_tokens, options_.max_step_outputs)},
        attention_.plan_all());
  const bool enough = ggml_backend_sched_reserve(scheduler_.get(), step_.graph);
  step_ = {};
  if (enough) return {};
  return fail(ErrorCode::kNeverFits,
              fmt::format("no memory for the compute buffer of {} tokens a step over {} KV blocks",
                          options_.max_step_tokens, kv_.num_blocks));
}

void DeviceRunner::build(GraphShape shape, std::int32_t places) {
  ++num_graphs_built_;
  const bool long_context = options_.max_context > config_.rope.original_context;
  const GraphHooks hooks{&attention_, &sample_op, this};
  step_ = build_step_graph(config_, weights_.tensors(), shape, long_context, hooks);
  shape_ = shape;
  places_ = places;
}

Status DeviceRunner::prepare(GraphShape shape) {
  const std::int32_t places = attention_.plan(batch_.sequences());
  if (step_.graph != nullptr && shape == shape_ && places == places_) return {};
  ggml_backend_sched_reset(scheduler_.get());
  build(shape, places);
  if (ggml_backend_sched_alloc_graph(scheduler_.get(), step_.graph)) return {};
  step_ = {};
  return fail(ErrorCode::kInternal,
              fmt::format("no memory for the compute buffer of {} tokens", shape.num_tokens));
}

Result<StepOutput> DeviceRunner::run(const StepInput& input) {
  const auto begin = std::chrono::steady_clock::now();
  CHECK(device_kv_ != nullptr);
  TRY_STATUS(Status(reserved_));
  for (const BlockCopy& copy : input.copies) device_kv_->copy(copy.from, copy.to);
  const GraphShape shape = batch_.lay_out(input, kv_);
  if (shape.num_tokens > 0) {
    TRY_STATUS(prepare(shape));
    const auto tokens = static_cast<std::size_t>(shape.num_tokens);
    const auto outputs = static_cast<std::size_t>(shape.num_outputs);
    std::vector<std::int32_t> token_ids(tokens);
    std::vector<std::int32_t> positions(tokens);
    std::vector<std::int32_t> output_rows(step_.output_rows == nullptr ? 0 : outputs);
    batch_.write(input, {token_ids, positions, output_rows});
    upload(step_.tokens, token_ids);
    upload(step_.positions, positions);
    upload(step_.output_rows, output_rows);
    attention_.write(batch_.sequences());
    const ggml_status status = ggml_backend_sched_graph_compute(scheduler_.get(), step_.graph);
    if (status != GGML_STATUS_SUCCESS) {
      return fail(ErrorCode::kInternal, fmt::format("ggml: {}", ggml_status_to_string(status)));
    }
  }
  StepOutput output = batch_.take();
  output.duration = std::chrono::steady_clock::now() - begin;
  return output;
}

DeviceRunner::Split DeviceRunner::split() const {
  Split split;
  if (step_.graph == nullptr) return split;
  for (int i = 0; i < ggml_graph_n_nodes(step_.graph); ++i) {
    ggml_tensor* node = ggml_graph_node(step_.graph, i);
    if (ggml_is_empty(node) || node->view_src != nullptr || node->op == GGML_OP_NONE) continue;
    const bool host = ggml_backend_sched_get_tensor_backend(scheduler_.get(), node) == host_.get();
    ++(host ? split.host_ops : split.device_ops);
  }
  return split;
}

void DeviceRunner::sample_op(ggml_tensor* dst, int, int, void* userdata) {
  const ggml_tensor& logits = *dst->src[0];
  static_cast<DeviceRunner*>(userdata)->batch_.read(
      {static_cast<float*>(logits.data), static_cast<std::size_t>(ggml_nelements(&logits))});
}

}  // namespace sluice
