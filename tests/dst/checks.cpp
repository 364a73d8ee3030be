#include "checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace sluice::dst {
namespace {

using namespace std::chrono_literals;

// Its KV is the tokens themselves: an instance that reads a block which another
// sequence writes answers wrongly.
class ContentModel final : public SimulatedModel {
 public:
  explicit ContentModel(std::vector<FakeModelOptions> options)
      : options_(std::move(options)), runners_(options_.size()), samplers_(options_[0]) {}
  std::unique_ptr<ModelRunner> make_runner(std::uint32_t instance) override {
    auto runner = std::make_unique<FakeModelRunner>(options_[instance]);
    runners_[instance] = runner.get();
    return runner;
  }
  [[nodiscard]] const SamplerFactory& samplers() const override { return samplers_; }
  // Both ends live, or there would be no transfer.
  void copy_kv(std::uint32_t from, std::uint32_t to, std::span<const BlockMove> moves) override {
    for (const BlockMove& move : moves) {
      std::ranges::copy(runners_[from]->block(move.from), runners_[to]->block(move.to).begin());
    }
  }

 private:
  const std::vector<FakeModelOptions> options_;
  std::vector<FakeModelRunner*> runners_;  // of the present incarnations
  const FakeSamplerFactory samplers_;
};

bool refused(const Answer& a) {
  return a.finish == FinishReason::kError &&
         (a.error == ErrorCode::kBusy || a.error == ErrorCode::kNeverFits);
}

class Checker {
 public:
  explicit Checker(const Plan& plan)
      : plan_(plan),
        ambushes_(plan.ambushes),
        model_(plan.models),
        world_(plan.world, plan.trace, model_) {}

  Verdict run() {
    world_.after_step = [this](const Node& node) { look_at(node); };
    // Bounded: all faults are over by then, and the work that is left is small.
    if (!world_.run()) problem("not everything had ended an hour after the last fault");
    verdict_.virtual_s = to_seconds(world_.now() - world_.begin());
    // The ledger's limit, restarts, last reports; and a target says for ten leases what it took.
    world_.run_for(30s + 12 * plan_.world.handoff.lease);
    check_answers();
    check_rest();
    for (const std::string& violation : world_.violations()) problem(violation);
    verdict_.hash = world_.hash();
    verdict_.faults = world_.faults_survived();
    verdict_.requests = plan_.trace.requests.size();
    for (const auto& node : world_.nodes()) verdict_.handoffs += node->handoffs();
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
    check_owners(node);
    spring(node);
  }

  // Last of all: the node may be gone after it.
  void spring(const Node& node) {
    const HandoffAgent* agent = node.handoff_agent();
    if (agent == nullptr || ended() || ambushes_.empty()) return;
    const std::vector<OpenHandoff> open[2] = {agent->source().open(), agent->target().open()};
    for (auto a = ambushes_.begin(); a != ambushes_.end(); ++a) {
      for (const OpenHandoff& handoff : open[a->of_target ? 1 : 0]) {
        if (handoff.stage != a->stage || --a->times > 0) continue;
        const Ambush ambush = *a;
        ambushes_.erase(a);
        if (ambush.leaves) {
          left_.insert(handoff.request.value - 1);
          return world_.leave(static_cast<std::uint32_t>(handoff.request.value - 1));
        }
        Fault fault = ambush.fault;
        fault.instance = ambush.at_peer ? handoff.peer.instance.value : node.id().value;
        return world_.strike(fault);
      }
    }
  }
  // Faults are over after a while, whether or not they struck.
  [[nodiscard]] bool ended() const { return world_.now() - world_.begin() >= kFaulty; }

  // Who runs an attempt at a request, runs it alone: unless somebody may have to guess
  // whether another lives.
  void check_owners(const Node& node) {
    if (!plan_.all_is_heard()) return;
    for (std::size_t i = 0; i < world_.answers().size(); ++i) {
      const Answer& answer = world_.answers()[i];
      if (answer.arrival == TimePoint{} || answer.finish != FinishReason::kNone) continue;
      const RequestId id{i + 1};
      const Sequence* mine = node.engine()->find(id);
      if (mine == nullptr || !mine->here()) continue;
      for (const auto& other : world_.nodes()) {
        if (other->id() == node.id() || other->engine() == nullptr) continue;
        const Sequence* theirs = other->engine()->find(id);
        if (theirs == nullptr || !theirs->here()) continue;
        if (theirs->request->attempt != mine->request->attempt) continue;
        problem(fmt::format("request {} runs on instances {} and {}", i, node.id().value,
                            other->id().value));
      }
    }
  }

  // What clients got is what the model says, whole or up to where it was cut.
  void check_answers() {
    const FakeModelRunner reference(plan_.models[0]);
    const bool quiet = plan_.nobody_is_lost();
    for (std::size_t i = 0; i < plan_.trace.requests.size(); ++i) {
      const Answer& a = world_.answers()[i];
      const TraceRequest& r = plan_.trace.requests[i];
      if (a.finish == FinishReason::kNone) {
        problem(fmt::format("request {} has no end", i));
        continue;
      }
      if (a.finish == FinishReason::kError && !refused(a)) ++verdict_.lost;
      if (a.finish == FinishReason::kCancelled && r.cancel_after == Duration::zero() &&
          !left_.contains(i)) {
        problem(fmt::format("request {} was cancelled by nobody", i));
      }
      if (a.finish == FinishReason::kError && quiet && !refused(a) &&
          a.error != ErrorCode::kDeadlineExceeded) {
        problem(fmt::format("request {} failed though nothing did: {}", i, a.message));
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
      if (const HandoffAgent* agent = node->handoff_agent()) check_handoffs(*node, *agent);
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

  void check_handoffs(const Node& node, const HandoffAgent& agent) {
    const HandoffStats stats = agent.stats();
    if (stats.leaving != 0 || stats.reservations != 0 || !agent.idle()) {
      problem(fmt::format("instance {} has {} handoffs under way and {} reservations",
                          node.id().value, stats.leaving, stats.reservations));
    }
    if (agent.sending()) problem(fmt::format("instance {} still sends KV", node.id().value));
    for (const LoadRow& row : agent.loads().rows()) {
      if (row.ledger.requests == 0 && row.ledger.tokens == 0 && row.ledger.blocks == 0) continue;
      problem(fmt::format("the local ledger of instance {} has {} requests left for {}",
                          node.id().value, row.ledger.requests, row.instance.value));
    }
  }

  const Plan& plan_;
  std::vector<Ambush> ambushes_;  // not sprung yet
  std::set<std::uint64_t> left_;  // requests whose clients an ambush made leave
  ContentModel model_;
  World world_;
  Verdict verdict_;
};

}  // namespace

Verdict check(const Plan& plan) {
  return Checker(plan).run();
}

}  // namespace sluice::dst
