// libllama as the yardstick: logits of a token sequence, f16 KV, no flash
// attention.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"

struct llama_model;
struct llama_context;

namespace sluice::testing {

class Reference final {
 public:
  // Null where libllama does not load the file.
  [[nodiscard]] static std::unique_ptr<Reference> load(const std::string& path,
                                                       std::int32_t context, bool repack = true);
  ~Reference();

  // Forgets everything, then computes `tokens`; the logits of every position.
  [[nodiscard]] std::vector<std::vector<float>> logits(std::span<const Token> tokens);
  // Greedy continuation; with the logits that each token was chosen from.
  struct Step {
    Token token = 0;
    std::vector<float> logits;
  };
  [[nodiscard]] std::vector<Step> continue_greedily(std::span<const Token> prompt,
                                                    std::int32_t num_tokens);
  [[nodiscard]] std::vector<Token> tokenize(const std::string& text) const;
  [[nodiscard]] std::int32_t vocabulary_size() const;

 private:
  Reference() = default;
  void decode(std::span<const Token> tokens, std::int32_t position, bool all_logits);
  void reset();

  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
};

[[nodiscard]] Token best_token(std::span<const float> logits);

}  // namespace sluice::testing
