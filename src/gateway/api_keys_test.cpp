#include "gateway/api_keys.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "gateway/test_support.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr const char* kBody = R"({"model":"m","prompt":"0123456789","max_tokens":5})";

ApiKey limited(std::int64_t requests, std::int64_t tokens, std::int64_t concurrent) {
  return {"secret", "team", requests, tokens, concurrent};
}

TEST(ApiKeys, ComparesKeys) {
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  for (const char* other : {"", "ab", "abd", "abcabc", "bbc"}) {
    EXPECT_FALSE(equal_in_constant_time("abc", other));
    EXPECT_FALSE(equal_in_constant_time(other, "abc"));
  }
}

TEST(ApiKeys, SaysWhatIsWrongWithThem) {
  struct Case {
    std::vector<ApiKey> keys;
    const char* message;
  };
  for (const auto& [keys, message] : std::vector<Case>{
           {{ApiKey{}}, "empty"},
           {{ApiKey{"a"}, ApiKey{"a", "x"}}, "the same: x"},
           {{limited(0, -5, 0)}, "'team' is -5"},
           {{ApiKey{"a", "", 1}}, "needs a name"},
       }) {
    const Status status = check_api_keys(keys);
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find(message), std::string::npos) << status.error().message;
  }
  EXPECT_TRUE(check_api_keys({ApiKey{"a"}, ApiKey{"b"}, limited(1, 2, 3)}));
}

TEST(ApiKeys, RequestsOfAMinuteComeBackEvenly) {
  ManualClock clock;
  ApiKeys keys({limited(6, 0, 0)}, clock);
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(keys.admit(0)) << i;
  const auto refused = keys.admit(0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 429);
  EXPECT_EQ(refused.error().retry_after_s, 10);  // six a minute
  EXPECT_NE(refused.error().message.find("6 requests a minute of 'team'"), std::string::npos);
  EXPECT_EQ(refused.error().message.find("secret"), std::string::npos);
  clock.advance(std::chrono::milliseconds(10'001));
  EXPECT_TRUE(keys.admit(0));
  EXPECT_FALSE(keys.admit(0));
  clock.advance(std::chrono::hours(1));
  EXPECT_EQ(keys.state(0).requests.remaining, 6);  // no more than a minute's share
}

TEST(ApiKeys, TokensAreTakenWhenTheyAreKnown) {
  ManualClock clock;
  ApiKeys keys({limited(0, 600, 0)}, clock);
  {
    auto use = keys.admit(0);
    ASSERT_TRUE(use);
    use->spend(1'200);  // more than a minute's share: the debt is waited for
  }
  const auto refused = keys.admit(0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().retry_after_s, 61);  // ten a second, from -600 to 1
  EXPECT_EQ(keys.state(0).tokens.remaining, 0);
  clock.advance(std::chrono::seconds(61));
  EXPECT_TRUE(keys.admit(0));
}

TEST(ApiKeys, APlaceIsGivenBackHoweverTheUseEnds) {
  ManualClock clock;
  ApiKeys keys({limited(0, 0, 2)}, clock);
  auto first = keys.admit(0);
  ApiKeys::Use kept;
  kept = std::move(*keys.admit(0));
  EXPECT_FALSE(keys.admit(0));
  kept = std::move(*first);  // the second ends
  EXPECT_TRUE(keys.admit(0));
  kept = ApiKeys::Use();
  EXPECT_TRUE(keys.admit(0));
}

class LimitedGateway : public testing::Test {
 protected:
  static GatewayOptions options(ApiKey key) {
    GatewayOptions all;
    all.port = 0;
    all.api_keys = {std::move(key)};
    return all;
  }
};

TEST_F(LimitedGateway, AnswersTellWhatIsLeftAndWhenToComeBack) {
  test::Bench bench(options(limited(2, 60, 0)));
  test::Client client = bench.client();
  const std::string key = "Authorization: Bearer secret\r\n";
  const auto first = client.request("POST", "/v1/completions", kBody, key);
  ASSERT_EQ(first.status, 200) << first.body;
  EXPECT_EQ(first.headers.at("x-ratelimit-limit-requests"), "2");
  EXPECT_EQ(first.headers.at("x-ratelimit-remaining-requests"), "1");
  EXPECT_EQ(first.headers.at("x-ratelimit-limit-tokens"), "60");
  // Text is not counted.
  EXPECT_EQ(client.request("POST", "/tokenize", R"({"prompt":"a"})", key).status, 200);
  const auto second = client.request("POST", "/v1/completions", kBody, key);
  ASSERT_EQ(second.status, 200);
  EXPECT_LT(std::stoi(second.headers.at("x-ratelimit-remaining-tokens")), 60 - 5);
  const auto third = client.request("POST", "/v1/completions", kBody, key);
  EXPECT_EQ(third.status, 429);
  EXPECT_EQ(Json::parse(third.body)["error"]["code"], "rate_limit_exceeded");
  EXPECT_GE(std::stoi(third.headers.at("retry-after")), 1);
}

TEST(Traceparent, IsTakenAsTheStandardHasIt) {
  const std::string good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  EXPECT_TRUE(good_traceparent(good));
  EXPECT_TRUE(good_traceparent("cc" + good.substr(2) + "-what.comes"));
  for (const std::string& bad : std::vector<std::string>{
           "", good + "-more", "ff" + good.substr(2), good.substr(1), "0g" + good.substr(2),
           "00-00000000000000000000000000000000-b7ad6b7169203331-01",
           "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
           "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
           "cc" + good.substr(2) + "-a b"}) {
    EXPECT_FALSE(good_traceparent(bad)) << bad;
  }
}

}  // namespace
}  // namespace sluice
