// A model for tests without weights: its KV is the tokens themselves.
//
// It writes each token into the slot of the block that the engine says, and
// draws the next token from a hash of the whole context as read back through
// the block table. A sequence that is given a wrong, freed or half-copied block
// therefore gets a wrong token, or stops the test. The right answer for a
// prompt is expected_output().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/time.h"
#include "model/model_runner.h"
#include "model/sampler.h"

namespace sluice {

struct FakeModelOptions {
  std::int32_t num_blocks = 64;
  std::int32_t block_tokens = 4;
  std::int32_t vocabulary = 1000;
  // One in so many drawn tokens ends the generation; 0: none does.
  std::uint64_t end_one_in = 0;
  // A step takes base + prefill * a + decode * b.
  Duration step_base = std::chrono::milliseconds(10);
  Duration per_prefill_token = std::chrono::microseconds(200);
  Duration per_decode_row = std::chrono::microseconds(500);
};

// Passes on what the fake runner computed.
class FakeSampler final : public Sampler {
 public:
  FakeSampler(std::int32_t vocabulary, std::uint64_t end_one_in, const SamplingParams& params)
      : vocabulary_(vocabulary),
        end_one_in_(params.ignore_eos || params.forced_length > 0 ? 0 : end_one_in),
        forced_length_(params.forced_length) {}
  Status resume(std::span<const Token> output) override {
    drawn_ = static_cast<std::int32_t>(output.size());
    return {};
  }
  Result<SampledToken> sample(std::span<float>) override {
    return fail(ErrorCode::kInternal, "the fake sampler draws from a hash, not from logits");
  }
  [[nodiscard]] SampledToken draw(std::uint64_t hash) {
    SampledToken token;
    if (forced_length_ > 0 && drawn_++ == forced_length_) {
      token.end_of_generation = true;
      return token;
    }
    token.token = static_cast<Token>(hash % static_cast<std::uint64_t>(vocabulary_));
    token.end_of_generation = end_one_in_ > 0 && (hash >> 20) % end_one_in_ == 0;
    return token;
  }

 private:
  const std::int32_t vocabulary_;
  const std::uint64_t end_one_in_;
  const std::int32_t forced_length_;
  std::int32_t drawn_ = 0;
};

class FakeSamplerFactory final : public SamplerFactory {
 public:
  explicit FakeSamplerFactory(FakeModelOptions options) : options_(options) {}
  Result<std::unique_ptr<Sampler>> make(const SamplingParams& params,
                                        std::span<const Token>) const override {
    if (params.grammar.gbnf == "bad") return fail(ErrorCode::kInvalidArgument, "bad grammar");
    return std::make_unique<FakeSampler>(options_.vocabulary, options_.end_one_in, params);
  }

 private:
  const FakeModelOptions options_;
};

class FakeModelRunner final : public ModelRunner {
 public:
  // With a clock, each step moves it by the step's duration.
  explicit FakeModelRunner(FakeModelOptions options, ManualClock* clock = nullptr)
      : options_(options),
        clock_(clock),
        own_(static_cast<std::size_t>(options.num_blocks) *
                 static_cast<std::size_t>(options.block_tokens),
             kEmpty),
        slots_(own_) {}

  // Its KV may lie in an arena that others see too, of fake_kv_layout(); without
  // one it keeps its own.
  void bind(const KvView& kv) override {
    if (kv.base == nullptr) return;
    CHECK(kv.layout == fake_kv_layout(options_.block_tokens));
    slots_ = {reinterpret_cast<Token*>(kv.base),
              static_cast<std::size_t>(kv.num_blocks * options_.block_tokens)};
  }
  [[nodiscard]] static KvLayout fake_kv_layout(std::int32_t block_tokens) {
    return {.num_layers = 1,
            .num_kv_heads = 1,
            .head_dim_k = sizeof(Token) / 2,  // of two bytes each
            .head_dim_v = 0,
            .block_tokens = block_tokens};
  }

  Result<StepOutput> run(const StepInput& input) override {
    if (fail_next_) {
      fail_next_ = false;
      return fail(ErrorCode::kInternal, "the device failed");
    }
    for (const BlockCopy& copy : input.copies) {
      for (std::int32_t i = 0; i < copy.num_tokens; ++i) slot(copy.to, i) = slot(copy.from, i);
    }
    StepOutput output;
    output.duration = options_.step_base;
    for (const StepRows& rows : input.rows) {
      CHECK(!rows.tokens.empty());
      write(rows);
      output.duration += rows.tokens.size() == 1
                             ? options_.per_decode_row
                             : options_.per_prefill_token * static_cast<int>(rows.tokens.size());
      output.duration += options_.per_prefill_token * static_cast<int>(rows.drafts.size());
      if (!rows.targets.empty()) {
        output.scored.resize(input.rows.size());
        score(rows, output.scored[output.sampled.size()]);
      }
      output.sampled.push_back(rows.sampler ? draw(rows, 0) : SampledToken{.token = -1});
      if (rows.drafts.empty()) continue;
      output.after_drafts.resize(input.rows.size());
      draw_along(rows.drafts, output.sampled.back(), output.after_drafts[output.sampled.size() - 1],
                 [&](std::size_t drafts) { return draw(rows, drafts); });
    }
    if (clock_) clock_->advance(output.duration);
    steps_ += 1;
    return output;
  }

  // A block's tokens, for tests that move KV themselves.
  [[nodiscard]] std::span<Token> block(BlockId id) {
    return {&slot(id, 0), static_cast<std::size_t>(options_.block_tokens)};
  }
  void fail_next_step() { fail_next_ = true; }
  [[nodiscard]] std::int64_t steps() const { return steps_; }

  // The rank that a token gets in position p of a sequence, from what its KV holds.
  [[nodiscard]] static std::int32_t expected_rank(std::span<const Token> tokens, std::size_t p) {
    std::uint64_t hash = kSeed;
    for (std::size_t i = 0; i < p; ++i) hash = mix(hash, tokens[i]);
    return static_cast<std::int32_t>(hash % 1000);
  }

  // What a prompt's greedy continuation is, whatever the batch and the memory.
  [[nodiscard]] std::vector<Token> expected_output(std::vector<Token> prompt,
                                                   std::int32_t max_tokens,
                                                   bool ignore_eos = false) const {
    SamplingParams params;
    params.ignore_eos = ignore_eos;
    FakeSampler sampler(options_.vocabulary, options_.end_one_in, params);
    std::vector<Token> output;
    while (static_cast<std::int32_t>(output.size()) < max_tokens) {
      std::uint64_t hash = kSeed;
      for (const Token t : prompt) hash = mix(hash, t);
      const SampledToken next = sampler.draw(hash);
      if (next.end_of_generation) break;
      output.push_back(next.token);
      prompt.push_back(next.token);
    }
    return output;
  }

 private:
  static constexpr Token kEmpty = -1;
  static constexpr std::uint64_t kSeed = 0x243f6a8885a308d3ULL;

  static std::uint64_t mix(std::uint64_t hash, Token token) {
    hash ^= static_cast<std::uint64_t>(token) + 0x9e3779b97f4a7c15ULL;
    hash *= 0xff51afd7ed558ccdULL;
    return hash ^ (hash >> 29);
  }

  Token& slot(BlockId block, std::int32_t offset) {
    CHECK(block.value >= 0 &&
          static_cast<std::size_t>(block.value * options_.block_tokens) < slots_.size());
    return slots_[static_cast<std::size_t>(block.value) *
                      static_cast<std::size_t>(options_.block_tokens) +
                  static_cast<std::size_t>(offset)];
  }
  Token& at(const StepRows& rows, std::int32_t position) {
    const auto index = static_cast<std::size_t>(position / options_.block_tokens);
    CHECK_LT(index, rows.blocks.size());
    return slot(rows.blocks[index], position % options_.block_tokens);
  }

  void write(const StepRows& rows) {
    std::int32_t position = rows.position;
    for (const auto& part : {rows.tokens, rows.drafts}) {
      for (const Token token : part) at(rows, position++) = token;
    }
  }
  void score(const StepRows& rows, std::vector<ScoredToken>& scores) {
    std::uint64_t hash = kSeed;
    for (std::int32_t p = 0; p < rows.position; ++p) hash = mix(hash, at(rows, p));
    for (std::size_t i = 0; i < rows.targets.size(); ++i) {
      hash = mix(hash, at(rows, rows.position + static_cast<std::int32_t>(i)));
      scores.push_back({.token = rows.targets[i],
                        .logprob = -1.0F,
                        .rank = static_cast<std::int32_t>(hash % 1000),
                        .top = {}});
    }
  }
  Result<SampledToken> draw(const StepRows& rows, std::size_t drafts) {
    const auto end = rows.position + static_cast<std::int32_t>(rows.tokens.size() + drafts);
    std::uint64_t hash = kSeed;
    for (std::int32_t p = 0; p < end; ++p) hash = mix(hash, at(rows, p));
    return static_cast<FakeSampler*>(rows.sampler)->draw(hash);
  }

  const FakeModelOptions options_;
  ManualClock* const clock_;
  std::vector<Token> own_;
  std::span<Token> slots_;  // of own_, or of an arena
  std::int64_t steps_ = 0;
  bool fail_next_ = false;
};

}  // namespace sluice
