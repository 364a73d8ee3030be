#include "model/ggml/step_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "base/check.h"
#include "model/token_scores.h"

namespace sluice {
namespace {

Result<SampledToken> draw(Sampler& sampler, std::span<float> logits) {
  try {
    return sampler.sample(logits);
  } catch (const std::exception& e) {
    // ggml's threads are C: nothing may be thrown through them.
    return fail(ErrorCode::kInternal, fmt::format("sampling failed: {}", e.what()));
  }
}

}  // namespace

GraphShape StepBatch::lay_out(const StepInput& input, const KvView& kv) {
  sequences_.clear();
  output_calls_.clear();
  scored_.clear();
  after_drafts_.clear();
  next_output_.store(0, std::memory_order_relaxed);
  SampledToken none;
  none.token = -1;
  sampled_.assign(input.rows.size(), none);
  std::int32_t num_tokens = 0;
  std::size_t num_outputs = 0;
  for (std::size_t i = 0; i < input.rows.size(); ++i) {
    const StepRows& rows = input.rows[i];
    const std::int32_t count = rows.num_rows();
    CHECK(!rows.tokens.empty());
    CHECK(rows.drafts.empty() || rows.sampler != nullptr);
    CHECK_GE(rows.position, 0);
    CHECK_LE(rows.position, options_.max_context - count);
    CHECK_LE(kv.layout.blocks_for(rows.position + count),
             static_cast<std::int32_t>(rows.blocks.size()));
    for (const BlockId block : rows.blocks) {
      CHECK(block.value >= 0 && block.value < kv.num_blocks);
    }
    for (const auto& part : {rows.tokens, rows.drafts}) {
      for (const Token token : part) CHECK(token >= 0 && token < vocabulary_size_);
    }
    sequences_.push_back({rows.blocks.data(), count, num_tokens, rows.position});
    CHECK_LE(rows.targets.size() + (rows.sampler != nullptr ? 1 : 0), rows.tokens.size());
    if (!rows.targets.empty()) {
      scored_.resize(input.rows.size());
      scored_[i].resize(rows.targets.size());
    }
    for (std::size_t t = 0; t < rows.targets.size(); ++t) {
      CHECK(rows.targets[t] >= 0 && rows.targets[t] < vocabulary_size_);
      output_calls_.push_back({.row = i,
                               .logits = num_outputs++,
                               .target = t,
                               .token = rows.targets[t],
                               .num_top = rows.num_top});
    }
    if (rows.sampler != nullptr) {
      output_calls_.push_back(
          {.row = i, .logits = num_outputs, .sampler = rows.sampler, .drafts = rows.drafts});
      num_outputs += 1 + rows.drafts.size();
    }
    if (!rows.drafts.empty()) after_drafts_.resize(input.rows.size());
    num_tokens += count;
  }
  CHECK_LE(num_tokens, options_.max_step_tokens);
  CHECK_LE(static_cast<std::int32_t>(num_outputs), options_.max_step_outputs);
  return {num_tokens, static_cast<std::int32_t>(num_outputs)};
}

void StepBatch::write(const StepInput& input, const StepInputs& to) const {
  std::size_t row = 0;
  std::size_t output = 0;
  for (const StepRows& rows : input.rows) {
    const std::size_t first = row;
    std::int32_t position = rows.position;
    for (const auto& part : {rows.tokens, rows.drafts}) {
      for (const Token token : part) {
        to.tokens[row] = token;
        to.positions[row++] = position++;
      }
    }
    if (to.output_rows.empty()) continue;
    for (std::size_t t = 0; t < rows.targets.size(); ++t) {
      to.output_rows[output++] = static_cast<std::int32_t>(first + t);
    }
    if (rows.sampler == nullptr) continue;
    for (std::size_t at = row - 1 - rows.drafts.size(); at < row; ++at) {
      to.output_rows[output++] = static_cast<std::int32_t>(at);
    }
  }
  // Rows that the step does not have are computed, and seen by nobody.
  std::fill(to.tokens.begin() + static_cast<std::ptrdiff_t>(row), to.tokens.end(), 0);
  std::fill(to.positions.begin() + static_cast<std::ptrdiff_t>(row), to.positions.end(), 0);
  std::fill(to.output_rows.begin() + static_cast<std::ptrdiff_t>(output), to.output_rows.end(), 0);
}

void StepBatch::read(std::span<float> logits) {
  const auto vocabulary = static_cast<std::size_t>(vocabulary_size_);
  while (true) {
    const std::size_t i = next_output_.fetch_add(1, std::memory_order_relaxed);
    if (i >= output_calls_.size()) return;
    const OutputCall& call = output_calls_[i];
    const auto row = [&](std::size_t after) {
      return logits.subspan((call.logits + after) * vocabulary, vocabulary);
    };
    if (call.sampler == nullptr) {
      scored_[call.row][call.target] = score_token(row(0), call.token, call.num_top);
      continue;
    }
    sampled_[call.row] = draw(*call.sampler, row(0));
    if (call.drafts.empty()) continue;
    draw_along(call.drafts, sampled_[call.row], after_drafts_[call.row],
               [&](std::size_t drafts) { return draw(*call.sampler, row(drafts)); });
  }
}

StepOutput StepBatch::take() {
  StepOutput output;
  output.sampled = std::move(sampled_);
  output.after_drafts = std::move(after_drafts_);
  output.scored = std::move(scored_);
  return output;
}

}  // namespace sluice
