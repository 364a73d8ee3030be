// The handoff's two sides in a world of one request, one source, two targets and
// channels that lose, repeat and reorder: all that may happen, tried out.
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/rng.h"
#include "cluster/handoff_source.h"
#include "cluster/handoff_target.h"

namespace sluice {
namespace {

// What may go wrong, at most.
struct WorldLimits {
  int losses = 0;
  int repeats = 0;
  int deaths = 0;
  int source_deaths = 0;
  int cancels = 0;
  int failed_transfers = 0;
  int refusals = 0;  // reservations that are refused though there is room
  int ticks = 0;     // times that the clock moves on
  friend bool operator==(const WorldLimits&, const WorldLimits&) = default;
};

// What two messages of one kind and key may differ in.
std::int64_t stamp_of(const HandoffMessage& message) {
  if (const auto* m = std::get_if<Granted>(&message)) return m->stamp.time_since_epoch().count();
  if (const auto* m = std::get_if<Alive>(&message)) return m->stamp.time_since_epoch().count();
  if (const auto* m = std::get_if<Beat>(&message)) return m->echo.time_since_epoch().count();
  if (const auto* m = std::get_if<Commit>(&message)) return m->echo.time_since_epoch().count();
  if (const auto* m = std::get_if<Taken>(&message)) return m->finished ? 1 : 0;
  if (const auto* m = std::get_if<Abort>(&message)) return m->cancel ? 1 : 0;
  return 0;
}

class HandoffWorld {
 public:
  static constexpr int kTokens = 3;
  static constexpr RequestId kRequest{7};
  static constexpr Duration kLease = std::chrono::seconds(6);
  enum class Seat : std::uint8_t { kNone, kReserved, kRuns, kRests };

  explicit HandoffWorld(WorldLimits limits) : limits_(limits) {}

  void begin() {
    with_source([&](auto& host) { source_.begin({kRequest}, now_, host); });
  }

  // --- All that may happen next; act(i) for i in [0, num_actions()) ------------
  [[nodiscard]] std::size_t num_actions() const { return actions().size(); }
  void act(std::size_t i) {
    perform(actions()[i]);
    send_cancels();
  }
  [[nodiscard]] std::string name(std::size_t i) const {
    const Action a = actions()[i];
    static constexpr const char* kNames[] = {"deliver",     "lose",   "repeat", "run",     "sent",
                                             "fail",        "kill",   "hear",   "restart", "cancel",
                                             "kill source", "refuse", "tick"};
    return std::string(kNames[static_cast<int>(a.kind)]) + " " + std::to_string(a.index);
  }

  // --- Fair weather from here on: everything must come to its end -----------------
  void settle() {
    limits_ = {};
    for (int round = 0; round < 400; ++round) {
      while (!mail_.empty()) act({Kind::kDeliver, 0});
      hear_of_deaths();
      if (transfer_) perform({Kind::kSent, 0});
      for (int i = 0; i < 3; ++i) {
        if (can_run(i)) perform({Kind::kRun, i});
      }
      send_cancels();
      if (mail_.empty() && !transfer_ && all_quiet()) return;
      if (mail_.empty() && !transfer_) move_time();
    }
    ADD_FAILURE() << "no end in sight";
  }
  [[nodiscard]] bool all_quiet() const {
    return (!source_alive_ || (source_.idle() && seat_ == Seat::kNone)) && targets_quiet();
  }
  void check_end() const {
    EXPECT_TRUE(ended_) << "the client never hears the end";
    EXPECT_EQ(violations_, 0);
    if (source_alive_) {
      EXPECT_TRUE(source_.idle());
      EXPECT_EQ(seat_, Seat::kNone) << "KV is kept at the source";
    }
    for (const Target& t : targets_) {
      if (!t.alive) continue;
      EXPECT_TRUE(t.machine.idle());
      EXPECT_EQ(t.seat, Seat::kNone) << "memory is held at a target";
    }
  }
  [[nodiscard]] int violations() const { return violations_; }
  [[nodiscard]] int tokens_shown() const { return next_index_; }
  [[nodiscard]] const SourceStats& stats() const { return source_.stats(); }

  [[nodiscard]] std::size_t hash() const;
  friend bool operator==(const HandoffWorld& a, const HandoffWorld& b);

 private:
  enum class Kind : std::uint8_t {
    kDeliver,
    kLose,
    kRepeat,
    kRun,
    kSent,
    kFail,
    kKill,
    kHear,
    kRestart,
    kCancel,
    kKillSource,
    kRefuse,
    kTick
  };
  struct Action {
    Kind kind;
    int index;
  };
  struct Target {
    HandoffTarget machine{kLease};
    Incarnation incarnation{1};
    bool alive = true;
    bool heard_dead = true;  // the source knows how it is
    Seat seat = Seat::kNone;
    HandoffKey key;
    int tokens = 0;  // known
    bool shown = false;
    friend bool operator==(const Target&, const Target&) = default;
  };
  struct Transfer {
    HandoffKey key;
    bool last = false;
    friend bool operator==(const Transfer&, const Transfer&) = default;
  };
  class SourcePort;
  class TargetPort;

  [[nodiscard]] std::vector<Action> actions() const;
  void perform(Action action);
  template <class F>
  void with_source(F&& f);
  template <class F>
  void with_target(int i, F&& f);
  [[nodiscard]] bool can_run(int i) const;
  void run(int i);
  void deliver(HandoffMail mail);
  void show(int index, bool last);
  void end() { ended_ = true; }
  // The scheduler hears who runs the request; if it has ended, it is not wanted there.
  void runs_at(int where);
  void act(Action action) {
    perform(action);
    send_cancels();
  }
  void send_cancels();
  void died(int where);
  void cancel_at(int where);
  void hear_of_deaths();
  void move_time();
  [[nodiscard]] bool targets_quiet() const;
  [[nodiscard]] Placement place_of(int i) const;

  WorldLimits limits_;
  TimePoint now_{std::chrono::hours(1)};
  HandoffSource source_{{.max_tries = 2,
                         .lease = kLease,
                         .reserve_timeout = std::chrono::seconds(2),
                         .send_timeout = std::chrono::seconds(9),
                         .patience = std::chrono::seconds(30),
                         .least_wait = std::chrono::seconds(1)}};
  bool source_alive_ = true;
  Seat seat_ = Seat::kRuns;
  int tokens_ = 0;  // known at the source
  std::optional<Transfer> transfer_;
  std::array<Target, 2> targets_;
  std::vector<HandoffMail> mail_;

  // The client's and the scheduler's view. 2: the source.
  int next_index_ = 0;
  bool ended_ = false;
  int placed_at_ = 2;
  std::vector<int> unwanted_at_;  // where it runs though it has ended
  int violations_ = 0;
  bool refuse_next_ = false;
};

std::size_t HandoffWorld::hash() const {
  std::size_t h = 17;
  const auto mix = [&h](auto v) { h = (h ^ static_cast<std::size_t>(v)) * 0x9e3779b97f4a7c15ULL; };
  mix(now_.time_since_epoch().count());
  mix(static_cast<int>(seat_) * 64 + tokens_ * 8 + next_index_);
  mix((ended_ ? 1 : 0) + placed_at_ * 2 + (source_alive_ ? 8 : 0) + (transfer_ ? 16 : 0));
  for (const Target& t : targets_)
    mix(static_cast<int>(t.seat) * 8 + t.tokens + t.incarnation.value * 64);
  for (const HandoffMail& m : mail_) mix(m.message.index() * 4 + m.to.instance.value);
  return h;
}

bool operator==(const HandoffWorld& a, const HandoffWorld& b) {
  const auto same_mail = [](const HandoffMail& x, const HandoffMail& y) {
    return x.from == y.from && x.to == y.to && x.message.index() == y.message.index() &&
           key_of(x.message) == key_of(y.message) && stamp_of(x.message) == stamp_of(y.message);
  };
  return a.limits_ == b.limits_ && a.now_ == b.now_ && a.source_ == b.source_ &&
         a.source_alive_ == b.source_alive_ && a.seat_ == b.seat_ && a.tokens_ == b.tokens_ &&
         a.transfer_ == b.transfer_ && a.targets_ == b.targets_ &&
         std::equal(a.mail_.begin(), a.mail_.end(), b.mail_.begin(), b.mail_.end(), same_mail) &&
         a.next_index_ == b.next_index_ && a.ended_ == b.ended_ && a.placed_at_ == b.placed_at_ &&
         a.violations_ == b.violations_ && a.refuse_next_ == b.refuse_next_;
}

// --- The instances as the machines see them ----------------------------------------

class HandoffWorld::SourcePort final : public SourceHost {
 public:
  explicit SourcePort(HandoffWorld& w) : w_(w) {}
  TargetChoice choose(RequestId, const std::set<InstanceId>& refused, TimePoint) override {
    for (int i = 0; i < 2; ++i) {
      const Target& t = w_.targets_[static_cast<std::size_t>(i)];
      // Who is dead and not known to be is asked like any other.
      if ((!t.alive && t.heard_dead) || refused.contains(w_.place_of(i).instance)) continue;
      return {w_.place_of(i), {}};
    }
    return {std::nullopt, std::chrono::seconds(1)};
  }
  std::optional<ReserveAsk> describe(HandoffKey key) override {
    if (w_.seat_ != Seat::kRuns) return std::nullopt;
    ReserveAsk ask;
    ask.key = key;
    ask.generated.resize(static_cast<std::size_t>(w_.tokens_));
    return ask;
  }
  void send(const Placement& to, HandoffMessage message) override {
    w_.mail_.push_back({w_.place_of(2), to, std::move(message)});
  }
  void start_transfer(const Placement&, const Granted& granted, bool last) override {
    w_.transfer_ = Transfer{granted.key, last};
  }
  void cancel_transfer(HandoffKey key) override {
    if (w_.transfer_ && w_.transfer_->key == key) w_.transfer_.reset();
  }
  std::optional<Commit> detach(HandoffKey key, std::int32_t) override {
    if (w_.seat_ != Seat::kRuns) return std::nullopt;
    w_.seat_ = Seat::kRests;
    Commit commit;
    commit.key = key;
    commit.generated.resize(static_cast<std::size_t>(w_.tokens_));
    return commit;
  }
  void resume(RequestId) override {
    EXPECT_EQ(w_.seat_, Seat::kRests);
    w_.seat_ = Seat::kRuns;
    w_.runs_at(2);
  }
  void release(RequestId) override {
    EXPECT_NE(w_.seat_, Seat::kNone);
    w_.seat_ = Seat::kNone;
  }
  void runs_at(RequestId, const Placement& target) override {
    const auto i = static_cast<int>(target.instance.value);
    const bool gone = !w_.targets_[static_cast<std::size_t>(i)].alive || w_.place_of(i) != target;
    w_.runs_at(i);
    if (gone) w_.died(i);
  }
  void end_cancelled(RequestId) override {
    EXPECT_EQ(w_.seat_, Seat::kRests);
    w_.seat_ = Seat::kNone;
    w_.end();
  }

 private:
  HandoffWorld& w_;
};

class HandoffWorld::TargetPort final : public TargetHost {
 public:
  TargetPort(HandoffWorld& w, int i) : w_(w), t_(w.targets_[static_cast<std::size_t>(i)]), i_(i) {}
  std::variant<Granted, Refused> reserve(const ReserveAsk& ask, TimePoint) override {
    EXPECT_EQ(t_.seat, Seat::kNone);
    if (w_.refuse_next_) {
      w_.refuse_next_ = false;
      return Refused{ask.key, RefusalKind::kNotBefore, std::chrono::seconds(1), {}};
    }
    t_.seat = Seat::kReserved;
    t_.key = ask.key;
    Granted granted;
    granted.key = ask.key;
    return granted;
  }
  Status start(const Commit& commit) override {
    EXPECT_EQ(t_.seat, Seat::kReserved);
    EXPECT_EQ(t_.key, commit.key);
    t_.seat = Seat::kRuns;
    t_.tokens = static_cast<int>(commit.generated.size());
    t_.shown = false;
    return {};
  }
  void drop(HandoffKey key) override {
    EXPECT_EQ(t_.key, key);
    EXPECT_NE(t_.seat, Seat::kNone) << "given back twice";
    t_.seat = Seat::kNone;
  }
  void cancel_running(RequestId) override { w_.unwanted_at_.push_back(i_); }
  void send(const Placement& to, HandoffMessage message) override {
    w_.mail_.push_back({w_.place_of(i_), to, std::move(message)});
  }

 private:
  HandoffWorld& w_;
  Target& t_;
  int i_;
};

template <class F>
void HandoffWorld::with_source(F&& f) {
  SourcePort port(*this);
  f(port);
}
template <class F>
void HandoffWorld::with_target(int i, F&& f) {
  TargetPort port(*this, i);
  f(targets_[static_cast<std::size_t>(i)].machine, port);
}

Placement HandoffWorld::place_of(int i) const {
  if (i == 2) return {InstanceId{2}, Incarnation{1}};
  return {InstanceId{static_cast<std::uint32_t>(i)},
          targets_[static_cast<std::size_t>(i)].incarnation};
}

bool HandoffWorld::can_run(int i) const {
  if (i == 2) return source_alive_ && seat_ == Seat::kRuns;
  const Target& t = targets_[static_cast<std::size_t>(i)];
  return t.alive && t.seat == Seat::kRuns && t.machine.may_start(kRequest, now_);
}

// A token of index `index` reaches the gateway, which takes each index once.
void HandoffWorld::show(int index, bool last) {
  if (index > next_index_) ++violations_;  // a gap
  if (ended_ || index != next_index_) return;
  ++next_index_;
  if (last) end();
}

void HandoffWorld::run(int i) {
  if (i == 2) {
    const int index = tokens_++;
    const bool last = tokens_ == kTokens;
    show(index, last);
    if (!last) return;
    seat_ = Seat::kNone;
    with_source([&](auto& host) { source_.ended(kRequest, host); });
    return;
  }
  Target& t = targets_[static_cast<std::size_t>(i)];
  if (!t.shown) {  // who starts is the only one that may
    for (int j = 0; j < 2; ++j) {
      const Target& other = targets_[static_cast<std::size_t>(j)];
      const bool rival = j != i && other.alive && other.seat == Seat::kRuns && !other.shown;
      if (rival && other.machine.may_start(kRequest, now_)) ++violations_;
    }
    if (source_alive_ && seat_ == Seat::kRuns) ++violations_;
    t.shown = true;
    runs_at(i);
  }
  const int index = t.tokens++;
  const bool last = t.tokens == kTokens;
  show(index, last);
  with_target(i, [&](auto& machine, auto& host) {
    machine.started(kRequest, now_, host);
    if (!last) return;
    t.seat = Seat::kNone;
    machine.ended(kRequest, now_, host);
  });
}

void HandoffWorld::runs_at(int where) {
  placed_at_ = where;
  if (ended_) unwanted_at_.push_back(where);
}

void HandoffWorld::send_cancels() {
  for (const int where : std::exchange(unwanted_at_, {})) cancel_at(where);
}

void HandoffWorld::died(int where) {
  if (placed_at_ == where) end();  // with an error
}

// The scheduler's cancel, or the source's for what it has handed over.
void HandoffWorld::cancel_at(int where) {
  if (where == 2) {
    if (!source_alive_) return;
    with_source([&](auto& host) {
      if (source_.cancel(kRequest, host) || seat_ != Seat::kRuns) return;
      seat_ = Seat::kNone;
      end();
      source_.ended(kRequest, host);
    });
    return;
  }
  Target& t = targets_[static_cast<std::size_t>(where)];
  if (!t.alive || t.seat != Seat::kRuns) return;
  t.seat = Seat::kNone;
  end();
  with_target(where, [&](auto& machine, auto& host) {
    machine.started(kRequest, now_, host);
    machine.ended(kRequest, now_, host);
  });
}

void HandoffWorld::deliver(HandoffMail mail) {
  if (mail.to.instance == InstanceId{2}) {
    if (!source_alive_) return;
    with_source(
        [&](auto& host) { source_.on_message(mail.from, std::move(mail.message), now_, host); });
    return;
  }
  const auto i = static_cast<int>(mail.to.instance.value);
  if (!targets_[static_cast<std::size_t>(i)].alive || mail.to != place_of(i)) return;
  with_target(i, [&](auto& machine, auto& host) {
    machine.on_message(mail.from, std::move(mail.message), now_, host);
  });
}

void HandoffWorld::hear_of_deaths() {
  for (int i = 0; i < 2; ++i) {
    Target& t = targets_[static_cast<std::size_t>(i)];
    if (t.heard_dead || !source_alive_) continue;
    t.heard_dead = true;
    const Incarnation dead{t.alive ? t.incarnation.value - 1 : t.incarnation.value};
    with_source([&](auto& host) { source_.peer_gone(place_of(i).instance, dead, now_, host); });
  }
}

void HandoffWorld::move_time() {
  TimePoint next = source_alive_ ? source_.next_tick() : TimePoint::max();
  for (const Target& t : targets_) {
    if (t.alive) next = std::min(next, t.machine.next_tick());
  }
  if (next == TimePoint::max()) return;
  now_ = std::max(now_, next);
  if (source_alive_) with_source([&](auto& host) { source_.tick(now_, host); });
  for (int i = 0; i < 2; ++i) {
    if (!targets_[static_cast<std::size_t>(i)].alive) continue;
    with_target(i, [&](auto& machine, auto& host) { machine.tick(now_, host); });
  }
}

bool HandoffWorld::targets_quiet() const {
  return std::all_of(targets_.begin(), targets_.end(), [](const Target& t) {
    return !t.alive || (t.machine.idle() && t.seat == Seat::kNone);
  });
}

// --- What may happen -----------------------------------------------------------------

std::vector<HandoffWorld::Action> HandoffWorld::actions() const {
  std::vector<Action> all;
  for (int m = 0; m < static_cast<int>(mail_.size()); ++m) {
    all.push_back({Kind::kDeliver, m});
    if (limits_.losses > 0) all.push_back({Kind::kLose, m});
    if (limits_.repeats > 0) all.push_back({Kind::kRepeat, m});
  }
  for (int i = 0; i < 3; ++i) {
    if (can_run(i)) all.push_back({Kind::kRun, i});
  }
  if (transfer_) {
    all.push_back({Kind::kSent, 0});
    if (limits_.failed_transfers > 0) all.push_back({Kind::kFail, 0});
  }
  for (int i = 0; i < 2; ++i) {
    const Target& t = targets_[static_cast<std::size_t>(i)];
    if (t.alive && limits_.deaths > 0) all.push_back({Kind::kKill, i});
    if (!t.heard_dead && source_alive_) all.push_back({Kind::kHear, i});
    if (!t.alive) all.push_back({Kind::kRestart, i});
  }
  if (limits_.cancels > 0) all.push_back({Kind::kCancel, 0});
  if (limits_.source_deaths > 0 && source_alive_) all.push_back({Kind::kKillSource, 0});
  if (limits_.refusals > 0 && !refuse_next_) all.push_back({Kind::kRefuse, 0});
  if (limits_.ticks > 0) all.push_back({Kind::kTick, 0});
  return all;
}

void HandoffWorld::perform(Action action) {
  const auto i = static_cast<std::size_t>(action.index);
  switch (action.kind) {
    case Kind::kDeliver:
    case Kind::kLose:
    case Kind::kRepeat: {
      HandoffMail mail = mail_[i];
      if (action.kind != Kind::kRepeat) mail_.erase(mail_.begin() + action.index);
      if (action.kind == Kind::kLose) --limits_.losses;
      if (action.kind == Kind::kRepeat) --limits_.repeats;
      if (action.kind != Kind::kLose) deliver(std::move(mail));
      return;
    }
    case Kind::kRun: return run(action.index);
    case Kind::kSent:
    case Kind::kFail: {
      const Transfer done = *std::exchange(transfer_, std::nullopt);
      const bool ok = action.kind == Kind::kSent;
      if (!ok) --limits_.failed_transfers;
      return with_source([&](auto& host) { source_.sent(done.key, ok, "pigeon", now_, host); });
    }
    case Kind::kKill:
      --limits_.deaths;
      targets_[i].alive = false;
      targets_[i].heard_dead = false;
      targets_[i].seat = Seat::kNone;
      targets_[i].machine = HandoffTarget(kLease);
      return died(action.index);
    case Kind::kHear: return hear_of_deaths();
    case Kind::kRestart:
      targets_[i].alive = true;
      ++targets_[i].incarnation.value;
      return;
    case Kind::kCancel:
      --limits_.cancels;
      if (!ended_) cancel_at(placed_at_);
      return;
    case Kind::kKillSource:
      --limits_.source_deaths;
      source_alive_ = false;
      transfer_.reset();
      died(2);
      for (int t = 0; t < 2; ++t) {
        if (!targets_[static_cast<std::size_t>(t)].alive) continue;
        with_target(t, [&](auto& machine, auto& host) {
          machine.peer_gone(InstanceId{2}, Incarnation{1}, host);
        });
      }
      return;
    case Kind::kRefuse:
      --limits_.refusals;
      refuse_next_ = true;
      return;
    case Kind::kTick: --limits_.ticks; return move_time();
  }
}

// --- All of it, and much of more ---------------------------------------------------------

// Follows every order of events to the given depth, from each state once, and
// sees each to its end.
class Explorer {
 public:
  explicit Explorer(int depth) : depth_(depth) {}
  std::size_t states = 0;

  void explore(const HandoffWorld& world) { visit(world, 0); }

 private:
  void visit(const HandoffWorld& world, int depth) {
    auto& bucket = seen_[world.hash()];
    for (auto& [known, at] : bucket) {
      if (!(known == world)) continue;
      if (at <= depth) return;
      at = depth;
      return follow(world, depth);
    }
    bucket.emplace_back(world, depth);
    ++states;
    ASSERT_EQ(world.violations(), 0) << path();
    HandoffWorld end = world;
    end.settle();
    end.check_end();
    if (testing::Test::HasFailure()) FAIL() << path();
    follow(world, depth);
  }
  void follow(const HandoffWorld& world, int depth) {
    if (depth == depth_) return;
    for (std::size_t i = 0; i < world.num_actions(); ++i) {
      HandoffWorld next = world;
      path_.push_back(world.name(i));
      next.act(i);
      visit(next, depth + 1);
      if (testing::Test::HasFatalFailure()) return;
      path_.pop_back();
    }
  }
  std::string path() const {
    std::string all;
    for (const std::string& step : path_) all += step + "; ";
    return all;
  }

  const int depth_;
  std::vector<std::string> path_;
  std::unordered_map<std::size_t, std::vector<std::pair<HandoffWorld, int>>> seen_;
};

struct Small {
  const char* name;
  WorldLimits limits;
  int depth;
};

class HandoffInterleavings : public testing::TestWithParam<Small> {};

TEST_P(HandoffInterleavings, EndWellInEveryOrder) {
  HandoffWorld world(GetParam().limits);
  world.begin();
  Explorer explorer(GetParam().depth);
  explorer.explore(world);
  RecordProperty("states", static_cast<int>(explorer.states));
  EXPECT_GT(explorer.states, 100U);
}

INSTANTIATE_TEST_SUITE_P(
    SmallWorlds, HandoffInterleavings,
    testing::Values(Small{"fair", {.refusals = 1, .ticks = 1}, 40},
                    Small{"losses", {.losses = 2, .ticks = 2}, 11},
                    Small{"repeats", {.repeats = 2, .ticks = 1}, 10},
                    Small{"deaths", {.deaths = 1, .ticks = 2}, 9},
                    Small{"source_dies", {.source_deaths = 1, .ticks = 2}, 11},
                    Small{"cancel", {.cancels = 1, .ticks = 2}, 11},
                    Small{"cancel_and_loss", {.losses = 1, .cancels = 1, .ticks = 2}, 9},
                    Small{"cancel_and_death", {.deaths = 1, .cancels = 1, .ticks = 2}, 8},
                    Small{"transfers_fail", {.failed_transfers = 2, .ticks = 2}, 11}),
    [](const auto& small) { return std::string(small.param.name); });

TEST(HandoffWorld, RandomWalksWithAllFaultsEndWell) {
  std::array<int, 4> outcomes{};
  for (std::uint64_t seed = 1; seed <= 30'000; ++seed) {
    Rng rng(seed);
    HandoffWorld world({.losses = 3,
                        .repeats = 3,
                        .deaths = 2,
                        .source_deaths = rng.below(4) == 0 ? 1 : 0,
                        .cancels = rng.below(2) == 0 ? 1 : 0,
                        .failed_transfers = 1,
                        .refusals = 1,
                        .ticks = 8});
    world.begin();
    for (int step = 0; step < 60 && world.num_actions() > 0; ++step) {
      world.act(rng.below(world.num_actions()));
    }
    world.settle();
    world.check_end();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      outcomes[i] += static_cast<int>(world.stats().total()[i]);
    }
  }
  // The walks get everywhere, but to where patience ends: they are too short.
  for (const HandoffOutcome o :
       {HandoffOutcome::kMoved, HandoffOutcome::kEnded, HandoffOutcome::kCancelled}) {
    EXPECT_GT(outcomes[static_cast<std::size_t>(o)], 100) << static_cast<int>(o);
  }
}

}  // namespace
}  // namespace sluice
