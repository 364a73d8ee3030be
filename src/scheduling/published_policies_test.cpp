#include <gtest/gtest.h>

#include "scheduling/ledger.h"
#include "scheduling/load_table.h"
#include "scheduling/placement.h"
#include "scheduling/test_support.h"

namespace sluice {
namespace {

// Three instances: 0 holds the prefix and much else, 1 has many short sequences,
// 2 computes a long prompt beside few.
LoadTable table_of(double busy = 1) {
  LoadTable table;
  LoadReport a = idle_report(0);
  a.running_sequences = 8;
  a.context_tokens = static_cast<std::int64_t>(12000 * busy);
  LoadReport b = idle_report(1);
  b.running_sequences = static_cast<std::int32_t>(40 * busy);
  b.context_tokens = 4000;
  b.uncomputed_tokens = 300;
  LoadReport c = idle_report(2);
  c.running_sequences = 3;
  c.context_tokens = 2000;
  c.uncomputed_tokens = 6000;
  c.waiting_requests = 1;
  c.waiting_tokens = 6000;
  for (LoadReport* r : {&a, &b, &c}) table.update(std::move(*r), kTestStart);
  return table;
}

std::uint32_t choice(const char* name, const LoadTable& table, std::int32_t cached_at_0 = 900) {
  PlacementQuery query{.request = RequestId{1},
                       .prompt_tokens = 1000,
                       .max_new_tokens = 100,
                       .cached = {{InstanceId{0}, cached_at_0}},
                       .now = kTestStart};
  const auto policy = make_policy(name, {}, Rng(1));
  const Decision d = policy->place(query, table);
  EXPECT_EQ(d.outcome, PlacementOutcome::kPlaced) << name;
  EXPECT_EQ(d.candidates.size(), 3U) << name;
  return d.placement->instance.value;
}

TEST(PublishedPolicies, EachLooksAtWhatItIsKnownFor) {
  const LoadTable table = table_of();
  EXPECT_EQ(choice("prefix-affinity", table), 0U);       // the prefix
  EXPECT_EQ(choice("prefix-affinity", table, 100), 1U);  // too short: the most free cache
  EXPECT_EQ(choice("vllm-dp", table), 2U);               // the fewest requests
  EXPECT_EQ(choice("llm-d", table), 0U);                 // 3 x prefix outweighs
  EXPECT_EQ(choice("dynamo", table), 1U);                // the fewest blocks in all
  EXPECT_EQ(choice("lmetric", table), 0U);               // 100 x 9 tokens x sequences
  EXPECT_EQ(choice("mooncake", table), 0U);              // the soonest first token
  EXPECT_EQ(choice("llumnix", table), 1U);               // the freest below both thresholds
  EXPECT_EQ(choice("polyserve", table), 0U);             // the fullest that still meets both
}

TEST(PublishedPolicies, TheLedgerCounts) {
  LoadTable table;
  for (std::uint32_t i = 0; i < 2; ++i) table.update(idle_report(i), kTestStart);
  Ledger ledger(table);
  ledger.add(RequestId{9}, InstanceId{0}, 4000, 300, kTestStart);
  for (const char* name : {"vllm-dp", "llm-d", "dynamo", "lmetric", "mooncake", "llumnix"}) {
    PlacementQuery query{
        .request = RequestId{1}, .prompt_tokens = 500, .max_new_tokens = 50, .now = kTestStart};
    const auto policy = make_policy(name, {}, Rng(2));
    EXPECT_EQ(policy->place(query, table).placement->instance, InstanceId{1}) << name;
  }
}

TEST(PublishedPolicies, TiesAreDrawn) {
  LoadTable table;
  for (std::uint32_t i = 0; i < 8; ++i) table.update(idle_report(i), kTestStart);
  for (const char* name : policy_names()) {
    const auto policy = make_policy(name, {}, Rng(5));
    std::array<int, 8> hits{};
    for (int k = 0; k < 800; ++k) {
      PlacementQuery query{
          .request = RequestId{1}, .prompt_tokens = 50, .max_new_tokens = 50, .now = kTestStart};
      hits[policy->place(query, table).placement->instance.value] += 1;
    }
    for (const int n : hits) EXPECT_NEAR(n, 100, 45) << name;
  }
}

}  // namespace
}  // namespace sluice
