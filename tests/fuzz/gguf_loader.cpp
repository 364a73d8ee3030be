// Any bytes as a model file: it is refused with a message, or its weights are bound and libllama
// reads its vocabulary, which trusts a file more than we do. Seeds are whole little models
// (make_seeds.py).
#include <llama.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "model/ggml/architecture.h"
#include "model/ggml/ggml_log.h"
#include "model/ggml/gguf_file.h"
#include "model/ggml/inspect.h"
#include "model/ggml/weights.h"

namespace {

using namespace sluice;

Status load(const std::string& path) {
  TRY(std::unique_ptr<GgufFile> file, GgufFile::open(path));
  TRY(const ModelConfig config, read_model_config(*file));
  CHECK(config.kv_layout().num_layers > 0);
  TRY_STATUS(check_vocabulary(*file));
  llama_model_params vocabulary = llama_model_default_params();
  vocabulary.vocab_only = true;
  llama_model_free(llama_model_load_from_file(path.c_str(), vocabulary));  // null: refused as well
  TRY(const auto weights, load_weights(std::move(file), config, {}));
  CHECK(weights != nullptr);
  return {};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  route_ggml_logs();
  static const int kFile = ::memfd_create("model", 0);
  CHECK(kFile >= 0);
  CHECK(::ftruncate(kFile, 0) == 0);
  CHECK(::pwrite(kFile, data, size, 0) == static_cast<ssize_t>(size));
  const Status status = load("/proc/self/fd/" + std::to_string(kFile));
  CHECK(status || !status.error().message.empty());
  return 0;
}
