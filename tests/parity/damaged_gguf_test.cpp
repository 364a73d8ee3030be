// Files that are not what they should be: each is refused with an error that
// names what is wrong, by loading and by inspecting alike.
#include <fmt/format.h>
#include <gguf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "model/ggml/inspect.h"
#include "model/ggml/llama_text.h"
#include "model/ggml/weights.h"
#include "model/model.h"
#include "runner_harness.h"
#include "tiny_model.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;

// Reads, checks and loads the file as load_gguf_model() does, but for libllama.
Status load_all(const std::string& path) {
  TRY(std::unique_ptr<GgufFile> file, GgufFile::open(path));
  TRY(const ModelConfig config, read_model_config(*file));
  TRY_STATUS(check_vocabulary(*file));
  TRY(const auto weights, load_weights(std::move(file), config, {}));
  TRY(const auto runner, GgmlRunner::make(config, *weights, {}));
  return {};
}

class DamagedGguf : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ =
        (std::filesystem::temp_directory_path() / fmt::format("sluice_damaged_{}.gguf", ::getpid()))
            .string();
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void write(const TinyModel& model) { write_tiny_model(model, path_); }

  [[nodiscard]] std::string read() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void overwrite(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  void expect_refused(const std::string& what) {
    const Status status = load_all(path_);
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message, HasSubstr(what));
    EXPECT_THAT(status.error().message, HasSubstr(path_));
  }

  std::string path_;
};

TEST_F(DamagedGguf, TheWholeFileLoads) {
  write({});
  const Status status = load_all(path_);
  EXPECT_TRUE(status.has_value()) << status.error().message;
}

TEST_F(DamagedGguf, NoSuchFile) {
  const Status status = load_all(path_);
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kNotFound);
}

TEST_F(DamagedGguf, AFolder) {
  const Status status = load_all(std::filesystem::temp_directory_path().string());
  ASSERT_FALSE(status.has_value());
  EXPECT_THAT(status.error().message, HasSubstr("not a regular file"));
}

TEST_F(DamagedGguf, WrongBytes) {
  write({});
  const std::string good = read();
  struct Case {
    const char* name;
    std::string bytes;
    const char* message;
  };
  const auto patched = [&](std::size_t at, const std::string& with) {
    std::string bytes = good;
    bytes.replace(at, with.size(), with);
    return bytes;
  };
  const std::string huge(8, '\x7f');
  for (const Case& c : {
           Case{"empty", "", "0 bytes are too few"},
           Case{"not GGUF", "PK\x03\x04" + std::string(100, 'x'), "not a GGUF file"},
           Case{"text", std::string(1000, 'a'), "not a GGUF file"},
           Case{"version 1", patched(4, std::string("\1\0\0\0", 4)), "version 1 is not supported"},
           Case{"version 4", patched(4, std::string("\4\0\0\0", 4)), "version 4 is not supported"},
           Case{"other endianness", patched(4, std::string("\0\0\0\3", 4)), "is not supported"},
           Case{"number of tensors", patched(8, huge), "damaged or truncated"},
           Case{"number of keys", patched(16, huge), "damaged or truncated"},
           Case{"length of a key", patched(24, huge), "damaged or truncated"},
           Case{"header only", good.substr(0, 24), "damaged or truncated"},
           Case{"last byte", good.substr(0, good.size() / 2), "truncated: tensor"},
       }) {
    SCOPED_TRACE(c.name);
    overwrite(c.bytes);
    expect_refused(c.message);
    EXPECT_FALSE(inspect_gguf(path_).has_value());
  }
}

// Any prefix of a good file is refused; none stops the process.
TEST_F(DamagedGguf, EveryTruncation) {
  write({.num_layers = 1,
         .embedding = 16,
         .num_heads = 2,
         .num_kv_heads = 1,
         .head_dim = 8,
         .ffn = 16});
  const std::string good = read();
  for (std::size_t size = 0; size < good.size(); size += size < 12'000 ? 37 : 997) {
    overwrite(good.substr(0, size));
    ASSERT_FALSE(load_all(path_).has_value()) << size << " bytes";
  }
}

// Bytes of the header changed at random: loads or is refused, but never aborts.
TEST_F(DamagedGguf, RandomDamage) {
  write({.num_layers = 1,
         .embedding = 16,
         .num_heads = 2,
         .num_kv_heads = 1,
         .head_dim = 8,
         .ffn = 16});
  const std::string good = read();
  const std::size_t header = good.find("blk.0.ffn_down.weight") + 64;
  std::mt19937_64 rng(3);
  std::int32_t refused = 0;
  constexpr std::int32_t kTrials = 1500;
  for (std::int32_t i = 0; i < kTrials; ++i) {
    std::string bytes = good;
    for (std::uint64_t n = 1 + rng() % 3; n > 0; --n) {
      bytes[24 + rng() % (header - 24)] = static_cast<char>(rng());
    }
    overwrite(bytes);
    refused += load_all(path_).has_value() ? 0 : 1;
  }
  EXPECT_GT(refused, kTrials / 10);
}

TEST_F(DamagedGguf, WrongKeys) {
  struct Case {
    const char* name;
    std::function<void(gguf_context*)> edit;
    const char* message;
  };
  const auto number = [](const char* key, std::uint32_t value) {
    return [=](gguf_context* c) { gguf_set_val_u32(c, key, value); };
  };
  const auto real = [](const char* key, float value) {
    return [=](gguf_context* c) { gguf_set_val_f32(c, key, value); };
  };
  const auto text = [](const char* key, const char* value) {
    return [=](gguf_context* c) { gguf_set_val_str(c, key, value); };
  };
  const auto gone = [](const char* key) {
    return [=](gguf_context* c) { gguf_remove_key(c, key); };
  };
  for (const Case& c : {
           Case{"no architecture", gone("general.architecture"), "general.architecture is missing"},
           Case{"unknown architecture", text("general.architecture", "mamba"),
                "\"mamba\" is not supported; supported are llama, qwen2, qwen3, qwen3moe, gemma3, "
                "phi3"},
           Case{"architecture of a wrong type", number("general.architecture", 3),
                "general.architecture is of type u32"},
           Case{"no layers", number("llama.block_count", 0), "block_count is 0, expected 1 to 512"},
           Case{"too many layers", number("llama.block_count", 100'000), "block_count is 100000"},
           Case{"one layer more", number("llama.block_count", 3),
                "tensor blk.2.attn_norm.weight is missing"},
           Case{"one layer fewer", number("llama.block_count", 1), "tensor blk.1."},
           Case{"no embedding length", gone("llama.embedding_length"),
                "embedding_length is missing"},
           Case{"wrong embedding length", number("llama.embedding_length", 65),
                "token_embd.weight has shape [64, 320], expected [65, 320]"},
           Case{"huge embedding", number("llama.embedding_length", 1U << 30),
                "embedding_length is 1073741824"},
           Case{"no heads", number("llama.attention.head_count", 0), "head_count is 0"},
           Case{"heads not a multiple", number("llama.attention.head_count", 5), "multiple"},
           Case{"KV heads", number("llama.attention.head_count_kv", 9), "head_count_kv is 9"},
           Case{"odd head", number("llama.attention.key_length", 17), "value_length"},
           Case{"context", number("llama.context_length", 0), "context_length is 0"},
           Case{"text for a number", text("llama.context_length", "long"),
                "context_length is of type str"},
           Case{"no epsilon", gone("llama.attention.layer_norm_rms_epsilon"), "epsilon is missing"},
           Case{"negative epsilon", real("llama.attention.layer_norm_rms_epsilon", -1.0F),
                "epsilon is -1"},
           Case{"not a number", real("llama.rope.freq_base", NAN), "freq_base is nan"},
           Case{"base of 0", real("llama.rope.freq_base", 0.0F), "freq_base is 0"},
           Case{"odd rotation", number("llama.rope.dimension_count", 7), "dimension_count is 7"},
           Case{"partial rotation", number("llama.rope.dimension_count", 8),
                "dimension_count is 8, expected 16"},
           Case{"unknown scaling", text("llama.rope.scaling.type", "spiral"), "\"spiral\""},
           Case{"longrope without factors", text("llama.rope.scaling.type", "longrope"),
                "rope_factors_long.weight is missing"},
           Case{"experts", number("llama.expert_count", 8), "mixtures of experts"},
           Case{"FFN", number("llama.feed_forward_length", 95), "ffn_gate.weight has shape"},
           Case{"not causal",
                [](gguf_context* g) { gguf_set_val_bool(g, "llama.attention.causal", false); },
                "causal is false"},
           Case{"alignment", number("general.alignment", 4), "alignment 4 is below 8"},
           Case{"no vocabulary", gone("tokenizer.ggml.model"), "tokenizer.ggml.model is missing"},
           Case{"unknown vocabulary", text("tokenizer.ggml.model", "bert"), "\"bert\""},
           Case{"no tokens", gone("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens is missing"},
           Case{"tokens of a wrong type", number("tokenizer.ggml.tokens", 1),
                "tokenizer.ggml.tokens is of type u32"},
           Case{"special token", number("tokenizer.ggml.bos_token_id", 4'000'000'000U),
                "bos_token_id is 4000000000"},
       }) {
    SCOPED_TRACE(c.name);
    TinyModel model;
    model.edit_keys = c.edit;
    write(model);
    expect_refused(c.message);
  }
}

TEST_F(DamagedGguf, FewerTokensThanRows) {
  TinyModel model;
  model.edit_keys = [](gguf_context* c) {
    const char* tokens[] = {"a", "b", "c"};
    gguf_set_arr_str(c, "tokenizer.ggml.tokens", tokens, 3);
  };
  write(model);
  expect_refused("3 tokens in the vocabulary, but 320 rows");
}

TEST_F(DamagedGguf, TokensTwice) {
  TinyModel model;
  model.edit_keys = [](gguf_context* c) {
    std::vector<const char*> tokens(kTinyVocabulary, "same");
    gguf_set_arr_str(c, "tokenizer.ggml.tokens", tokens.data(), tokens.size());
  };
  write(model);
  expect_refused("\"same\" twice");
}

TEST_F(DamagedGguf, AnEmptyTokenTakesTheNameOfAnother) {
  TinyModel model;
  model.edit_keys = [](gguf_context* c) {
    std::vector<std::string> words;
    for (std::int32_t i = 0; i < kTinyVocabulary; ++i) words.push_back(fmt::format("w{}", i));
    words[7] = "[EMPTY_9]";
    words[9] = "";
    std::vector<const char*> texts;
    for (const std::string& word : words) texts.push_back(word.c_str());
    gguf_set_arr_str(c, "tokenizer.ggml.tokens", texts.data(), texts.size());
  };
  write(model);
  expect_refused("\"[EMPTY_9]\" twice");
}

// Some kinds of vocabulary have no first token unless the file names one.
TEST_F(DamagedGguf, TextsBeginWithATokenThatIsNotNamed) {
  TinyModel model;
  model.edit_keys = [](gguf_context* c) {
    const char* merge = "w o";
    gguf_set_val_str(c, "tokenizer.ggml.model", "gpt2");
    gguf_set_val_str(c, "tokenizer.ggml.pre", "glm4");
    gguf_set_arr_str(c, "tokenizer.ggml.merges", &merge, 1);
    gguf_set_val_bool(c, "tokenizer.ggml.add_bos_token", true);
    gguf_remove_key(c, "tokenizer.ggml.bos_token_id");
  };
  write(model);
  const auto text = load_text_model(path_);
  ASSERT_FALSE(text.has_value());
  EXPECT_THAT(text.error().message, HasSubstr("bos_token_id"));
}

// A vocabulary without the tokens of bytes is no damage: some texts have no tokens.
TEST_F(DamagedGguf, TextThatTheVocabularyCannotSpell) {
  TinyModel model;
  model.edit_keys = [](gguf_context* out) {
    std::vector<std::string> words;
    for (std::int32_t i = 0; i < kTinyVocabulary; ++i) words.push_back(fmt::format("w{}", i));
    std::vector<const char*> texts;
    for (const std::string& word : words) texts.push_back(word.c_str());
    const std::vector<std::int32_t> types(texts.size(), 1);
    gguf_set_arr_str(out, "tokenizer.ggml.tokens", texts.data(), texts.size());
    gguf_set_arr_data(out, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(),
                      types.size());
  };
  write(model);
  const auto text = load_text_model(path_);
  ASSERT_TRUE(text.has_value()) << text.error().message;
  const auto tokens = (*text)->tokenizer().tokenize("xyz", {});
  ASSERT_FALSE(tokens.has_value());
  EXPECT_EQ(tokens.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(tokens.error().message, HasSubstr("vocabulary"));
}

TEST_F(DamagedGguf, WrongTensors) {
  struct Case {
    const char* name;
    std::function<void(std::vector<TinyTensor>&)> edit;
    const char* message;
  };
  const auto find = [](std::vector<TinyTensor>& tensors, const std::string& name) {
    return std::find_if(tensors.begin(), tensors.end(),
                        [&](const TinyTensor& t) { return t.name == name; });
  };
  const auto without = [&](const char* name) {
    return [=](std::vector<TinyTensor>& t) { t.erase(find(t, name)); };
  };
  const auto shaped = [&](const char* name, std::vector<std::int64_t> shape) {
    return [=](std::vector<TinyTensor>& t) { find(t, name)->shape = shape; };
  };
  const auto typed = [&](const char* name, ggml_type type) {
    return [=](std::vector<TinyTensor>& t) { find(t, name)->type = type; };
  };
  for (const Case& c : {
           Case{"no embedding", without("token_embd.weight"), "token_embd.weight is missing"},
           Case{"no norm", without("output_norm.weight"), "output_norm.weight is missing"},
           Case{"no query", without("blk.1.attn_q.weight"), "blk.1.attn_q.weight is missing"},
           Case{"no down", without("blk.0.ffn_down.weight"), "blk.0.ffn_down.weight is missing"},
           Case{"wide norm", shaped("output_norm.weight", {128}),
                "output_norm.weight has shape [128], expected [64]"},
           Case{"transposed", shaped("blk.0.ffn_up.weight", {96, 64}),
                "blk.0.ffn_up.weight has shape [96, 64], expected [64, 96]"},
           Case{"one dimension more", shaped("blk.0.attn_q.weight", {64, 64, 2}),
                "blk.0.attn_q.weight has shape [64, 64, 2]"},
           Case{"norm in f16", typed("blk.0.attn_norm.weight", GGML_TYPE_F16),
                "blk.0.attn_norm.weight has type f16"},
           Case{"unknown tensor",
                [](std::vector<TinyTensor>& t) {
                  t.push_back({"blk.0.attn_sinks.weight", GGML_TYPE_F32, {4}});
                },
                "blk.0.attn_sinks.weight is not one that this architecture has"},
       }) {
    SCOPED_TRACE(c.name);
    TinyModel model;
    model.edit_tensors = c.edit;
    write(model);
    expect_refused(c.message);
  }
}

TEST_F(DamagedGguf, RunnerOptions) {
  write({});
  auto file = GgufFile::open(path_);
  ASSERT_TRUE(file.has_value());
  const auto config = read_model_config(**file);
  ASSERT_TRUE(config.has_value());
  const auto weights = load_weights(std::move(*file), *config, {});
  ASSERT_TRUE(weights.has_value());
  for (const RunnerOptions& options :
       {RunnerOptions{.num_threads = 0}, RunnerOptions{.num_threads = 100'000},
        RunnerOptions{.max_step_tokens = 0}, RunnerOptions{.max_step_outputs = 0},
        RunnerOptions{.max_context = 0}}) {
    const auto runner = GgmlRunner::make(*config, **weights, options);
    ASSERT_FALSE(runner.has_value());
    EXPECT_EQ(runner.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Inspect, TellsSizes) {
  const std::string path =
      (std::filesystem::temp_directory_path() / "sluice_inspect.test.Q8_0.gguf").string();
  TinyModel model{.architecture = "gemma3", .sliding_window = 24, .type = GGML_TYPE_Q8_0};
  write_tiny_model(model, path);
  const auto info = inspect_gguf(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(info.has_value()) << info.error().message;
  EXPECT_EQ(info->id, "sluice_inspect.test.Q8_0");
  EXPECT_EQ(info->architecture, "gemma3");
  EXPECT_EQ(info->name, "tiny");
  EXPECT_EQ(info->quantization, "Q8_0");
  EXPECT_EQ(info->num_layers, 2);
  EXPECT_EQ(info->num_heads, 4);
  EXPECT_EQ(info->num_kv_heads, 2);
  EXPECT_EQ(info->embedding_size, 64);
  EXPECT_EQ(info->vocabulary_size, kTinyVocabulary);
  EXPECT_EQ(info->trained_context, 512);
  EXPECT_EQ(info->sliding_window, 24);
  // 2 layers x K and V x 2 heads x 16 elements of f16.
  EXPECT_EQ(info->kv_layout.token_bytes(), 2U * 2 * 2 * 16 * 2);
  // Embedding, per layer q, k, v, out and three of the FFN, and the norms.
  const std::int64_t layer = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 96 + 4 * 64 + 2 * 16;
  EXPECT_EQ(info->num_parameters, 64 * kTinyVocabulary + 2 * layer + 64);
  EXPECT_GT(info->weight_bytes, 0U);
}

}  // namespace
}  // namespace sluice::testing
