#include "engine/waiting_queue.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice {
namespace {

struct World {
  WaitingQueue queue;
  Tenants tenants;
  std::uint64_t next_id = 1;

  Sequence& add(const std::string& tenant = {}, std::int32_t priority = 0, bool ran = false) {
    auto s = std::make_unique<Sequence>();
    s->id = SequenceId{next_id};
    s->request = std::make_unique<Request>();
    s->request->id = RequestId{next_id++};
    s->request->priority = priority;
    s->tenant = tenants.enter(tenant);
    if (ran) s->admitted_at = TimePoint{};
    Sequence& added = *s;
    queue.add(std::move(s));
    return added;
  }
  std::string order() {
    std::string text;
    for (const Sequence* s : queue.order(tenants)) text += std::to_string(s->id.value) + " ";
    return text;
  }
};

TEST(WaitingQueue, ByPriorityThenThoseThatRanThenArrival) {
  World w;
  w.add();
  w.add({}, 5);
  w.add();
  w.add({}, 0, /*ran=*/true);
  w.add({}, 5);
  w.add({}, -1, /*ran=*/true);
  EXPECT_EQ(w.order(), "2 5 4 1 3 6 ");
}

TEST(WaitingQueue, TheTenantServedLeastGoesFirst) {
  World w;
  w.add("busy");
  w.add("busy");
  Sequence& quiet = w.add("quiet");
  w.tenants.charge(w.queue.items()[0]->tenant, 100);
  EXPECT_EQ(w.order(), "3 1 2 ");
  w.tenants.charge(quiet.tenant, 200);
  EXPECT_EQ(w.order(), "1 2 3 ");
  w.add("quiet", 1);  // priority comes before fairness,
  EXPECT_EQ(w.order(), "4 1 2 3 ");
  w.add("quiet", 0, /*ran=*/true);  // and so does having run
  EXPECT_EQ(w.order(), "4 5 1 2 3 ");
}

// One that floods the queue gets no more than its half beside one that keeps up.
TEST(WaitingQueue, SharesAreEqualWhoeverAsksMore) {
  World w;
  for (int i = 0; i < 200; ++i) w.add("flood");
  std::int32_t flood = 0;
  std::int32_t modest = 0;
  for (int i = 0; i < 100; ++i) {
    if (i % 2 == 0) w.add("modest");
    const Sequence& next = *w.queue.order(w.tenants).front();
    w.tenants.charge(next.tenant, 10);
    (next.id.value <= 200 ? flood : modest) += 1;
    const auto taken = w.queue.take(next);
    w.tenants.leave(taken->tenant);
  }
  EXPECT_EQ(modest, 50);
  EXPECT_EQ(flood, 50);
}

TEST(WaitingQueue, TakesAndFinds) {
  World w;
  w.add();
  const Sequence& second = w.add();
  EXPECT_EQ(w.queue.find(RequestId{2}), &second);
  EXPECT_EQ(w.queue.find(RequestId{9}), nullptr);
  EXPECT_EQ(w.queue.take(second)->id, SequenceId{2});
  EXPECT_EQ(w.queue.find(RequestId{2}), nullptr);
  EXPECT_EQ(w.queue.size(), 1U);
}

}  // namespace
}  // namespace sluice
