#include "cluster/global_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "scheduling/test_support.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

struct FakeInstances final : InstancePort {
  bool submit(const Placement& placement, std::unique_ptr<Request>& request) override {
    if (full) return false;
    sent[request->id] = placement;
    taken[request->id] = *request;
    request.reset();
    return true;
  }
  void cancel(const Placement& placement, RequestId request) override {
    cancelled.emplace_back(placement.instance, request);
  }
  void abandon(const Placement& placement) override { abandoned.push_back(placement.instance); }
  bool full = false;
  std::map<RequestId, Placement> sent;
  std::map<RequestId, Request> taken;
  std::vector<InstanceId> abandoned;
  std::vector<std::pair<InstanceId, RequestId>> cancelled;
};

struct LastEvents final : TokenSink {
  void on_tokens(std::vector<TokenEvent>&& events) override {
    for (TokenEvent& e : events) {
      EXPECT_FALSE(ended.contains(e.request)) << "a second end of " << e.request.value;
      if (e.has_token) tokens[e.request].push_back(e.token.token);
      if (e.finish != FinishReason::kNone) ended[e.request] = std::move(e);
    }
  }
  std::map<RequestId, std::vector<Token>> tokens;
  std::map<RequestId, TokenEvent> ended;
};

struct World {
  explicit World(GlobalSchedulerOptions options = {}, PlacementLimits limits = {})
      : scheduler(options, make_forecast_policy(limits, Rng(1)), instances, out, clock) {}

  void submit(std::uint64_t id, std::int32_t prompt = 100, std::int32_t max_tokens = 100) {
    auto request = std::make_unique<Request>();
    request->id = RequestId{id};
    request->prompt.assign(static_cast<std::size_t>(prompt), static_cast<Token>(id));
    request->max_tokens = max_tokens;
    request->arrival = now;
    scheduler.submit(std::move(request), now);
  }
  void report(std::uint32_t instance, std::vector<std::uint64_t> seen = {}) {
    LoadReport r = idle_report(instance, ++sequence[instance]);
    for (const std::uint64_t id : seen) r.seen.push_back(RequestId{id});
    scheduler.on_report(std::move(r), now);
  }
  // An instance with all slots taken and a queue of its own.
  void finish(std::uint64_t id) {
    TokenEvent event;
    event.request = RequestId{id};
    event.attempt = instances.taken[RequestId{id}].attempt;
    event.finish = FinishReason::kLength;
    scheduler.on_tokens({event}, now);
  }
  void report_full(std::uint32_t instance) {
    LoadReport r = idle_report(instance, ++sequence[instance]);
    r.running_sequences = 64;
    r.waiting_requests = 5;
    r.free_blocks = 0;
    r.window_end = r.measured_at + 1500ms;
    scheduler.on_report(std::move(r), now);
  }
  const TokenEvent& end_of(std::uint64_t id) {
    EXPECT_TRUE(out.ended.contains(RequestId{id})) << id << " has not ended";
    return out.ended[RequestId{id}];
  }

  TimePoint now = kTestStart;
  ManualClock clock;
  FakeInstances instances;
  LastEvents out;
  std::map<std::uint32_t, std::uint64_t> sequence;
  GlobalScheduler scheduler;
};

TEST(GlobalScheduler, PlacesAndRecordsWhy) {
  World w;
  w.report(1);
  w.report(2);
  w.submit(7);
  ASSERT_EQ(w.instances.sent.size(), 1U);
  const ClusterSnapshot s = w.scheduler.snapshot(w.now + 10ms);
  ASSERT_EQ(s.decisions.size(), 1U);
  EXPECT_EQ(s.decisions[0].request, RequestId{7});
  EXPECT_EQ(s.decisions[0].outcome, PlacementOutcome::kPlaced);
  EXPECT_EQ(s.decisions[0].candidates.size(), 2U);
  EXPECT_EQ(s.placements[0].count, 1);
  const auto used = s.decisions[0].placement->instance;
  for (const InstanceSnapshot& i : s.instances) {
    EXPECT_EQ(i.ledger_tokens, i.report.instance == used ? 100 : 0);
    EXPECT_EQ(i.report_age, 10ms);
  }
}

TEST(GlobalScheduler, TheLedgerEndsWithTheReportThatSawTheRequest) {
  World w;
  w.report(1);
  w.submit(7);
  w.report(1);  // made before the request arrived there
  EXPECT_EQ(w.scheduler.loads().find(InstanceId{1})->ledger.requests, 1);
  w.report(1, {7});
  EXPECT_EQ(w.scheduler.loads().find(InstanceId{1})->ledger.requests, 0);
  w.submit(8);
  w.finish(8);  // ended before any report
  EXPECT_EQ(w.scheduler.loads().find(InstanceId{1})->ledger.requests, 0);
  w.submit(9);
  w.scheduler.tick(w.now + 11s);
  EXPECT_EQ(w.scheduler.loads().find(InstanceId{1})->ledger.requests, 0);
}

TEST(GlobalScheduler, AReportThatWasOvertakenStillConfirms) {
  World w;
  w.report(1);
  w.submit(7);
  LoadReport late = idle_report(1, 2);
  late.seen = {RequestId{7}};
  w.sequence[1] = 2;
  w.report(1);
  EXPECT_EQ(w.scheduler.loads().find(InstanceId{1})->ledger.requests, 1);
  w.scheduler.on_report(late, w.now);
  EXPECT_EQ(w.scheduler.loads().find(InstanceId{1})->ledger.requests, 0);
  w.submit(8);
  late.seen = {RequestId{8}};
  late.incarnation = Incarnation{0};  // of another life
  w.scheduler.on_report(late, w.now);
  EXPECT_EQ(w.scheduler.loads().find(InstanceId{1})->ledger.requests, 1);
}

TEST(GlobalScheduler, QueuesInOrderUntilThereIsRoom) {
  World w;
  for (std::uint64_t id = 1; id <= 5; ++id) w.submit(id);  // nobody is known yet
  EXPECT_TRUE(w.instances.sent.empty());
  EXPECT_EQ(w.scheduler.snapshot(w.now).queued_requests, 5);
  w.instances.full = true;
  w.report(1);
  EXPECT_EQ(w.scheduler.snapshot(w.now).queued_requests, 5);
  w.instances.full = false;
  w.report(1);
  EXPECT_EQ(w.instances.sent.size(), 5U);
  // One record of the wait each that was tried, one of each placement.
  const ClusterSnapshot s = w.scheduler.snapshot(w.now);
  std::vector<std::uint64_t> placed;
  for (const Decision& d : s.decisions) {
    if (d.placement) placed.push_back(d.request.value);
  }
  EXPECT_EQ(placed, (std::vector<std::uint64_t>{1, 2, 3, 4, 5}));
}

TEST(GlobalScheduler, NothingOvertakesTheQueue) {
  World w;
  w.report_full(1);
  w.submit(1, 5000);
  w.submit(2, 1);
  EXPECT_TRUE(w.instances.sent.empty());
  w.report(1);
  EXPECT_EQ(w.instances.sent.size(), 2U);
}

TEST(GlobalScheduler, AFullQueueSaysWhenToComeBack) {
  World w({.queue_limit = 2});
  w.report_full(1);
  for (std::uint64_t id = 1; id <= 3; ++id) w.submit(id);
  const TokenEvent& event = w.end_of(3);
  EXPECT_EQ(event.finish, FinishReason::kError);
  EXPECT_EQ(event.error.code, ErrorCode::kBusy);
  EXPECT_THAT(event.error.message, HasSubstr("2 requests wait for an instance already (limit 2)"));
  EXPECT_EQ(event.error.retry_after_s, 2);  // the window ends in 1.5 s
  EXPECT_EQ(w.out.ended.size(), 1U);
}

TEST(GlobalScheduler, WhatNeverFitsIsRefusedAtOnceEvenBehindAQueue) {
  World w;
  w.report_full(1);
  w.submit(1);
  w.submit(2, 15'900, 101);
  const TokenEvent& event = w.end_of(2);
  EXPECT_EQ(event.error.code, ErrorCode::kNeverFits);
  EXPECT_EQ(event.error.message,
            "15900 prompt tokens and 101 to generate need 1001 KV blocks; the largest instance has "
            "1000");
  w.submit(3, 0);
  EXPECT_EQ(w.end_of(3).error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(w.scheduler.snapshot(w.now).queued_requests, 1);
}

TEST(GlobalScheduler, QueuedRequestsHaveADeadline) {
  World w({.queue_timeout = 30s});
  w.submit(1);
  w.now += 10s;
  w.submit(2);
  w.now += 20s;
  w.scheduler.tick(w.now);
  EXPECT_EQ(w.end_of(1).error.code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(w.end_of(1).error.message, HasSubstr("30 s (limit 30 s)"));
  EXPECT_EQ(w.out.ended.size(), 1U);
}

TEST(GlobalScheduler, CancelGoesWhereTheRequestIs) {
  World w;
  w.submit(1);  // queued
  w.scheduler.cancel(RequestId{1}, w.now);
  EXPECT_EQ(w.end_of(1).finish, FinishReason::kCancelled);
  w.report(4);
  EXPECT_TRUE(w.instances.sent.empty());
  w.submit(2);  // placed
  w.scheduler.cancel(RequestId{2}, w.now);
  EXPECT_THAT(w.instances.cancelled, testing::ElementsAre(std::pair(InstanceId{4}, RequestId{2})));
  w.finish(2);
  w.scheduler.cancel(RequestId{2}, w.now);   // finished
  w.scheduler.cancel(RequestId{99}, w.now);  // never there
  EXPECT_EQ(w.instances.cancelled.size(), 1U);
  EXPECT_EQ(w.out.ended.size(), 2U);
  EXPECT_TRUE(w.scheduler.idle());
}

// The requests placed on an instance now.
std::set<std::uint64_t> placed_on(const World& w, std::uint32_t instance) {
  std::set<std::uint64_t> ids;
  for (const auto& [id, p] : w.instances.sent) {
    if (p.instance == InstanceId{instance}) ids.insert(id.value);
  }
  return ids;
}

void lose(World& w, std::uint32_t instance) {
  w.scheduler.instance_gone(InstanceId{instance}, Incarnation{1},
                            {ErrorCode::kUnavailable, "the instance is gone", 0}, w.now);
}

void token(World& w, std::uint64_t id, std::int32_t index, Token value, std::int32_t attempt = 0) {
  TokenEvent event;
  event.request = RequestId{id};
  event.attempt = attempt;
  event.index = index;
  event.has_token = true;
  event.token.token = value;
  w.scheduler.on_tokens({event}, w.now);
}

TEST(GlobalScheduler, WhatWasHandedOverIsCancelledAndLostWhereItRuns) {
  World w;
  w.report(1);
  w.submit(1);
  w.report(2);
  const Placement decode{InstanceId{2}, Incarnation{1}};
  w.scheduler.runs_at(RequestId{1}, 0, decode, w.now);
  lose(w, 1);
  EXPECT_TRUE(w.out.ended.empty());
  EXPECT_EQ(w.instances.taken[RequestId{1}].attempt, 0);
  w.scheduler.cancel(RequestId{1}, w.now);
  EXPECT_THAT(w.instances.cancelled, testing::ElementsAre(std::pair(InstanceId{2}, RequestId{1})));
  // The cancel may have crossed another handoff.
  w.report(3);
  w.scheduler.runs_at(RequestId{1}, 0, {InstanceId{3}, Incarnation{1}}, w.now);
  EXPECT_EQ(w.instances.cancelled.back().first, InstanceId{3});
}

TokenEvent token_event(std::uint64_t id, std::int32_t index, std::int32_t attempt = 0) {
  TokenEvent event;
  event.request = RequestId{id};
  event.attempt = attempt;
  event.index = index;
  event.has_token = true;
  event.token.token = static_cast<Token>(index);
  return event;
}

// Request 1 began at instance 1 and runs at instance 2.
void hand_over_after_a_token(World& w) {
  w.report(1);
  w.submit(1);
  w.report(2);
  w.scheduler.on_tokens({token_event(1, 0)}, w.now);
  w.scheduler.runs_at(RequestId{1}, 0, {InstanceId{2}, Incarnation{1}}, w.now);
}

// Each has its own way to the scheduler.
TEST(GlobalScheduler, TokensOfTheNewInstanceThatOvertakeThoseOfTheOldOneWait) {
  World w;
  hand_over_after_a_token(w);
  TokenEvent end;
  end.request = RequestId{1};
  end.index = 5;
  end.finish = FinishReason::kStop;
  w.scheduler.on_tokens({token_event(1, 3), token_event(1, 4), end}, w.now);
  EXPECT_THAT(w.out.tokens[RequestId{1}], testing::ElementsAre(0));
  EXPECT_TRUE(w.out.ended.empty());
  w.scheduler.on_tokens({token_event(1, 1)}, w.now);
  EXPECT_THAT(w.out.tokens[RequestId{1}], testing::ElementsAre(0, 1));
  w.scheduler.on_tokens({token_event(1, 2)}, w.now);
  EXPECT_THAT(w.out.tokens[RequestId{1}], testing::ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(w.end_of(1).finish, FinishReason::kStop);
  EXPECT_TRUE(w.scheduler.idle());
}

TEST(GlobalScheduler, WhatIsMissingForLongWasLostAndTheRequestGoesElsewhere) {
  for (const bool leaves : {false, true}) {
    World w;
    hand_over_after_a_token(w);
    w.scheduler.on_tokens({token_event(1, 2)}, w.now);
    if (leaves) w.scheduler.cancel(RequestId{1}, w.now);
    w.now += 1900ms;
    w.scheduler.tick(w.now);
    EXPECT_EQ(w.instances.taken[RequestId{1}].attempt, 0);
    w.now += 200ms;
    w.scheduler.tick(w.now);
    EXPECT_EQ(w.instances.cancelled.back(), std::pair(InstanceId{2}, RequestId{1}));
    if (leaves) {
      EXPECT_EQ(w.end_of(1).finish, FinishReason::kCancelled);
      continue;
    }
    EXPECT_EQ(w.instances.taken[RequestId{1}].attempt, 1);
    EXPECT_THAT(w.instances.taken[RequestId{1}].output, testing::ElementsAre(0));
    w.scheduler.on_tokens({token_event(1, 1), token_event(1, 3)}, w.now);  // of attempt 0
    w.scheduler.on_tokens({token_event(1, 1, 1)}, w.now);
    EXPECT_THAT(w.out.tokens[RequestId{1}], testing::ElementsAre(0, 1));
  }
}

TEST(GlobalScheduler, WhoSpeaksOfAnAttemptThatWasGivenUpIsToldToStop) {
  World w;
  w.report(1);
  w.submit(1);
  w.report(2);
  lose(w, 1);
  ASSERT_EQ(w.instances.taken[RequestId{1}].attempt, 1);
  w.report(3);
  w.scheduler.runs_at(RequestId{1}, 0, {InstanceId{3}, Incarnation{1}}, w.now);
  EXPECT_THAT(w.instances.cancelled, testing::ElementsAre(std::pair(InstanceId{3}, RequestId{1})));
  // At the same instance a cancel would meet the present attempt.
  w.scheduler.runs_at(RequestId{1}, 0, {InstanceId{2}, Incarnation{1}}, w.now);
  EXPECT_EQ(w.instances.cancelled.size(), 1U);
  lose(w, 3);  // it is not thought to be there
  EXPECT_EQ(w.instances.taken[RequestId{1}].attempt, 1);
}

TEST(GlobalScheduler, TheRequestsOfALostInstanceGoElsewhereAndNoOthers) {
  World w;
  w.report(1);
  w.report(2);
  for (std::uint64_t id = 1; id <= 20; ++id) w.submit(id);
  std::set<std::uint64_t> moved = placed_on(w, 1);
  w.finish(*moved.begin());
  moved.erase(moved.begin());
  const std::size_t stayed = placed_on(w, 2).size();
  lose(w, 1);
  EXPECT_EQ(w.out.ended.size(), 1U);
  EXPECT_EQ(placed_on(w, 2).size(), stayed + moved.size());
  for (const std::uint64_t id : moved) EXPECT_EQ(w.instances.taken[RequestId{id}].attempt, 1);
  EXPECT_EQ(w.scheduler.snapshot(w.now).retries, std::ssize(moved));
}

TEST(GlobalScheduler, AnAnswerGoesOnAfterTheLastTokenKnown) {
  World w;
  w.report(1);
  w.submit(7, 100, 10);
  token(w, 7, 0, 41);
  token(w, 7, 1, 42);
  lose(w, 1);  // nobody else: it waits, but not here, where retry_wait is none
  EXPECT_EQ(w.end_of(7).error.message, "the instance is gone");
  EXPECT_EQ(w.end_of(7).index, 2);

  World other({.retry_wait = 5s});
  other.report(1);
  other.submit(7, 100, 10);
  token(other, 7, 0, 41);
  token(other, 7, 1, 42);
  lose(other, 1);
  other.scheduler.tick(other.now + 4s);
  EXPECT_TRUE(other.out.tokens.at(RequestId{7}) == std::vector<Token>({41, 42}));
  EXPECT_FALSE(other.out.ended.contains(RequestId{7}));
  other.report(2);
  const Request& again = other.instances.taken[RequestId{7}];
  EXPECT_EQ(other.instances.sent[RequestId{7}].instance, InstanceId{2});
  EXPECT_EQ(again.attempt, 1);
  EXPECT_EQ(again.prompt.size(), 100U);
  EXPECT_EQ(again.max_tokens, 10);
  EXPECT_EQ(again.output, (std::vector<Token>{41, 42}));
  token(other, 7, 2, 666);  // still of the first attempt: dropped
  token(other, 7, 2, 43, 1);
  EXPECT_EQ(other.out.tokens.at(RequestId{7}), (std::vector<Token>{41, 42, 43}));
}

TEST(GlobalScheduler, AnErrorOfTheInstanceIsRetriedAndOneOfTheRequestIsNot) {
  struct Case {
    ErrorCode code;
    bool retried;
  };
  for (const Case& c : {Case{ErrorCode::kUnavailable, true}, Case{ErrorCode::kTransport, true},
                        Case{ErrorCode::kBusy, true}, Case{ErrorCode::kInvalidArgument, false},
                        Case{ErrorCode::kNeverFits, false}, Case{ErrorCode::kInternal, false}}) {
    SCOPED_TRACE(static_cast<int>(c.code));
    World w;
    w.report(1);
    w.submit(7);
    for (std::int32_t attempt = 0; attempt < 3; ++attempt) {
      TokenEvent event;
      event.request = RequestId{7};
      event.attempt = attempt;
      event.finish = FinishReason::kError;
      event.error = {c.code, "no", 0};
      w.scheduler.on_tokens({event}, w.now);
      const bool last = attempt == 2 || !c.retried;
      EXPECT_EQ(w.out.ended.contains(RequestId{7}), last);
      if (last) break;
      EXPECT_EQ(w.instances.taken[RequestId{7}].attempt, attempt) << "at once, where it failed";
      w.report(1);
      EXPECT_EQ(w.instances.taken[RequestId{7}].attempt, attempt + 1);
    }
    EXPECT_EQ(w.end_of(7).error.code, c.code);
    EXPECT_TRUE(w.scheduler.idle());
  }
}

TEST(GlobalScheduler, AGapInTheTokensIsAnErrorNotASilence) {
  World w;
  w.report(1);
  w.submit(7);
  token(w, 7, 0, 1);
  token(w, 7, 2, 3);
  EXPECT_EQ(w.end_of(7).error.message, "instance 1 sent token 2 where 1 was due");
  EXPECT_EQ(w.instances.cancelled.size(), 1U);
  token(w, 7, 3, 4);  // too late
  EXPECT_EQ(w.out.tokens.at(RequestId{7}).size(), 1U);
}

TEST(GlobalScheduler, WhatWasCancelledIsNotTriedAgain) {
  World w;
  w.report(1);
  w.submit(7);
  w.scheduler.cancel(RequestId{7}, w.now);
  w.report(2);
  lose(w, 1);
  EXPECT_EQ(w.end_of(7).finish, FinishReason::kCancelled);
  EXPECT_TRUE(w.scheduler.idle());
}

TEST(GlobalScheduler, AHungInstanceIsAbandoned) {
  World w({.silence_limit = 30s});
  w.report(1);
  w.submit(7);
  w.now += 29s;
  w.report(2);
  w.scheduler.tick(w.now);
  EXPECT_TRUE(w.instances.abandoned.empty());
  w.now += 1s;
  w.scheduler.tick(w.now);
  EXPECT_THAT(w.instances.abandoned, testing::ElementsAre(InstanceId{1}));
  EXPECT_EQ(w.instances.sent[RequestId{7}].instance, InstanceId{2});
  w.report(1);  // too late: this life is over
  EXPECT_EQ(w.scheduler.loads().find(InstanceId{1}), nullptr);
}

TEST(GlobalScheduler, ARestartMovesWhatTheOldLifeHeld) {
  World w;
  w.report(1);
  w.submit(1);
  LoadReport reborn = idle_report(1, 1);
  reborn.incarnation = Incarnation{2};
  w.scheduler.on_report(reborn, w.now);
  EXPECT_EQ(w.instances.sent[RequestId{1}].incarnation, Incarnation{2});
  EXPECT_EQ(w.instances.taken[RequestId{1}].attempt, 1);
  EXPECT_EQ(w.scheduler.loads().find(InstanceId{1})->ledger.requests, 1);
  // Word of the old life's end comes late and changes nothing.
  w.scheduler.instance_gone(InstanceId{1}, Incarnation{1}, {}, w.now);
  EXPECT_TRUE(w.out.ended.empty());
  EXPECT_NE(w.scheduler.loads().find(InstanceId{1}), nullptr);
}

TEST(GlobalScheduler, WhatAnInstanceCancelsUnaskedGoesOnAndWhatTheClientCancelsEnds) {
  for (const bool asked : {false, true}) {
    SCOPED_TRACE(asked);
    World w;
    w.report(1);
    w.submit(7);
    token(w, 7, 0, 41);
    if (asked) w.scheduler.cancel(RequestId{7}, w.now);
    TokenEvent event;
    event.request = RequestId{7};
    event.finish = FinishReason::kCancelled;
    w.scheduler.on_tokens({event}, w.now);
    w.report(1);
    if (asked) {
      EXPECT_EQ(w.end_of(7).finish, FinishReason::kCancelled);
      continue;
    }
    EXPECT_TRUE(w.out.ended.empty());
    token(w, 7, 1, 42, 1);  // of the second attempt
    EXPECT_EQ(w.out.tokens.at(RequestId{7}), (std::vector<Token>{41, 42}));
  }
}

TEST(GlobalScheduler, NothingIsTriedAgainWhenTheProcessEnds) {
  World w;
  w.report(1);
  w.report(2);
  w.submit(7);
  w.scheduler.stop_retrying();
  lose(w, w.instances.sent[RequestId{7}].instance.value);
  EXPECT_EQ(w.end_of(7).error.code, ErrorCode::kUnavailable);
}

TEST(GlobalScheduler, DrainRefusesNewRequestsAndServesQueuedOnes) {
  World w;
  w.submit(1);
  w.scheduler.drain();
  w.submit(2);
  EXPECT_EQ(w.end_of(2).error.code, ErrorCode::kUnavailable);
  w.report(1);
  EXPECT_EQ(w.instances.sent.size(), 1U);
  EXPECT_FALSE(w.scheduler.idle());
  w.finish(1);
  EXPECT_TRUE(w.scheduler.idle());
}

TEST(GlobalScheduler, FollowsPrefixes) {
  World w;
  for (std::uint32_t i = 0; i < 10; ++i) w.report(i);
  const auto submit = [&](std::uint64_t id, Token last) {
    auto request = std::make_unique<Request>();
    request->id = RequestId{id};
    request->prompt.assign(2000, 5);
    request->prompt.push_back(last);
    request->max_tokens = 10;
    w.scheduler.submit(std::move(request), w.now);
    const InstanceId used = w.instances.sent[RequestId{id}].instance;
    w.finish(id);
    return used;
  };
  const InstanceId first = submit(1, 1);
  for (std::uint64_t id = 2; id < 20; ++id) {
    EXPECT_EQ(submit(id, static_cast<Token>(id)), first);
  }
}

TEST(GlobalScheduler, KeepsTheLast256Decisions) {
  World w;
  for (std::uint64_t id = 1; id <= 300; ++id) {
    w.report(1);
    w.submit(id, 10, 1);
    w.finish(id);
  }
  const ClusterSnapshot s = w.scheduler.snapshot(w.now);
  ASSERT_EQ(s.decisions.size(), 256U);
  EXPECT_EQ(s.decisions.back().request, RequestId{300});
  EXPECT_EQ(s.placement_count, 300);
}

}  // namespace
}  // namespace sluice
