#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "memory/admission_rule.h"
#include "memory/completion_peak.h"
#include "memory/likely_peak_rule.h"
#include "memory/prefill_queue.h"

namespace sluice {
namespace {

// Tokens that a sequence knows, cached or computed or still to be computed.
std::int64_t known_tokens(const RunningSequence& sequence) {
  return std::int64_t{sequence.held_tokens} + sequence.prefill_left;
}

// The grant fits, and a share of the pool stays free. With grants of the prompt:
// vLLM's scheduler (scheduler_reserve_full_isl, watermark). With grants of
// prompt + max_tokens: TensorRT-LLM's GUARANTEED_NO_EVICT.
class GrantFitsRule final : public AdmissionRule {
 public:
  explicit GrantFitsRule(double watermark) : watermark_(watermark) {}

  bool admits(const Arrival& arrival, const StepTimeModel& /*step_time*/,
              const LengthForecast& /*forecast*/) override {
    const double stays_free = watermark_ * static_cast<double>(arrival.total_blocks);
    return static_cast<double>(arrival.room_blocks - arrival.new_blocks) >= stays_free;
  }

  void opened(const WindowPlan& /*plan*/, std::span<const RunningSequence> /*running*/) override {}

 private:
  const double watermark_;
};

// SGLang's: a share of what is left of max_tokens is held back for each that
// runs. The share falls from step to step and is estimated anew when memory ran
// short, from what those that run have generated.
class RatioRule final : public AdmissionRule {
 public:
  explicit RatioRule(const WindowPlanner& planner) : planner_(planner) {}

  bool admits(const Arrival& arrival, const StepTimeModel& /*step_time*/,
              const LengthForecast& /*forecast*/) override {
    double reserved = 0;
    for (const RunningSequence& sequence : arrival.running) {
      const double share = in_prefill(sequence) ? 1 : ratio_;
      reserved += share * std::min(sequence.decode_cap, kMostCounted);
    }
    const double needed =
        arrival.sequence.prefill_left + std::min(arrival.sequence.decode_cap, kMostCounted);
    const double room = static_cast<double>(arrival.room_blocks) *
                        static_cast<double>(planner_.options().block_tokens);
    return needed + reserved <= room;
  }

  void opened(const WindowPlan& plan, std::span<const RunningSequence> running) override {
    if (running.empty()) {
      ratio_ = kFirst;
      return;
    }
    if (plan.deferred.empty()) {
      ratio_ = std::max(ratio_ - (kFirst - kLeast) / kDecaySteps, kLeast);
      return;
    }
    double generated = 0;
    double most = 1;
    for (const RunningSequence& sequence : running) {
      generated += sequence.generated + planner_.options().yield_room_steps;
      most += sequence.generated + sequence.decode_cap;
    }
    ratio_ = std::min(generated / most, 1.0);
  }

 private:
  static constexpr double kFirst = 0.7;
  static constexpr double kLeast = kFirst * 0.14;
  static constexpr double kDecaySteps = 600;
  static constexpr std::int32_t kMostCounted = 4096;  // of max_tokens

  const WindowPlanner& planner_;
  double ratio_ = kFirst;
};

// The demands of a running set and an arrival, if each will generate
// `left_of(sequence)` more tokens. The last one generated is never written.
template <class LeftOf>
std::vector<KnownDemand> demands_of(const Arrival& arrival, LeftOf&& left_of) {
  std::vector<KnownDemand> demands;
  demands.reserve(arrival.running.size() + 1);
  const auto add = [&](const RunningSequence& sequence) {
    const std::int64_t left = std::max<std::int64_t>(left_of(sequence) - 1, 0);
    demands.push_back({.known = known_tokens(sequence), .left = left});
  };
  for (const RunningSequence& sequence : arrival.running) add(sequence);
  add(arrival.sequence);
  return demands;
}

// LightLLM's router: every output is as long as the moving mean of those seen,
// or a tenth longer than it is now; max_tokens where memory is 85 % used.
class PeakEmaRule final : public AdmissionRule {
 public:
  explicit PeakEmaRule(const WindowPlanner& planner) : planner_(planner) {}

  bool admits(const Arrival& arrival, const StepTimeModel& /*step_time*/,
              const LengthForecast& forecast) override {
    const auto used = static_cast<double>(arrival.total_blocks - arrival.room_blocks);
    const bool busy = used >= kBusy * static_cast<double>(arrival.total_blocks);
    const auto mean = static_cast<std::int32_t>(forecast.moving_mean());
    auto demands = demands_of(arrival, [&](const RunningSequence& sequence) {
      if (busy) return sequence.decode_cap;
      const auto longer = static_cast<std::int32_t>(1.1 * sequence.generated);
      const std::int32_t left = std::max(longer, mean) - sequence.generated;
      return std::clamp(left, 0, sequence.decode_cap) + kPadding;
    });
    return completion_peak_fits(demands, arrival.total_blocks + arrival.shared_blocks,
                                planner_.options().block_tokens);
  }

  void opened(const WindowPlan& /*plan*/, std::span<const RunningSequence> /*running*/) override {}

 private:
  static constexpr double kBusy = 0.85;
  static constexpr std::int32_t kPadding = 16;

  const WindowPlanner& planner_;
};

// The "Past-Future" scheduler: a length for each is drawn from those seen in the
// past that are longer than it is now, anew at each decision; a share of the
// pool is held back.
class PastFutureRule final : public AdmissionRule {
 public:
  PastFutureRule(const WindowPlanner& planner, std::uint64_t seed)
      : planner_(planner), rng_(seed) {}

  bool admits(const Arrival& arrival, const StepTimeModel& /*step_time*/,
              const LengthForecast& forecast) override {
    auto demands = demands_of(arrival, [&](const RunningSequence& sequence) {
      return forecast.of(sequence.length_class)
          .quantile(sequence.generated, sequence.decode_cap, rng_.uniform());
    });
    const auto usable =
        static_cast<std::int64_t>((1 - kHeldBack) * static_cast<double>(arrival.total_blocks));
    return completion_peak_fits(demands, usable + arrival.shared_blocks,
                                planner_.options().block_tokens);
  }

  void opened(const WindowPlan& /*plan*/, std::span<const RunningSequence> /*running*/) override {}

 private:
  static constexpr double kHeldBack = 0.05;

  const WindowPlanner& planner_;
  Rng rng_;
};

}  // namespace

// True lengths: what no server has. Prompts take their turn, so a sequence that
// is still in prefill grows later.
class OracleRule final : public AdmissionRule {
 public:
  explicit OracleRule(const WindowPlanner& planner) : planner_(planner) {}

  bool admits(const Arrival& arrival, const StepTimeModel& /*step_time*/,
              const LengthForecast& /*forecast*/) override {
    std::vector<KnownDemand> demands = demands_of(arrival, true_left);
    PrefillQueue queue(planner_.options(), arrival.running);
    // The step that ends a prefill samples: those that decode have that behind them.
    const auto late = [&queue](const RunningSequence& sequence) {
      return std::max<std::int64_t>(queue.decodes_after(sequence) - 1, 0);
    };
    for (std::size_t i = 0; i < arrival.running.size(); ++i) {
      demands[i].after = late(arrival.running[i]);
    }
    demands.back().after = late(arrival.sequence);
    return completion_peak_fits(demands, arrival.total_blocks + arrival.shared_blocks,
                                planner_.options().block_tokens);
  }

  void opened(const WindowPlan& /*plan*/, std::span<const RunningSequence> /*running*/) override {}

 private:
  // Where the truth is not known, max_tokens.
  static std::int32_t true_left(const RunningSequence& sequence) {
    const std::int32_t truth = sequence.true_length.tokens_;
    if (truth < 0) return sequence.decode_cap;
    return std::clamp(truth - sequence.generated, 0, sequence.decode_cap);
  }

  const WindowPlanner& planner_;
};

std::unique_ptr<AdmissionRule> make_admission_rule(MemoryPolicy policy,
                                                   const WindowPlanner& planner,
                                                   std::uint64_t seed) {
  switch (policy) {
    case MemoryPolicy::kWindowed: return std::make_unique<LikelyPeakRule>(planner);
    case MemoryPolicy::kPaged:
    case MemoryPolicy::kReserve: return std::make_unique<GrantFitsRule>(0.0);
    case MemoryPolicy::kPagedWatermark: return std::make_unique<GrantFitsRule>(0.05);
    case MemoryPolicy::kRatio: return std::make_unique<RatioRule>(planner);
    case MemoryPolicy::kPeakEma: return std::make_unique<PeakEmaRule>(planner);
    case MemoryPolicy::kPastFuture: return std::make_unique<PastFutureRule>(planner, seed);
    case MemoryPolicy::kOracle: return std::make_unique<OracleRule>(planner);
  }
  CHECK(false);
  return nullptr;
}

}  // namespace sluice
