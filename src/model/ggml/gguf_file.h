// A GGUF file, mapped read-only: its key-values and where its tensors lie.
//
// Everything is checked when it is opened, so that what this class hands out is
// inside the mapping. Immutable: any thread may read it. Tensor data stays
// valid as long as the file is open.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ggml.h"

struct gguf_context;

namespace sluice {

struct GgufTensor {
  std::string name;
  ggml_type type = GGML_TYPE_F32;
  std::array<std::int64_t, GGML_MAX_DIMS> shape{};  // 1 beyond the last dimension
  const std::byte* data = nullptr;
  std::size_t bytes = 0;

  [[nodiscard]] std::int64_t num_elements() const {
    return shape[0] * shape[1] * shape[2] * shape[3];
  }
};

class GgufFile final {
 public:
  // kNotFound: no such file. kInvalidArgument: not GGUF, damaged, or truncated.
  [[nodiscard]] static Result<std::unique_ptr<GgufFile>> open(const std::string& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  // A value that is absent is an empty optional; one of another kind is an error
  // that names the key. Integers of any width are accepted where they fit.
  [[nodiscard]] Result<std::optional<std::int64_t>> integer(const std::string& key) const;
  [[nodiscard]] Result<std::optional<double>> number(const std::string& key) const;
  [[nodiscard]] Result<std::optional<std::string>> text(const std::string& key) const;
  // One value or an array of them.
  [[nodiscard]] Result<std::optional<std::vector<std::int64_t>>> integers(
      const std::string& key) const;
  [[nodiscard]] Result<std::optional<std::vector<std::string>>> texts(const std::string& key) const;
  // Number of elements of an array; empty: absent or not an array.
  [[nodiscard]] std::optional<std::int64_t> array_size(const std::string& key) const;
  [[nodiscard]] bool is_array(const std::string& key) const;

  [[nodiscard]] const std::vector<GgufTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const GgufTensor* find_tensor(std::string_view name) const;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  GgufFile() = default;
  [[nodiscard]] Status map();
  [[nodiscard]] Status parse();
  [[nodiscard]] Status list_tensors();
  [[nodiscard]] std::optional<std::int64_t> integer_at(std::int64_t id) const;

  std::string path_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  gguf_context* header_ = nullptr;
  std::vector<GgufTensor> tensors_;  // sorted by name
};

// "[576, 49152]": how shapes appear in messages.
[[nodiscard]] std::string shape_text(const std::array<std::int64_t, GGML_MAX_DIMS>& shape);

}  // namespace sluice
