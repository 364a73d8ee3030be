// Any bytes as a JSON schema: an error with a message, or a grammar that ours compiles or refuses.
#include <json-schema-to-grammar.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "base/check.h"
#include "model/ggml/chat_input.h"
#include "model/grammar.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  const auto schema = read_schema({reinterpret_cast<const char*>(data), size});
  if (!schema) {
    CHECK(!schema.error().message.empty());
    return 0;
  }
  std::string gbnf;
  try {
    gbnf = json_schema_to_grammar(*schema, true);
  } catch (const std::exception&) {
    return 0;  // as in llama_chat.cpp: becomes an error's message
  }
  const auto grammar = Grammar::compile(gbnf);
  CHECK(grammar || !grammar.error().message.empty());
  return 0;
}
