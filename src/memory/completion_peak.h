// The most blocks that a set of sequences holds at one time if all lengths are
// known: looked at in the order of completion, for memory only falls when one
// of them ends (LightLLM; "Past-Future scheduler", arXiv 2507.10150).
#pragma once

#include <cstdint>
#include <vector>

namespace sluice {

// One sequence's memory over time: `known` tokens from now on, one more a step
// from step `after` on, gone after `after + left` steps.
struct KnownDemand {
  std::int64_t known = 0;
  std::int64_t left = 0;
  std::int64_t after = 0;
};

// Whether the peak is at most `blocks` blocks of `block_tokens` tokens. Exact:
// each sequence's last block counts whole. O(n log n), unless the answer is
// close. Reorders `demands`.
[[nodiscard]] bool completion_peak_fits(std::vector<KnownDemand>& demands, std::int64_t blocks,
                                        std::int32_t block_tokens);

}  // namespace sluice
