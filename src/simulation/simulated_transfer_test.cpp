#include "simulation/simulated_transfer.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kBlockBytes = 1'000'000;
constexpr HandoffKey kKey{RequestId{7}, 1, 0};

// Instance 0 sends to 1 over a link that needs 1 ms a block and 2 ms to get there.
struct Links {
  Links() { clock.set(TimePoint{1h}); }
  SimulatedTransferOptions options(std::uint32_t instance) const {
    return {.self = {InstanceId{instance}, Incarnation{1}},
            .block_bytes = kBlockBytes,
            .bytes_per_s = 1e9,
            .latency = 2ms};
  }
  Status start(std::uint64_t ticket, int blocks, Incarnation to = Incarnation{1}) {
    std::vector<BlockMove> moves(static_cast<std::size_t>(blocks));
    return sender.start(TransferTicket{ticket}, {InstanceId{1}, to, kKey, ""}, std::move(moves));
  }
  std::vector<TransferDone> at(Duration time) {
    clock.set(begin + time);
    std::vector<TransferDone> done;
    sender.poll(done);
    return done;
  }

  ManualClock clock;
  Trace trace;
  std::unique_ptr<SimulatedModel> model = make_trace_model(trace, {});
  KvFabric fabric{2};
  const TimePoint begin{1h};
  SimulatedTransfer sender{options(0), clock, fabric, *model};
  std::optional<SimulatedTransfer> receiver{std::in_place, options(1), clock, fabric, *model};
};

TEST(SimulatedTransfer, TransfersShareTheirInstancesLink) {
  Links links;
  links.receiver->expect(kKey, {});
  ASSERT_TRUE(links.start(1, 10));
  ASSERT_TRUE(links.start(2, 5));
  EXPECT_EQ(links.sender.next_end(), links.begin + 12ms);
  EXPECT_TRUE(links.at(11ms).empty());
  const auto first = links.at(12ms);
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].outcome, TransferOutcome::kDone);
  EXPECT_EQ(first[0].bytes, 10 * kBlockBytes);
  EXPECT_EQ(links.sender.next_end(), links.begin + 17ms);
  EXPECT_EQ(links.at(17ms).size(), 1U);
  EXPECT_TRUE(links.sender.idle());
  EXPECT_EQ(links.sender.next_end(), TimePoint::max());
}

TEST(SimulatedTransfer, NothingToSendIsDoneAtOnce) {
  Links links;
  links.receiver->expect(kKey, {});
  ASSERT_TRUE(links.start(1, 0));
  EXPECT_EQ(links.at(0ms).size(), 1U);
}

TEST(SimulatedTransfer, ItWaitsOutAPartition) {
  Links links;
  links.receiver->expect(kKey, {});
  ASSERT_TRUE(links.start(1, 10));
  links.fabric.cut(InstanceId{1}, links.begin + 30ms);
  EXPECT_TRUE(links.at(29ms).empty());
  EXPECT_EQ(links.at(30ms).size(), 1U);
}

TEST(SimulatedTransfer, ItFailsWhereNobodyExpectsIt) {
  const auto outcome = [](Links& links) {
    const auto done = links.at(12ms);
    return done.size() == 1 ? done[0].outcome : TransferOutcome::kDone;
  };
  Links unwanted;
  ASSERT_TRUE(unwanted.start(1, 10));
  EXPECT_EQ(outcome(unwanted), TransferOutcome::kFailed);
  Links closed;
  closed.receiver->expect(kKey, {});
  ASSERT_TRUE(closed.start(1, 10));
  closed.receiver->close(kKey.request);
  EXPECT_EQ(outcome(closed), TransferOutcome::kFailed);
  Links dead;
  dead.receiver->expect(kKey, {});
  ASSERT_TRUE(dead.start(1, 10));
  dead.receiver.reset();
  EXPECT_EQ(outcome(dead), TransferOutcome::kFailed);
  Links another;
  another.receiver->expect(kKey, {});
  ASSERT_TRUE(another.start(1, 10, Incarnation{2}));
  EXPECT_EQ(outcome(another), TransferOutcome::kFailed);
}

TEST(SimulatedTransfer, WhatIsCancelledEndsAtOnceAndHasUsedItsTime) {
  Links links;
  links.receiver->expect(kKey, {});
  ASSERT_TRUE(links.start(1, 10));
  links.sender.cancel(TransferTicket{1});
  const auto done = links.at(1ms);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, TransferOutcome::kCancelled);
  EXPECT_EQ(done[0].bytes, 0);
  ASSERT_TRUE(links.start(2, 1));
  EXPECT_EQ(links.sender.next_end(), links.begin + 13ms);
}

}  // namespace
}  // namespace sluice
