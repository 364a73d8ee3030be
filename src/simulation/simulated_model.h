// The model of a simulated instance: steps that take the time that a device
// profile says, and answers that end where the trace says.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "model/model_runner.h"
#include "model/sampler.h"
#include "simulation/device.h"
#include "simulation/trace.h"
#include "transfer/kv_transfer.h"

namespace sluice {

// What a World asks for models: of the trace here, of known content in tests.
class SimulatedModel {
 public:
  virtual ~SimulatedModel() = default;
  [[nodiscard]] virtual std::unique_ptr<ModelRunner> make_runner(std::uint32_t instance) = 0;
  // SamplingParams::seed is the request's index in the trace.
  [[nodiscard]] virtual const SamplerFactory& samplers() const = 0;
  // KV has gone from one instance's blocks to another's. For models whose KV has content.
  virtual void copy_kv(std::uint32_t /*from*/, std::uint32_t /*to*/, std::span<const BlockMove>) {}
};

// The output length is known here and nowhere else. `trace` and the profiles
// outlive the model; profiles by instance.
[[nodiscard]] std::unique_ptr<SimulatedModel> make_trace_model(
    const Trace& trace, std::vector<const DeviceProfile*> profiles);

}  // namespace sluice
