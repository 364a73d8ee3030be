// Built-in profiles, made by tools/device_profile.py from the operator timings
// that NVIDIA's aiconfigurator publishes (Apache-2.0): bf16 weights and KV, Llama
// 3.1 shapes, vLLM's kernels.
#include <array>

#include "base/check.h"
#include "simulation/device.h"

namespace sluice {
namespace {

struct BuiltIn {
  const char* name;
  const char* text;
};

constexpr BuiltIn kBuiltIn[] = {
    {"h100-8b", R"(
name h100-8b
kv_tokens 442720
kv_token_bytes 131072
step_s 0.001247
tokens 1 2 4 8 16 32 64
tokens 128 256 512 1024 2048 4096 8192
dense_s 0.005278 0.005444 0.005585 0.005675 0.005971 0.00603 0.00619
dense_s 0.006157 0.007019 0.009977 0.01908 0.03787 0.07569 0.163
head_s 0.0007261 0.0003635 0.0002836 0.000244 0.0004349 0.0004572 0.0004299
head_s 0.0002625 0.0006139 0.0005109 0.00125 0.002164 0.004506 0.01085
decode_row_s 5.666e-06
decode_context_s 4.053e-08
prefill_chunk_s 0.0003995
prefill_token_s 4.489e-07
prefill_pair_s 7.483e-10
)"},
    {"h200-8b", R"(
name h200-8b
kv_tokens 892460
kv_token_bytes 131072
step_s 0.001253
tokens 1 2 4 8 16 32 64
tokens 128 256 512 1024 2048 4096 8192
dense_s 0.004128 0.004296 0.004218 0.004145 0.004444 0.004525 0.004623
dense_s 0.00474 0.005949 0.009707 0.01883 0.03943 0.07989 0.164
head_s 0.0002396 0.0001704 0.0002372 0.0004098 0.000275 0.0002771 0.000383
head_s 0.0003051 0.0003317 0.0006097 0.001536 0.002922 0.00569 0.008429
decode_row_s 5.813e-06
decode_context_s 2.967e-08
prefill_chunk_s 0.0003979
prefill_token_s 4.255e-07
prefill_pair_s 7.69e-10
)"},
    {"a100-8b", R"(
name a100-8b
kv_tokens 442720
kv_token_bytes 131072
step_s 0.001724
tokens 1 2 4 8 16 32 64
tokens 128 256 512 1024 2048 4096 8192
dense_s 0.01011 0.009744 0.009832 0.009948 0.01013 0.01036 0.01033
dense_s 0.0122 0.01812 0.03117 0.05779 0.1103 0.2211 0.4483
head_s 0.000615 0.0005955 0.0005802 0.000614 0.0006165 0.000588 0.0006083
head_s 0.0006951 0.000808 0.001811 0.003685 0.007287 0.0141 0.02782
decode_row_s 7.592e-06
decode_context_s 7.765e-08
prefill_chunk_s 0.0004082
prefill_token_s 8.97e-07
prefill_pair_s 2.796e-09
)"},
    {"h100x4-70b", R"(
name h100x4-70b
kv_tokens 473779
kv_token_bytes 327680
step_s 0.001806
tokens 1 2 4 8 16 32 64
tokens 128 256 512 1024 2048 4096 8192
dense_s 0.0162 0.01702 0.01651 0.01703 0.01703 0.01657 0.01708
dense_s 0.0188 0.02249 0.03554 0.0656 0.1288 0.2595 0.5608
head_s 0.000197 0.0001913 0.000181 0.0002122 0.0001805 0.0001764 0.0001897
head_s 0.000196 0.000196 0.0003299 0.0006531 0.001408 0.002923 0.006193
decode_row_s 3.736e-06
decode_context_s 2.559e-08
prefill_chunk_s 0.001018
prefill_token_s 4.766e-07
prefill_pair_s 9.332e-10
)"},
};

constexpr std::size_t kCount = std::size(kBuiltIn);

constexpr std::array<const char*, kCount> names() {
  std::array<const char*, kCount> names{};
  for (std::size_t i = 0; i < kCount; ++i) names[i] = kBuiltIn[i].name;
  return names;
}
constexpr auto kNames = names();

}  // namespace

std::span<const char* const> device_names() {
  return kNames;
}

Result<DeviceProfile> built_in_device(std::string_view name) {
  std::string known;
  for (const BuiltIn& device : kBuiltIn) {
    if (name == device.name) return parse_device(device.text);
    known += (known.empty() ? "" : ", ") + std::string(device.name);
  }
  return fail(ErrorCode::kNotFound, fmt::format("no device \"{}\"; there are {}", name, known));
}

}  // namespace sluice
