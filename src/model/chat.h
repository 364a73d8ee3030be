// Chat templates, tool calls and structured output: from an OpenAI conversation
// to a prompt with a grammar, and from generated text back to a message.
//
// JSON stays text at this border (OpenAI's own shapes), so that no JSON library
// is part of the interface. Any thread may use a ChatTemplate.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/sampling_params.h"

namespace sluice {

struct ChatRequest {
  std::string messages_json;         // OpenAI's `messages`
  std::string tools_json;            // OpenAI's `tools`; empty: none
  std::string tool_choice = "auto";  // auto | required | none
  std::string forced_tool;           // the function that must be called; empty: any
  bool parallel_tool_calls = false;
  std::string json_schema;           // the answer must match it; empty: free text
  std::string grammar;               // GBNF; empty: none
  std::string template_kwargs_json;  // extra variables of the template; empty: none
  bool add_generation_prompt = true;
  bool continue_final = false;  // the answer goes on with the last message, an assistant's
  bool enable_thinking = true;
};

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text as the model wrote it
};

struct ChatMessage {
  std::string content;
  std::string reasoning;
  std::vector<ToolCall> tool_calls;
};

// What one generated token added to the message. Fields are increments.
struct ChatDelta {
  std::string content;
  std::string reasoning;
  struct ToolDelta {
    std::int32_t index = 0;  // which tool call
    ToolCall call;           // id and name with the first piece only
  };
  std::vector<ToolDelta> tool_calls;
};

// Reads generated text as it comes. One a stream.
class ChatParser {
 public:
  virtual ~ChatParser() = default;
  // What the message gained by `text`, a further piece of the output.
  [[nodiscard]] virtual std::vector<ChatDelta> push(std::string_view text) = 0;
  // Ends the output: what was held back, and then message() is whole.
  [[nodiscard]] virtual std::vector<ChatDelta> finish() = 0;
  [[nodiscard]] virtual const ChatMessage& message() const = 0;
};

struct ChatPrompt {
  std::string text;  // to be tokenized with parse_special
  GrammarSpec grammar;
  std::vector<std::string> extra_stops;  // strings that end the model's turn
  bool keep_special = false;             // the parser needs the special tokens' text
  std::string parser_spec;               // opaque; for make_parser()
};

class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;

  // kInvalidArgument: a message, tool, schema or grammar is wrong, or the
  // template refuses the conversation.
  [[nodiscard]] virtual Result<ChatPrompt> apply(const ChatRequest& request) const = 0;
  [[nodiscard]] virtual std::unique_ptr<ChatParser> make_parser(const ChatPrompt& prompt) const = 0;

  // GBNF of a JSON schema. kInvalidArgument: not JSON, or not a schema that can
  // be turned into a grammar.
  [[nodiscard]] virtual Result<std::string> schema_to_grammar(std::string_view schema) const = 0;
};

}  // namespace sluice
