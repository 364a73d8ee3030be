// What gateways know of a request that is handed over, and what is left of it when one places
// it again.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "cluster/handoff_source.h"
#include "cluster/handoff_target.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;

constexpr RequestId kRequest{7};
constexpr Placement kOld{InstanceId{1}, Incarnation{1}};
constexpr Placement kNew{InstanceId{2}, Incarnation{1}};

struct Said {
  Placement to;
  HandoffMessage message;
};

struct SourceSide final : SourceHost {
  TargetChoice choose(RequestId, const std::set<InstanceId>&, TimePoint) override {
    return {kNew, 1s};
  }
  std::optional<ReserveAsk> describe(HandoffKey key) override {
    ReserveAsk ask;
    ask.key = key;
    return ask;
  }
  void send(const Placement& to, HandoffMessage message) override {
    said.push_back({to, std::move(message)});
  }
  void start_transfer(const Placement&, const Granted&, bool) override {}
  void cancel_transfer(HandoffKey) override {}
  std::optional<Commit> detach(HandoffKey key, std::int32_t) override {
    Commit commit;
    commit.key = key;
    return commit;
  }
  void resume(RequestId) override {}
  void release(RequestId) override { ++released; }
  void runs_at(RequestId, const Placement& target) override { told.push_back(target); }
  void end_cancelled(RequestId) override {}
  std::vector<Said> said;
  std::vector<Placement> told;  // to the gateway
  int released = 0;
};

TEST(HandoffLives, ATargetOfAFormerLifeDoesNotTakeThePresentOne) {
  SourceSide host;
  HandoffSource source{{}};
  const TimePoint now{1h};
  source.begin({kRequest, 0, 1}, now, host);  // its second life
  ASSERT_EQ(key_of(host.said.at(0).message), (HandoffKey{kRequest, 1, 1}));
  host.said.clear();

  // The first life's key was as high, and its target wakes up with a token out.
  source.on_message(kOld, Taken{{kRequest, 1, 0}, false}, now, host);
  EXPECT_EQ(host.released, 0);
  EXPECT_TRUE(source.knows(kRequest));
  ASSERT_EQ(host.said.size(), 1U);
  EXPECT_EQ(host.said[0].to, kOld);
  EXPECT_TRUE(std::get<Abort>(host.said[0].message).superseded);

  source.on_message(kOld, Taken{{kRequest, 1, 0}, true}, now, host);
  EXPECT_TRUE(std::holds_alternative<Released>(host.said.at(1).message));
  EXPECT_EQ(host.released, 0);

  source.on_message(kNew, Taken{{kRequest, 1, 1}, false}, now, host);
  EXPECT_EQ(host.released, 1);
}

// The target says so as well, but may be lost before its gateway hears it: then nobody else
// would, and the gateway would wait for ever for who has let go.
TEST(HandoffLives, WhoLetsGoTellsWhereItHasGone) {
  SourceSide host;
  HandoffSource source{{}};
  const TimePoint now{1h};
  source.begin({kRequest, 0, 0}, now, host);
  const HandoffKey key{kRequest, 1, 0};
  Granted granted;
  granted.key = key;
  granted.stamp = now;
  source.on_message(kNew, granted, now, host);
  source.sent(key, true, "pigeon", now, host);  // what there was
  source.sent(key, true, "pigeon", now, host);  // and the rest
  ASSERT_TRUE(std::holds_alternative<Commit>(host.said.back().message));
  EXPECT_TRUE(host.told.empty());
  source.on_message(kNew, Taken{key, false}, now, host);
  EXPECT_EQ(host.released, 1);
  EXPECT_EQ(host.told, std::vector{kNew});
}

// What is counted names what carried a sequence last, whatever was tried before.
TEST(HandoffLives, AnOutcomeIsCountedByWhatCarriedIt) {
  SourceSide host;
  HandoffSource source{{}};
  const TimePoint now{1h};
  source.begin({kRequest, 0, 0}, now, host);
  HandoffKey key{kRequest, 1, 0};
  const auto grant = [&] {
    Granted granted;
    granted.key = key;
    granted.stamp = now;
    source.on_message(kNew, granted, now, host);
  };
  grant();
  source.sent(key, false, "pigeon", now, host);  // it never came back
  ++key.attempt;
  grant();
  source.sent(key, true, "boat", now, host);
  source.sent(key, true, "boat", now, host);
  source.on_message(kNew, Taken{key, false}, now, host);
  const RequestId other{99};
  source.begin({other, 0, 0}, now, host);
  key = {other, 1, 0};
  grant();
  source.sent(key, false, "", now, host);  // not even begun
  source.tick(now + 1h, host);
  const std::map<std::string, OutcomeCounts> counted = {{"boat", {1, 0, 0, 0}},
                                                        {kNoTransport, {0, 1, 0, 0}}};
  EXPECT_EQ(source.stats().outcomes, counted);
  EXPECT_EQ(source.stats().total(), (OutcomeCounts{1, 1, 0, 0}));
}

struct TargetSide final : TargetHost {
  std::variant<Granted, Refused> reserve(const ReserveAsk& ask, TimePoint) override {
    held.push_back(ask.key);
    Granted granted;
    granted.key = ask.key;
    return granted;
  }
  Status start(const Commit&) override { return {}; }
  void drop(HandoffKey key) override { std::erase(held, key); }
  void cancel_running(RequestId) override {}
  void send(const Placement& to, HandoffMessage message) override {
    said.push_back({to, std::move(message)});
  }
  std::vector<HandoffKey> held;
  std::vector<Said> said;
};

TEST(HandoffLives, ATargetLetsAFormerLifeGoForTheNext) {
  for (const bool ended : {false, true}) {
    TargetSide host;
    HandoffTarget target(5s);
    const TimePoint now{1h};
    const HandoffKey first{kRequest, 1, 0};
    const HandoffKey second{kRequest, 1, 1};
    ReserveAsk ask;
    ask.key = first;
    target.on_message(kOld, ask, now, host);
    Commit commit;
    commit.key = first;
    commit.echo = now;
    target.on_message(kOld, commit, now, host);
    ASSERT_TRUE(target.started(kRequest, now, host));
    if (ended) target.ended(kRequest, now, host);
    host.said.clear();

    ask.key = second;
    target.on_message(kNew, ask, now, host);
    EXPECT_EQ(host.held, std::vector{second});
    ASSERT_EQ(host.said.size(), 1U);
    EXPECT_EQ(host.said[0].to, kNew);
    EXPECT_TRUE(std::holds_alternative<Granted>(host.said[0].message));

    // The former source knows nothing of that yet.
    ask.key = {kRequest, 9, 0};
    target.on_message(kOld, ask, now, host);
    EXPECT_EQ(host.held, std::vector{second});
    target.on_message(kOld, Beat{first, now}, now, host);
    EXPECT_TRUE(std::holds_alternative<Lost>(host.said.back().message));
    EXPECT_EQ(target.reservations(), 1);
  }
}

}  // namespace
}  // namespace sluice
