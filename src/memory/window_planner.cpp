#include "memory/window_planner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "memory/prefill_queue.h"

namespace sluice {
namespace {

std::int32_t ceil_div(std::int64_t a, std::int64_t b) {
  return static_cast<std::int32_t>((a + b - 1) / b);
}

// Among equals, the earlier in the running set.
bool yields_later(const RunningSequence& a, const RunningSequence& b, YieldOrder order) {
  if (a.priority != b.priority) return a.priority > b.priority;
  if (order == YieldOrder::kNewest) return false;
  if (a.generated != b.generated) return a.generated > b.generated;
  const auto prompt = [](const RunningSequence& s) {
    return s.held_tokens + s.prefill_left - s.generated;
  };
  return prompt(a) < prompt(b);
}

}  // namespace

// The running set in sums.
struct WindowPlanner::Batch {
  std::int64_t decoding = 0;        // sequences
  std::int64_t decode_context = 0;  // tokens that they hold
  std::int64_t prefill_tokens = 0;  // left, of all prompts
  double prefill_context = 0;       // tokens that attention will read for them
  std::int64_t prefill_rate = 1;    // tokens a step
};

// Blocks that a running set needs anew for any number of steps up to a most. Those
// that decode and may go on that long differ only in the room that they have left:
// they are counted by it, and O(n) once becomes O(block) a question.
class WindowPlanner::Demand {
 public:
  Demand(const WindowPlanner& planner, std::span<const RunningSequence> running, std::int32_t most)
      : planner_(planner), with_room_(static_cast<std::size_t>(planner.options_.block_tokens)) {
    const bool alike = planner.options_.grant != GrantRule::kAll;
    for (const RunningSequence& sequence : running) {
      const std::int64_t room =
          std::int64_t{sequence.held_blocks} * planner.options_.block_tokens - sequence.held_tokens;
      if (alike && !in_prefill(sequence) && sequence.decode_cap >= most && room >= 0 &&
          room < planner.options_.block_tokens) {
        ++with_room_[static_cast<std::size_t>(room)];
      } else {
        others_.push_back(&sequence);
      }
    }
  }

  [[nodiscard]] std::int64_t blocks(std::int32_t steps) const {
    std::int64_t blocks = 0;
    for (std::size_t room = 0; room < with_room_.size(); ++room) {
      const std::int64_t more = std::int64_t{steps} - static_cast<std::int64_t>(room);
      if (more <= 0) break;
      blocks += with_room_[room] * planner_.blocks_for(more);
    }
    for (const RunningSequence* sequence : others_) blocks += planner_.new_blocks(*sequence, steps);
    return blocks;
  }

  // The most steps in [least, most] that need at most `within`; `least` if none.
  [[nodiscard]] std::int32_t longest(std::int32_t least, std::int32_t most,
                                     std::int64_t within) const {
    while (most > least) {
      const std::int32_t middle = least + (most - least + 1) / 2;
      if (blocks(middle) > within) {
        most = middle - 1;
      } else {
        least = middle;
      }
    }
    return least;
  }

 private:
  const WindowPlanner& planner_;
  std::vector<std::int64_t> with_room_;         // sequences, by tokens left in their last block
  std::vector<const RunningSequence*> others_;  // counted one by one
};

struct WindowPlanner::Length {
  std::int32_t steps = 1;
  WindowBound bound = WindowBound::kIdle;
};

WindowPlanner::WindowPlanner(WindowOptions options)
    : options_(options),
      block_shift_(std::has_single_bit(static_cast<std::uint32_t>(options.block_tokens))
                       ? std::countr_zero(static_cast<std::uint32_t>(options.block_tokens))
                       : -1) {
  CHECK_GT(options_.block_tokens, 0);
  CHECK_GT(options_.step_token_budget, 0);
  CHECK_GE(options_.min_steps, 1);
  CHECK_GE(options_.max_steps, options_.min_steps);
  CHECK_GT(options_.max_length.count(), 0);
  CHECK(options_.completion_quantile > 0 && options_.completion_quantile < 1);
  CHECK_GT(options_.overhead_share, 0.0);
  CHECK_GT(options_.unused_share, 0.0);
  CHECK_GE(options_.fixed_steps, 1);
  CHECK_GE(options_.yield_room_steps, 1);
  CHECK_GE(options_.outlook_windows, 1);
  CHECK_LE(static_cast<std::size_t>(options_.outlook_windows), kMostPoints);
}

std::int32_t WindowPlanner::blocks_for(std::int64_t tokens) const {
  const std::int64_t up = tokens + options_.block_tokens - 1;
  return static_cast<std::int32_t>(block_shift_ >= 0 ? up >> block_shift_
                                                     : up / options_.block_tokens);
}

std::int32_t WindowPlanner::writable_tokens(const RunningSequence& sequence,
                                            std::int32_t steps) const {
  // The step that computes the last known token also samples, so the first
  // decode token is written one step later, and the last one never.
  const std::int32_t most = in_prefill(sequence)
                                ? sequence.prefill_left + std::max(sequence.decode_cap - 1, 0)
                                : std::max(sequence.decode_cap, sequence.prefill_left);
  if (options_.grant == GrantRule::kAll) return most;
  if (!in_prefill(sequence)) return std::min(steps, most);
  if (options_.grant == GrantRule::kPrompt)
    return std::min(sequence.prefill_left + steps - 1, most);
  const std::int64_t prefill = sequence.prefill_left;
  const std::int64_t budget = std::int64_t{options_.step_token_budget} * steps;
  if (budget < prefill) return static_cast<std::int32_t>(budget);
  const std::int32_t prefill_steps = ceil_div(prefill, options_.step_token_budget);
  return std::min(sequence.prefill_left + steps - prefill_steps, most);
}

std::int32_t WindowPlanner::new_blocks(const RunningSequence& sequence, std::int32_t steps) const {
  const std::int64_t until = std::int64_t{sequence.held_tokens} + writable_tokens(sequence, steps);
  return std::max(blocks_for(until) - sequence.held_blocks, 0);
}

WindowPlanner::Batch WindowPlanner::summarize(std::span<const RunningSequence> running) const {
  Batch batch;
  for (const RunningSequence& sequence : running) {
    if (in_prefill(sequence)) {
      const double tokens = sequence.prefill_left;
      batch.prefill_tokens += sequence.prefill_left;
      batch.prefill_context += tokens * sequence.held_tokens + tokens * tokens / 2;
    } else {
      batch.decoding += 1;
      batch.decode_context += sequence.held_tokens;
    }
  }
  batch.prefill_rate = PrefillQueue(options_, running).rate();
  return batch;
}

// Predicted time of the next `steps` steps.
Duration WindowPlanner::duration(const Batch& batch, std::int32_t steps,
                                 const StepTimeModel& step_time) const {
  const double prefill =
      static_cast<double>(std::min<std::int64_t>(batch.prefill_tokens, batch.prefill_rate * steps));
  double context =
      static_cast<double>(batch.decode_context) + static_cast<double>(batch.decoding) * steps / 2;
  double chunks = 0;
  if (prefill > 0) {
    chunks = batch.prefill_context * prefill / static_cast<double>(batch.prefill_tokens) / steps;
    context += chunks;
  }
  const StepShape mean{.prefill_tokens = static_cast<std::int32_t>(prefill / steps),
                       .decode_sequences = static_cast<std::int32_t>(batch.decoding),
                       .context_tokens = static_cast<std::int64_t>(context),
                       .prefill_context = static_cast<std::int64_t>(chunks)};
  return from_seconds(to_seconds(step_time.predict(mean)) * steps);
}

// Steps until the earliest completion that is likely: the least, over the
// running set, of the low quantile of the remaining duration.
// `enough`: shorter than that makes no difference.
std::int32_t WindowPlanner::likely_completion(const PlanInput& input,
                                              const LengthForecast& forecast,
                                              std::int32_t enough) const {
  // Ages of one bin and class have about the same forecast: one query for all.
  constexpr std::size_t kAges = LengthForecast::kBins + 1;
  std::vector<std::int32_t> known(kAges * forecast.num_classes());
  PrefillQueue queue(options_, input.running);
  std::int32_t earliest = options_.max_steps;
  for (const RunningSequence& sequence : input.running) {
    const std::int64_t prefill_steps = queue.decodes_after(sequence);
    if (prefill_steps >= earliest) continue;
    const auto prefill = static_cast<std::int32_t>(prefill_steps);
    std::int32_t& decode = known[kAges * static_cast<std::size_t>(sequence.length_class) +
                                 LengthForecast::bin_of(sequence.generated)];
    if (decode == 0) {
      decode = std::max(1, forecast.of(sequence.length_class)
                               .quantile(sequence.generated, LengthForecast::kLimit,
                                         options_.completion_quantile));
    }
    earliest = std::min(earliest, prefill + std::min(decode, std::max(sequence.decode_cap, 1)));
    if (earliest <= enough) break;
  }
  return earliest;
}

// Mean over the running set of the remaining steps, or how many it takes until
// all of it has likely ended.
std::int32_t WindowPlanner::remaining_steps(const PlanInput& input,
                                            const LengthForecast& forecast) const {
  const bool mean = options_.length == WindowLength::kMean;
  PrefillQueue queue(options_, input.running);
  double sum = 0;
  double longest = 0;
  for (const RunningSequence& sequence : input.running) {
    const auto prefill = static_cast<double>(queue.decodes_after(sequence));
    const LengthCurve& lengths = forecast.of(sequence.length_class);
    const double decode = mean ? lengths.mean(sequence.generated, sequence.decode_cap)
                               : lengths.quantile(sequence.generated, sequence.decode_cap,
                                                  1 - options_.completion_quantile);
    sum += prefill + decode;
    longest = std::max(longest, prefill + decode);
  }
  const double steps = mean ? sum / static_cast<double>(input.running.size()) : longest;
  return std::max(1, static_cast<std::int32_t>(steps));
}

WindowPlanner::Length WindowPlanner::choose_length(const PlanInput& input, const Batch& batch,
                                                   const StepTimeModel& step_time,
                                                   const LengthForecast& forecast) const {
  switch (options_.length) {
    case WindowLength::kBounded: break;
    case WindowLength::kCompletion:
      return {likely_completion(input, forecast, 1), WindowBound::kCompletion};
    case WindowLength::kMean:
    case WindowLength::kLongest: return {remaining_steps(input, forecast), WindowBound::kMaximum};
    case WindowLength::kFixed: return {options_.fixed_steps, WindowBound::kMaximum};
  }
  return bounded_length(input, batch, step_time, forecast);
}

// The rule, without capacity. Upper bounds:
//   completion  steps until the earliest likely completion: what it returns can
//               be granted anew;
//   unused      n sequences that grow by a token a step leave n * steps / 2
//               tokens granted but unwritten, in the mean over the window: at
//               most `unused_share` of the pool. Prompts do not count: they are
//               written at the budget's rate whatever the window is;
//   maximum     max_steps, and the steps that max_length has time for.
// Lower bound, which wins: min_steps, and planning_cost / (steps * step time)
// at most `overhead_share`.
WindowPlanner::Length WindowPlanner::bounded_length(const PlanInput& input, const Batch& batch,
                                                    const StepTimeModel& step_time,
                                                    const LengthForecast& forecast) const {
  Length length{options_.max_steps, WindowBound::kMaximum};
  const auto at_most = [&length](double steps, WindowBound bound) {
    if (steps >= length.steps) return;
    length = {std::max(1, static_cast<std::int32_t>(steps)), bound};
  };
  at_most(likely_completion(input, forecast, options_.min_steps), WindowBound::kCompletion);
  const double pool_tokens = static_cast<double>(input.total_blocks) * options_.block_tokens;
  at_most(2 * options_.unused_share * pool_tokens / static_cast<double>(input.running.size()),
          WindowBound::kUnused);
  const Duration predicted = duration(batch, length.steps, step_time);
  if (predicted > options_.max_length) {
    at_most(length.steps * to_seconds(options_.max_length) / to_seconds(predicted),
            WindowBound::kMaximum);
  }

  const double step = to_seconds(duration(batch, length.steps, step_time)) / length.steps;
  const double overhead =
      std::ceil(to_seconds(input.planning_cost) / (options_.overhead_share * step));
  const auto least = static_cast<std::int32_t>(std::clamp(
      overhead, static_cast<double>(options_.min_steps), static_cast<double>(options_.max_steps)));
  if (length.steps < least) length = {least, WindowBound::kOverhead};
  return length;
}

// The rule's length, cut for arrivals and for capacity. Room for those that are
// likely to come costs length down to min_steps; room for the next that waits,
// which can be had at once, down to 1; what cannot be had costs nothing.
void WindowPlanner::choose_steps(const PlanInput& input, const Batch& batch,
                                 const StepTimeModel& step_time, const LengthForecast& forecast,
                                 WindowPlan& plan) const {
  const Length length = choose_length(input, batch, step_time, forecast);
  plan.steps = length.steps;
  plan.bound = length.bound;
  const double arriving =
      input.arriving_blocks_a_second * to_seconds(duration(batch, plan.steps, step_time));
  plan.wanted_room_blocks = input.waiting_blocks + static_cast<std::int64_t>(arriving);
  const Demand demand(*this, input.running, plan.steps);
  const std::int64_t beside_all = input.free_blocks - plan.wanted_room_blocks;
  const std::int64_t beside_next = input.free_blocks - input.waiting_blocks;
  if (demand.blocks(plan.steps) <= beside_all) return;
  const std::int32_t least = std::min(options_.min_steps, plan.steps);
  if (demand.blocks(least) <= beside_all) {
    plan.steps = demand.longest(least, plan.steps, beside_all);
  } else if (demand.blocks(1) <= beside_next) {
    plan.steps = demand.longest(1, least, beside_next);
  } else {
    plan.steps = demand.longest(1, plan.steps, input.free_blocks);
  }
  const bool all_fit = plan.steps == length.steps && demand.blocks(plan.steps) <= input.free_blocks;
  if (!all_fit) plan.bound = WindowBound::kCapacity;
}

WindowPlan WindowPlanner::plan(const PlanInput& input, const StepTimeModel& step_time,
                               const LengthForecast& forecast) const {
  CHECK_GE(input.free_blocks, 0);
  WindowPlan plan;
  if (input.running.empty()) {
    // Short, so that the first arrivals are soon planned for together.
    plan.steps =
        options_.length == WindowLength::kFixed ? options_.fixed_steps : options_.min_steps;
    const Duration step = step_time.predict({.decode_sequences = 1});
    plan.length = std::min<Duration>(step * plan.steps, options_.max_length);
    plan.room_blocks = input.free_blocks;
    plan.outlook = {{plan.length, 0}};
    return plan;
  }
  const Batch batch = summarize(input.running);
  choose_steps(input, batch, step_time, forecast, plan);
  grant_all(input, plan);
  const std::int32_t least = input.least_steps;
  const bool too_few_fit =
      plan.steps < least && Demand(*this, input.running, least).blocks(least) > input.free_blocks;
  if (plan.demand_blocks > input.free_blocks || too_few_fit) grant_some(input, plan);
  plan.room_blocks = input.free_blocks - plan.demand_blocks;
  plan.length = std::min(duration(batch, plan.steps, step_time), options_.max_length);
  CHECK_LE(plan.demand_blocks, input.free_blocks);

  plan.outlook = outlook({.running = input.running,
                          .first_steps = plan.steps,
                          .window_steps = plan.steps,
                          .shared_blocks = input.shared_blocks,
                          .z = input.z},
                         step_time, forecast);
  plan.peak_blocks = plan.demand_blocks - input.shared_blocks;
  for (const RunningSequence& sequence : input.running) plan.peak_blocks += sequence.held_blocks;
  for (const Outlook& point : plan.outlook) {
    plan.peak_blocks = std::max(plan.peak_blocks, point.demand_blocks);
  }
  return plan;
}

// For all of plan.steps, whether it fits or not.
void WindowPlanner::grant_all(const PlanInput& input, WindowPlan& plan) const {
  plan.grants.clear();
  plan.grants.reserve(input.running.size());
  plan.demand_blocks = 0;
  for (const RunningSequence& sequence : input.running) {
    const std::int32_t until = sequence.held_tokens + writable_tokens(sequence, plan.steps);
    const std::int32_t blocks = std::max(blocks_for(until) - sequence.held_blocks, 0);
    plan.grants.push_back({sequence.id, until, blocks});
    plan.demand_blocks += blocks;
  }
}

// One step of all does not fit. The least of the tail yields that makes room
// for the rest; until it has, some of the rest must wait too.
void WindowPlanner::grant_some(const PlanInput& input, WindowPlan& plan) const {
  plan.grants.clear();
  plan.demand_blocks = 0;
  std::vector<std::size_t> order(input.running.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return yields_later(input.running[a], input.running[b], options_.yield);
  });
  std::int64_t need = Demand(*this, input.running, input.least_steps).blocks(input.least_steps);
  std::int64_t room = input.free_blocks;
  std::size_t staying = order.size();
  while (staying > 0 && need > room) {
    const RunningSequence& victim = input.running[order[--staying]];
    need -= new_blocks(victim, input.least_steps);
    room += victim.held_blocks;
    plan.deferred.push_back(victim.id);
  }
  std::vector<bool> granted(order.size(), false);
  std::vector<SequenceId> waiting;
  std::int64_t left = input.free_blocks;
  for (std::size_t i = 0; i < staying; ++i) {
    const RunningSequence& sequence = input.running[order[i]];
    const std::int32_t blocks = new_blocks(sequence, 1);
    if (blocks <= left) {
      left -= blocks;
      granted[order[i]] = true;
    } else {
      waiting.push_back(sequence.id);
    }
  }
  plan.deferred.insert(plan.deferred.end(), waiting.rbegin(), waiting.rend());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (!granted[i]) continue;
    const RunningSequence& sequence = input.running[i];
    const std::int32_t blocks = new_blocks(sequence, 1);
    plan.grants.push_back(
        {sequence.id, sequence.held_tokens + writable_tokens(sequence, 1), blocks});
    plan.demand_blocks += blocks;
  }
}

}  // namespace sluice
