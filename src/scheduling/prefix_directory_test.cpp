#include "scheduling/prefix_directory.h"

#include <gtest/gtest.h>

#include <numeric>

#include "scheduling/load_table.h"
#include "scheduling/test_support.h"

namespace sluice {
namespace {

std::vector<Token> prompt_of(std::size_t length, Token first) {
  std::vector<Token> prompt(length);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

TEST(PrefixDirectory, FindsTheLongestCommonPrefix) {
  LoadTable table;
  table.update(idle_report(1), kTestStart);
  table.update(idle_report(2), kTestStart);
  PrefixDirectory directory;
  std::vector<Token> a = prompt_of(200, 5);
  directory.insert(prefix_hashes(a), InstanceId{1}, Incarnation{1});
  std::vector<Token> b = a;
  b.resize(100);
  directory.insert(prefix_hashes(b), InstanceId{2}, Incarnation{1});

  std::vector<Token> q = a;
  q[150] = -7;  // the mark before it is at 128
  const auto found = directory.find(prefix_hashes(q), table);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].instance, InstanceId{1});
  EXPECT_EQ(found[0].tokens, 128);
  EXPECT_EQ(found[1].tokens, 96);
  q[0] = -7;
  EXPECT_TRUE(directory.find(prefix_hashes(q), table).empty());
}

TEST(PrefixDirectory, TheLastTokenIsAlwaysComputed) {
  EXPECT_TRUE(prefix_hashes({}).empty());
  EXPECT_TRUE(prefix_hashes(prompt_of(32, 1)).empty());
  EXPECT_EQ(prefix_hashes(prompt_of(33, 1)).size(), 1U);
  EXPECT_EQ(prefix_hashes(prompt_of(2'000'000, 1)).size(), PrefixDirectory::kMarks);
}

TEST(PrefixDirectory, MarksLieASixteenthApart) {
  EXPECT_EQ(PrefixDirectory::mark(0), 32U);
  EXPECT_EQ(PrefixDirectory::mark(15), 512U);
  for (std::size_t i = 16; i < PrefixDirectory::kMarks; ++i) {
    const std::size_t gap = PrefixDirectory::mark(i) - PrefixDirectory::mark(i - 1);
    EXPECT_GE(gap, 32U);
    EXPECT_LE(gap * 16, PrefixDirectory::mark(i - 1));
  }
  EXPECT_LE(prefix_hashes(prompt_of(100'000, 1)).size(), 160U);
}

TEST(PrefixDirectory, KnowsLongPrefixesToo) {
  LoadTable table;
  table.update(idle_report(1), kTestStart);
  PrefixDirectory directory;
  std::vector<Token> a = prompt_of(60'000, 5);
  directory.insert(prefix_hashes(a), InstanceId{1}, Incarnation{1});
  a[50'000] = -7;
  const auto found = directory.find(prefix_hashes(a), table);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_LE(found[0].tokens, 50'000);
  EXPECT_GE(found[0].tokens, 46'800);
}

TEST(PrefixDirectory, ARestartedInstanceHoldsNothing) {
  LoadTable table;
  table.update(idle_report(1), kTestStart);
  PrefixDirectory directory;
  const auto hashes = prefix_hashes(prompt_of(100, 1));
  directory.insert(hashes, InstanceId{1}, Incarnation{1});
  EXPECT_EQ(directory.find(hashes, table).size(), 1U);
  LoadReport restarted = idle_report(1);
  restarted.incarnation = Incarnation{2};
  table.update(restarted, kTestStart);
  EXPECT_TRUE(directory.find(hashes, table).empty());
  directory.insert(hashes, InstanceId{1}, Incarnation{2});
  EXPECT_EQ(directory.find(hashes, table).size(), 1U);
}

TEST(PrefixDirectory, StaysBoundedAndForgetsTheOldestFirst) {
  LoadTable table;
  table.update(idle_report(1), kTestStart);
  PrefixDirectory directory(12);
  std::vector<std::vector<std::uint64_t>> prompts;
  for (Token i = 0; i < 6; ++i) prompts.push_back(prefix_hashes(prompt_of(100, 1000 * i)));
  for (const auto& hashes : prompts) {
    directory.insert(prompts[0], InstanceId{1}, Incarnation{1});  // always in use
    directory.insert(hashes, InstanceId{1}, Incarnation{1});
    EXPECT_LE(directory.size(), 12U);
  }
  EXPECT_EQ(directory.find(prompts[0], table).at(0).tokens, 96);
  EXPECT_EQ(directory.find(prompts[5], table).at(0).tokens, 96);
  EXPECT_TRUE(directory.find(prompts[1], table).empty());
}

TEST(PrefixDirectory, RemembersAFewHoldersOnly) {
  LoadTable table;
  PrefixDirectory directory;
  const auto hashes = prefix_hashes(prompt_of(100, 1));
  for (std::uint32_t i = 0; i < 10; ++i) {
    table.update(idle_report(i), kTestStart);
    directory.insert(hashes, InstanceId{i}, Incarnation{1});
  }
  const auto found = directory.find(hashes, table);
  EXPECT_EQ(found.size(), PrefixDirectory::kHolders);
  EXPECT_EQ(found.back().instance, InstanceId{9});
}

}  // namespace
}  // namespace sluice
