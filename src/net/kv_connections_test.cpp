// What connections for KV keep, whatever carries it.
#include <gtest/gtest.h>

#include "net/kv_connections_test_support.h"

namespace sluice {
namespace {

class Connections : public testing::TestWithParam<Carrier> {};

TEST_P(Connections, KvArrivesWhereItIsExpected) {
  // Slices that no block is a multiple of, and frames of few blocks.
  Ends e(GetParam(), {.frame_bytes = 7 * kBlock, .slice_bytes = 1000, .checksum = true});
  e.expect(100, 250);
  ASSERT_TRUE(e.join());
  ASSERT_TRUE(e.start(1, 0, 100, 150));
  ASSERT_TRUE(e.start(2, 150, 250, 100));  // they take turns
  ASSERT_TRUE(e.start(3, 0, 0, 0));
  EXPECT_FALSE(e.source.idle());
  ASSERT_TRUE(e.wait_done(3));
  for (const TransferDone& d : e.done) {
    EXPECT_EQ(d.outcome, TransferOutcome::kDone) << d.error.message;
    EXPECT_STREQ(d.transport, e.source.transport());
    const std::size_t blocks = d.ticket.value == 1 ? 150 : d.ticket.value == 2 ? 100 : 0;
    EXPECT_EQ(d.bytes, static_cast<std::int64_t>(blocks * kBlock));
  }
  for (std::int32_t b = 0; b < kBlocks; ++b) {
    EXPECT_EQ(e.to.value_of(b), b >= 100 && b < 350 ? value_of_source(b - 100) : 0) << b;
  }
  EXPECT_TRUE(e.source.idle());
  EXPECT_FALSE(e.source.busy());
}

TEST_P(Connections, WhatIsNotReservedIsNotWritten) {
  Ends e(GetParam(), {.frame_bytes = 4 * kBlock});
  e.expect(10, 10);
  ASSERT_TRUE(e.join());
  ASSERT_TRUE(e.start(1, 0, 10, 10, {kKey.request, 2, 0}));  // another attempt
  ASSERT_TRUE(e.wait_done(1));
  EXPECT_EQ(e.done[0].outcome, TransferOutcome::kFailed);
  EXPECT_EQ(e.done[0].error.code, ErrorCode::kNotFound);
  ASSERT_TRUE(e.start(2, 0, 15, 10));  // half of it is somebody else's
  ASSERT_TRUE(e.wait_done(2));
  EXPECT_EQ(e.done[1].error.code, ErrorCode::kInvalidArgument);
  for (std::int32_t b = 20; b < kBlocks; ++b) EXPECT_EQ(e.to.value_of(b), 0);
  ASSERT_TRUE(e.start(3, 0, 10, 10));
  ASSERT_TRUE(e.wait_done(3));
  EXPECT_EQ(e.done[2].outcome, TransferOutcome::kDone);
  EXPECT_EQ(e.to.value_of(19), value_of_source(9));
}

TEST_P(Connections, NobodyIsReachedWithoutTheSecret) {
  Ends e(GetParam(), {.first_retry = std::chrono::milliseconds(5)});
  std::string wrong = e.secret;
  wrong[3] ^= 1;
  for (const std::string& secret : {wrong, std::string(), std::string(16, '\0')}) {
    e.source.connect(kTarget, "127.0.0.1", e.target.port(), secret);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(e.source.reaches(kTarget));
    EXPECT_EQ(e.start(1, 0, 0, 1).error().code, ErrorCode::kUnavailable);
  }
  e.source.connect(kTarget, "no such host.invalid", 1, e.secret);
  EXPECT_TRUE(e.join());
  e.target.forget(e.secret);
  EXPECT_TRUE(Ends::wait([&] { return !e.source.reaches(kTarget); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(e.source.reaches(kTarget)) << "a way that was forgotten";
}

TEST_P(Connections, AfterCloseNothingIsWritten) {
  Ends e(GetParam(), {.frame_bytes = 40 * kBlock, .slice_bytes = 512});
  ASSERT_TRUE(e.join());
  for (std::uint64_t ticket = 1; ticket <= 40; ++ticket) {
    const HandoffKey key{RequestId{ticket}, 1, 0};
    e.expect(0, 200, key);
    ASSERT_TRUE(e.start(ticket, 0, 0, 200, key));
    std::this_thread::sleep_for(std::chrono::microseconds(20 * ticket));
    e.target.close(key.request);
    for (std::int32_t b = 0; b < 200; ++b) e.to.fill(b, 255);  // its next owner's
    ASSERT_TRUE(e.wait_done(ticket));
    for (std::int32_t b = 0; b < 200; ++b) ASSERT_EQ(e.to.value_of(b), 255);
  }
}

TEST_P(Connections, AfterCancelNothingIsRead) {
  Ends e(GetParam(), {.frame_bytes = 40 * kBlock, .slice_bytes = 512});
  ASSERT_TRUE(e.join());
  e.expect(0, 400);
  for (std::uint64_t ticket = 1; ticket <= 40; ++ticket) {
    ASSERT_TRUE(e.start(ticket, 0, 0, 200));
    std::this_thread::sleep_for(std::chrono::microseconds(20 * ticket));
    e.source.cancel(TransferTicket{ticket});
    for (std::int32_t b = 0; b < 200; ++b) e.from.fill(b, 255);  // its next owner's
    ASSERT_TRUE(e.wait_done(ticket));
    EXPECT_NE(e.done.back().outcome, TransferOutcome::kFailed);
    for (std::int32_t b = 0; b < 200; ++b) e.from.fill(b, value_of_source(b));
  }
  // What was padding may still be on its way.
  e.target.close(kKey.request);
  for (std::int32_t b = 0; b < 200; ++b) EXPECT_NE(e.to.value_of(b), 255);
  e.expect(0, 400);
  ASSERT_TRUE(e.start(50, 0, 200, 200));
  ASSERT_TRUE(e.wait_done(41));
  for (std::int32_t b = 0; b < 200; ++b) EXPECT_EQ(e.to.value_of(200 + b), value_of_source(b));
}

TEST_P(Connections, WhatIsOnItsWayEndsWithTheConnection) {
  Ends e(GetParam(), {.frame_bytes = 10 * kBlock, .first_retry = std::chrono::milliseconds(10)});
  e.expect(0, kBlocks);
  ASSERT_TRUE(e.join());
  std::uint64_t ticket = 0;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(e.start(++ticket, 0, 0, kBlocks));
    if (round % 2 == 0) {
      e.target.forget(e.secret);  // its end: the source cannot come back
    } else {
      e.source.disconnect(kTarget);
    }
    ASSERT_TRUE(e.wait_done(ticket));
    e.secret = e.target.admit();
    ASSERT_TRUE(Ends::wait([&] { return !e.source.reaches(kTarget); }));
    ASSERT_TRUE(e.join());
  }
  e.expect_done_or_lost(ticket);
}

TEST_P(Connections, SoManyAtATimeAndNoMore) {
  Ends e(GetParam(), {.max_in_flight = 3});
  ASSERT_TRUE(e.join());
  e.expect(0, kBlocks);
  for (std::uint64_t t = 1; t <= 3; ++t) ASSERT_TRUE(e.start(t, 0, 0, kBlocks));
  EXPECT_EQ(e.start(4, 0, 0, 1).error().code, ErrorCode::kBusy);
  EXPECT_EQ(
      e.source.start(TransferTicket{5}, {InstanceId{9}, Incarnation{1}, kKey, ""}, {}).error().code,
      ErrorCode::kUnavailable);
  ASSERT_TRUE(e.wait_done(3));
  EXPECT_EQ(e.start(6, kBlocks - 1, 0, 2).error().code, ErrorCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(By, Connections,
                         testing::Values(
#if SLUICE_UCX
                             Carrier::kUcx,
#endif
                             Carrier::kTcp),
                         [](const testing::TestParamInfo<Carrier>& by) {
                           return by.param == Carrier::kTcp ? "Tcp" : "Ucx";
                         });

}  // namespace
}  // namespace sluice
