#include "token_world.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <utility>

#include "base/check.h"

namespace sluice {
namespace {

constexpr Duration kStep = std::chrono::milliseconds(20);
constexpr double kPromptToken = 40e-6;  // seconds: what policies believe that one costs

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

std::size_t longest(const std::vector<RequestLengths>& lengths, std::int32_t cap) {
  std::int32_t most = 0;
  for (const RequestLengths& request : lengths) most = std::max(most, request.prompt);
  return static_cast<std::size_t>(most) + static_cast<std::size_t>(cap) + 1;
}

}  // namespace

TokenWorld::TokenWorld(const WorldOptions& options, const std::vector<RequestLengths>& lengths)
    : options_(options),
      lengths_(lengths),
      rng_(options.seed),
      kv_(options.kv),
      step_time_({.base = to_seconds(kStep), .per_prefill_token = kPromptToken}),
      tokens_(longest(lengths, options.cap), 1) {
  CHECK(!lengths.empty());
}

WorldResult TokenWorld::run(const std::function<void(const WorldStep&)>& watch) {
  for (std::int64_t i = 0; i < options_.warm_up_steps + options_.steps; ++i) {
    measuring_ = i >= options_.warm_up_steps;
    opened_ = false;
    if (kv_.window_over(now_)) renew();
    admit_waiting();
    if (measuring_ && watch) {
      watch({.step = i - options_.warm_up_steps,
             .window = kv_.window(),
             .opened = opened_,
             .kv = kv_.stats(),
             .running = static_cast<std::int32_t>(running_.size())});
    }
    step();
    if (!measuring_) continue;
    const KvStats stats = kv_.stats();
    const double total = stats.total_blocks;
    result_.steps += 1;
    result_.running += static_cast<double>(running_.size());
    result_.written += stats.written_blocks / total;
    result_.unused += (stats.granted_blocks - stats.written_blocks) / total;
  }
  return result_;
}

TokenWorld::Sequence TokenWorld::draw() {
  Sequence s;
  s.lengths = lengths_[rng_.below(lengths_.size())];
  s.lengths.output = std::clamp(s.lengths.output, 1, options_.cap);
  s.view.true_length = HiddenLength(s.lengths.output);
  std::int32_t hint = 0;
  if (options_.hint_error > 0) {
    const double factor = std::pow(options_.hint_error, 2 * rng_.uniform() - 1);
    hint = std::max(1, static_cast<std::int32_t>(s.lengths.output * factor));
  }
  s.view.length_class = forecast_.class_of(options_.classes ? s.lengths.client : "", hint);
  return s;
}

std::span<const RunningSequence> TokenWorld::views() {
  views_.clear();
  for (const Sequence& s : running_) views_.push_back(s.view);
  return views_;
}

std::int64_t TokenWorld::blocks_for_next_arrival() const {
  if (waiting_.empty()) return 0;
  const Sequence& next = waiting_.front();
  return kv_.blocks_for(std::int64_t{next.lengths.prompt} + next.view.generated +
                        std::min(options_.kv.window.max_steps, options_.cap));
}

const Window& TokenWorld::open(bool early) {
  const std::span<const RunningSequence> running = views();
  std::vector<RunningLength> ages;
  for (const RunningSequence& view : running) ages.push_back({view.generated, view.length_class});
  const double begin = processor_seconds();
  forecast_.set_running(ages);
  const Window& window =
      kv_.open_window(now_, running, step_time_, forecast_, early, blocks_for_next_arrival());
  if (measuring_) {
    result_.plan_seconds += processor_seconds() - begin;
    result_.windows += 1;
  }
  opened_ = true;
  return window;
}

void TokenWorld::renew() {
  renewed_for_arrival_ = false;
  while (true) {
    const Window& window = open(/*early=*/false);
    if (window.plan.deferred.empty()) return;
    preempt(window.plan.deferred.front());
  }
}

// Recompute: in front of the queue, with what it has generated.
void TokenWorld::preempt(SequenceId victim) {
  const auto it =
      std::ranges::find_if(running_, [&](const Sequence& s) { return s.view.id == victim; });
  CHECK(it != running_.end());
  kv_.release(victim);
  (measuring_ ? result_.preemptions : result_.warm_up_preemptions) += 1;
  if (measuring_) result_.recomputed += it->view.held_tokens;
  waiting_.push_front(*it);
  running_.erase(it);
}

void TokenWorld::admit_waiting() {
  while (running_.size() < static_cast<std::size_t>(options_.max_running)) {
    if (waiting_.empty()) waiting_.push_back(draw());
    if (!try_admit(waiting_.front())) return;  // in order: nothing overtakes for being small
    running_.push_back(waiting_.front());
    waiting_.pop_front();
  }
}

bool TokenWorld::try_admit(Sequence& sequence) {
  const std::int32_t generated = sequence.view.generated;
  const std::int32_t known = sequence.lengths.prompt + generated;
  const AdmissionRequest request{
      .id = SequenceId(next_id_),
      .tokens = std::span(std::as_const(tokens_)).first(static_cast<std::size_t>(known)),
      .generated = generated,
      .decode_cap = options_.cap - generated,
      .length_class = sequence.view.length_class,
      .true_length = sequence.view.true_length};
  auto admission = kv_.admit(request, now_, views(), step_time_, forecast_);
  if (!admission && admission.error() == Refusal::kWindow && !renewed_for_arrival_) {
    renewed_for_arrival_ = true;
    if (!running_.empty() && open(/*early=*/true).plan.deferred.empty()) {
      admission = kv_.admit(request, now_, views(), step_time_, forecast_);
    }
  }
  if (!admission) return false;
  sequence.view = {.id = request.id,
                   .held_tokens = admission->cached_tokens,
                   .prefill_left = known - admission->cached_tokens,
                   .generated = generated,
                   .decode_cap = request.decode_cap,
                   .length_class = request.length_class,
                   .true_length = request.true_length};
  ++next_id_;
  return true;
}

// Decode rows first, then prompts in order under the budget.
void TokenWorld::step() {
  kv_.use_step();
  now_ += kStep;
  std::int32_t budget = options_.kv.window.step_token_budget;
  for (const bool decode : {true, false}) {
    for (Sequence& s : running_) {
      if ((s.view.prefill_left <= 1) != decode) continue;
      const std::int32_t tokens = std::min(s.view.prefill_left, budget);
      if (tokens == 0) continue;
      budget -= tokens;
      s.view.held_tokens += tokens;
      s.view.prefill_left -= tokens;
      kv_.written(
          s.view.id,
          std::span(std::as_const(tokens_)).first(static_cast<std::size_t>(s.view.held_tokens)));
      if (s.view.prefill_left > 0) continue;
      s.view.prefill_left = -1;  // has sampled; a row of this step no more
      s.view.generated += 1;
      s.view.decode_cap -= 1;
      if (measuring_) result_.tokens += 1;
    }
  }
  std::erase_if(running_, [this](Sequence& s) {
    if (s.view.prefill_left == -1) s.view.prefill_left = 1;
    if (s.view.generated < s.lengths.output) return false;
    forecast_.observe(s.view.generated, /*censored=*/false, s.view.length_class);
    kv_.release(s.view.id);
    if (measuring_) result_.finished += 1;
    return true;
  });
}

}  // namespace sluice
