// The global scheduler, agents and engines together on one virtual clock: what the
// simulator runs, small.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "cluster/global_scheduler.h"
#include "cluster/instance_agent.h"
#include "model/fake_model_runner.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;

class TimedRunner final : public ModelRunner {
 public:
  explicit TimedRunner(FakeModelOptions options) : model(options) {}
  void bind(const KvView& kv) override { model.bind(kv); }
  Result<StepOutput> run(const StepInput& input) override {
    auto output = model.run(input);
    if (output) last = output->duration;
    return output;
  }
  FakeModelRunner model;
  Duration last{};
};

struct WorldOptions {
  std::string policy = "forecast";
  std::uint32_t instances = 3;
  std::uint64_t seed = 1;
  Duration report_delay = 1ms;
  Duration report_interval = 20ms;
  FakeModelOptions model{.num_blocks = 60, .block_tokens = 4};
  std::int32_t max_running = 8;
  GlobalSchedulerOptions scheduler{};
};

// Instances step side by side: each is busy for the time that its step takes.
class World final : InstancePort, TokenSink {
 public:
  explicit World(WorldOptions options)
      : options_(std::move(options)),
        samplers_(options_.model),
        reference_(options_.model),
        scheduler_(options_.scheduler, make_policy(options_.policy, {}, Rng(options_.seed)), *this,
                   *this, clock_) {
    clock_.set(TimePoint{1h});
    for (std::uint32_t i = 0; i < options_.instances; ++i) {
      instances_.push_back(std::make_unique<Instance>(*this, InstanceId{i}));
    }
  }

  void submit(std::uint64_t id, std::size_t prompt, std::int32_t max_tokens) {
    auto r = std::make_unique<Request>();
    r->id = RequestId{id};
    r->prompt.resize(prompt);
    std::iota(r->prompt.begin(), r->prompt.end(), static_cast<Token>(id % 5));
    r->max_tokens = max_tokens;
    r->arrival = clock_.now();
    prompts_[r->id] = {r->prompt, max_tokens};
    scheduler_.submit(std::move(r), clock_.now());
  }
  void cancel(std::uint64_t id) { scheduler_.cancel(RequestId{id}, clock_.now()); }
  void kill(std::uint32_t instance) {
    instances_[instance]->alive = false;
    scheduler_.instance_gone(InstanceId{instance}, Incarnation{1},
                             {ErrorCode::kUnavailable, "gone", 0}, clock_.now());
  }

  // Runs for `time`, or (zero) until nothing is left.
  bool run(Duration time = {}) {
    const TimePoint until = time == Duration{} ? clock_.now() + 24h : clock_.now() + time;
    for (long events = 0; events < 2'000'000; ++events) {
      if (time == Duration{} && scheduler_.idle()) return true;
      const TimePoint next = next_event();
      if (next > until) {
        clock_.set(until);
        return time != Duration{};
      }
      clock_.set(std::max(next, clock_.now()));
      fire();
    }
    return false;
  }

  struct Answer {
    std::vector<Token> tokens;
    FinishReason finish = FinishReason::kNone;
    Error error;
  };
  std::map<RequestId, Answer> answers;
  std::map<InstanceId, int> placed_on;
  std::uint64_t event_hash = 1;

  void expect_right(std::uint64_t id) {
    const auto& [prompt, max_tokens] = prompts_[RequestId{id}];
    EXPECT_EQ(answers[RequestId{id}].tokens, reference_.expected_output(prompt, max_tokens)) << id;
  }
  void expect_all_memory_back() {
    for (const auto& instance : instances_) {
      if (!instance->alive) continue;
      instance->engine.check_invariants();
      EXPECT_EQ(instance->engine.stats().kv.granted_blocks, 0);
    }
  }
  const GlobalScheduler& scheduler() const { return scheduler_; }
  TimePoint now() const { return clock_.now(); }
  int reports_of(std::uint32_t instance) const { return instances_[instance]->reports; }

 private:
  struct Instance final : ReportSink, TokenSink {
    Instance(World& w, InstanceId id)
        : world(w),
          runner(w.options_.model),
          engine(engine_options(w.options_), runner, w.samplers_, w.clock_, *this),
          agent({.instance = id,
                 .block_tokens = w.options_.model.block_tokens,
                 .max_running = w.options_.max_running,
                 .min_interval = w.options_.report_interval},
                engine, w.clock_, *this) {}
    void on_report(LoadReport&& report) override {
      EXPECT_GE(report.measured_at - last_report, world.options_.report_interval);
      last_report = report.measured_at;
      ++reports;
      world.mail_.emplace(world.clock_.now() + world.options_.report_delay, std::move(report));
    }
    void on_tokens(std::vector<TokenEvent>&& events) override {
      world.scheduler_.on_tokens(std::move(events), world.clock_.now());
    }
    static EngineOptions engine_options(const WorldOptions& o) {
      EngineOptions e;
      e.max_running = o.max_running;
      e.kv.num_blocks = o.model.num_blocks;
      e.kv.window.block_tokens = o.model.block_tokens;
      return e;
    }
    World& world;
    TimedRunner runner;
    Engine engine;
    InstanceAgent agent;
    bool alive = true;
    TimePoint busy_until{};
    TimePoint last_report{};
    int reports = 0;
  };

  TimePoint next_of(const Instance& i) const {
    if (!i.alive) return TimePoint::max();
    const TimePoint wanted = i.engine.idle() ? i.agent.next_report() : clock_.now();
    return std::max(wanted, i.busy_until);
  }
  TimePoint next_event() const {
    TimePoint next = mail_.empty() ? TimePoint::max() : mail_.begin()->first;
    for (const auto& i : instances_) next = std::min(next, next_of(*i));
    return std::min(next, next_tick_);
  }
  void fire() {
    const TimePoint now = clock_.now();
    while (!mail_.empty() && mail_.begin()->first <= now) {
      LoadReport report = std::move(mail_.begin()->second);
      mail_.erase(mail_.begin());
      scheduler_.on_report(std::move(report), now);
    }
    for (auto& i : instances_) {
      if (next_of(*i) > now) continue;
      if (i->engine.idle()) {
        i->agent.report_if_due();
      } else {
        i->busy_until = now + (i->agent.step() ? i->runner.last : Duration{1ms});
        i->engine.check_invariants();
      }
    }
    if (now >= next_tick_) {
      scheduler_.tick(now);
      next_tick_ = now + 100ms;
    }
  }

  bool submit(const Placement& p, std::unique_ptr<Request>& request) override {
    ++placed_on[p.instance];
    if (instances_[p.instance.value]->alive) {
      instances_[p.instance.value]->agent.submit(std::move(request));
      return true;
    }
    return false;
  }
  void cancel(const Placement& p, RequestId request) override {
    instances_[p.instance.value]->agent.cancel(request);
  }
  void on_tokens(std::vector<TokenEvent>&& events) override {
    for (TokenEvent& e : events) {
      Answer& a = answers[e.request];
      EXPECT_EQ(a.finish, FinishReason::kNone) << "an event after the last one";
      if (e.has_token) a.tokens.push_back(e.token.token);
      a.finish = e.finish;
      a.error = e.error;
      event_hash = event_hash * 1099511628211ULL ^ e.request.value ^
                   static_cast<std::uint64_t>(e.token.token) << 20 ^
                   static_cast<std::uint64_t>(clock_.now().time_since_epoch().count());
    }
  }

  const WorldOptions options_;
  ManualClock clock_;
  FakeSamplerFactory samplers_;
  FakeModelRunner reference_;
  std::map<RequestId, std::pair<std::vector<Token>, std::int32_t>> prompts_;
  std::multimap<TimePoint, LoadReport> mail_;
  std::vector<std::unique_ptr<Instance>> instances_;
  TimePoint next_tick_{};
  GlobalScheduler scheduler_;
};

// Random load with cancels; returns the hash of all that left the engines.
std::uint64_t play(WorldOptions options, bool check) {
  Rng rng(options.seed * 77);
  World w(options);
  std::set<std::uint64_t> cancelled;
  constexpr std::uint64_t kRequests = 60;
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    w.submit(id, 1 + rng.below(60), static_cast<std::int32_t>(1 + rng.below(60)));
    w.run(std::chrono::milliseconds(1 + rng.below(60)));
    if (rng.below(5) == 0) {
      const std::uint64_t victim = 1 + rng.below(id);
      w.cancel(victim);
      cancelled.insert(victim);
    }
  }
  EXPECT_TRUE(w.run()) << options.policy << " does not come to an end, seed " << options.seed;
  if (check) {
    for (std::uint64_t id = 1; id <= kRequests; ++id) {
      const World::Answer& a = w.answers[RequestId{id}];
      EXPECT_NE(a.finish, FinishReason::kNone) << id;
      EXPECT_NE(a.finish, FinishReason::kError) << id << ": " << a.error.message;
      if (!cancelled.contains(id)) w.expect_right(id);
    }
    w.expect_all_memory_back();
    w.run(15s);  // the ledger's limit is over
    for (const LoadRow& row : w.scheduler().loads().rows()) {
      EXPECT_EQ(row.ledger.requests, 0);
      EXPECT_TRUE(row.idle());
    }
  }
  return w.event_hash;
}

class EveryPolicy : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy,
                         testing::ValuesIn(policy_names().begin(), policy_names().end()),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(EveryPolicy, EveryRequestIsAnsweredRight) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Rng rng(seed);
    play({.policy = GetParam(),
          .instances = static_cast<std::uint32_t>(1 + rng.below(4)),
          .seed = seed,
          .report_delay = std::chrono::milliseconds(rng.below(300)),
          .model = {.num_blocks = static_cast<std::int32_t>(32 + rng.below(60)), .block_tokens = 4},
          .max_running = static_cast<std::int32_t>(1 + rng.below(8))},
         /*check=*/true);
  }
}

TEST_P(EveryPolicy, TheSameSeedGivesTheSameRun) {
  const WorldOptions options{.policy = GetParam(), .seed = 42};
  EXPECT_EQ(play(options, false), play(options, false));
}

TEST(Cluster, ABurstSpreadsThoughReportsAreSlow) {
  WorldOptions options{.instances = 4, .report_delay = 500ms, .report_interval = 500ms};
  options.model.num_blocks = 400;
  options.max_running = 64;
  World w(options);
  w.run(2s);
  for (std::uint64_t id = 1; id <= 40; ++id) w.submit(id, 30, 20);
  for (const auto& [instance, count] : w.placed_on) EXPECT_NEAR(count, 10, 3);
  EXPECT_EQ(w.placed_on.size(), 4U);
  EXPECT_TRUE(w.run());
}

TEST(Cluster, TheAnswersOfLostInstancesGoOnElsewhere) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    World w({.instances = 3, .seed = seed, .scheduler = {.retry_wait = 5s}});
    w.run(1s);
    for (std::uint64_t id = 1; id <= 30; ++id) w.submit(id, 10, 40);
    w.run(50ms);
    w.kill(1);
    w.run(std::chrono::milliseconds(100 * seed));
    w.kill(0);
    EXPECT_TRUE(w.run());
    for (std::uint64_t id = 1; id <= 30; ++id) w.expect_right(id);
    EXPECT_GT(w.scheduler().snapshot(w.now()).retries, 0);
    w.submit(100, 10, 5);
    EXPECT_TRUE(w.run());
    w.expect_right(100);
    w.expect_all_memory_back();
  }
}

TEST(InstanceAgent, ReportsOftenUnderLoadAndOnceASecondWithout) {
  World w({.instances = 1});
  w.run(10s);
  const int idle = w.reports_of(0);
  EXPECT_GE(idle, 10);
  EXPECT_LE(idle, 12);
  w.submit(1, 10, 80);
  EXPECT_TRUE(w.run());
  EXPECT_GE(w.reports_of(0) - idle, 5);  // the interval itself is checked at each
}

TEST(InstanceAgent, SaysWhatTheEngineHolds) {
  World w({.instances = 1});
  w.run(1s);
  w.submit(1, 21, 80);
  w.submit(2, 21, 80);
  w.run(300ms);
  const LoadReport& r = *w.scheduler().loads().report(InstanceId{0});
  EXPECT_EQ(r.running_sequences, 2);
  EXPECT_EQ(r.waiting_requests, 0);
  EXPECT_GE(r.context_tokens, 2 * 21);
  EXPECT_EQ(r.total_blocks, 60);
  EXPECT_EQ(r.granted_blocks + r.free_blocks, 60);
  ASSERT_FALSE(r.outlook.empty());
  for (std::size_t i = 0; i < r.outlook.size(); ++i) {
    EXPECT_GE(r.outlook[i].free_blocks, 0);
    if (i > 0) {
      EXPECT_GE(r.outlook[i].at, r.outlook[i - 1].at);
    }
  }
  EXPECT_GT(r.step.base + r.step.per_decode_sequence, 0);
  EXPECT_EQ(w.scheduler().loads().find(InstanceId{0})->ledger.requests, 0);  // they were seen
}

}  // namespace
}  // namespace sluice
