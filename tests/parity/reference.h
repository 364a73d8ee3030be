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

  // The logits of every position.
  [[nodiscard]] std::vector<std::vector<float>> logits(std::span<const Token> tokens);
  // What it thinks of `text` after its first `prompt` tokens: how far each token is from being the
  // best one where it stands. One pass over all of the text.
  struct Verdict {
    Token best = 0;
    double gap = 0.0;  // best logit less the token's, in standard deviations of the row
  };
  [[nodiscard]] std::vector<Verdict> judge(std::span<const Token> text, std::size_t prompt);
  [[nodiscard]] std::vector<Token> tokenize(const std::string& text) const;
  [[nodiscard]] std::int32_t vocabulary_size() const;

 private:
  Reference() = default;
  // Forgets everything, then computes `tokens`; logits from position `first_output` on.
  void decode(std::span<const Token> tokens, std::size_t first_output);
  [[nodiscard]] std::span<const float> row(std::size_t position) const;

  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
};

[[nodiscard]] Token best_token(std::span<const float> logits);

}  // namespace sluice::testing
