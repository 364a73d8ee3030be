#include "model/ggml/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_set>

namespace sluice {
namespace {

tl::unexpected<Error> bad(const GgufFile& file, const std::string& what) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", file.path(), what));
}

// "models/SmolLM2.Q4_1.gguf" -> "SmolLM2.Q4_1"
std::string model_id(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  constexpr std::string_view kSuffix = ".gguf";
  if (name.size() > kSuffix.size() && name.ends_with(kSuffix)) {
    name.resize(name.size() - kSuffix.size());
  }
  return name;
}

std::string upper(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

// The type that most of the weights' bytes are in.
std::string main_type(const GgufFile& file) {
  std::map<ggml_type, std::size_t> bytes;
  for (const GgufTensor& tensor : file.tensors()) bytes[tensor.type] += tensor.bytes;
  if (bytes.empty()) return {};
  const auto most = std::max_element(
      bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return upper(ggml_type_name(most->first));
}

struct VocabularyKind {
  const char* name;
  std::int64_t default_bos;  // what libllama takes where the file does not say
  std::int64_t default_eos;
};
constexpr VocabularyKind kVocabularyKinds[] = {{"llama", 1, 2}, {"gpt2", 11, 11}};

Status check_special(const GgufFile& file, const char* key, std::int64_t otherwise,
                     std::int64_t num_tokens) {
  TRY(const auto given, file.integer(key));
  const std::int64_t id = given.value_or(otherwise);
  if (id >= 0 && id < num_tokens) return {};
  return bad(file, fmt::format("{} is {}, but the vocabulary has {} tokens", key, id, num_tokens));
}

}  // namespace

Result<ModelInfo> describe_model(const GgufFile& file, const ModelConfig& config) {
  ModelInfo info;
  info.id = model_id(file.path());
  info.architecture = config.architecture->name;
  TRY(const auto name, file.text("general.name"));
  info.name = name.value_or("");
  info.quantization = main_type(file);
  for (const GgufTensor& tensor : file.tensors()) {
    info.num_parameters += tensor.num_elements();
    info.weight_bytes += tensor.bytes;
  }
  info.num_layers = config.num_layers;
  info.num_heads = config.num_heads;
  info.num_kv_heads = config.num_kv_heads;
  info.embedding_size = config.embedding_size;
  info.vocabulary_size = config.vocabulary_size;
  info.trained_context = config.trained_context;
  info.sliding_window = config.sliding_window;
  info.kv_layout = config.kv_layout();
  return info;
}

Status check_vocabulary(const GgufFile& file) {
  const auto read = file.text("tokenizer.ggml.model");
  if (!read) return tl::unexpected(read.error());
  const std::optional<std::string>& model = *read;
  if (!model) return bad(file, "tokenizer.ggml.model is missing: the file has no vocabulary");
  const auto* kind = std::find_if(std::begin(kVocabularyKinds), std::end(kVocabularyKinds),
                                  [&](const VocabularyKind& k) { return *model == k.name; });
  if (kind == std::end(kVocabularyKinds)) {
    return bad(file, fmt::format("tokenizer.ggml.model \"{}\" is not supported; supported are "
                                 "llama, gpt2",
                                 *model));
  }
  TRY(const auto tokens, file.texts("tokenizer.ggml.tokens"));
  if (!tokens || tokens->empty()) return bad(file, "tokenizer.ggml.tokens is missing or empty");
  std::unordered_set<std::string> seen;
  for (std::size_t i = 0; i < tokens->size(); ++i) {
    // libllama's name for an empty token, so that these may be many.
    std::string token = (*tokens)[i].empty() ? fmt::format("[EMPTY_{}]", i) : (*tokens)[i];
    const auto [place, added] = seen.insert(std::move(token));
    if (!added) return bad(file, fmt::format("tokenizer.ggml.tokens has \"{}\" twice", *place));
  }
  const auto num_tokens = static_cast<std::int64_t>(tokens->size());
  TRY_STATUS(check_special(file, "tokenizer.ggml.bos_token_id", kind->default_bos, num_tokens));
  return check_special(file, "tokenizer.ggml.eos_token_id", kind->default_eos, num_tokens);
}

}  // namespace sluice
