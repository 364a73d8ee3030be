#include "memory/kv_manager.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "memory/admission_rule.h"
#include "memory/arrival_rate.h"
#include "memory/block_pool.h"
#include "memory/prefix_index.h"

namespace sluice {
namespace {

// A running sequence's memory. The first path.size() blocks are full and known
// to the index. Where the index knew an equal block already, table[i] differs
// from the path's block; the sequence then holds a reference to both, so that a
// used node never has an unused ancestor.
struct Held {
  SequenceId id;
  bool running = false;
  std::vector<BlockId> table;
  std::vector<PrefixNode> path;
  std::int32_t written = 0;               // KV of tokens [0, written) exists
  std::int32_t twins = 0;                 // path blocks that are not its own
  std::optional<PrefixNode> copy_source;  // until its first step has copied from it
};

}  // namespace

class KvManager::Impl {
 public:
  explicit Impl(const KvOptions& options)
      : options_(options),
        planner_(window_options_for(options.policy, options.window)),
        rule_(make_admission_rule(options.policy, planner_, options.seed)),
        pool_(options.num_blocks, options.first_block),
        index_(options.window.block_tokens) {}

  tl::expected<Admission, Refusal> admit(const AdmissionRequest& request,
                                         std::span<const RunningSequence> running,
                                         const StepTimeModel& step_time,
                                         const LengthForecast& forecast);
  const Window& open_window(TimePoint now, std::span<const RunningSequence> running,
                            const StepTimeModel& step_time, const LengthForecast& forecast,
                            bool early, std::int64_t waiting_blocks);
  void use_step() {
    CHECK_GT(window_.steps_left, 0);
    --window_.steps_left;
    ++steps_used_;
  }
  void written(SequenceId id, std::span<const Token> tokens);
  void arrived(SequenceId id, std::span<const Token> tokens);
  void release(SequenceId id);
  [[nodiscard]] std::int32_t cached_prefix(std::span<const Token> tokens) const;
  void drop_prefixes() {
    while (const std::optional<BlockId> block = index_.evict()) {
      pool_.free(*block);
      ++prefix_evictions_;
    }
  }
  [[nodiscard]] KvStats stats() const;
  void check_invariants() const;

  [[nodiscard]] const Held& held(SequenceId id) const {
    const auto at = std::ranges::lower_bound(order_, id, {}, &Slot::first);
    CHECK(at != order_.end() && at->first == id);
    return slots_[at->second];
  }

  const KvOptions options_;
  const WindowPlanner planner_;
  const std::unique_ptr<AdmissionRule> rule_;
  Window window_;
  ShortfallCounts shortfalls_;
  WindowUsage usage_;
  Duration planning_cost_{};

 private:
  using Slot = std::pair<SequenceId, std::size_t>;
  struct Fit {
    std::int32_t cached_tokens = 0;
    std::int32_t new_blocks = 0;
    std::int32_t room = 0;            // for it: free, and kept that it did not match
    std::int32_t matched_in_use = 0;  // blocks that others hold anyway
    bool fits = false;
  };
  [[nodiscard]] PrefixMatch match(std::span<const Token> tokens) const;
  [[nodiscard]] RunningSequence arrival(const AdmissionRequest& request,
                                        std::int32_t cached_tokens) const;
  [[nodiscard]] Fit fit(const AdmissionRequest& request, const PrefixMatch& match) const;
  Held& new_slot(SequenceId id);
  Held& held(SequenceId id) { return const_cast<Held&>(std::as_const(*this).held(id)); }
  void grow(Held& held, std::int32_t count);
  void shrink(Held& held, std::size_t blocks);
  void set_written(Held& held, std::int32_t tokens);
  void use(PrefixNode node);
  void unuse(PrefixNode node);
  void finish_copy(Held& held);
  void index_block(Held& held, std::span<const Token> tokens);
  void settle_twins(Held& held);
  void account_window(TimePoint now, bool early);
  void commit(const WindowPlan& plan);
  [[nodiscard]] std::int64_t shared_blocks() const { return table_blocks_ - pool_.num_used(); }

  BlockPool pool_;
  PrefixIndex index_;
  std::vector<Held> slots_;
  std::vector<std::size_t> free_slots_;
  std::vector<Slot> order_;             // of those in use, by id
  std::vector<RunningSequence> views_;  // of open_window(), reused
  ArrivalRate arrivals_;
  std::int64_t table_blocks_ = 0;     // sum of all tables
  std::int64_t unfilled_tokens_ = 0;  // of all sequences' last written blocks
  std::int32_t steps_used_ = 0;       // of the present window
  std::int64_t prefix_queries_ = 0;
  std::int64_t prefix_hits_ = 0;
  std::int64_t prefix_evictions_ = 0;
};

// --- Admission -----------------------------------------------------------------

// At least one token is to be computed, or there would be nothing to sample from.
PrefixMatch KvManager::Impl::match(std::span<const Token> tokens) const {
  if (!options_.prefix_cache || tokens.empty()) return {};
  return index_.match(tokens.first(tokens.size() - 1));
}

RunningSequence KvManager::Impl::arrival(const AdmissionRequest& request,
                                         std::int32_t cached_tokens) const {
  const std::int32_t known = static_cast<std::int32_t>(request.tokens.size());
  const std::int32_t held =
      std::max({cached_tokens, request.restored_tokens, request.arriving_tokens});
  return {.id = request.id,
          .held_tokens = held,
          .held_blocks = planner_.blocks_for(cached_tokens),
          .prefill_left = request.arriving_tokens > 0 ? 1 : known - held,
          .generated = request.generated,
          .decode_cap = request.decode_cap,
          .priority = request.priority,
          .length_class = request.length_class,
          .true_length = request.true_length};
}

KvManager::Impl::Fit KvManager::Impl::fit(const AdmissionRequest& request,
                                          const PrefixMatch& match) const {
  Fit fit;
  const auto matched = static_cast<std::int32_t>(match.path.size());
  fit.cached_tokens = matched * options_.window.block_tokens + match.partial_tokens;
  fit.room = pool_.num_free() + pool_.num_kept();  // what it matched must stay, though
  for (const PrefixNode node : match.path) {
    (index_.is_unused(node) ? fit.room : fit.matched_in_use) += index_.is_unused(node) ? -1 : 1;
  }
  if (match.partial && index_.is_unused(*match.partial)) fit.room -= 1;
  const RunningSequence arriving = arrival(request, fit.cached_tokens);
  const std::int32_t writable = planner_.writable_tokens(arriving, std::max(window_.steps_left, 1));
  fit.new_blocks = planner_.blocks_for(std::int64_t{arriving.held_tokens} + writable) - matched;
  fit.fits = fit.new_blocks <= fit.room;
  return fit;
}

tl::expected<Admission, Refusal> KvManager::Impl::admit(const AdmissionRequest& request,
                                                        std::span<const RunningSequence> running,
                                                        const StepTimeModel& step_time,
                                                        const LengthForecast& forecast) {
  CHECK(!request.tokens.empty());
  CHECK_LT(request.restored_tokens, static_cast<std::int32_t>(request.tokens.size()));
  PrefixMatch found = request.reuse_prefix ? match(request.tokens) : PrefixMatch{};
  const auto whole_blocks_only = [&found] {
    found.partial.reset();
    found.partial_tokens = 0;
  };
  const auto matched = static_cast<std::int32_t>(found.path.size()) * options_.window.block_tokens;
  const std::int32_t from_elsewhere = std::max(request.restored_tokens, request.arriving_tokens);
  if (from_elsewhere >= matched + found.partial_tokens) whole_blocks_only();
  Fit fit = this->fit(request, found);
  if (!fit.fits && found.partial) {
    whole_blocks_only();  // the block to copy from takes room too, until it is copied
    fit = this->fit(request, found);
  }
  if (!fit.fits) {
    ++shortfalls_.refused_window;
    return tl::unexpected(Refusal::kWindow);
  }
  const RunningSequence sequence = arrival(request, fit.cached_tokens);
  if (!running.empty() && !rule_->admits({.sequence = sequence,
                                          .running = running,
                                          .new_blocks = fit.new_blocks,
                                          .room_blocks = fit.room,
                                          .total_blocks = pool_.num_blocks(),
                                          .block_pause = request.block_pause,
                                          .shared_blocks = shared_blocks() + fit.matched_in_use,
                                          .steps_left = std::max(window_.steps_left, 1),
                                          .window_steps = std::max(window_.plan.steps, 1)},
                                         step_time, forecast)) {
    ++shortfalls_.refused_forecast;
    return tl::unexpected(Refusal::kForecast);
  }

  Held& held = new_slot(request.id);
  held.path = std::move(found.path);
  for (const PrefixNode node : held.path) {
    use(node);
    held.table.push_back(index_.block(node));
  }
  table_blocks_ += static_cast<std::int64_t>(held.table.size());
  if (found.partial) {
    use(*found.partial);
    held.copy_source = found.partial;
  }
  grow(held, fit.new_blocks);
  usage_.window_granted_blocks += fit.new_blocks;
  arrivals_.came(planner_.blocks_for(static_cast<std::int64_t>(request.tokens.size())) -
                 static_cast<std::int32_t>(held.path.size()));
  set_written(held, std::max(fit.cached_tokens, request.arriving_tokens));  // as good as
  prefix_queries_ += static_cast<std::int64_t>(request.tokens.size());
  prefix_hits_ += fit.cached_tokens;

  Admission admission{.cached_tokens = fit.cached_tokens, .copy = std::nullopt};
  if (found.partial) {
    const BlockId to = held.table[held.path.size()];
    pool_.mark_written(to);
    admission.copy = PrefixCopy{index_.block(*found.partial), to, found.partial_tokens};
  }
  return admission;
}

Held& KvManager::Impl::new_slot(SequenceId id) {
  if (free_slots_.empty()) {
    free_slots_.push_back(slots_.size());
    slots_.emplace_back();
  }
  const std::size_t slot = free_slots_.back();
  const auto at = std::ranges::lower_bound(order_, id, {}, &Slot::first);  // mostly the end
  CHECK(at == order_.end() || at->first != id);
  order_.insert(at, {id, slot});
  free_slots_.pop_back();
  return slots_[slot] = Held{.id = id, .running = true};
}

// --- Blocks --------------------------------------------------------------------

void KvManager::Impl::grow(Held& held, std::int32_t count) {
  while (pool_.num_free() < count) {
    const std::optional<BlockId> dropped = index_.evict();
    CHECK(dropped.has_value());
    pool_.free(*dropped);
    ++prefix_evictions_;
    ++shortfalls_.prefix_blocks_dropped;
  }
  pool_.allocate(count, held.table);
  table_blocks_ += count;
  usage_.grants += count > 0 ? 1 : 0;
}

void KvManager::Impl::shrink(Held& held, std::size_t blocks) {
  CHECK_GE(blocks, held.path.size());
  while (held.table.size() > blocks) {
    const bool last = pool_.unref(held.table.back());
    CHECK(last);
    pool_.free(held.table.back());
    held.table.pop_back();
    --table_blocks_;
  }
}

void KvManager::Impl::set_written(Held& held, std::int32_t tokens) {
  const auto unfilled = [this](std::int32_t count) {
    return std::int64_t{planner_.blocks_for(count)} * options_.window.block_tokens - count;
  };
  unfilled_tokens_ += unfilled(tokens) - unfilled(held.written);
  held.written = tokens;
}

void KvManager::Impl::use(PrefixNode node) {
  if (index_.is_unused(node)) index_.mark_used(node);
  pool_.ref(index_.block(node));
}

void KvManager::Impl::unuse(PrefixNode node) {
  if (pool_.unref(index_.block(node))) index_.mark_unused(node);
}

void KvManager::Impl::finish_copy(Held& held) {
  if (!held.copy_source) return;
  unuse(*held.copy_source);
  held.copy_source.reset();
}

// The sequence's next full block becomes known to the index.
void KvManager::Impl::index_block(Held& held, std::span<const Token> tokens) {
  const BlockId own = held.table[held.path.size()];
  const PrefixNode parent = held.path.empty() ? kPrefixRoot : held.path.back();
  const auto [node, created] = index_.insert(parent, tokens, own);
  held.path.push_back(node);
  if (created) return;
  if (index_.is_unused(node)) {
    const BlockId other = index_.block(node);
    index_.mark_used(node);
    index_.replace_block(node, own);
    pool_.free(other);
  } else {
    use(node);
    ++held.twins;
  }
}

// Where only this sequence still holds the index's block, its own takes over.
void KvManager::Impl::settle_twins(Held& held) {
  for (std::size_t i = 0; i < held.path.size() && held.twins > 0; ++i) {
    const BlockId other = index_.block(held.path[i]);
    if (other == held.table[i] || pool_.refs(other) != 1) continue;
    const bool last = pool_.unref(other);
    CHECK(last);
    index_.replace_block(held.path[i], held.table[i]);
    pool_.free(other);
    --held.twins;
  }
}

void KvManager::Impl::written(SequenceId id, std::span<const Token> tokens) {
  Held& held = this->held(id);
  const auto block_tokens = static_cast<std::size_t>(options_.window.block_tokens);
  CHECK_LE(tokens.size(), held.table.size() * block_tokens);
  CHECK_GE(tokens.size(), static_cast<std::size_t>(held.written));
  finish_copy(held);
  auto next = static_cast<std::size_t>(planner_.blocks_for(held.written));  // marked before it
  for (; next * block_tokens < tokens.size(); ++next) pool_.mark_written(held.table[next]);
  set_written(held, static_cast<std::int32_t>(tokens.size()));
  if (!options_.prefix_cache) return;
  while ((held.path.size() + 1) * block_tokens <= tokens.size()) {
    index_block(held, tokens.subspan(held.path.size() * block_tokens, block_tokens));
  }
}

void KvManager::Impl::arrived(SequenceId id, std::span<const Token> tokens) {
  Held& held = this->held(id);
  CHECK_LE(tokens.size(), static_cast<std::size_t>(held.written));
  set_written(held, static_cast<std::int32_t>(held.path.size()) * options_.window.block_tokens);
  written(id, tokens);
}

void KvManager::Impl::release(SequenceId id) {
  Held& held = this->held(id);
  finish_copy(held);
  set_written(held, 0);
  shrink(held, held.path.size());
  for (std::size_t i = held.path.size(); i-- > 0;) {  // the deep end first: it is evicted first
    const BlockId own = held.table[i];
    const bool twin = index_.block(held.path[i]) != own;
    unuse(held.path[i]);
    if (!twin) continue;
    const bool last = pool_.unref(own);
    CHECK(last);
    pool_.free(own);
  }
  table_blocks_ -= static_cast<std::int64_t>(held.table.size());
  const auto slot = std::ranges::lower_bound(order_, id, {}, &Slot::first);
  free_slots_.push_back(slot->second);
  slots_[slot->second] = Held{};
  order_.erase(slot);
}

// --- Windows -------------------------------------------------------------------

void KvManager::Impl::account_window(TimePoint now, bool early) {
  arrivals_.passed(now - window_.begin);
  if (early) ++usage_.early_renewals;
  if (steps_used_ == 0) return;
  usage_.seconds_sum += to_seconds(now - window_.begin);
  steps_used_ = 0;
  if (early) return;
  ++usage_.windows_ended;
  usage_.granted_blocks_sum += pool_.num_used();
  usage_.unused_blocks_sum += pool_.num_used() - pool_.num_written();
}

const Window& KvManager::Impl::open_window(TimePoint now, std::span<const RunningSequence> running,
                                           const StepTimeModel& step_time,
                                           const LengthForecast& forecast, bool early,
                                           std::int64_t waiting_blocks) {
  CHECK_EQ(running.size(), order_.size());
  account_window(now, early);
  for (Held& held : slots_) {
    if (held.twins > 0) settle_twins(held);
  }
  // All that is not written is granted anew.
  PlanInput input{.running = {},
                  .free_blocks = std::int64_t{pool_.num_free()} + pool_.num_kept(),
                  .total_blocks = pool_.num_blocks(),
                  .planning_cost = planning_cost_,
                  .shared_blocks = shared_blocks(),
                  .z = rule_->z(),
                  .waiting_blocks = waiting_blocks,
                  .arriving_blocks_a_second = arrivals_.blocks_a_second()};
  if (!window_.plan.deferred.empty()) input.least_steps = planner_.options().yield_room_steps;
  views_.assign(running.begin(), running.end());
  for (RunningSequence& view : views_) {
    const Held& held = this->held(view.id);
    CHECK_EQ(view.held_tokens, held.written);
    view.held_blocks = planner_.blocks_for(view.held_tokens);
    input.free_blocks += static_cast<std::int64_t>(held.table.size()) - view.held_blocks;
  }
  input.running = views_;

  window_.plan = planner_.plan(input, step_time, forecast);
  ++window_.number;
  window_.begin = now;
  window_.end = now + window_.plan.length;
  window_.steps_left = window_.plan.steps;
  commit(window_.plan);
  rule_->opened(window_.plan, running);
  return window_;
}

// Returns first, then takes: what the plan counted on is free by then.
void KvManager::Impl::commit(const WindowPlan& plan) {
  if (plan.bound == WindowBound::kCapacity) ++shortfalls_.windows_shortened;
  if (!plan.deferred.empty()) ++shortfalls_.windows_deferring;
  usage_.window_granted_blocks = plan.demand_blocks;
  for (const SequenceId id : plan.deferred) {
    Held& held = this->held(id);
    shrink(held, static_cast<std::size_t>(planner_.blocks_for(held.written)));
  }
  for (const Grant& grant : plan.grants) {
    Held& held = this->held(grant.id);
    const auto wanted = static_cast<std::size_t>(planner_.blocks_for(grant.until_tokens));
    if (held.table.size() > wanted) shrink(held, wanted);
  }
  for (const Grant& grant : plan.grants) {
    Held& held = this->held(grant.id);
    const std::int32_t wanted = planner_.blocks_for(grant.until_tokens);
    const auto has = static_cast<std::int32_t>(held.table.size());
    if (wanted > has) grow(held, wanted - has);
    CHECK_GE(static_cast<std::int64_t>(held.table.size()) * options_.window.block_tokens,
             std::int64_t{grant.until_tokens});
  }
}

// --- Looking -------------------------------------------------------------------

std::int32_t KvManager::Impl::cached_prefix(std::span<const Token> tokens) const {
  const PrefixMatch found = match(tokens);
  return static_cast<std::int32_t>(found.path.size()) * options_.window.block_tokens +
         found.partial_tokens;
}

KvStats KvManager::Impl::stats() const {
  return {.total_blocks = pool_.num_blocks(),
          .granted_blocks = pool_.num_used(),
          .written_blocks = pool_.num_written(),
          .unfilled_tokens = unfilled_tokens_,
          .cached_blocks = pool_.num_kept(),
          .free_blocks = pool_.num_free(),
          .prefix_queries = prefix_queries_,
          .prefix_hits = prefix_hits_,
          .prefix_evictions = prefix_evictions_};
}

void KvManager::Impl::check_invariants() const {
  pool_.check_invariants();
  index_.check_invariants();
  CHECK_EQ(pool_.num_kept(), index_.num_unused());
  std::vector<std::int32_t> refs(static_cast<std::size_t>(pool_.num_blocks()), 0);
  const auto count = [&refs, this](BlockId block) {
    ++refs[static_cast<std::size_t>(block.value - pool_.first())];
  };
  std::int64_t table_blocks = 0;
  std::int64_t unfilled = 0;
  std::size_t running = 0;
  for (const Held& held : slots_) {
    if (!held.running) continue;
    ++running;
    CHECK(&held == &this->held(held.id));
    CHECK_LE(held.path.size(), held.table.size());
    CHECK_LE(planner_.blocks_for(held.written), static_cast<std::int32_t>(held.table.size()));
    table_blocks += static_cast<std::int64_t>(held.table.size());
    unfilled += std::int64_t{planner_.blocks_for(held.written)} * options_.window.block_tokens -
                held.written;
    std::int32_t twins = 0;
    for (std::size_t i = 0; i < held.table.size(); ++i) {
      count(held.table[i]);
      if (i >= held.path.size()) continue;
      CHECK(index_.exists(held.path[i]) && !index_.is_unused(held.path[i]));
      if (index_.block(held.path[i]) == held.table[i]) continue;
      count(index_.block(held.path[i]));
      ++twins;
    }
    CHECK_EQ(twins, held.twins);
    if (held.copy_source) count(index_.block(*held.copy_source));
  }
  CHECK_EQ(running, order_.size());
  CHECK_EQ(table_blocks, table_blocks_);
  CHECK_EQ(unfilled, unfilled_tokens_);
  std::int32_t nodes = 0;
  for (std::int32_t i = 0; i < pool_.num_blocks(); ++i) {
    CHECK_EQ(pool_.refs(BlockId(pool_.first() + i)), refs[static_cast<std::size_t>(i)]);
    const PrefixNode node(i);  // never more nodes than blocks
    if (!index_.exists(node)) continue;
    ++nodes;
    CHECK(!pool_.is_free(index_.block(node)));
    CHECK_EQ(index_.is_unused(node), pool_.refs(index_.block(node)) == 0);
  }
  CHECK_EQ(nodes, index_.num_nodes());
}

// --- KvManager -----------------------------------------------------------------

KvManager::KvManager(const KvOptions& options) : impl_(std::make_unique<Impl>(options)) {}
KvManager::~KvManager() = default;

std::int32_t KvManager::blocks_for(std::int64_t tokens) const {
  return impl_->planner_.blocks_for(tokens);
}

tl::expected<Admission, Refusal> KvManager::admit(const AdmissionRequest& request, TimePoint now,
                                                  std::span<const RunningSequence> running,
                                                  const StepTimeModel& step_time,
                                                  const LengthForecast& forecast) {
  if (impl_->window_.number == 0) impl_->open_window(now, running, step_time, forecast, false, 0);
  return impl_->admit(request, running, step_time, forecast);
}

bool KvManager::window_over(TimePoint now) const {
  const Window& window = impl_->window_;
  return window.number == 0 || window.steps_left <= 0 || now >= window.end;
}

void KvManager::use_step() {
  impl_->use_step();
}

void KvManager::limit_steps(std::int32_t steps) {
  CHECK_GE(steps, 0);
  impl_->window_.steps_left = std::min(impl_->window_.steps_left, steps);
}

const Window& KvManager::open_window(TimePoint now, std::span<const RunningSequence> running,
                                     const StepTimeModel& step_time, const LengthForecast& forecast,
                                     bool early, std::int64_t waiting_blocks) {
  return impl_->open_window(now, running, step_time, forecast, early, waiting_blocks);
}

const Window& KvManager::window() const {
  return impl_->window_;
}

std::span<const BlockId> KvManager::table(SequenceId id) const {
  return std::as_const(*impl_).held(id).table;
}

std::int32_t KvManager::granted_tokens(SequenceId id) const {
  return static_cast<std::int32_t>(std::as_const(*impl_).held(id).table.size()) *
         impl_->options_.window.block_tokens;
}

void KvManager::written(SequenceId id, std::span<const Token> tokens) {
  impl_->written(id, tokens);
}

void KvManager::arrived(SequenceId id, std::span<const Token> tokens) {
  impl_->arrived(id, tokens);
}

void KvManager::release(SequenceId id) {
  impl_->release(id);
}

std::int32_t KvManager::cached_prefix(std::span<const Token> tokens) const {
  return impl_->cached_prefix(tokens);
}

void KvManager::drop_prefixes() {
  impl_->drop_prefixes();
}

void KvManager::set_planning_cost(Duration cost) {
  // Down at once, up slowly: a thread that was not scheduled for a moment is no cost.
  Duration& known = impl_->planning_cost_;
  known = cost < known ? cost : known + (cost - known) / 8;
}

KvStats KvManager::stats() const {
  return impl_->stats();
}

const ShortfallCounts& KvManager::shortfalls() const {
  return impl_->shortfalls_;
}

const WindowUsage& KvManager::usage() const {
  return impl_->usage_;
}

void KvManager::check_invariants() const {
  impl_->check_invariants();
}

}  // namespace sluice
