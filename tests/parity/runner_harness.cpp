#include "runner_harness.h"

#include <algorithm>

#include "base/check.h"
#include "model/ggml/devices.h"

namespace sluice::testing {

Result<SampledToken> CapturingSampler::sample(std::span<float> logits) {
  logits_.assign(logits.begin(), logits.end());
  const auto best = std::max_element(logits_.begin(), logits_.end());
  SampledToken sampled;
  sampled.token = static_cast<Token>(best - logits_.begin());
  return sampled;
}

Result<std::unique_ptr<RunnerHarness>> RunnerHarness::load(const std::string& path,
                                                           const HarnessOptions& options) {
  std::unique_ptr<RunnerHarness> h(new RunnerHarness());
  ggml_backend_dev_t device = options.device.empty() ? nullptr : ggml_device(options.device);
  if (!options.device.empty() && device == nullptr) {
    return fail(ErrorCode::kNotFound, "there is no device " + options.device);
  }
  TRY(std::unique_ptr<GgufFile> file, GgufFile::open(path));
  TRY(h->config_, read_model_config(*file));
  TRY(h->weights_,
      load_weights(std::move(file), h->config_, {.repack = options.repack, .device = device}));
  KvLayout layout = h->config_.kv_layout();
  layout.block_tokens = options.block_tokens;
  layout.type = options.kv_type;
  if (device == nullptr) {
    TRY_STATUS(h->start_on_cpu(options, layout));
  } else {
    TRY_STATUS(h->start_on_device(options, layout, device));
  }
  for (std::int32_t i = 0; i < options.num_blocks; ++i) h->free_.emplace_back(i);
  std::shuffle(h->free_.begin(), h->free_.end(), std::mt19937_64(options.seed));
  return h;
}

Status RunnerHarness::start_on_cpu(const HarnessOptions& options, const KvLayout& layout) {
  TRY(runner_, GgmlRunner::make(config_, *weights_, options.runner));
  const auto num_blocks = static_cast<std::size_t>(options.num_blocks);
  constexpr std::size_t kAlignment = 64;
  arena_ = std::make_unique<std::byte[]>(num_blocks * layout.block_bytes() + kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(arena_.get());
  kv_.base = arena_.get() + (kAlignment - address % kAlignment) % kAlignment;
  kv_.layout = layout;
  kv_.num_blocks = options.num_blocks;
  runner_->bind(kv_);
  return {};
}

Status RunnerHarness::start_on_device(const HarnessOptions& options, const KvLayout& layout,
                                      ggml_backend_dev_t device) {
  TRY(device_kv_, GgmlDeviceKv::make(device, layout, options.num_blocks));
  TRY(runner_, DeviceRunner::make(config_, *weights_, options.runner, device));
  kv_ = device_kv_->view();
  runner_->bind(kv_);
  return {};
}

BlockId RunnerHarness::take_block() {
  CHECK(!free_.empty());
  const BlockId block = free_.back();
  free_.pop_back();
  return block;
}

void RunnerHarness::release(HarnessSequence& sequence) {
  free_.insert(free_.end(), sequence.blocks.begin(), sequence.blocks.end());
  sequence.blocks.clear();
  sequence.computed = 0;
}

void RunnerHarness::step(std::span<HarnessSequence*> sequences,
                         std::span<const std::int32_t> counts) {
  StepInput input;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (counts[i] == 0) continue;
    HarnessSequence& s = *sequences[i];
    const std::int32_t end = s.computed + counts[i];
    CHECK_LE(end, static_cast<std::int32_t>(s.tokens.size()));
    while (static_cast<std::int32_t>(s.blocks.size()) < kv_.layout.blocks_for(end)) {
      s.blocks.push_back(take_block());
    }
    StepRows rows;
    rows.tokens = std::span(s.tokens).subspan(static_cast<std::size_t>(s.computed),
                                              static_cast<std::size_t>(counts[i]));
    rows.position = s.computed;
    rows.blocks = s.blocks;
    rows.sampler = &s.sampler;
    input.rows.push_back(rows);
    s.computed = end;
  }
  const auto output = runner_->run(input);
  CHECK(output.has_value());
  for (const auto& sampled : output->sampled) CHECK(sampled.has_value());
}

}  // namespace sluice::testing
