#include "engine/tenants.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice {
namespace {

TEST(Tenants, ANewcomerStartsAtTheLeastOfThosePresent) {
  Tenants tenants;
  const std::size_t a = tenants.enter("a");
  tenants.charge(a, 100);
  const std::size_t b = tenants.enter("b");
  EXPECT_EQ(tenants.served(b), 100);
  tenants.charge(b, 50);
  const std::size_t c = tenants.enter("c");
  EXPECT_EQ(tenants.served(c), 100);
  EXPECT_EQ(tenants.present(), 3);
}

TEST(Tenants, NobodySavesUpCredit) {
  Tenants tenants;
  const std::size_t a = tenants.enter("a");
  const std::size_t b = tenants.enter("b");
  tenants.leave(b);
  tenants.charge(a, 1000);
  EXPECT_EQ(tenants.enter("b"), b);
  EXPECT_EQ(tenants.served(b), 1000);
  // Nor by being away when nobody is there.
  tenants.leave(a);
  tenants.leave(b);
  EXPECT_EQ(tenants.present(), 0);
  EXPECT_EQ(tenants.served(tenants.enter("c")), 1000);
}

TEST(Tenants, MemoryIsBounded) {
  Tenants tenants;
  const std::size_t kept = tenants.enter("kept");
  tenants.charge(kept, 7);
  for (int i = 0; i < 5000; ++i) tenants.leave(tenants.enter("t" + std::to_string(i)));
  EXPECT_EQ(tenants.remembered(), Tenants::kMost);
  EXPECT_EQ(tenants.enter("kept"), kept);
  // All are here: who comes now shares the nameless count.
  for (int i = 0; i < 5000; ++i) (void)tenants.enter("u" + std::to_string(i));
  EXPECT_EQ(tenants.remembered(), Tenants::kMost);
  EXPECT_EQ(tenants.enter("one more"), 0U);
}

}  // namespace
}  // namespace sluice
