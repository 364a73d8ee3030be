#include "model/token_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "base/rng.h"
#include "model/token_scores.h"

namespace sluice {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr Token kEnd = 0;
constexpr Token kSecondEnd = 1;

// Token n is the letter of 'a' + n - 2, but for the ends at 0 and 1 and what
// `extra` adds at the back.
class Letters final : public Tokenizer {
 public:
  explicit Letters(std::vector<std::string> extra = {}) {
    pieces_ = {"<end>", "<end2>"};
    for (char c = 'a'; c <= 'z'; ++c) pieces_.emplace_back(1, c);
    pieces_.insert(pieces_.end(), extra.begin(), extra.end());
  }
  Result<std::vector<Token>> tokenize(std::string_view, TokenizeOptions) const override {
    return fail(ErrorCode::kInternal, "not needed here");
  }
  std::string piece(Token token, bool special) const override {
    if (is_end_of_generation(token) && !special) return {};
    return pieces_[static_cast<std::size_t>(token)];
  }
  std::int32_t vocabulary_size() const override {
    return static_cast<std::int32_t>(pieces_.size());
  }
  bool is_end_of_generation(Token token) const override { return token <= kSecondEnd; }

 private:
  std::vector<std::string> pieces_;
};

Token letter(char c) {
  return c - 'a' + 2;
}

struct Fixture {
  explicit Fixture(std::vector<std::string> extra = {}, std::vector<Token> suppressed = {})
      : tokenizer(std::move(extra)),
        factory(make_token_samplers({&tokenizer, std::move(suppressed), {}})) {}

  std::unique_ptr<Sampler> make(const SamplingParams& params,
                                std::vector<Token> prompt = {}) const {
    auto sampler = factory->make(params, prompt);
    EXPECT_TRUE(sampler.has_value()) << sampler.error().message;
    return std::move(*sampler);
  }
  std::vector<float> flat() const {
    return std::vector<float>(static_cast<std::size_t>(tokenizer.vocabulary_size()), 0.0F);
  }
  // Letters by falling logit: a is best; the ends are in between.
  std::vector<float> falling() const {
    std::vector<float> logits = flat();
    for (std::size_t i = 2; i < logits.size(); ++i) logits[i] = 10.0F - static_cast<float>(i);
    logits[kEnd] = 7.5F;  // after a (8), before b (7)
    logits[kSecondEnd] = -5.0F;
    return logits;
  }

  Letters tokenizer;
  std::unique_ptr<SamplerFactory> factory;
};

Token drawn(Sampler& sampler, std::vector<float> logits) {
  const auto sampled = sampler.sample(logits);
  EXPECT_TRUE(sampled.has_value()) << sampled.error().message;
  return sampled ? sampled->token : -1;
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0.0F;
  return params;
}

TEST(TokenSampler, GreedyTakesTheBest) {
  const Fixture f;
  auto sampler = f.make(greedy());
  std::vector<float> logits = f.falling();
  auto sampled = sampler->sample(logits);
  ASSERT_TRUE(sampled);
  EXPECT_EQ(sampled->token, letter('a'));
  EXPECT_FALSE(sampled->end_of_generation);
  logits = f.falling();
  logits[kEnd] = 100.0F;
  sampled = sampler->sample(logits);
  EXPECT_TRUE(sampled->end_of_generation);
}

TEST(TokenSampler, PaddedRowsAreCut) {
  const Fixture f;
  std::vector<float> logits = f.falling();
  logits.resize(logits.size() + 100, 1000.0F);
  EXPECT_EQ(drawn(*f.make(greedy()), logits), letter('a'));
}

TEST(TokenSampler, LogitBiasAddsAndBans) {
  const Fixture f;
  SamplingParams params = greedy();
  params.logit_bias = {{letter('a'), -kInf}, {kEnd, -100.0F}, {letter('z'), 30.0F}};
  EXPECT_EQ(drawn(*f.make(params), f.falling()), letter('z'));
  params.logit_bias.pop_back();
  EXPECT_EQ(drawn(*f.make(params), f.falling()), letter('b'));
}

TEST(TokenSampler, SuppressedTokensAreNeverDrawn) {
  const Fixture f({}, {letter('a'), kEnd, 5000, -3});
  EXPECT_EQ(drawn(*f.make(greedy()), f.falling()), letter('b'));
}

TEST(TokenSampler, MinTokensAndIgnoreEosMaskTheEnds) {
  const Fixture f;
  std::vector<float> logits = f.falling();
  logits[kEnd] = logits[kSecondEnd] = 50.0F;
  SamplingParams params = greedy();
  params.min_tokens = 2;
  auto sampler = f.make(params);
  EXPECT_EQ(drawn(*sampler, logits), letter('a'));
  EXPECT_EQ(drawn(*sampler, logits), letter('a'));
  EXPECT_EQ(drawn(*sampler, logits), kEnd);
  params = greedy();
  params.ignore_eos = true;
  sampler = f.make(params);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(drawn(*sampler, logits), letter('a'));
}

TEST(TokenSampler, AForcedLengthIsTheLengthWhateverTheModelSays) {
  const Fixture f;
  for (const bool eager : {false, true}) {
    SCOPED_TRACE(eager);
    std::vector<float> logits = f.falling();
    if (eager) logits[kEnd] = 50.0F;
    SamplingParams params = greedy();
    params.forced_length = 3;
    auto sampler = f.make(params);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(drawn(*sampler, logits), letter('a'));
    EXPECT_EQ(drawn(*sampler, logits), kEnd);
  }
}

// Presence and frequency count the output; repetition counts the prompt, too.
TEST(TokenSampler, Penalties) {
  const Fixture f;
  std::vector<float> logits = f.flat();
  std::fill(logits.begin(), logits.end(), -9.0F);
  logits[static_cast<std::size_t>(letter('a'))] = 2.0F;
  logits[static_cast<std::size_t>(letter('b'))] = 1.2F;
  logits[static_cast<std::size_t>(letter('c'))] = -0.5F;

  SamplingParams params = greedy();
  params.presence_penalty = 1.0F;
  auto sampler = f.make(params, {letter('a'), letter('a')});
  EXPECT_EQ(drawn(*sampler, logits), letter('a'));  // the prompt does not count
  EXPECT_EQ(drawn(*sampler, logits), letter('b'));  // 1.0 against 1.2
  EXPECT_EQ(drawn(*sampler, logits), letter('a'));  // 1.0 against 0.2
  EXPECT_EQ(drawn(*sampler, logits), letter('a'));  // presence counts once

  params = greedy();
  params.frequency_penalty = 1.0F;
  sampler = f.make(params);
  std::string text;
  for (int i = 0; i < 6; ++i) text += static_cast<char>('a' + drawn(*sampler, logits) - 2);
  EXPECT_EQ(text, "ababac");  // a: 2, 1, 0, -1; b: 1.2, 0.2, -0.8; c: -0.5

  params = greedy();
  params.repetition_penalty = 2.0F;
  sampler = f.make(params, {letter('a')});
  EXPECT_EQ(drawn(*sampler, logits), letter('b'));  // a is 1.0 from the start
  EXPECT_EQ(drawn(*sampler, logits), letter('a'));  // b is 0.6 now
  EXPECT_EQ(drawn(*sampler, logits), letter('a'));  // not more than once

  params.repeat_last_n = 1;
  sampler = f.make(params, {letter('a'), letter('c')});
  EXPECT_EQ(drawn(*sampler, logits), letter('a'));  // the last token is c
  EXPECT_EQ(drawn(*sampler, logits), letter('b'));  // the last token is a
  EXPECT_EQ(drawn(*sampler, logits), letter('a'));
}

TEST(TokenSampler, RepetitionMakesNegativeLogitsWorse) {
  const Fixture f;
  std::vector<float> logits = f.flat();
  std::fill(logits.begin(), logits.end(), -9.0F);
  logits[static_cast<std::size_t>(letter('a'))] = -1.0F;
  logits[static_cast<std::size_t>(letter('b'))] = -1.5F;
  SamplingParams params = greedy();
  params.repetition_penalty = 2.0F;
  EXPECT_EQ(drawn(*f.make(params, {letter('a')}), logits), letter('b'));
}

// Draws many tokens from one row and compares with the shares wanted.
void expect_shares(const Fixture& f, SamplingParams params, const std::vector<float>& logits,
                   const std::map<Token, double>& shares) {
  constexpr int kDraws = 40'000;
  params.seed = 1234;
  auto sampler = f.make(params);
  std::map<Token, int> counts;
  for (int i = 0; i < kDraws; ++i) ++counts[drawn(*sampler, logits)];
  double chi = 0;
  int seen = 0;
  for (const auto& [token, share] : shares) {
    const double want = kDraws * share;
    const double got = counts.contains(token) ? counts[token] : 0;
    chi += (got - want) * (got - want) / want;
    seen += static_cast<int>(got);
  }
  EXPECT_EQ(seen, kDraws) << "a token was drawn that should have been cut";
  // Mean of chi-square is its degrees of freedom; this is beyond 5 deviations.
  const auto freedom = static_cast<double>(shares.size()) - 1;
  EXPECT_LT(chi, freedom + 5 * std::sqrt(2 * freedom) + 5);
}

std::map<Token, double> softmax(const std::vector<float>& logits, double temperature,
                                const std::set<Token>& only) {
  std::map<Token, double> shares;
  double total = 0;
  for (const Token token : only) {
    shares[token] = std::exp(logits[static_cast<std::size_t>(token)] / temperature);
    total += shares[token];
  }
  for (auto& [token, share] : shares) share /= total;
  return shares;
}

TEST(TokenSampler, DrawsFollowTheDistribution) {
  const Fixture f;
  std::vector<float> logits = f.flat();
  std::set<Token> all;
  for (Token t = 0; t < f.tokenizer.vocabulary_size(); ++t) {
    logits[static_cast<std::size_t>(t)] = static_cast<float>(t % 7) * 0.4F;
    all.insert(t);
  }
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    SamplingParams params;
    params.temperature = temperature;
    expect_shares(f, params, logits, softmax(logits, temperature, all));
  }
}

TEST(TokenSampler, CutsAtTheRightPlaces) {
  const Fixture f;
  std::vector<float> logits(f.flat().size(), -kInf);
  const std::vector<double> p = {0.4, 0.3, 0.15, 0.1, 0.05};
  for (std::size_t i = 0; i < p.size(); ++i) {
    logits[i + 2] = static_cast<float>(std::log(p[i]));
  }
  const auto first = [](int n) {
    std::set<Token> tokens;
    for (int i = 0; i < n; ++i) tokens.insert(letter(static_cast<char>('a' + i)));
    return tokens;
  };
  SamplingParams params;
  params.top_k = 2;
  expect_shares(f, params, logits, softmax(logits, 1, first(2)));
  params = {};
  params.top_p = 0.8F;
  expect_shares(f, params, logits, softmax(logits, 1, first(3)));
  params = {};
  params.min_p = 0.2F;  // of 0.4: at least 0.08
  expect_shares(f, params, logits, softmax(logits, 1, first(4)));
  params = {};
  params.top_k = 3;  // 0.47, 0.35, 0.18
  params.top_p = 0.8F;
  expect_shares(f, params, logits, softmax(logits, 1, first(2)));
  params = {};
  params.typical_p = 0.5F;  // entropy 1.39: 0.3 (1.20), then 0.4 (0.92)
  expect_shares(f, params, logits, softmax(logits, 1, first(2)));
}

// The quick way of top-p and the long one (a flat row) keep the same tokens.
TEST(TokenSampler, TopPOfAFlatRow) {
  std::vector<std::string> extra;
  for (int i = 0; i < 9972; ++i) extra.push_back("x" + std::to_string(i));
  const Fixture f(extra);
  SamplingParams params;
  params.top_p = 0.5F;
  auto sampler = f.make(params);
  for (int i = 0; i < 200; ++i) EXPECT_LT(drawn(*sampler, f.flat()), 5001);
}

TEST(TokenSampler, SameSeedSameText) {
  const Fixture f;
  SamplingParams params;
  params.temperature = 1.5F;
  params.top_p = 0.95F;
  const auto text = [&](std::uint64_t seed, bool busy) {
    params.seed = seed;
    auto sampler = f.make(params);
    auto other = f.make(params);
    std::string result;
    for (int i = 0; i < 200; ++i) {
      if (busy) (void)drawn(*other, f.flat());
      result += static_cast<char>('a' + drawn(*sampler, f.falling()));
    }
    return result;
  };
  EXPECT_EQ(text(1, false), text(1, true));
  EXPECT_NE(text(1, false), text(2, false));
}

// What an instance that takes over does: any text, cut anywhere, goes on alike.
TEST(TokenSampler, AResumedSamplerGoesOnAsTheFirstWould) {
  const Fixture f;
  std::vector<SamplingParams> cases(4);
  cases[1] = greedy();
  cases[2].frequency_penalty = 0.7F;
  cases[2].repetition_penalty = 1.3F;
  cases[2].repeat_last_n = 5;
  cases[3].grammar.gbnf = "root ::= ([a-f] [g-z])*";
  for (SamplingParams& params : cases) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      params.seed = seed;
      params.ignore_eos = true;
      auto whole = f.make(params);
      std::vector<Token> text;
      for (int i = 0; i < 30; ++i) text.push_back(drawn(*whole, f.flat()));
      for (const std::size_t cut : {std::size_t{0}, std::size_t{1}, std::size_t{17}}) {
        auto second = f.make(params);
        ASSERT_TRUE(second->resume(std::span(text).first(cut)));
        for (std::size_t i = cut; i < text.size(); ++i) {
          ASSERT_EQ(drawn(*second, f.flat()), text[i]) << "seed " << seed << " at " << i;
        }
      }
    }
  }
}

TEST(TokenSampler, ResumeRefusesWhatItCannotHaveDrawn) {
  const Fixture f;
  SamplingParams params;
  EXPECT_FALSE(f.make(params)->resume(std::vector<Token>{-1}));
  EXPECT_FALSE(f.make(params)->resume(std::vector<Token>{1 << 20}));
  params.grammar.gbnf = "root ::= [a-c]+";
  EXPECT_TRUE(f.make(params)->resume(std::vector<Token>{letter('a'), letter('c')}));
  EXPECT_FALSE(f.make(params)->resume(std::vector<Token>{letter('a'), letter('d')}));
}

TEST(TokenSampler, LogprobsAreOfTheRawRow) {
  const Fixture f;
  SamplingParams params = greedy();
  params.num_logprobs = 3;
  params.logit_bias = {{letter('a'), -100.0F}};
  auto sampler = f.make(params);
  std::vector<float> logits = f.falling();
  double total = 0;
  for (const float v : logits) total += std::exp(static_cast<double>(v));
  const auto sampled = sampler->sample(logits);
  ASSERT_TRUE(sampled);
  EXPECT_EQ(sampled->token, kEnd);
  EXPECT_NEAR(sampled->logprob, 7.5 - std::log(total), 1e-4);
  ASSERT_EQ(sampled->top.size(), 3U);
  EXPECT_EQ(sampled->top[0].token, letter('a'));
  EXPECT_NEAR(sampled->top[0].logprob, 8.0 - std::log(total), 1e-4);
  EXPECT_EQ(sampled->top[1].token, kEnd);
  EXPECT_EQ(sampled->top[2].token, letter('b'));
}

TEST(TokenSampler, ReportsWhenNothingIsPossible) {
  const Fixture f;
  auto sampler = f.make(greedy());
  std::vector<float> logits(f.flat().size(), -kInf);
  EXPECT_EQ(sampler->sample(logits).error().code, ErrorCode::kInternal);
  std::fill(logits.begin(), logits.end(), std::nanf(""));
  EXPECT_EQ(sampler->sample(logits).error().code, ErrorCode::kInternal);
  std::vector<float> short_row(3, 0.0F);
  EXPECT_EQ(sampler->sample(short_row).error().code, ErrorCode::kInternal);
}

TEST(TokenSampler, RefusesParametersThatMakeNoSense) {
  const Fixture f;
  const auto code = [&](auto change) {
    SamplingParams params;
    change(params);
    const auto sampler = f.factory->make(params, {});
    EXPECT_FALSE(sampler.has_value());
    return sampler ? ErrorCode::kInternal : sampler.error().code;
  };
  using P = SamplingParams;
  EXPECT_EQ(code([](P& p) { p.temperature = -1.0F; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](P& p) { p.temperature = std::nanf(""); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](P& p) { p.top_p = 1.5F; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](P& p) { p.min_p = -0.1F; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](P& p) { p.repetition_penalty = 0.0F; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](P& p) { p.frequency_penalty = kInf; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](P& p) { p.num_logprobs = 1001; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](P& p) { p.logit_bias = {{28, 1.0F}}; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](P& p) { p.logit_bias = {{-1, 1.0F}}; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](P& p) { p.grammar.gbnf = "root ::= ("; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](P& p) { p.grammar.gbnf = "root ::= (\"x\"?){9000}"; }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](P& p) { p.grammar = {"root ::= \"a\"", "b", false, {}, {}, {}}; }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](P& p) { p.grammar = {"root ::= \"a\"", "", true, {}, {}, {}}; }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](P& p) { p.grammar = {"root ::= \"a\"", "", true, {}, {"("}, {}}; }),
            ErrorCode::kInvalidArgument);
}

TEST(TokenSampler, AGrammarKeepsTheTextInside) {
  const Fixture f;
  for (const float temperature : {0.0F, 1.0F}) {
    SamplingParams params;
    params.temperature = temperature;
    params.grammar.gbnf = R"(root ::= "x" [k-m]{2} ("y" | "z"))";
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      params.seed = seed;
      auto sampler = f.make(params);
      std::string text;
      while (text.size() < 10) {
        const Token token = drawn(*sampler, f.falling());
        if (token <= kSecondEnd) break;
        text += static_cast<char>('a' + token - 2);
      }
      ASSERT_EQ(text.size(), 4U) << text;
      EXPECT_EQ(text[0], 'x');
      EXPECT_TRUE(text[1] >= 'k' && text[1] <= 'm' && text[2] >= 'k' && text[2] <= 'm') << text;
      EXPECT_TRUE(text[3] == 'y' || text[3] == 'z') << text;
      if (temperature == 0.0F) {
        EXPECT_EQ(text, "xkky");
      }
    }
  }
}

// Drawing first and asking the grammar then gives the masked distribution.
TEST(TokenSampler, AGrammarDoesNotBendTheDistribution) {
  const Fixture f;
  SamplingParams params;
  params.grammar.gbnf = R"(root ::= [a-d])";
  std::vector<float> logits = f.falling();
  std::map<Token, int> counts;
  constexpr int kDraws = 4000;
  for (int i = 0; i < kDraws; ++i) {
    params.seed = static_cast<std::uint64_t>(i);
    ++counts[drawn(*f.make(params), logits)];
  }
  double chi = 0;
  for (const auto& [token, share] :
       softmax(logits, 1, {letter('a'), letter('b'), letter('c'), letter('d')})) {
    const double want = kDraws * share;
    chi += (counts[token] - want) * (counts[token] - want) / want;
  }
  EXPECT_EQ(counts.size(), 4U);
  EXPECT_LT(chi, 20);
}

TEST(TokenSampler, AFinishedGrammarEndsEvenWhereEndsAreMasked) {
  const Fixture f;
  SamplingParams params = greedy();
  params.grammar.gbnf = R"(root ::= "a")";
  params.ignore_eos = true;
  auto sampler = f.make(params);
  EXPECT_EQ(drawn(*sampler, f.falling()), letter('a'));
  EXPECT_EQ(drawn(*sampler, f.falling()), kEnd);
}

TEST(TokenSampler, AGrammarThatNoTokenFits) {
  const Fixture f;
  SamplingParams params = greedy();
  params.grammar.gbnf = R"(root ::= "1")";
  auto sampler = f.make(params);
  std::vector<float> logits = f.falling();
  const auto sampled = sampler->sample(logits);
  ASSERT_FALSE(sampled);
  EXPECT_EQ(sampled.error().code, ErrorCode::kInternal);
}

TEST(TokenSampler, PrefillIsTextThatTheGrammarHasSeen) {
  const Fixture f;
  SamplingParams params = greedy();
  params.grammar = {R"(root ::= "pre" "q")", "pre", false, {}, {}, {}};
  EXPECT_EQ(drawn(*f.make(params), f.falling()), letter('q'));
}

// Feeds wanted tokens by making them the best, and says what was drawn instead.
std::string follow(const Fixture& f, Sampler& sampler, std::string_view wanted) {
  std::string text;
  for (const char c : wanted) {
    std::vector<float> logits = f.falling();
    logits[static_cast<std::size_t>(letter(c))] = 20.0F;
    logits[kEnd] = logits[kSecondEnd] = -100.0F;
    const Token token = drawn(sampler, logits);
    text += token <= kSecondEnd ? '.' : static_cast<char>('a' + token - 2);
  }
  return text;
}

TEST(TokenSampler, LazyGrammarsSleepUntilTheirTrigger) {
  const Fixture f;
  struct Case {
    GrammarSpec grammar;
    std::string wanted;
    std::string got;
  };
  const std::string gbnf = R"(root ::= "call" [x-z]+)";
  for (const Case& c : std::vector<Case>{
           {{gbnf, "", true, {"call"}, {}, {}}, "freecallzqx", "freecallzxx"},
           {{gbnf, "", true, {"all"}, {}, {}}, "cabcal", "cabcal"},
           {{gbnf, "", true, {}, {"b(call)"}, {}}, "callbcallqz", "callbcallxz"},
           {{gbnf, "", true, {}, {"^call$"}, {}}, "bcallq", "bcallq"},
           {{gbnf, "", true, {}, {"^call$"}, {}}, "callq", "callx"},
           {{gbnf, "", true, {}, {}, {letter('c')}}, "bcbb", "bcal"},
       }) {
    SamplingParams params = greedy();
    params.grammar = c.grammar;
    auto sampler = f.make(params);
    EXPECT_EQ(follow(f, *sampler, c.wanted), c.got);
  }
}

// A token may hold the trigger's end and more; only what the grammar can follow.
TEST(TokenSampler, ATriggerInsideATokenMustFitTheGrammar) {
  const Fixture f({"llq", "llz"});  // 28, 29
  SamplingParams params = greedy();
  params.grammar = {R"(root ::= "call" [x-z]+)", "", true, {"call"}, {}, {}};
  auto sampler = f.make(params);
  EXPECT_EQ(follow(f, *sampler, "ca"), "ca");
  std::vector<float> logits = f.falling();
  logits[28] = 30.0F;
  logits[29] = 20.0F;
  EXPECT_EQ(drawn(*sampler, logits), 29);
  EXPECT_EQ(follow(f, *sampler, "b"), "x");
}

TEST(TokenSampler, LongSleepCostsNoMore) {
  const Fixture f;
  SamplingParams params = greedy();
  params.grammar = {R"(root ::= "call" "x")", "", true, {"call"}, {"z(call)"}, {}};
  auto sampler = f.make(params);
  for (int i = 0; i < 3000; ++i) EXPECT_EQ(follow(f, *sampler, "ab"), "ab");
  EXPECT_EQ(follow(f, *sampler, "callb"), "callx");
}

TEST(TokenSampler, DrawsOnlyWhatIsAllowed) {
  const Fixture f;
  SamplingParams params;
  params.allowed_tokens = {letter('q'), letter('d')};
  const auto sampler = f.make(params);
  std::set<Token> seen;
  for (int i = 0; i < 200; ++i) seen.insert(drawn(*sampler, f.flat()));
  EXPECT_EQ(seen, (std::set<Token>{letter('d'), letter('q')}));
}

TEST(TokenSampler, EndsWithAStopTokenButNotBeforeTheLeastNumberOfTokens) {
  const Fixture f;
  SamplingParams params = greedy();
  params.stop_tokens = {letter('a')};
  params.min_tokens = 1;
  const auto sampler = f.make(params);
  std::vector<float> logits = f.falling();
  auto first = sampler->sample(logits);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->token, letter('b'));
  EXPECT_FALSE(first->end_of_generation);
  logits = f.falling();
  auto second = sampler->sample(logits);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->token, letter('a'));
  EXPECT_TRUE(second->end_of_generation);
}

TEST(TokenSampler, BansSequencesButNotTheirBeginnings) {
  const Fixture f;
  SamplingParams params = greedy();
  params.ignore_eos = true;
  params.banned_sequences = {{letter('a'), letter('a'), letter('a')}, {letter('b')}};
  const auto sampler = f.make(params);
  std::string text;
  for (int i = 0; i < 8; ++i) {
    text += f.tokenizer.piece(drawn(*sampler, f.falling()), false);
  }
  EXPECT_EQ(text, "aacaacaa");
}

TEST(TokenSampler, ListsTheLogprobsThatAreAskedFor) {
  const Fixture f;
  SamplingParams params = greedy();
  params.num_logprobs = 2;
  params.logprob_tokens = {letter('z')};
  const auto sampler = f.make(params);
  std::vector<float> logits = f.falling();
  const auto sampled = sampler->sample(logits);
  ASSERT_TRUE(sampled);
  ASSERT_EQ(sampled->top.size(), 1U);
  EXPECT_EQ(sampled->top[0].token, letter('z'));
  EXPECT_NEAR(sampled->top[0].logprob, sampled->logprob - 25.0F, 1e-4F);
}

TEST(TokenSampler, RefusesTokensThatAreNotThere) {
  const Fixture f;
  for (auto list : {&SamplingParams::stop_tokens, &SamplingParams::allowed_tokens,
                    &SamplingParams::logprob_tokens}) {
    SamplingParams params;
    params.*list = {0, 28};
    EXPECT_EQ(f.factory->make(params, {}).error().code, ErrorCode::kInvalidArgument);
  }
  SamplingParams params;
  params.banned_sequences = {{}};
  EXPECT_EQ(f.factory->make(params, {}).error().code, ErrorCode::kInvalidArgument);
}

TEST(TokenScores, AreLogSoftmaxAndRank) {
  const std::vector<float> logits{1.0F, 3.0F, 2.0F, 3.0F, -1.0F};
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit));
  const ScoredToken scored = score_token(logits, 2, 2);
  EXPECT_EQ(scored.token, 2);
  EXPECT_EQ(scored.rank, 3);
  EXPECT_NEAR(scored.logprob, 2.0 - std::log(total), 1e-5);
  ASSERT_EQ(scored.top.size(), 2U);
  EXPECT_EQ(scored.top[0].token, 1);
  EXPECT_EQ(scored.top[1].token, 3);
  EXPECT_TRUE(score_token(logits, 1, 0).top.empty());
}

}  // namespace
}  // namespace sluice
