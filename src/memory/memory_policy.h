// Which memory policy an instance follows, as a value.
//
// All policies run through the same KvManager and planner. They differ in how
// far ahead they grant (WindowOptions), in the condition under which an arrival
// is admitted (AdmissionRule) and in who yields when memory is short: to grow
// block by block is to have windows of one step. Their names are here and
// nowhere else.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "memory/window_planner.h"

namespace sluice {

enum class MemoryPolicy : std::uint8_t {
  kWindowed,        // ours: windows from durations, admission by the likely peak
  kPaged,           // vLLM's defaults: the prompt fits; grows block by block
  kPagedWatermark,  //   the same, 5 % of the pool kept free at admission
  kReserve,         // TensorRT-LLM's GUARANTEED_NO_EVICT: prompt + max_tokens
  kRatio,           // SGLang: a decaying share of max_tokens
  kPeakEma,         // LightLLM: peak over the order of completion, moving mean of lengths
  kPastFuture,      // arXiv 2507.10150: the same peak, lengths sampled from the past
  kOracle,          // the same peak, true lengths: the limit; benchmarks only
};

[[nodiscard]] std::span<const std::string_view> memory_policy_names();
[[nodiscard]] std::string_view name_of(MemoryPolicy policy);
[[nodiscard]] std::optional<MemoryPolicy> memory_policy_of(std::string_view name);

// `options` with what the policy fixes: how far ahead it grants, who yields.
[[nodiscard]] WindowOptions window_options_for(MemoryPolicy policy, WindowOptions options);

}  // namespace sluice
