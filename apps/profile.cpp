// `sluice profile`: what steps of this model take on this machine, over a grid, as a device
// profile for `sluice simulate` and `sluice plan`.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <vector>

#include "console.h"
#include "engines.h"
#include "model/model.h"
#include "options.h"
#include "or_throw.h"
#include "simulation/device.h"
#include "simulation/profile_fit.h"
#include "sizing.h"

namespace sluice {
namespace {

// Decode rows at one context, and one prompt's chunk; 0: none.
struct Step {
  std::int32_t rows = 0;
  std::int32_t context = 0;
  std::int32_t chunk = 0;
  std::int32_t position = 0;
  bool samples = true;
};

StepWork work_of(const Step& step) {
  StepWork work;
  for (std::int32_t i = 0; i < step.rows; ++i) work.add(1, step.context, step.samples);
  if (step.chunk > 0) work.add(step.chunk, step.position, step.samples);
  return work;
}

// 1, 2, 4, ... and `most`.
std::vector<std::int32_t> doubling(std::int32_t first, std::int32_t most) {
  std::vector<std::int32_t> values;
  for (std::int32_t v = first; v < most; v *= 2) values.push_back(v);
  values.push_back(most);
  return values;
}

// Steps of decode rows alone, of a chunk alone, and of both: what a server computes. Those that
// memory or a limit does not allow are left out.
std::vector<Step> grid_of(const Sizing& sizing) {
  std::vector<Step> wanted;
  for (const std::int32_t rows : doubling(1, sizing.max_running)) {
    wanted.push_back({.rows = rows, .context = 15, .samples = false});
    for (const std::int32_t context : {15, 255, 1023, 4095}) {
      wanted.push_back({.rows = rows, .context = context});
    }
  }
  for (const std::int32_t chunk : doubling(2, sizing.max_batch_tokens)) {
    for (const std::int32_t position : {0, 512, 3072}) {
      wanted.push_back({.chunk = chunk, .position = position});
      wanted.push_back({.chunk = chunk, .position = position, .samples = false});
    }
  }
  for (const std::int32_t rows : {3, 14, 48}) {
    for (const std::int32_t chunk : doubling(32, sizing.max_batch_tokens - rows)) {
      wanted.push_back({.rows = rows, .context = 511, .chunk = chunk, .position = 256});
    }
  }
  const auto fits = [&sizing](const Step& s) {
    const std::int64_t blocks = std::int64_t{s.rows} * sizing.layout.blocks_for(s.context + 1) +
                                (s.chunk > 0 ? sizing.layout.blocks_for(s.position + s.chunk) : 0);
    return blocks <= sizing.num_blocks && s.rows <= sizing.max_running && s.chunk >= 0 &&
           s.rows + s.chunk <= sizing.max_batch_tokens && s.context < sizing.context &&
           s.position + s.chunk <= sizing.context;
  };
  std::erase_if(wanted, [&](const Step& s) { return !fits(s); });
  return wanted;
}

// Runs steps whose KV is whatever memory holds: their time does not depend on the values.
class StepTimer {
 public:
  StepTimer(const Model& model, ModelRunner& runner, const Sizing& sizing)
      : runner_(runner), layout_(sizing.layout) {
    const std::int32_t vocabulary = model.info().vocabulary_size;
    for (std::int32_t i = 0; i < sizing.max_batch_tokens; ++i) {
      tokens_.push_back(static_cast<Token>(std::int64_t{i} * 31 % vocabulary));
    }
    for (std::int32_t i = 0; i <= sizing.max_running; ++i) {
      SamplingParams params;
      params.seed = static_cast<std::uint64_t>(i) + 1;
      samplers_.push_back(or_throw(model.samplers().make(params, {})));
    }
  }

  double seconds(const Step& step) {
    std::int32_t next_block = 0;
    std::vector<std::vector<BlockId>> blocks;
    const auto take = [&](std::int32_t tokens) {
      auto& own = blocks.emplace_back();
      for (std::int32_t b = layout_.blocks_for(tokens); b > 0; --b) own.emplace_back(next_block++);
    };
    for (std::int32_t i = 0; i < step.rows; ++i) take(step.context + 1);
    if (step.chunk > 0) take(step.position + step.chunk);
    StepInput input;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const bool decodes = i < static_cast<std::size_t>(step.rows);
      const std::size_t count = decodes ? 1 : static_cast<std::size_t>(step.chunk);
      input.rows.push_back({.tokens = std::span(tokens_).first(count),
                            .position = decodes ? step.context : step.position,
                            .blocks = blocks[i],
                            .sampler = step.samples ? samplers_[i].get() : nullptr});
    }
    const TimePoint begin = clock_.now();
    or_throw(runner_.run(input));
    return to_seconds(clock_.now() - begin);
  }

 private:
  ModelRunner& runner_;
  KvLayout layout_;
  SteadyClock clock_;
  std::vector<Token> tokens_;
  std::vector<std::unique_ptr<Sampler>> samplers_;
};

// The median of so many rounds over all steps, so that a moment in which the machine was busy
// with something else touches all of them alike.
std::vector<MeasuredStep> measure(StepTimer& timer, const std::vector<Step>& grid,
                                  std::int32_t rounds) {
  const auto progress = progress_of("measuring");
  std::vector<std::vector<double>> times(grid.size());
  const double all = static_cast<double>(grid.size()) * (rounds + 1);
  double done = 0;
  for (std::int32_t round = 0; round <= rounds; ++round) {
    for (std::size_t i = 0; i < grid.size(); ++i) {
      timer.seconds(grid[i]);  // builds the graph, warms the caches
      if (round > 0) times[i].push_back(timer.seconds(grid[i]));
      progress(++done / all);
    }
  }
  std::vector<MeasuredStep> steps;
  for (std::size_t i = 0; i < grid.size(); ++i) {
    auto& own = times[i];
    std::nth_element(own.begin(), own.begin() + rounds / 2, own.end());
    steps.push_back({work_of(grid[i]), own[static_cast<std::size_t>(rounds / 2)]});
  }
  return steps;
}

}  // namespace

int profile(const ProfileOptions& options) {
  start_logging(options.engine.log_level);
  const Device device = device_of(options.engine.device);
  const auto model = or_throw(load_gguf_model({.path = options.engine.model,
                                               .device = device.name,
                                               .repack = options.engine.repack,
                                               .on_progress = progress_of("loading")}));
  const Sizing sizing = or_throw(size_instance(options.engine, model->info(), machine_of(device)));
  const KvMemory memory(*model, sizing, sizing.num_blocks);
  const LocalInstance instance = make_engine(options.engine, sizing, *model, memory.view());
  StepTimer timer(*model, *instance.runner, sizing);
  const std::vector<Step> grid = grid_of(sizing);
  const std::vector<MeasuredStep> steps = measure(timer, grid, options.rounds);

  DeviceProfile shape;
  shape.name = options.name.empty() ? model->info().id : options.name;
  std::replace(shape.name.begin(), shape.name.end(), ' ', '-');
  shape.kv_tokens = std::int64_t{sizing.num_blocks} * sizing.layout.block_tokens;
  shape.kv_token_bytes = static_cast<std::int64_t>(sizing.layout.token_bytes());
  for (const std::int32_t tokens : doubling(1, sizing.max_batch_tokens)) {
    shape.tokens.push_back(tokens);
  }
  const ProfileFit fit = or_throw(fit_profile(std::move(shape), steps));
  const std::string text = fmt::format(
      "# {} on {} thread(s): {} kinds of steps, the median of {} rounds; the fit is off by {:.1f} "
      "% "
      "in the median, {:.1f} % at the 90th percentile\n{}",
      model->info().id, sizing.threads, grid.size(), options.rounds, 100 * fit.median_error,
      100 * fit.p90_error, device_text(fit.profile));
  if (options.output.empty()) {
    std::cout << text;
    return 0;
  }
  std::ofstream file(options.output);
  if (!(file << text) || !file.flush()) {
    throw std::runtime_error(fmt::format("cannot write {}", options.output));
  }
  fmt::print(stderr, "{}", text.substr(0, text.find('\n') + 1));
  return 0;
}

}  // namespace sluice
