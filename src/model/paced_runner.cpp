#include "model/paced_runner.h"

#include <chrono>
#include <thread>
#include <utility>

namespace sluice {
namespace {

class PacedRunner final : public ModelRunner {
 public:
  PacedRunner(std::unique_ptr<ModelRunner> runner, const StepPace& pace)
      : runner_(std::move(runner)), pace_(pace) {}

  void bind(const KvView& kv) override { runner_->bind(kv); }

  [[nodiscard]] Result<StepOutput> run(const StepInput& input) override {
    const auto begin = std::chrono::steady_clock::now();
    Result<StepOutput> output = runner_->run(input);
    if (!output) return output;
    std::this_thread::sleep_until(begin + pace_.of(input));
    output->duration = std::chrono::steady_clock::now() - begin;
    return output;
  }

 private:
  const std::unique_ptr<ModelRunner> runner_;
  const StepPace pace_;
};

}  // namespace

Duration StepPace::of(const StepInput& input) const {
  Duration took = base;
  std::int64_t context = 0;
  for (const StepRows& rows : input.rows) {
    const auto tokens = static_cast<std::int64_t>(rows.num_rows());
    took += tokens == 1 ? per_decode_row : tokens * per_prefill_token;
    context += tokens * rows.position + tokens * (tokens + 1) / 2;
  }
  return took + context * per_context_thousand / 1000;
}

std::unique_ptr<ModelRunner> make_paced_runner(std::unique_ptr<ModelRunner> runner,
                                               const StepPace& pace) {
  return std::make_unique<PacedRunner>(std::move(runner), pace);
}

}  // namespace sluice
