// WindowPlanner::outlook(): the demand that is likely at window ends to come.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "memory/window_planner.h"

namespace sluice {
namespace {

constexpr std::size_t kMostPoints = 32;

struct Point {
  std::int32_t steps = 0;  // from now
  double blocks = 0;       // mean, and
  double variance = 0;     //   variance of what the survivors hold
  double survivors = 0;    // mean
  double context = 0;      // mean tokens that they hold
};

// The next window ends first, then further and further apart, until lengths of
// twice the mean have run their course: a peak is rarely beyond.
void place_points(std::span<Point> points, const OutlookInput& input,
                  const LengthForecast& forecast) {
  const double windows =
      std::max(static_cast<double>(points.size() - 1),
               2 * forecast.mean(0, LengthForecast::kLimit) / input.window_steps);
  points[0].steps = input.first_steps;
  double window = 0;
  for (std::size_t i = 1; i < points.size(); ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(points.size() - 1);
    window = std::max(window + 1, std::round(std::pow(windows, share)));
    const double steps = input.first_steps + window * input.window_steps;
    points[i].steps = static_cast<std::int32_t>(std::min(steps, double{LengthForecast::kLimit}));
  }
}

}  // namespace

std::vector<Outlook> WindowPlanner::outlook(const OutlookInput& input,
                                            const StepTimeModel& step_time,
                                            const LengthForecast& forecast) const {
  CHECK_GE(input.window_steps, 1);
  std::array<Point, kMostPoints> storage{};
  const std::span<Point> points(storage.data(), static_cast<std::size_t>(options_.outlook_windows));
  place_points(points, input, forecast);

  std::int64_t decoding = 0;
  for (const RunningSequence& sequence : input.running) {
    decoding += sequence.prefill_left > 1 ? 0 : 1;
  }
  const std::int64_t rate = std::max<std::int64_t>(
      {1, options_.step_token_budget / 16, options_.step_token_budget - decoding});
  std::int64_t prefill = 0;  // tokens before and of the present sequence

  const auto add = [&](const RunningSequence& sequence) {
    std::int32_t decodes_after = 0;
    if (sequence.prefill_left > 1) {
      prefill += sequence.prefill_left;
      decodes_after = static_cast<std::int32_t>(
          std::min<std::int64_t>((prefill + rate - 1) / rate, LengthForecast::kLimit));
    }
    const std::int64_t known = std::int64_t{sequence.held_tokens} + sequence.prefill_left;
    const double given = 1 / forecast.tail(sequence.generated);
    for (Point& point : points) {
      const std::int32_t decoded = std::max(point.steps - decodes_after, 0);
      double survives = 1;
      if (decoded > 0) {
        if (decoded >= sequence.decode_cap) break;  // ended, here and at all later points
        survives = std::min(1.0, forecast.tail(sequence.generated + decoded) * given);
      }
      const std::int64_t tokens =
          known + std::min(sequence.decode_cap, decoded + input.window_steps);
      const double blocks = blocks_for(tokens);
      point.survivors += survives;
      point.context += survives * static_cast<double>(tokens);
      point.blocks += survives * blocks;
      point.variance += survives * (1 - survives) * blocks * blocks;
    }
  };
  for (const RunningSequence& sequence : input.running) add(sequence);
  if (input.arrival != nullptr) add(*input.arrival);

  std::vector<Outlook> outlook;
  outlook.reserve(points.size());
  const double present =
      static_cast<double>(input.running.size() + (input.arrival != nullptr ? 1 : 0));
  double seconds = 0;
  std::int32_t before = 0;
  std::int64_t prefill_left = prefill;
  for (const Point& point : points) {
    const std::int32_t steps = point.steps - before;
    const std::int64_t computed = std::min(prefill_left, rate * std::max(steps, 0));
    if (steps > 0) {
      const StepShape shape{.prefill_tokens = static_cast<std::int32_t>(computed / steps),
                            .decode_sequences = static_cast<std::int32_t>(point.survivors),
                            .context_tokens = static_cast<std::int64_t>(point.context)};
      seconds += to_seconds(step_time.predict(shape)) * steps;
    }
    before = point.steps;
    prefill_left -= computed;
    // Blocks that several hold are there once, as long as their holders are.
    const double shared =
        present > 0 ? static_cast<double>(input.shared_blocks) * point.survivors / present : 0;
    const double blocks = point.blocks + options_.z * std::sqrt(point.variance) - shared;
    outlook.push_back(
        {from_seconds(seconds), static_cast<std::int64_t>(std::ceil(std::max(blocks, 0.0)))});
  }
  return outlook;
}

}  // namespace sluice
