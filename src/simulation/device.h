// How long a step takes on a device: a profile, from measured operators or from
// a roofline.
//
//   step = step_s + dense(tokens) + head(rows that sample)
//        + decode rows  * decode_row_s   + their context    * decode_context_s
//        + prefill chunks * prefill_chunk_s + their tokens  * prefill_token_s
//                                           + (query, key) pairs * prefill_pair_s
//
// dense() and head() are tables, linear between their points: what is not
// attention is bound by memory for few tokens and by arithmetic for many. Seconds
// and tokens. Plain values; docs/simulation.md describes the text form.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace sluice {

// What one step computes, as far as its time depends on it.
struct StepWork {
  std::int32_t sampled = 0;  // rows that draw a token
  std::int32_t decode_rows = 0;
  std::int64_t decode_context = 0;  // KV tokens that decode rows read
  std::int32_t prefill_chunks = 0;
  std::int32_t prefill_tokens = 0;
  double prefill_pairs = 0;

  void add(std::int32_t tokens, std::int32_t position, bool samples);
};

struct DeviceProfile {
  std::string name;
  std::int64_t kv_tokens = 0;       // that its memory holds beside the weights
  std::int64_t kv_token_bytes = 0;  // of one token in all layers: what a handoff moves
  double step_s = 0;
  std::vector<double> tokens;   // ascending; points of both tables
  std::vector<double> dense_s;  // of a batch of so many tokens
  std::vector<double> head_s;   // of so many rows that sample
  double decode_row_s = 0;
  double decode_context_s = 0;
  double prefill_chunk_s = 0;
  double prefill_token_s = 0;
  double prefill_pair_s = 0;

  [[nodiscard]] double seconds(const StepWork& work) const;
  // Of a prompt alone on the device, nothing cached, in steps of at most `chunk` tokens.
  [[nodiscard]] double prefill_seconds(std::int32_t prompt, std::int32_t chunk) const;
};

// kInvalidArgument with the line's number.
[[nodiscard]] Result<DeviceProfile> parse_device(std::string_view text);

// The text that parse_device() reads.
[[nodiscard]] std::string device_text(const DeviceProfile& profile);

// Profiles that come with the program, by name.
[[nodiscard]] std::span<const char* const> device_names();
// kNotFound: no such name; says which there are.
[[nodiscard]] Result<DeviceProfile> built_in_device(std::string_view name);

// A device and a model known by their data sheets only.
struct Roofline {
  std::string name;
  double flops = 1e14;      // dense, in the weights' type, per second
  double bandwidth = 1e12;  // bytes per second
  double memory = 80e9;     // bytes
  double efficiency = 0.7;  // of both, reached in practice
  double parameters = 8e9;  // without the embedding table
  double weight_bytes = 2;  // a parameter
  std::int64_t kv_token_bytes = 131072;
  double attention_width = 131072;  // layers x query heads x head size
};
[[nodiscard]] DeviceProfile roofline_device(const Roofline& roofline);

}  // namespace sluice
