// Whole instances hand sequences over, on a virtual clock: engines, local
// schedulers, transfers and the protocol together, with a model that notices any
// KV that is not what it should be.
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "cluster/handoff_agent.h"
#include "cluster/instance_agent.h"
#include "model/fake_model_runner.h"
#include "transfer/faulty_transfer.h"
#include "transfer/local_transfer.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;

struct ClusterSetup {
  int prefill = 2;
  int decode = 2;
  std::int32_t blocks = 60;  // an instance
  std::int32_t max_running = 8;
  Duration mail_delay = 1ms;
  TransferFaults faults;
  std::size_t bytes_a_poll = 64;
  std::uint64_t seed = 1;
  HandoffOptions handoff{.spare_tokens = 8};
  std::string policy = "least-peak";
  std::uint64_t end_one_in = 0;
};

class HandoffCluster {
 public:
  explicit HandoffCluster(ClusterSetup setup)
      : setup_(std::move(setup)),
        model_{.num_blocks = setup_.blocks, .block_tokens = 4, .end_one_in = setup_.end_one_in},
        reference(model_),
        samplers_(model_),
        layout_(FakeModelRunner::fake_kv_layout(4)),
        memory_(static_cast<std::size_t>(setup_.blocks * count() * 4), -1) {
    clock_.set(TimePoint{1h});
    for (int i = 0; i < count(); ++i) instances_.push_back(std::make_unique<Instance>(*this, i));
    run(100ms);  // they have heard of each other
  }

  void submit(std::uint64_t id, std::vector<Token> prompt, std::int32_t max_tokens) {
    submit_to(static_cast<int>(id) % setup_.prefill, id, std::move(prompt), max_tokens);
  }
  // `ends_after`: it stops by itself then, and nothing but its sampler knows.
  void submit_to(int at, std::uint64_t id, std::vector<Token> prompt, std::int32_t max_tokens,
                 std::int32_t ends_after = 0) {
    auto r = std::make_unique<Request>();
    r->id = RequestId{id};
    r->prompt = prompt;
    r->max_tokens = max_tokens;
    r->arrival = clock_.now();
    prompts_[id] = {std::move(prompt), max_tokens};
    r->sampling.forced_length = ends_after;
    if (instances_[static_cast<std::size_t>(at)]->alive) {
      runs_at_[r->id] = at;
      instances_[static_cast<std::size_t>(at)]->agent.submit(std::move(r));
    }
  }
  void cancel(std::uint64_t id) {
    const auto at = runs_at_.find(RequestId{id});
    if (at == runs_at_.end() || answers[id].finish != FinishReason::kNone) return;
    cancelled.insert(id);
    Instance& i = *instances_[static_cast<std::size_t>(at->second)];
    if (i.alive && !i.handoff.cancel(RequestId{id})) i.agent.cancel(RequestId{id});
  }
  // Nobody hears of it before 10 ms.
  void kill(int at) {
    Instance& gone = *instances_[static_cast<std::size_t>(at)];
    gone.alive = false;
    for (const auto& [request, where] : runs_at_) {
      if (where == at) lost.insert(request.value);
    }
    deaths_.emplace(clock_.now() + 10ms, InstanceId{static_cast<std::uint32_t>(at)});
  }

  void drain(int at) {
    instances_[static_cast<std::size_t>(at)]->agent.drain();
    instances_[static_cast<std::size_t>(at)]->handoff.leave();
  }

  // Runs for `time`, or (zero) until all is idle.
  bool run(Duration time = {}) {
    const TimePoint until = clock_.now() + (time == Duration{} ? 1h : time);
    while (clock_.now() < until) {
      if (time == Duration{} && idle()) return true;
      fire();
      clock_.advance(1ms);
    }
    return time != Duration{};
  }
  bool idle() const {
    return std::all_of(instances_.begin(), instances_.end(), [](const auto& i) {
      return !i->alive || (i->engine.idle() && i->handoff.idle());
    });
  }
  void expect_right(std::uint64_t id) {
    const auto& [prompt, max_tokens] = prompts_[id];
    EXPECT_EQ(answers[id].tokens, reference.expected_output(prompt, max_tokens)) << id;
    EXPECT_NE(answers[id].finish, FinishReason::kNone) << id;
  }
  void expect_all_memory_back() {
    for (const auto& i : instances_) {
      if (!i->alive) continue;
      i->engine.check_invariants();
      EXPECT_EQ(i->engine.stats().kv.granted_blocks, 0);
      EXPECT_EQ(i->handoff.stats().reservations, 0);
      EXPECT_EQ(i->handoff.stats().leaving, 0);
      EXPECT_TRUE(i->transfer.idle());
    }
  }
  HandoffStats stats(int at) const {
    return instances_[static_cast<std::size_t>(at)]->handoff.stats();
  }
  std::vector<Decision> decisions(int at) {
    return instances_[static_cast<std::size_t>(at)]->handoff.take_decisions();
  }
  std::int64_t moved() const {
    std::int64_t sum = 0;
    for (const auto& i : instances_) sum += i->handoff.stats().source.total()[0];
    return sum;
  }
  WindowStats windows(int at) const {
    return instances_[static_cast<std::size_t>(at)]->engine.stats().windows;
  }
  std::int64_t steps(int at) const {
    return instances_[static_cast<std::size_t>(at)]->engine.stats().generated_tokens;
  }

  struct Answer {
    std::vector<Token> tokens;
    FinishReason finish = FinishReason::kNone;
    Error error;
  };
  std::map<std::uint64_t, Answer> answers;
  std::set<std::uint64_t> cancelled;
  std::set<std::uint64_t> lost;  // ran on an instance that died

 private:
  struct Instance final : ReportSink, TokenSink, PeerPort, ModelRunner {
    Instance(HandoffCluster& w, int at)
        : world(w),
          model(w.model_),
          self{InstanceId{static_cast<std::uint32_t>(at)}, Incarnation{1}},
          role(at < w.setup_.prefill ? Role::kPrefill : Role::kDecode),
          local(w.view(), {.bytes_a_poll = w.setup_.bytes_a_poll}),
          transfer(local, w.setup_.faults, Rng(w.setup_.seed + self.instance.value)),
          engine(engine_options(w, at), *this, w.samplers_, w.clock_, *this),
          agent({.instance = self.instance,
                 .role = role,
                 .block_tokens = 4,
                 .max_running = w.setup_.max_running},
                engine, w.clock_, *this),
          handoff({.self = self,
                   .role = role,
                   .kv = {1, w.layout_},
                   .memory = "",
                   .handoff = w.setup_.handoff},
                  engine, make_policy(w.setup_.policy, {}, Rng(w.setup_.seed)), transfer, w.clock_,
                  *this) {
      model.bind(w.view());
    }
    static EngineOptions engine_options(const HandoffCluster& w, int at) {
      EngineOptions e;
      e.max_running = w.setup_.max_running;
      e.hands_over = at < w.setup_.prefill;
      e.batch.max_step_tokens = 32;
      e.kv.num_blocks = w.setup_.blocks;
      e.kv.first_block = w.setup_.blocks * at;
      e.kv.window.block_tokens = 4;
      e.kv.window.step_token_budget = 32;
      return e;
    }
    void bind(const KvView&) override {}
    Result<StepOutput> run(const StepInput& input) override {
      auto output = model.run(input);
      busy_until = world.clock_.now() + output->duration;
      return output;
    }
    void on_report(LoadReport&& report) override { share(report); }
    void on_tokens(std::vector<TokenEvent>&& events) override {
      handoff.on_events(events);
      world.on_tokens(std::move(events));
    }
    void send(HandoffMail&& mail) override { world.post(std::move(mail)); }
    void left(RequestId) override {}
    void seek_targets() override {}
    void runs_at(const RequestOrigin& origin, const Placement& placement) override {
      world.runs_at_[origin.request] = static_cast<int>(placement.instance.value);
    }
    void share(const LoadReport& report) override { world.share(report); }
    void ended() override {}
    void step() {
      handoff.before_step();
      if (engine.idle()) {
        agent.report_if_due();
      } else {
        agent.step();
      }
      handoff.after_step();
      engine.check_invariants();
    }

    HandoffCluster& world;
    FakeModelRunner model;
    const Placement self;
    const Role role;
    LocalTransfer local;
    FaultyTransfer transfer;
    Engine engine;
    InstanceAgent agent;
    HandoffAgent handoff;
    bool alive = true;
    TimePoint busy_until{};
  };

  [[nodiscard]] int count() const { return setup_.prefill + setup_.decode; }
  KvView view() {
    return {reinterpret_cast<std::byte*>(memory_.data()), layout_, setup_.blocks * count()};
  }
  Instance& at(InstanceId id) { return *instances_[id.value]; }

  void post(HandoffMail&& mail) {
    mail_.emplace(clock_.now() + setup_.mail_delay, std::move(mail));
  }
  void share(const LoadReport& report) {
    for (const auto& i : instances_) {
      if (report.role != Role::kPrefill && i->alive) i->handoff.on_report(report);
    }
  }
  void on_tokens(std::vector<TokenEvent>&& events) {
    for (TokenEvent& e : events) {
      Answer& a = answers[e.request.value];
      if (lost.contains(e.request.value)) continue;
      EXPECT_EQ(a.finish, FinishReason::kNone) << "an event after the last one";
      if (e.has_token) {
        EXPECT_EQ(e.index, static_cast<std::int32_t>(a.tokens.size())) << e.request.value;
        a.tokens.push_back(e.token.token);
      }
      a.finish = e.finish;
      a.error = e.error;
    }
  }
  void fire() {
    const TimePoint now = clock_.now();
    while (!deaths_.empty() && deaths_.begin()->first <= now) {
      const InstanceId gone = deaths_.begin()->second;
      deaths_.erase(deaths_.begin());
      for (const auto& i : instances_) {
        if (i->alive) i->handoff.peer_gone(gone, Incarnation{1});
      }
    }
    while (!mail_.empty() && mail_.begin()->first <= now) {
      HandoffMail mail = std::move(mail_.begin()->second);
      mail_.erase(mail_.begin());
      if (at(mail.to.instance).alive) at(mail.to.instance).handoff.on_mail(std::move(mail));
    }
    for (const auto& i : instances_) {
      if (i->alive && i->busy_until <= now) i->step();
    }
  }

  const ClusterSetup setup_;
  const FakeModelOptions model_;

 public:
  const FakeModelRunner reference;

 private:
  ManualClock clock_;
  FakeSamplerFactory samplers_;
  const KvLayout layout_;
  std::vector<Token> memory_;
  std::map<std::uint64_t, std::pair<std::vector<Token>, std::int32_t>> prompts_;
  std::map<RequestId, int> runs_at_;
  std::multimap<TimePoint, HandoffMail> mail_;
  std::multimap<TimePoint, InstanceId> deaths_;
  std::vector<std::unique_ptr<Instance>> instances_;
};

std::vector<Token> prompt_of(std::size_t n, Token first) {
  std::vector<Token> prompt(n);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

TEST(HandoffCluster, ASequenceGoesOnElsewhereAsIfNothingHadHappened) {
  HandoffCluster w({.prefill = 1, .decode = 1});
  w.submit(1, prompt_of(50, 1), 40);
  EXPECT_TRUE(w.run());
  w.expect_right(1);
  w.expect_all_memory_back();
  EXPECT_EQ(w.moved(), 1);
  EXPECT_EQ(w.stats(1).taken, 1);
  EXPECT_GT(w.steps(1), 30);  // the decode instance did the work
  EXPECT_GT(w.stats(0).transfer.bytes.at("local"), 0);
  const std::vector<Decision> decisions = w.decisions(0);
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_EQ(decisions[0].by, InstanceId{0});
  EXPECT_EQ(decisions[0].role, Role::kDecode);
  EXPECT_EQ(decisions[0].placement->instance, InstanceId{1});
}

TEST(HandoffCluster, OnlyWhatTheTargetLacksIsSent) {
  HandoffCluster w({.prefill = 1, .decode = 1});
  w.submit(1, prompt_of(40, 1), 10);
  EXPECT_TRUE(w.run());
  const std::int64_t first = w.stats(0).transfer.bytes.at("local");
  w.submit(2, prompt_of(44, 1), 10);
  EXPECT_TRUE(w.run());
  w.expect_right(2);
  EXPECT_LT(w.stats(0).transfer.bytes.at("local") - first, first / 2);
  EXPECT_GE(w.stats(0).transfer.blocks_held, 9);
}

TEST(HandoffCluster, WithoutAPlaceItStays) {
  HandoffCluster none({.prefill = 1, .decode = 0});
  none.submit(1, prompt_of(20, 1), 30);
  EXPECT_TRUE(none.run());
  none.expect_right(1);
  none.expect_all_memory_back();
  EXPECT_EQ(none.moved(), 0);

  HandoffCluster full({.prefill = 2, .decode = 1, .max_running = 1});
  for (std::uint64_t id = 1; id <= 6; ++id) full.submit(id, prompt_of(20, 1), 30);
  EXPECT_TRUE(full.run());
  for (std::uint64_t id = 1; id <= 6; ++id) full.expect_right(id);
  full.expect_all_memory_back();
}

TEST(HandoffCluster, ADeadTargetCostsNoSecondPrefill) {
  HandoffCluster w({.prefill = 1, .decode = 2, .mail_delay = 20ms});
  for (std::uint64_t id = 1; id <= 6; ++id) w.submit(id, prompt_of(30, static_cast<Token>(id)), 40);
  w.run(70ms);
  w.kill(1);
  EXPECT_TRUE(w.run());
  for (std::uint64_t id = 1; id <= 6; ++id) {
    if (!w.lost.contains(id)) w.expect_right(id);
  }
  w.expect_all_memory_back();
}

TEST(HandoffCluster, WhatRunsLeavesAnInstanceThatIsDrained) {
  HandoffCluster w({.prefill = 1, .decode = 2, .blocks = 200});
  for (std::uint64_t id = 1; id <= 6; ++id) w.submit(id, prompt_of(20, static_cast<Token>(id)), 60);
  w.run(300ms);
  w.drain(1);
  EXPECT_TRUE(w.run());
  for (std::uint64_t id = 1; id <= 6; ++id) w.expect_right(id);
  w.expect_all_memory_back();
  EXPECT_GT(w.stats(1).source.total()[0], 0);
  EXPECT_EQ(w.stats(2).taken, 6);
}

TEST(HandoffCluster, WhoWouldHaveToYieldGoesWhereThereIsRoom) {
  HandoffCluster w({.prefill = 0, .decode = 2, .blocks = 20});
  // The first expects short answers, admits two sequences, and both outgrow it.
  for (std::uint64_t id = 1000; id < 1200; ++id) {
    w.submit_to(0, id, prompt_of(4, 1), 8, /*ends_after=*/2);
    EXPECT_TRUE(w.run());
  }
  w.submit_to(0, 1, prompt_of(20, 1), 40);
  w.submit_to(0, 2, prompt_of(20, 100), 40);
  EXPECT_TRUE(w.run());
  w.expect_right(1);
  w.expect_right(2);
  w.expect_all_memory_back();
  EXPECT_EQ(w.windows(0).shortfall_move, 1);
  EXPECT_EQ(w.windows(0).shortfall_recompute, 0);
  EXPECT_EQ(w.stats(1).taken, 1);
}

TEST(HandoffCluster, WithoutRoomElsewhereWhoYieldsIsComputedAgain) {
  HandoffCluster w({.prefill = 0, .decode = 1, .blocks = 20});
  for (std::uint64_t id = 1000; id < 1200; ++id) {
    w.submit_to(0, id, prompt_of(4, 1), 8, /*ends_after=*/2);
    EXPECT_TRUE(w.run());
  }
  w.submit_to(0, 1, prompt_of(20, 1), 40);
  w.submit_to(0, 2, prompt_of(20, 100), 40);
  EXPECT_TRUE(w.run());
  w.expect_right(1);
  w.expect_right(2);
  w.expect_all_memory_back();
  EXPECT_EQ(w.windows(0).shortfall_move, 0);
  EXPECT_EQ(w.windows(0).shortfall_recompute, 1);
}

TEST(HandoffCluster, RandomLoadsWithFaultsGiveExactAnswersAndAllMemoryBack) {
  std::int64_t moved = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed * 131);
    ClusterSetup setup{.prefill = 1 + static_cast<int>(rng.below(2)),
                       .decode = 1 + static_cast<int>(rng.below(3)),
                       .blocks = 30 + static_cast<std::int32_t>(rng.below(40)),
                       .max_running = 2 + static_cast<std::int32_t>(rng.below(7)),
                       .mail_delay = std::chrono::milliseconds(1 + rng.below(30)),
                       .seed = seed,
                       .handoff = {.spare_tokens = static_cast<std::int32_t>(1 + rng.below(12)),
                                   .lease = 300ms,
                                   .reserve_timeout = 200ms,
                                   .send_timeout = 500ms,
                                   .patience = 2s},
                       .end_one_in = rng.below(2) == 0 ? 25U : 0U};
    if (rng.below(2) == 0) setup.faults = {.refuse = 0.1, .fail = 0.1, .stall = 0.5};
    if (rng.below(3) == 0) setup.policy = "two-choices";
    HandoffCluster w(setup);
    const bool dies = setup.decode > 1 && rng.below(2) == 0;
    for (std::uint64_t id = 1; id <= 25; ++id) {
      w.submit(id, prompt_of(1 + rng.below(70), static_cast<Token>(rng.below(3))),
               static_cast<std::int32_t>(1 + rng.below(40)));
      w.run(std::chrono::milliseconds(1 + rng.below(80)));
      if (rng.below(6) == 0) w.cancel(1 + rng.below(id));
      if (dies && id == 12) w.kill(setup.prefill);
    }
    EXPECT_TRUE(w.run());
    for (std::uint64_t id = 1; id <= 25; ++id) {
      if (w.lost.contains(id)) continue;
      if (w.cancelled.contains(id)) {
        EXPECT_NE(w.answers[id].finish, FinishReason::kNone) << id;
      } else {
        w.expect_right(id);
      }
    }
    w.expect_all_memory_back();
    moved += w.moved();
    if (HasFailure()) return;
  }
  EXPECT_GT(moved, 500);
}

}  // namespace
}  // namespace sluice
