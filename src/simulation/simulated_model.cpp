#include "simulation/simulated_model.h"

#include <utility>

#include "base/check.h"

namespace sluice {
namespace {

class TraceSampler final : public Sampler {
 public:
  TraceSampler(Token first, std::int32_t length) : next_(first), left_(length) {}

  Status resume(std::span<const Token> output) override {
    const auto drawn = static_cast<std::int32_t>(output.size());
    if (drawn >= left_) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} tokens were drawn of an answer of {}", drawn, left_ - 1));
    }
    next_ += drawn;
    left_ -= drawn;
    return {};
  }
  Result<SampledToken> sample(std::span<float>) override { return draw(); }

  SampledToken draw() {
    CHECK_GT(left_, 0);
    --left_;
    return {.token = next_++, .end_of_generation = left_ == 0};
  }

 private:
  Token next_;
  std::int32_t left_;  // draws, the last one is the end of the turn
};

class TraceSamplers final : public SamplerFactory {
 public:
  explicit TraceSamplers(const Trace& trace) : trace_(trace) {}
  Result<std::unique_ptr<Sampler>> make(const SamplingParams& params,
                                        std::span<const Token>) const override {
    const TraceRequest& request = trace_.requests[params.seed];
    // No two answers are alike: what is generated is nobody's prefix.
    const auto first = static_cast<Token>(0x40000000 + (params.seed * 2654435761U) % 0x3ff00000);
    return std::make_unique<TraceSampler>(first, request.output_tokens);
  }

 private:
  const Trace& trace_;
};

class CostRunner final : public ModelRunner {
 public:
  explicit CostRunner(const DeviceProfile& profile) : profile_(profile) {}
  void bind(const KvView&) override {}

  Result<StepOutput> run(const StepInput& input) override {
    StepOutput output;
    output.sampled.reserve(input.rows.size());
    StepWork work;
    for (const StepRows& row : input.rows) {
      CHECK(row.drafts.empty());  // a trace has no text to guess from
      work.add(static_cast<std::int32_t>(row.tokens.size()), row.position, row.sampler != nullptr);
      if (row.sampler == nullptr) {
        output.sampled.emplace_back(SampledToken{.token = -1});
      } else {
        output.sampled.emplace_back(static_cast<TraceSampler*>(row.sampler)->draw());
      }
    }
    output.duration = from_seconds(profile_.seconds(work));
    return output;
  }

 private:
  const DeviceProfile& profile_;
};

class TraceModel final : public SimulatedModel {
 public:
  TraceModel(const Trace& trace, std::vector<const DeviceProfile*> profiles)
      : samplers_(trace), profiles_(std::move(profiles)) {}
  std::unique_ptr<ModelRunner> make_runner(std::uint32_t instance) override {
    return std::make_unique<CostRunner>(*profiles_[instance]);
  }
  const SamplerFactory& samplers() const override { return samplers_; }

 private:
  const TraceSamplers samplers_;
  const std::vector<const DeviceProfile*> profiles_;
};

}  // namespace

std::unique_ptr<SimulatedModel> make_trace_model(const Trace& trace,
                                                 std::vector<const DeviceProfile*> profiles) {
  return std::make_unique<TraceModel>(trace, std::move(profiles));
}

}  // namespace sluice
