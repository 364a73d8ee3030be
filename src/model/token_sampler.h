// The Sampler of every model: needs no more of one than its Tokenizer.
//
// A token is drawn in this order: logit bias; repetition, presence and frequency
// penalties; bans; the grammar; temperature; top-k, typical, top-p, min-p.
// The grammar is asked about the token that was drawn first, and only if it says
// no is its mask applied and the token drawn again: for equal text distributions
// a step mostly costs one look-up.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "model/sampler.h"
#include "model/tokenizer.h"

namespace sluice {

struct SamplerModel {
  const Tokenizer* tokenizer = nullptr;  // outlives the factory and its samplers
  std::vector<Token> suppressed;         // never drawn
  // The token of a text such as "<|tool_call|>", for grammars that name it.
  std::function<std::optional<Token>(std::string_view)> find_token;
};

[[nodiscard]] std::unique_ptr<SamplerFactory> make_token_samplers(SamplerModel model);

}  // namespace sluice
