// Reads a model's output back into a message. Private to llama_chat.cpp.
#pragma once

#include <chat.h>

#include <memory>
#include <string>

#include "base/result.h"
#include "model/chat.h"

namespace sluice {

// What ChatPrompt::parser_spec holds: empty for text that needs no parsing.
[[nodiscard]] std::string write_parser_spec(const common_chat_params& params);
[[nodiscard]] std::unique_ptr<ChatParser> make_chat_parser(const std::string& parser_spec);

}  // namespace sluice
