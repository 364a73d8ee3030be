// The parts of a request that several endpoints share. See request_parser.h.
#pragma once

#include "gateway/json_reader.h"
#include "gateway/request_parser.h"

namespace sluice {

// 404 for a model that is not here.
void read_model(FieldReader& fields, const ParseContext& context);
// OpenAI's API asks for one, though there is only one here. Checked last: what
// else is wrong is more to the point.
void require_model(FieldReader& fields, const ParseContext& context);

// A token of the vocabulary, or a list of them; of `key` in the error.
[[nodiscard]] std::optional<Token> read_token(const Json& item, const ParseContext& context);
[[nodiscard]] std::optional<std::vector<Token>> read_token_list(FieldReader& fields,
                                                                const ParseContext& context,
                                                                std::string_view key,
                                                                const Json& items);

// Sampling, lengths, stops, streaming.
void read_generation(FieldReader& fields, const ParseContext& context, GenerationCall& call);

// response_format, json_schema, grammar and vLLM's structured_outputs: at most
// one of them; fills one of the two.
void read_constraint(FieldReader& fields, const ParseContext& context, std::string& json_schema,
                     std::string& grammar);

// messages, tools, tool_choice and what the template is told.
void read_conversation(FieldReader& fields, const ParseContext& context, ChatRequest& chat);
void read_tools(FieldReader& fields, const ParseContext& context, ChatRequest& chat);

// Fields that mean nothing here but have a type.
void check_unused(FieldReader& fields);

}  // namespace sluice
