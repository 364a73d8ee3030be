#include "checks.h"

#include <fmt/format.h>

#include <algorithm>

namespace sluice::dst {
namespace {

using namespace std::chrono_literals;

// Its KV is the tokens themselves: an instance that reads a block which another
// sequence writes answers wrongly.
class ContentModel final : public SimulatedModel {
 public:
  explicit ContentModel(FakeModelOptions options) : options_(options), samplers_(options) {}
  std::unique_ptr<ModelRunner> make_runner(std::uint32_t) override {
    return std::make_unique<FakeModelRunner>(options_);
  }
  [[nodiscard]] const SamplerFactory& samplers() const override { return samplers_; }

 private:
  const FakeModelOptions options_;
  const FakeSamplerFactory samplers_;
};

Duration between(Rng& rng, Duration least, Duration most) {
  return least + Duration(rng.below(static_cast<std::uint64_t>((most - least).count()) + 1));
}

std::int32_t up_to(Rng& rng, std::int32_t least, std::int32_t most) {
  return least + static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(most - least) + 1));
}

constexpr Duration kFaulty = 40s;  // of virtual time

Trace random_trace(Rng& rng, std::int32_t capacity) {
  Trace trace;
  trace.block_tokens = 8;
  const bool shares = rng.below(2) == 0;
  const bool leaves = rng.below(2) == 0;
  const bool ranks = rng.below(2) == 0;
  for (std::uint64_t id = 0; id < 400; ++id) trace.blocks.push_back(id / 2);
  const auto requests = static_cast<std::size_t>(up_to(rng, 30, 160));
  Duration at{};
  for (std::size_t i = 0; i < requests; ++i) {
    TraceRequest r;
    at += between(rng, 0ms, 2 * kFaulty / static_cast<int>(requests));
    r.arrival = at;
    const std::int32_t most = rng.below(20) == 0 ? capacity + 20 : capacity / 3;
    r.prompt_tokens = up_to(rng, 1, most);
    r.max_tokens = up_to(rng, 1, std::max(1, capacity / 3));
    if (shares && rng.below(2) == 0) {
      r.first_block = static_cast<std::uint32_t>(rng.below(40) * 8);
      r.num_blocks = static_cast<std::uint32_t>(r.prompt_tokens / 8 % 8);
    }
    if (leaves && rng.below(4) == 0) r.cancel_after = between(rng, 1ms, 5s);
    if (ranks) r.priority = up_to(rng, 0, 2);
    if (i > 0 && rng.below(6) == 0) {
      r.after = static_cast<std::int32_t>(rng.below(i));
      r.arrival = between(rng, 0ms, 2s);
    }
    trace.requests.push_back(r);
  }
  put_in_order(trace);
  return trace;
}

std::vector<Fault> random_faults(Rng& rng, std::size_t nodes) {
  std::vector<Fault> faults;
  if (rng.below(5) == 0) return faults;
  const std::uint64_t kinds = 1 + rng.below(15);  // a set of the four
  for (std::int32_t n = up_to(rng, 1, 14); n > 0; --n) {
    const auto kind = rng.below(4);
    if ((kinds >> kind & 1) == 0) continue;
    faults.push_back({.at = between(rng, 0s, kFaulty),
                      .kind = static_cast<FaultKind>(kind),
                      .instance = static_cast<std::uint32_t>(rng.below(nodes)),
                      .length = between(rng, 10ms, 15s)});
  }
  return faults;
}

bool refused(const Answer& a) {
  return a.finish == FinishReason::kError &&
         (a.error == ErrorCode::kBusy || a.error == ErrorCode::kNeverFits);
}

class Checker {
 public:
  explicit Checker(const Plan& plan)
      : plan_(plan), model_(plan.model), world_(plan.world, plan.trace, model_) {}

  Verdict run() {
    world_.after_step = [this](const Node& node) { look_at(node); };
    // Bounded: all faults are over by then, and the work that is left is small.
    if (!world_.run()) problem("not everything had ended an hour after the last fault");
    verdict_.virtual_s = to_seconds(world_.now() - world_.begin());
    world_.run_for(30s);  // the ledger's limit, restarts, last reports
    check_answers();
    check_rest();
    for (const std::string& violation : world_.violations()) problem(violation);
    verdict_.hash = world_.hash();
    verdict_.faults = world_.faults_survived();
    verdict_.requests = plan_.trace.requests.size();
    return std::move(verdict_);
  }

 private:
  void problem(std::string what) {
    constexpr std::size_t kMost = 10;
    if (verdict_.problems.size() < kMost) verdict_.problems.push_back(std::move(what));
  }

  // After every step: blocks are conserved (the engine's own sums, and ours).
  void look_at(const Node& node) {
    if (node.engine() == nullptr) return;
    node.engine()->check_invariants();
    const KvStats kv = node.engine()->load().kv;
    if (kv.granted_blocks + kv.cached_blocks + kv.free_blocks != kv.total_blocks) {
      problem(fmt::format("instance {}: {} granted + {} kept + {} free blocks are not {}",
                          node.id().value, kv.granted_blocks, kv.cached_blocks, kv.free_blocks,
                          kv.total_blocks));
    }
  }

  // What clients got is what the model says, whole or up to where it was cut.
  void check_answers() {
    const FakeModelRunner reference(plan_.model);
    for (std::size_t i = 0; i < plan_.trace.requests.size(); ++i) {
      const Answer& a = world_.answers()[i];
      const TraceRequest& r = plan_.trace.requests[i];
      if (a.finish == FinishReason::kNone) {
        problem(fmt::format("request {} has no end", i));
        continue;
      }
      if (a.finish == FinishReason::kError && !refused(a)) ++verdict_.lost;
      if (a.finish == FinishReason::kCancelled && r.cancel_after == Duration::zero()) {
        problem(fmt::format("request {} was cancelled by nobody", i));
      }
      const bool quiet = plan_.world.faults.empty() && plan_.world.network.report_loss == 0;
      if (a.finish == FinishReason::kError && quiet && !refused(a) &&
          a.error != ErrorCode::kDeadlineExceeded) {
        problem(fmt::format("request {} failed though nothing did", i));
      }
      const auto expected = reference.expected_output(plan_.trace.prompt(i), r.max_tokens);
      const bool whole = a.finish == FinishReason::kStop || a.finish == FinishReason::kLength;
      const bool right = whole
                             ? a.content == expected
                             : a.content.size() <= expected.size() &&
                                   std::equal(a.content.begin(), a.content.end(), expected.begin());
      if (!right) problem(fmt::format("request {} has a wrong answer", i));
    }
  }

  // When nothing is left to do: nothing is held, and all agree on that.
  void check_rest() {
    for (const auto& node : world_.nodes()) {
      if (node->engine() == nullptr) {
        problem(fmt::format("instance {} did not come back", node->id().value));
        continue;
      }
      if (!node->engine()->idle()) {
        problem(fmt::format("instance {} still works", node->id().value));
      }
      if (node->engine()->load().kv.granted_blocks != 0) {
        problem(fmt::format("instance {} holds {} blocks for nobody", node->id().value,
                            node->engine()->load().kv.granted_blocks));
      }
    }
    if (!world_.scheduler().idle()) problem("the scheduler still waits for something");
    for (const LoadRow& row : world_.scheduler().loads().rows()) {
      if (row.ledger.requests != 0 || row.ledger.tokens != 0 || row.ledger.blocks != 0) {
        problem(fmt::format("the ledger of instance {} has {} requests left", row.instance.value,
                            row.ledger.requests));
      }
      if (row.present && !row.idle()) {
        problem(fmt::format("instance {} counts as busy", row.instance.value));
      }
    }
  }

  const Plan& plan_;
  ContentModel model_;
  World world_;
  Verdict verdict_;
};

}  // namespace

Plan::Plan(std::uint64_t s) : seed(s) {
  Rng rng(seed);
  const auto policies = policy_names();
  world.policy = policies[rng.below(policies.size())];
  model.block_tokens = 1 << up_to(rng, 1, 4);
  const std::int32_t capacity = up_to(rng, 60, 400);  // tokens
  model.num_blocks = std::max(4, capacity / model.block_tokens);
  model.end_one_in = rng.below(2) == 0 ? 0 : 1 + rng.below(60);
  trace = random_trace(rng, model.num_blocks * model.block_tokens);
  NodeOptions node;
  node.engine.max_running = up_to(rng, 1, 12);
  node.engine.max_waiting = up_to(rng, 2, 60);
  node.engine.batch.max_step_tokens = up_to(rng, 1, 200);
  node.engine.batch.min_chunk_tokens = up_to(rng, 1, 16);
  node.engine.kv.num_blocks = model.num_blocks;
  node.engine.kv.prefix_cache = rng.below(3) != 0;
  node.engine.kv.window.block_tokens = model.block_tokens;
  node.engine.kv.window.step_token_budget = node.engine.batch.max_step_tokens;
  node.engine.kv.window.min_steps = up_to(rng, 1, 8);
  node.engine.kv.window.max_steps = up_to(rng, 8, 64);
  node.report_interval = between(rng, 1ms, 300ms);
  world.nodes.assign(static_cast<std::size_t>(up_to(rng, 1, 5)), node);
  world.scheduler.queue_limit = up_to(rng, 0, 200);
  world.scheduler.ledger = rng.below(8) != 0;
  world.limits.max_waiting = up_to(rng, 1, 64);
  world.network.latency = between(rng, 10us, 50ms);
  world.network.jitter = between(rng, 0us, 100ms);
  if (rng.below(2) == 0) world.network.report_delay = between(rng, 0ms, 2s);
  if (rng.below(3) == 0) world.network.report_loss = 0.3 * rng.uniform();
  world.gone_after = 4s + world.network.report_delay + between(rng, 0s, 4s);
  world.limits.max_report_age += world.network.report_delay;
  world.faults = random_faults(rng, world.nodes.size());
  world.seed = seed;
  world.time_limit = 1h;
  world.keep_tokens = true;
  if (rng.below(3) != 0) return;
  // Speculation, with so few tokens that guesses are right now and then.
  model.vocabulary = up_to(rng, 1, 4);
  for (NodeOptions& each : world.nodes) each.engine.draft_tokens = up_to(rng, 0, 8);
}

std::string Plan::describe() const {
  return fmt::format(
      "seed {}: {} x {} blocks of {} tokens, policy {}, {} requests, {} faults, reports {:.0f} ms "
      "late",
      seed, world.nodes.size(), model.num_blocks, model.block_tokens, world.policy,
      trace.requests.size(), world.faults.size(), 1e3 * to_seconds(world.network.report_delay));
}

Verdict check(const Plan& plan) {
  return Checker(plan).run();
}

}  // namespace sluice::dst
