// A runner whose steps take at least what a given device would need: for load tests
// of memory and scheduling on the real server with a model so small that the
// machine is not what is measured (`--benchmark-step`).
//
// Owned and used by one engine's loop, which it puts to sleep for what is left of
// a step. Answers are those of the runner inside.
#pragma once

#include <memory>

#include "model/model_runner.h"

namespace sluice {

// What a step of the device takes: a sum, each row counted by its new tokens.
struct StepPace {
  Duration base{};
  Duration per_prefill_token{};
  Duration per_decode_row{};
  Duration per_context_thousand{};  // tokens that attention reads

  [[nodiscard]] Duration of(const StepInput& input) const;
};

[[nodiscard]] std::unique_ptr<ModelRunner> make_paced_runner(std::unique_ptr<ModelRunner> runner,
                                                             const StepPace& pace);

}  // namespace sluice
