// What handoffs keep, whatever joins the instances: one process or sockets.
#include "net/handoff_test_support.h"

namespace sluice {
namespace {

class Handoffs : public testing::TestWithParam<Joined> {};

TEST_P(Handoffs, AnswersAreThoseOfOneInstance) {
  ApartCluster c(GetParam(), {.prefill = 2, .decode = 2});
  ASSERT_TRUE(c.wait_ready());
  constexpr std::uint64_t kRequests = 80;
  const auto tokens = [](std::uint64_t id) { return static_cast<std::int32_t>(1 + id % 60); };
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    ASSERT_TRUE(c.submit(id, 5 + id % 40, tokens(id)));
  }
  ASSERT_TRUE(c.recorder.wait_finished(c.warmed() + kRequests));
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    const auto r = c.request(id, 5 + id % 40, tokens(id));
    EXPECT_EQ(c.recorder.answer(id).tokens, c.model.expected_output(r->prompt, tokens(id))) << id;
  }
  EXPECT_EQ(c.recorder.violations(), 0);
  EXPECT_TRUE(c.wait_empty());
  EXPECT_TRUE(ApartCluster::wait([&] {
    const HandoffStats sum = c.total();
    return sum.taken >= static_cast<std::int64_t>(kRequests / 8) &&
           sum.taken == sum.source.total()[0];
  }));
  const HandoffStats sum = c.total();
  ASSERT_TRUE(sum.transfer.bytes.contains(c.transport()));
  EXPECT_GT(sum.transfer.bytes.at(c.transport()), 0);
  EXPECT_GT(sum.source.outcomes.at(c.transport())[0], 0);
  // What goes before a connection of its own is there goes over the stream.
  EXPECT_TRUE(sum.transfer.bytes.size() == 1 || GetParam() == Joined::kTcp ||
              GetParam() == Joined::kUcx);
}

TEST_P(Handoffs, BothPlacementsAreOnRecord) {
  ApartCluster c(GetParam(), {.prefill = 1, .decode = 2});
  ASSERT_TRUE(c.wait_ready());
  std::map<InstanceId, Role> roles;
  for (const InstanceSnapshot& i : c.serving().snapshot()->instances) {
    roles[i.report.instance] = i.report.role;
  }
  EXPECT_TRUE(ApartCluster::wait([&] {
    std::map<RequestId, int> placements;
    for (const Decision& d : c.serving().snapshot()->decisions) {
      if (!d.placement) continue;
      placements[d.request] |= d.by ? 2 : 1;
      EXPECT_EQ(roles.at(d.placement->instance), d.role);
      if (!d.by) continue;
      EXPECT_EQ(roles.at(*d.by), Role::kPrefill);
      EXPECT_FALSE(d.candidates.empty());
      for (const Candidate& candidate : d.candidates) {
        EXPECT_TRUE(roles.contains(candidate.instance));
      }
    }
    return std::any_of(placements.begin(), placements.end(),
                       [](const auto& p) { return p.second == 3; });
  }));
}

TEST_P(Handoffs, CancelReachesARequestWhereverItIs) {
  ApartCluster c(GetParam(), {.prefill = 1, .decode = 2});
  ASSERT_TRUE(c.wait_ready());
  constexpr std::uint64_t kRequests = 60;
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    ASSERT_TRUE(c.submit(id, 10 + id % 30, 300));
    if (id % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2 * (id % 7)));
    if (id > 4) c.serving().cancel(RequestId{id - 4});
  }
  for (std::uint64_t id = 1; id <= kRequests; ++id) c.serving().cancel(RequestId{id});
  ASSERT_TRUE(c.recorder.wait_finished(c.warmed() + kRequests));
  EXPECT_EQ(c.recorder.violations(), 0);
  EXPECT_TRUE(c.wait_empty());
}

TEST_P(Handoffs, ADecodeInstanceWhoseEngineFailsTakesOnlyItsOwnWithIt) {
  ApartCluster c(GetParam(), {.prefill = 1,
                              .decode = 2,
                              .failing = 1,
                              .failure = PacedRunner::Failure::kThrow,
                              .fail_at = 40});
  ASSERT_TRUE(c.wait_ready());
  constexpr std::uint64_t kRequests = 60;
  for (std::uint64_t id = 1; id <= kRequests; ++id) ASSERT_TRUE(c.submit(id, 20, 30));
  ASSERT_TRUE(c.recorder.wait_finished(c.warmed() + kRequests));
  std::uint64_t right = 0;
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    const auto answer = c.recorder.answer(id);
    if (answer.finish == FinishReason::kError) continue;
    const auto r = c.request(id, 20, 30);
    EXPECT_EQ(answer.tokens, c.model.expected_output(r->prompt, 30)) << id;
    ++right;
  }
  EXPECT_GT(right, kRequests / 2);
  EXPECT_EQ(c.recorder.violations(), 0);
}

TEST_P(Handoffs, StopEndsWhatIsOnItsWay) {
  for (int i = 0; i < 4; ++i) {
    ApartCluster c(GetParam(), {.prefill = 2, .decode = 1});
    ASSERT_TRUE(c.wait_ready());
    for (std::uint64_t id = 1; id <= 30; ++id) ASSERT_TRUE(c.submit(id, 20, 200));
    std::this_thread::sleep_for(std::chrono::milliseconds(4 * i));
    c.stop();
    // A decode instance that has just begun may show a token after the end; gateways drop it.
    for (std::uint64_t id = 1; id <= 30; ++id) {
      EXPECT_NE(c.recorder.answer(id).finish, FinishReason::kNone) << id;
    }
  }
}

std::string joined_name(const testing::TestParamInfo<Joined>& info) {
  switch (info.param) {
    case Joined::kOneProcess: return "OneProcess";
    case Joined::kSockets: return "Sockets";
    case Joined::kTcp: return "Tcp";
    case Joined::kUcx: return "Ucx";
    case Joined::kSharedHost: return "SharedHost";
  }
  return "";
}
INSTANTIATE_TEST_SUITE_P(Joined, Handoffs,
                         testing::Values(Joined::kOneProcess, Joined::kSockets, Joined::kTcp,
#if SLUICE_UCX
                                         Joined::kUcx,
#endif
                                         Joined::kSharedHost),
                         joined_name);

// --- What only processes can do ----------------------------------------------------

TEST(RemoteHandoff, ALostDecodeInstanceIsNotSeen) {
  ApartCluster c(Joined::kSharedHost, {.prefill = 2, .decode = 2});
  ASSERT_TRUE(c.wait_ready());
  constexpr std::uint64_t kRequests = 40;
  for (std::uint64_t id = 1; id <= kRequests; ++id) ASSERT_TRUE(c.submit(id, 20, 100));
  for (std::uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(c.recorder.wait_tokens(RequestId{id}, 3));
  }
  c.lose(2);
  ASSERT_TRUE(c.recorder.wait_finished(c.warmed() + kRequests));
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    const auto answer = c.recorder.answer(id);
    EXPECT_EQ(answer.finish, FinishReason::kLength) << id << ": " << answer.error.message;
    EXPECT_EQ(answer.tokens, c.model.expected_output(c.request(id, 20, 1)->prompt, 100)) << id;
  }
  EXPECT_EQ(c.recorder.violations(), 0);
  EXPECT_TRUE(c.wait_empty());
}

TEST(RemoteHandoff, WhatRunsOnADrainedInstanceGoesOnElsewhere) {
  ApartCluster c(Joined::kSockets,
                 {.prefill = 1, .decode = 2, .step = std::chrono::milliseconds(4)});
  ASSERT_TRUE(c.wait_ready());
  constexpr std::int32_t kTokens = 450;  // nearly two seconds, and both fit in one instance
  for (std::uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(c.submit(id, 20, kTokens));
  ASSERT_TRUE(ApartCluster::wait([&] { return c.active(1) > 0 && c.active(0) == 0; }));
  c.drain(1);
  ASSERT_TRUE(ApartCluster::wait([&] { return c.active(1) == 0; }));
  EXPECT_EQ(c.recorder.finished(), c.warmed()) << "they ended before they had moved";
  c.lose(1);  // nobody needs it any more
  ASSERT_TRUE(c.recorder.wait_finished(c.warmed() + 2));
  for (std::uint64_t id = 1; id <= 2; ++id) {
    const auto answer = c.recorder.answer(id);
    EXPECT_EQ(answer.finish, FinishReason::kLength) << id << ": " << answer.error.message;
    EXPECT_EQ(answer.tokens, c.model.expected_output(c.request(id, 20, 1)->prompt, kTokens)) << id;
  }
  EXPECT_EQ(c.recorder.violations(), 0);
  EXPECT_EQ(c.serving().snapshot()->retries, 0);  // nothing was computed again
  EXPECT_TRUE(c.wait_empty());
}

TEST(RemoteHandoff, ALostPrefillInstanceIsNotSeen) {
  ApartCluster c(Joined::kSockets, {.prefill = 2, .decode = 2});
  ASSERT_TRUE(c.wait_ready());
  constexpr std::uint64_t kRequests = 40;
  for (std::uint64_t id = 1; id <= kRequests; ++id) ASSERT_TRUE(c.submit(id, 200, 60));
  ASSERT_TRUE(c.recorder.wait_tokens(RequestId{1}, 2));
  c.lose(0);
  ASSERT_TRUE(c.recorder.wait_finished(c.warmed() + kRequests));
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    const auto answer = c.recorder.answer(id);
    EXPECT_EQ(answer.finish, FinishReason::kLength) << id << ": " << answer.error.message;
    EXPECT_EQ(answer.tokens, c.model.expected_output(c.request(id, 200, 1)->prompt, 60)) << id;
  }
  EXPECT_EQ(c.recorder.violations(), 0);
  EXPECT_TRUE(c.wait_empty());
}

TEST(LocalHandoff, RolesNeedOneArena) {
  ApartCluster c(Joined::kOneProcess);
  std::vector<LocalInstance> decode_only;
  decode_only.push_back({{}, nullptr, nullptr, Role::kDecode});
  const auto started =
      LocalCluster::start({}, std::move(decode_only), c.samplers, c.clock, c.recorder);
  EXPECT_EQ(started.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
