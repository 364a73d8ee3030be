#include <fmt/format.h>

#include <stdexcept>

#include "model/model.h"
#include "options.h"
#include "or_throw.h"

namespace sluice {

int inspect(const InspectOptions& options) {
  const ModelInfo info = or_throw(inspect_gguf(options.model));
  KvLayout kv = info.kv_layout;
  kv.type = options.kv_type;
  if (!kv.holds_whole_groups()) {
    throw std::runtime_error(
        fmt::format("a KV cache of {} needs heads of a multiple of {} "
                    "elements; this model's have {}",
                    kv_type_name(kv.type), kKvGroup, kv.head_dim_k));
  }
  const auto row = [](const char* name, const std::string& value) {
    fmt::print("{:<18}{}\n", name, value);
  };
  row("file", options.model);
  row("model", info.name.empty() ? info.id : info.name);
  row("architecture", info.architecture);
  row("parameters", fmt::format("{:.1f} M", static_cast<double>(info.num_parameters) / 1e6));
  row("weights", fmt::format("{}, mostly {}", format_size(info.weight_bytes), info.quantization));
  row("layers", fmt::format("{}", info.num_layers));
  row("heads", fmt::format("{} query, {} key/value, dimension {}", info.num_heads,
                           info.num_kv_heads, kv.head_dim_k));
  row("embedding", fmt::format("{}", info.embedding_size));
  row("vocabulary", fmt::format("{}", info.vocabulary_size));
  row("trained context", fmt::format("{} tokens", info.trained_context));
  if (info.sliding_window > 0) row("sliding window", fmt::format("{} tokens", info.sliding_window));
  row("KV cache",
      fmt::format("{} a token ({} blocks of {} tokens, {} each)", format_size(kv.token_bytes()),
                  kv_type_name(kv.type), kv.block_tokens, format_size(kv.block_bytes())));
  row("tokens that fit",
      fmt::format("{} in {}",
                  options.memory / kv.block_bytes() * static_cast<std::size_t>(kv.block_tokens),
                  format_size(options.memory)));
  return 0;
}

}  // namespace sluice
