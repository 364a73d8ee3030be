#include "model/token_sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <list>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/rng.h"
#include "model/candidates.h"
#include "model/grammar_gate.h"
#include "model/logits.h"

namespace sluice {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();
constexpr float kGreedyBelow = 1e-5F;  // a temperature that is zero in effect
constexpr std::int32_t kMaxLogprobs = 1000;
constexpr std::size_t kCachedGrammars = 32;
constexpr std::uint64_t kPositionStep = 0xd1b54a32d192ed03ULL;  // odd: all positions differ
constexpr int kMaxRejected = 64;  // draws that end a trigger in a wrong way

// What the penalties know of one token.
struct Seen {
  Token token = 0;
  std::int32_t generated = 0;  // times in the output
  std::int32_t recent = 0;     // times in the last repeat_last_n tokens, prompt included
};

class History {
 public:
  History(const SamplingParams& params, std::span<const Token> prompt, std::int32_t vocabulary)
      : repetition_(params.repetition_penalty),
        presence_(params.presence_penalty),
        frequency_(params.frequency_penalty),
        window_(params.repeat_last_n) {
    if (repetition_ == 1.0F || window_ == 0) return;
    if (window_ > 0 && prompt.size() > static_cast<std::size_t>(window_)) {
      prompt = prompt.last(static_cast<std::size_t>(window_));
    }
    for (const Token token : prompt) {
      if (token >= 0 && token < vocabulary) add_recent(token);
    }
  }

  void add(Token token) {
    if (presence_ != 0.0F || frequency_ != 0.0F) ++entry(token).generated;
    if (repetition_ != 1.0F && window_ != 0) add_recent(token);
  }

  void apply(std::span<float> logits) const {
    for (const Seen& seen : seen_) {
      float& logit = logits[static_cast<std::size_t>(seen.token)];
      if (seen.recent > 0) logit = logit > 0.0F ? logit / repetition_ : logit * repetition_;
      if (seen.generated > 0) {
        logit -= presence_ + frequency_ * static_cast<float>(seen.generated);
      }
    }
  }

 private:
  Seen& entry(Token token) {
    const auto [found, added] = index_.emplace(token, seen_.size());
    if (added) seen_.push_back({token, 0, 0});
    return seen_[found->second];
  }
  void add_recent(Token token) {
    ++entry(token).recent;
    if (window_ < 0) return;
    const auto size = static_cast<std::size_t>(window_);
    if (ring_.size() < size) {
      ring_.push_back(token);
      return;
    }
    --entry(ring_[oldest_]).recent;
    ring_[oldest_] = token;
    oldest_ = (oldest_ + 1) % size;
  }

  const float repetition_;
  const float presence_;
  const float frequency_;
  const std::int32_t window_;
  std::vector<Seen> seen_;  // in order of appearance
  std::unordered_map<Token, std::size_t> index_;
  std::vector<Token> ring_;
  std::size_t oldest_ = 0;
};

class TokenSampler final : public Sampler {
 public:
  TokenSampler(const SamplingParams& params, const SamplerModel& model,
               const std::vector<Token>& ends, std::span<const Token> prompt,
               std::optional<GrammarGate> grammar)
      : params_(params),
        model_(model),
        ends_(ends),
        history_(params, prompt, model.tokenizer->vocabulary_size()),
        grammar_(std::move(grammar)) {}

  Status resume(std::span<const Token> output) override {
    for (const Token token : output) {
      const bool known = token >= 0 && token < model_.tokenizer->vocabulary_size();
      if (!known || (grammar_ && !grammar_->accept(token))) {
        return fail(
            ErrorCode::kInvalidArgument,
            fmt::format("token {} at {} of the output cannot have been drawn", token, generated_));
      }
      history_.add(token);
      if (!params_.banned_sequences.empty()) output_.push_back(token);
      ++generated_;
    }
    return {};
  }

  Result<SampledToken> sample(std::span<float> logits) override {
    const auto size = static_cast<std::size_t>(model_.tokenizer->vocabulary_size());
    if (logits.size() < size) {
      return fail(ErrorCode::kInternal,
                  fmt::format("{} logits for a vocabulary of {} tokens", logits.size(), size));
    }
    logits = logits.first(size);  // some models pad their rows
    if (params_.forced_length > 0 && generated_ >= params_.forced_length) return forced_end();
    if (params_.num_logprobs >= 0) raw_.assign(logits.begin(), logits.end());
    adjust(logits);
    // A stream a position, so that resume() has none to wind forward.
    rng_ = Rng(params_.seed + kPositionStep * (static_cast<std::uint64_t>(generated_) + 1));
    TRY(const Token token, choose(logits));
    history_.add(token);
    ++generated_;
    if (!params_.banned_sequences.empty()) output_.push_back(token);
    SampledToken sampled;
    sampled.token = token;
    sampled.end_of_generation = model_.tokenizer->is_end_of_generation(token) ||
                                std::find(params_.stop_tokens.begin(), params_.stop_tokens.end(),
                                          token) != params_.stop_tokens.end();
    if (params_.num_logprobs >= 0) add_logprobs(sampled);
    return sampled;
  }

 private:
  [[nodiscard]] SampledToken forced_end() const {
    SampledToken sampled;
    sampled.token = ends_.empty() ? 0 : ends_.front();
    sampled.end_of_generation = true;
    return sampled;
  }

  void adjust(std::span<float> logits) {
    for (const auto& [token, bias] : params_.logit_bias) {
      logits[static_cast<std::size_t>(token)] += bias;
    }
    for (const Token token : model_.suppressed) {
      logits[static_cast<std::size_t>(token)] = kImpossible;
    }
    history_.apply(logits);
    const std::int32_t least = std::max(params_.min_tokens, params_.forced_length);
    const auto ban = [logits](Token token) {
      logits[static_cast<std::size_t>(token)] = kImpossible;
    };
    if (params_.ignore_eos || generated_ < least) {
      for (const Token token : ends_) ban(token);
    }
    if (generated_ < least) {
      for (const Token token : params_.stop_tokens) ban(token);
    }
    for (const std::vector<Token>& sequence : params_.banned_sequences) {
      const std::size_t before = sequence.size() - 1;
      if (before <= output_.size() &&
          std::equal(sequence.begin(), sequence.end() - 1, output_.end() - offset(before))) {
        ban(sequence.back());
      }
    }
    if (!params_.allowed_tokens.empty()) allow_only(logits);
  }

  static std::ptrdiff_t offset(std::size_t n) { return static_cast<std::ptrdiff_t>(n); }

  void allow_only(std::span<float> logits) {
    candidates_.clear();
    for (const Token token : params_.allowed_tokens) {
      candidates_.push_back({token, logits[static_cast<std::size_t>(token)]});
    }
    std::fill(logits.begin(), logits.end(), kImpossible);
    for (const auto& [token, logit] : candidates_) logits[static_cast<std::size_t>(token)] = logit;
  }

  Result<Token> choose(std::span<float> logits) {
    if (!grammar_) {
      const Token token = draw_from(logits);
      if (token < 0) return fail(ErrorCode::kInternal, "no token is possible");
      return token;
    }
    for (int attempt = 0; attempt < kMaxRejected; ++attempt) {
      const Token token = draw_from(logits);
      if (grammar_->too_complex()) break;
      if (token < 0) {
        if (grammar_->can_end()) return ends_.empty() ? no_token() : Result<Token>(ends_.front());
        return no_token();
      }
      if (grammar_->accept(token)) return token;
      if (grammar_->awake()) {
        apply_mask(logits);
      } else {
        logits[static_cast<std::size_t>(token)] = kImpossible;
      }
    }
    return fail(
        ErrorCode::kInternal,
        fmt::format("the grammar is too ambiguous: more than {} ways to go on", kMaxGrammarStacks));
  }

  static Result<Token> no_token() {
    return fail(ErrorCode::kInternal, "no token of the vocabulary keeps to the grammar");
  }

  void apply_mask(std::span<float> logits) {
    const std::vector<std::uint64_t>& mask = grammar_->mask();
    for (std::size_t word = 0; word < mask.size(); ++word) {
      if (mask[word] == ~std::uint64_t{0}) continue;
      const std::size_t begin = word * 64;
      const std::size_t end = std::min(begin + 64, logits.size());
      for (std::size_t i = begin; i < end; ++i) {
        if ((mask[word] >> (i - begin) & 1) == 0) logits[i] = kImpossible;
      }
    }
  }

  // -1: nothing is possible.
  Token draw_from(std::span<const float> logits) {
    const Token best = argmax(logits);
    if (best < 0 || params_.temperature < kGreedyBelow) return best;
    const float max = logits[static_cast<std::size_t>(best)];
    if (!std::isfinite(max)) return best;  // +infinity, by a bias: it is certain
    const float scale = 1.0F / params_.temperature;
    if (params_.top_k > 0 && static_cast<std::size_t>(params_.top_k) < logits.size()) {
      candidates_.clear();
      for (const auto& [value, token] : best_of(logits, static_cast<std::size_t>(params_.top_k))) {
        const float weight = fast_exp((value - max) * scale);
        if (weight > 0.0F) candidates_.push_back({token, weight});
      }
      return cut_and_draw(total_weight());
    }
    const bool cuts = params_.typical_p < 1.0F || params_.top_p < 1.0F;
    if (!cuts && params_.min_p <= 0.0F) return draw_any(logits, max, scale);
    if (!cuts) {
      collect(logits, max, scale, std::max(-87.0F, std::log(params_.min_p) * 1.0001F - 1e-4F));
      return cut_and_draw(0.0);
    }
    const double total = exp_sum(logits, max, scale);
    if (params_.typical_p >= 1.0F) {  // top-p alone: mostly a few tokens are enough
      collect(logits, max, scale, -8.0F);
      if (total_weight() >= static_cast<double>(params_.top_p) * total) return cut_and_draw(total);
    }
    collect(logits, max, scale, -87.0F);
    return cut_and_draw(total);
  }

  // The tokens of more than exp(`least`) times the best one's weight.
  void collect(std::span<const float> logits, float max, float scale, float least) {
    candidates_.clear();
    const float bound = max + least / scale;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (!(logits[i] > bound)) continue;
      const float weight = fast_exp((logits[i] - max) * scale);
      if (weight > 0.0F) candidates_.push_back({static_cast<Token>(i), weight});
    }
  }

  double total_weight() const {
    double total = 0.0;
    for (const Candidate& c : candidates_) total += static_cast<double>(c.weight);
    return total;
  }

  Token cut_and_draw(double total) {
    if (params_.typical_p < 1.0F) {
      keep_typical(candidates_, params_.typical_p);
      total = total_weight();
    }
    keep_top_p(candidates_, params_.top_p, total);
    keep_min_p(candidates_, params_.min_p);
    return draw(candidates_, rng_);
  }

  // From the whole distribution: the block first, then the token in it.
  Token draw_any(std::span<const float> logits, float max, float scale) {
    double left = rng_.uniform() * exp_sum(logits, max, scale, &blocks_);
    std::size_t block = 0;
    while (block + 1 < blocks_.size() && left >= static_cast<double>(blocks_[block])) {
      left -= static_cast<double>(blocks_[block++]);
    }
    Token last = -1;
    const std::size_t end = std::min((block + 1) * kExpBlock, logits.size());
    for (std::size_t i = block * kExpBlock; i < end; ++i) {
      const float weight = fast_exp((logits[i] - max) * scale);
      if (weight <= 0.0F) continue;
      last = static_cast<Token>(i);
      left -= static_cast<double>(weight);
      if (left < 0.0) break;
    }
    return last >= 0 ? last : argmax(logits);  // rounding, at the end of a block
  }

  void add_logprobs(SampledToken& sampled) const {
    const float total = log_sum_exp(raw_);
    const auto logprob = [&](Token token) { return raw_[static_cast<std::size_t>(token)] - total; };
    sampled.logprob = logprob(sampled.token);
    for (const Token token : params_.logprob_tokens) sampled.top.push_back({token, logprob(token)});
    if (!params_.logprob_tokens.empty()) return;
    for (const auto& [value, token] :
         best_of(raw_, static_cast<std::size_t>(params_.num_logprobs))) {
      sampled.top.push_back({token, value - total});
    }
  }

  const SamplingParams params_;
  const SamplerModel& model_;
  const std::vector<Token>& ends_;
  History history_;
  Rng rng_{0};  // of the position that is drawn now
  std::optional<GrammarGate> grammar_;
  std::int32_t generated_ = 0;
  std::vector<Token> output_;  // what was drawn, where sequences are banned
  std::vector<float> raw_;
  std::vector<float> blocks_;
  std::vector<Candidate> candidates_;
};

class TokenSamplerFactory final : public SamplerFactory {
 public:
  explicit TokenSamplerFactory(SamplerModel model) : model_(std::move(model)) {
    for (Token token = 0; token < model_.tokenizer->vocabulary_size(); ++token) {
      if (model_.tokenizer->is_end_of_generation(token)) ends_.push_back(token);
    }
    std::erase_if(model_.suppressed, [this](Token token) { return !known(token); });
  }

  Result<std::unique_ptr<Sampler>> make(const SamplingParams& params,
                                        std::span<const Token> prompt) const override {
    TRY_STATUS(check(params));
    std::optional<GrammarGate> gate;
    if (!params.grammar.gbnf.empty()) {
      TRY(auto grammar, compiled(params.grammar.gbnf));
      TRY(gate,
          GrammarGate::make(params.grammar, std::move(grammar), vocabulary(), *model_.tokenizer));
    }
    return std::make_unique<TokenSampler>(params, model_, ends_, prompt, std::move(gate));
  }

 private:
  bool known(Token token) const {
    return token >= 0 && token < model_.tokenizer->vocabulary_size();
  }

  Status check(const SamplingParams& params) const {
    struct Bound {
      const char* name;
      float value, least, most;
    };
    constexpr float kMost = 1e6F;
    for (const auto& [name, value, least, most] :
         {Bound{"temperature", params.temperature, 0.0F, kMost},
          Bound{"top_p", params.top_p, 0.0F, 1.0F}, Bound{"min_p", params.min_p, 0.0F, 1.0F},
          Bound{"typical_p", params.typical_p, 0.0F, 1.0F},
          Bound{"presence_penalty", params.presence_penalty, -kMost, kMost},
          Bound{"frequency_penalty", params.frequency_penalty, -kMost, kMost},
          Bound{"repetition_penalty", params.repetition_penalty, 1e-3F, kMost}}) {
      if (!(value >= least && value <= most)) {
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("{} is {}; it must be from {} to {}", name, value, least, most));
      }
    }
    if (params.num_logprobs > kMaxLogprobs) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} logprobs; the limit is {}", params.num_logprobs, kMaxLogprobs));
    }
    TRY_STATUS(check_tokens(params));
    for (const auto& [token, bias] : params.logit_bias) {
      if (!known(token) || std::isnan(bias)) {
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("logit_bias of token {} by {}: the vocabulary has {} tokens", token,
                                bias, model_.tokenizer->vocabulary_size()));
      }
    }
    return {};
  }

  Status check_tokens(const SamplingParams& params) const {
    for (const auto* list : {&params.stop_tokens, &params.allowed_tokens, &params.logprob_tokens}) {
      if (!std::all_of(list->begin(), list->end(), [this](Token token) { return known(token); })) {
        return fail(ErrorCode::kInvalidArgument,
                    fmt::format("a list has a token that is not in the vocabulary of {}",
                                model_.tokenizer->vocabulary_size()));
      }
    }
    for (const std::vector<Token>& sequence : params.banned_sequences) {
      if (sequence.empty() || !known(sequence.back())) {
        return fail(ErrorCode::kInvalidArgument, "a banned text is no token of this model");
      }
    }
    return {};
  }

  // Built when the first grammar comes; most servers never see one.
  std::shared_ptr<const GrammarVocabulary> vocabulary() const {
    std::call_once(vocabulary_once_, [this] {
      vocabulary_ = std::make_shared<const GrammarVocabulary>(*model_.tokenizer);
    });
    return vocabulary_;
  }

  // Clients send the same schema again and again.
  Result<std::shared_ptr<const Grammar>> compiled(const std::string& gbnf) const {
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::find_if(cache_.begin(), cache_.end(),
                                      [&](const auto& entry) { return entry.first == gbnf; });
      if (found != cache_.end()) {
        cache_.splice(cache_.begin(), cache_, found);
        return found->second;
      }
    }
    TRY(auto grammar, Grammar::compile(gbnf, model_.find_token));
    const std::lock_guard lock(mutex_);
    cache_.emplace_front(gbnf, grammar);
    if (cache_.size() > kCachedGrammars) cache_.pop_back();
    return grammar;
  }

  SamplerModel model_;
  std::vector<Token> ends_;
  mutable std::once_flag vocabulary_once_;
  mutable std::shared_ptr<const GrammarVocabulary> vocabulary_;
  mutable std::mutex mutex_;
  mutable std::list<std::pair<std::string, std::shared_ptr<const Grammar>>> cache_;  // newest first
};

}  // namespace

std::unique_ptr<SamplerFactory> make_token_samplers(SamplerModel model) {
  return std::make_unique<TokenSamplerFactory>(std::move(model));
}

}  // namespace sluice
