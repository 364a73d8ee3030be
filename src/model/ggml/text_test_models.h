// Models that the tests of the text side read. Their folders come from the
// environment; a test whose file is not there skips and says which.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "model/ggml/llama_text.h"

namespace sluice::testing {

// $variable/name, or empty.
inline std::string test_file(const char* variable, const std::string& name) {
  const char* folder = std::getenv(variable);
  if (folder == nullptr) return {};
  const std::string path = std::string(folder) + "/" + name;
  return std::filesystem::exists(path) ? path : std::string();
}

inline std::string smollm2_path() {
  return test_file("SLUICE_TEST_MODELS", "SmolLM2-135M-Instruct.Q4_1.gguf");
}

// Loads once a process; null: the file is not there or does not load.
inline const LlamaText* text_model(const std::string& path) {
  static std::map<std::string, std::unique_ptr<LlamaText>> loaded;
  if (path.empty()) return nullptr;
  auto& slot = loaded[path];
  if (!slot) {
    auto model = load_text_model(path);
    if (!model) {
      ADD_FAILURE() << path << ": " << model.error().message;
      return nullptr;
    }
    slot = std::move(*model);
  }
  return slot.get();
}

}  // namespace sluice::testing

// The text side of SmolLM2 as `name`, or the test skips.
#define SLUICE_SMOLLM2_OR_SKIP(name)                                                       \
  const ::sluice::LlamaText* name##_pointer =                                              \
      ::sluice::testing::text_model(::sluice::testing::smollm2_path());                    \
  if (name##_pointer == nullptr)                                                           \
    GTEST_SKIP() << "no SmolLM2-135M-Instruct.Q4_1.gguf in the folder SLUICE_TEST_MODELS"; \
  const ::sluice::LlamaText& name = *name##_pointer
