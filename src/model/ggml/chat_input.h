// Reads what a client sent of a conversation: OpenAI's messages and tools, JSON
// schemas. Checks the shapes before llama-common sees them. Private to
// llama_chat.cpp.
#pragma once

#include <chat.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice {

inline constexpr int kMaxJsonNesting = 64;
inline constexpr std::size_t kMaxSchemaBytes = 512 * 1024;
inline constexpr std::size_t kMaxSchemaNodes = 5000;      // schemas inside a schema
inline constexpr std::size_t kMaxSchemaProperties = 256;  // of one object
inline constexpr std::int64_t kMaxSchemaCount = 10'000;   // minItems, maxLength and the like
inline constexpr std::size_t kMaxTools = 128;
inline constexpr std::size_t kMaxNameBytes = 256;

// kInvalidArgument for each: `what` names the part in the message.
[[nodiscard]] Result<common_json> parse_json(std::string_view text, const std::string& what);
[[nodiscard]] Result<std::vector<common_chat_msg>> read_messages(std::string_view text);
[[nodiscard]] Result<std::vector<common_chat_tool>> read_tools(std::string_view text);
[[nodiscard]] Result<std::map<std::string, std::string>> read_template_variables(
    std::string_view text);
// A schema that a grammar can hold a model to in full.
[[nodiscard]] Result<common_json> read_schema(std::string_view text);

}  // namespace sluice
