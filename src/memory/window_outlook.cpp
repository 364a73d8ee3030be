// WindowPlanner::outlook() and margin(): the demand that is likely at window ends to come.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "memory/likely_demand.h"
#include "memory/prefill_queue.h"
#include "memory/window_planner.h"

namespace sluice {
namespace {

using Row = std::array<double, WindowPlanner::kMostPoints>;

// Sums over the running set at each point of the outlook. Sequences of one age
// have one forecast, and differ in what they hold and in the first point that
// max_tokens keeps them from: O(1) a sequence, then O(points) an age. Loops over
// rows go over all points, so that they have a fixed length and become vector
// instructions; points beyond the wanted ones are not looked at.
class Sums {
 public:
  Sums(const OutlookInput& input, const WindowOptions& options, const LengthForecast& forecast)
      : forecast_(forecast),
        count_(static_cast<std::size_t>(options.outlook_windows)),
        block_share_(1.0 / options.block_tokens) {
    place_points(input);
    // Windows can be short when memory is: what the next one must have is room for a step.
    for (std::size_t j = 0; j < steps.size(); ++j) growth_[j] = steps[j] + 1;
    age_of_bin_.resize(kAges * forecast.num_classes());
    ages_.reserve(std::min(input.running.size() + 1, LengthForecast::kBins));
  }

  // A sequence that decodes from `after` steps on.
  void add(const RunningSequence& sequence, std::int64_t after) {
    const double known = static_cast<double>(sequence.held_tokens) + sequence.prefill_left;
    Age& age = of_age(sequence);
    if (after > 0) {
      add_alone(sequence, known, static_cast<double>(after), age.doubt);
      return;
    }
    const double cap = sequence.decode_cap;
    const double held = known * block_share_ + 0.5;  // the last block is half full
    const std::size_t cut = first_beyond(cap);
    age.until[cut].add(held);
    if (cut < count_) capped_[cut] += held + cap * block_share_;
  }

  // After all were added.
  void close() {
    double capped = 0;  // of those that max_tokens has ended by the point
    for (std::size_t j = 0; j < count_; ++j) {
      capped += capped_[j];
      all_blocks[j] += capped;
    }
    for (const Age& age : ages_) {
      Held alive = age.until[count_];
      for (std::size_t j = count_; j-- > 0; alive += age.until[j]) {
        const double grown = growth_[j] * block_share_;
        const double held = alive.sum + alive.count * grown;
        const double squares = alive.squares + grown * (2 * alive.sum + alive.count * grown);
        survivors[j] += age.survival[j] * alive.count;
        blocks[j] += age.survival[j] * held;
        variance[j] += age.spread[j] * squares;
        all_blocks[j] += held;
        error[j] += age.doubt * std::sqrt(age.spread[j]) * held;
      }
    }
  }

  // The sequences' own chances even out over many; an error of the forecast does not.
  [[nodiscard]] LikelyDemand demand(std::size_t point) const {
    return {.all = all_blocks[point],
            .mean = blocks[point],
            .variance = variance[point] + error[point] * error[point]};
  }

  // Mean tokens of the survivors at a point.
  [[nodiscard]] double context(std::size_t point) const {
    return (blocks[point] - survivors[point] / 2) / block_share_;
  }

  Row steps{};       // from now
  Row survivors{};   // mean number,
  Row blocks{};      //   of their blocks,
  Row variance{};    //   and its variance
  Row all_blocks{};  // if none ended
  Row error{};       // deviation of `blocks` by the forecast's own error

 private:
  static constexpr std::size_t kAges = LengthForecast::kBins + 1;
  // Blocks held by some sequences.
  struct Held {
    double count = 0;
    double sum = 0;
    double squares = 0;
    void add(double held) {
      count += 1;
      sum += held;
      squares += held * held;
    }
    void operator+=(const Held& other) {
      count += other.count;
      sum += other.sum;
      squares += other.squares;
    }
  };
  struct Age {
    Row survival{};
    Row spread{};      // variance of one sequence's being there
    double doubt = 0;  // of n seen at this age, lives * n outlive the point, give or take
                       // sqrt(lives (1 - lives) n): one over the root of n (Greenwood)
    // Of those that are not added alone, by the first point that max_tokens keeps them from.
    std::array<Held, WindowPlanner::kMostPoints + 1> until{};
  };

  // The first point at which a sequence that decodes now has generated `cap` tokens.
  [[nodiscard]] std::size_t first_beyond(double cap) const {
    if (steps[count_ - 1] < cap) return count_;
    std::size_t point = 0;
    while (steps[point] < cap) ++point;
    return point;
  }

  // The next window ends first, then further and further apart, until lengths
  // of twice the mean have run their course: a peak is rarely beyond.
  void place_points(const OutlookInput& input) {
    const double most = static_cast<double>(count_ - 1);
    const double windows =
        std::max(most, 2 * forecast_.mean(0, LengthForecast::kLimit) / input.window_steps);
    double window = 0;
    steps[0] = input.first_steps;
    for (std::size_t j = 1; j < count_; ++j) {
      const double share = static_cast<double>(j) / most;
      window = std::max(window + 1, std::round(std::pow(windows, share)));
      steps[j] =
          std::min(input.first_steps + window * input.window_steps, double{LengthForecast::kLimit});
    }
  }

  // Begins to decode later: a row of its own.
  void add_alone(const RunningSequence& sequence, double known, double late, double doubt) {
    const double cap = sequence.decode_cap;
    Row survival{};
    fill(survival, sequence, late);
    for (std::size_t j = survival.size(); j-- > 0 && steps[j] - late >= cap;) survival[j] = 0;
    for (std::size_t j = 0; j < survival.size(); ++j) {
      const double grown = std::clamp(growth_[j] - late, 0.0, cap);
      const double lives = survival[j];
      const double held = (known + grown) * block_share_ + 0.5;
      survivors[j] += lives;
      blocks[j] += lives * held;
      variance[j] += lives * (1 - lives) * held * held;
      all_blocks[j] += held;
      error[j] += doubt * std::sqrt(lives * (1 - lives)) * held;
    }
  }

  void fill(Row& row, const RunningSequence& sequence, double late) const {
    const LengthCurve& lengths = forecast_.of(sequence.length_class);
    const std::int32_t generated = sequence.generated;
    const double given = 1 / lengths.tail(generated);
    for (std::size_t j = 0; j < count_; ++j) {
      const auto decoded = static_cast<std::int32_t>(std::max(steps[j] - late, 0.0));
      row[j] = decoded == 0 ? 1.0 : std::min(1.0, lengths.tail(generated + decoded) * given);
    }
  }

  // Ages of one bin and class have about the same forecast: one row for all.
  Age& of_age(const RunningSequence& sequence) {
    std::int16_t& index = age_of_bin_[kAges * static_cast<std::size_t>(sequence.length_class) +
                                      LengthForecast::bin_of(sequence.generated)];
    if (index == 0) {
      Age& age = ages_.emplace_back();
      fill(age.survival, sequence, 0);
      const LengthCurve& lengths = forecast_.of(sequence.length_class);
      const double seen = lengths.weight() * lengths.tail(sequence.generated);
      age.doubt = 1 / std::sqrt(std::max(seen, 1.0));
      for (std::size_t j = 0; j < count_; ++j) {
        age.spread[j] = age.survival[j] * (1 - age.survival[j]);
      }
      index = static_cast<std::int16_t>(ages_.size());
    }
    return ages_[static_cast<std::size_t>(index - 1)];
  }

  const LengthForecast& forecast_;
  const std::size_t count_;
  const double block_share_;
  Row growth_{};
  Row capped_{};  // blocks of those added together that end at the point, when they do
  std::vector<std::int16_t> age_of_bin_;  // by class and bin; 1-based, 0: none yet
  std::vector<Age> ages_;
};

// The sums over a running set and, if there is one, an arrival.
struct Likely {
  Likely(const OutlookInput& input, const WindowOptions& options, const LengthForecast& forecast)
      : sums(input, options, forecast), queue(options, input.running) {
    for (const RunningSequence& sequence : input.running) {
      sums.add(sequence, queue.decodes_after(sequence));
    }
    if (input.arrival != nullptr) sums.add(*input.arrival, queue.decodes_after(*input.arrival));
    sums.close();
    present = static_cast<double>(input.running.size() + (input.arrival != nullptr ? 1 : 0));
    shared_blocks = static_cast<double>(input.shared_blocks);
  }

  // Blocks that several hold are there once, as long as their holders are.
  [[nodiscard]] double shared(std::size_t point) const {
    return present > 0 ? shared_blocks * sums.survivors[point] / present : 0;
  }

  Sums sums;
  PrefillQueue queue;
  double present = 0;  // sequences
  double shared_blocks = 0;
};

}  // namespace

std::vector<Outlook> WindowPlanner::outlook(const OutlookInput& input,
                                            const StepTimeModel& step_time,
                                            const LengthForecast& forecast) const {
  CHECK_GE(input.window_steps, 1);
  const Likely likely(input, options_, forecast);
  const Sums& sums = likely.sums;
  std::vector<Outlook> outlook;
  outlook.reserve(static_cast<std::size_t>(options_.outlook_windows));
  double seconds = 0;
  double before = 0;
  double prefill_left = static_cast<double>(likely.queue.tokens());
  for (std::size_t j = 0; j < static_cast<std::size_t>(options_.outlook_windows); ++j) {
    const double steps = sums.steps[j] - before;
    const double prefill = std::min(prefill_left, static_cast<double>(likely.queue.rate()) * steps);
    if (steps > 0) {
      const StepShape mean{.prefill_tokens = static_cast<std::int32_t>(prefill / steps),
                           .decode_sequences = static_cast<std::int32_t>(sums.survivors[j]),
                           .context_tokens = static_cast<std::int64_t>(sums.context(j))};
      seconds += to_seconds(step_time.predict(mean)) * steps;
    }
    before = sums.steps[j];
    prefill_left -= prefill;
    const double blocks = sums.demand(j).at(input.z) - likely.shared(j);
    outlook.push_back(
        {from_seconds(seconds), static_cast<std::int64_t>(std::ceil(std::max(blocks, 0.0)))});
  }
  return outlook;
}

double WindowPlanner::margin(const OutlookInput& input, std::int64_t blocks,
                             const LengthForecast& forecast) const {
  CHECK_GE(input.window_steps, 1);
  const Likely likely(input, options_, forecast);
  double least = LikelyDemand::kCertain;
  for (std::size_t j = 0; j < static_cast<std::size_t>(options_.outlook_windows); ++j) {
    const double room = static_cast<double>(blocks) + likely.shared(j);
    least = std::min(least, likely.sums.demand(j).deviations_to(room));
  }
  return least;
}

}  // namespace sluice
