#include "model/ggml/gguf_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gguf.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>

#include "model/ggml/ggml_log.h"

namespace sluice {
namespace {

// gguf data sections must be aligned to a multiple of 8, says the format; ggml's
// kernels rely on it.
constexpr std::size_t kMinAlignment = 8;
constexpr std::size_t kHeaderBytes = 24;  // magic, version, two counts

tl::unexpected<Error> bad(const std::string& path, const std::string& what) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", path, what));
}

tl::unexpected<Error> wrong_kind(const std::string& path, const std::string& key, gguf_type got,
                                 const char* wanted) {
  return bad(path,
             fmt::format("key {} is of type {}, expected {}", key, gguf_type_name(got), wanted));
}

template <class T>
std::int64_t read_as_integer(const void* values, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(values) + i * sizeof(T), sizeof(T));
  return static_cast<std::int64_t>(value);
}

// Empty where the type is no integer or the value does not fit.
std::optional<std::int64_t> read_integer(gguf_type type, const void* values, std::size_t i) {
  switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_BOOL: return read_as_integer<std::uint8_t>(values, i);
    case GGUF_TYPE_INT8: return read_as_integer<std::int8_t>(values, i);
    case GGUF_TYPE_UINT16: return read_as_integer<std::uint16_t>(values, i);
    case GGUF_TYPE_INT16: return read_as_integer<std::int16_t>(values, i);
    case GGUF_TYPE_UINT32: return read_as_integer<std::uint32_t>(values, i);
    case GGUF_TYPE_INT32: return read_as_integer<std::int32_t>(values, i);
    case GGUF_TYPE_INT64: return read_as_integer<std::int64_t>(values, i);
    case GGUF_TYPE_UINT64: {
      const std::int64_t value = read_as_integer<std::uint64_t>(values, i);
      if (value < 0) return std::nullopt;
      return value;
    }
    default: return std::nullopt;
  }
}

}  // namespace

std::string shape_text(const std::array<std::int64_t, GGML_MAX_DIMS>& shape) {
  std::size_t n = shape.size();
  while (n > 1 && shape[n - 1] == 1) --n;
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.begin() + static_cast<long>(n), ", "));
}

Result<std::unique_ptr<GgufFile>> GgufFile::open(const std::string& path) {
  route_ggml_logs();
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->path_ = path;
  TRY_STATUS(file->map());
  TRY_STATUS(file->parse());
  TRY_STATUS(file->list_tensors());
  return file;
}

GgufFile::~GgufFile() {
  if (header_ != nullptr) gguf_free(header_);
  if (data_ != nullptr) munmap(data_, bytes_);
}

Status GgufFile::map() {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const ErrorCode code = errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kInvalidArgument;
    return fail(code, fmt::format("{}: {}", path_, std::strerror(errno)));
  }
  struct stat info {};
  const bool usable = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  if (!usable) {
    close(fd);
    return bad(path_, "not a regular file");
  }
  bytes_ = static_cast<std::size_t>(info.st_size);
  if (bytes_ < kHeaderBytes) {
    close(fd);
    return bad(path_,
               fmt::format("{} bytes are too few for a GGUF header of {}", bytes_, kHeaderBytes));
  }
  void* mapping = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  close(fd);
  if (mapping == MAP_FAILED) return bad(path_, fmt::format("mmap: {}", std::strerror(error)));
  data_ = static_cast<std::byte*>(mapping);
  return {};
}

Status GgufFile::parse() {
  if (std::memcmp(data_, GGUF_MAGIC, 4) != 0) {
    return bad(path_, "not a GGUF file: it does not begin with \"GGUF\"");
  }
  std::uint32_t version = 0;
  std::memcpy(&version, data_ + 4, sizeof(version));
  if (version < 2 || version > GGUF_VERSION) {
    return bad(path_, fmt::format("GGUF version {} is not supported, only 2 to {}", version,
                                  GGUF_VERSION));
  }
  const gguf_init_params params{/*no_alloc=*/true, /*ctx=*/nullptr};
  header_ = gguf_init_from_buffer(data_, bytes_, params);
  if (header_ == nullptr) return bad(path_, "the GGUF header is damaged or truncated");
  if (const std::size_t alignment = gguf_get_alignment(header_); alignment < kMinAlignment) {
    return bad(path_, fmt::format("alignment {} is below {}", alignment, kMinAlignment));
  }
  return {};
}

Status GgufFile::list_tensors() {
  const std::size_t base = gguf_get_data_offset(header_);
  const std::int64_t num_tensors = gguf_get_n_tensors(header_);
  tensors_.reserve(static_cast<std::size_t>(num_tensors));
  for (std::int64_t id = 0; id < num_tensors; ++id) {
    GgufTensor tensor;
    tensor.name = gguf_get_tensor_name(header_, id);
    tensor.type = gguf_get_tensor_type(header_, id);
    tensor.bytes = gguf_get_tensor_size(header_, id);
    std::copy_n(gguf_get_tensor_ne(header_, id), GGML_MAX_DIMS, tensor.shape.begin());
    const std::size_t offset = gguf_get_tensor_offset(header_, id);
    if (base > bytes_ || offset > bytes_ - base || tensor.bytes > bytes_ - base - offset) {
      return bad(path_, fmt::format("truncated: tensor {} ends beyond the file's {} bytes",
                                    tensor.name, bytes_));
    }
    tensor.data = data_ + base + offset;
    tensors_.push_back(std::move(tensor));
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const GgufTensor& a, const GgufTensor& b) { return a.name < b.name; });
  return {};
}

std::optional<std::int64_t> GgufFile::integer_at(std::int64_t id) const {
  const gguf_type type = gguf_get_kv_type(header_, id);
  if (type == GGUF_TYPE_ARRAY || type == GGUF_TYPE_STRING) return std::nullopt;
  return read_integer(type, gguf_get_val_data(header_, id), 0);
}

Result<std::optional<std::int64_t>> GgufFile::integer(const std::string& key) const {
  const std::int64_t id = gguf_find_key(header_, key.c_str());
  if (id < 0) return std::nullopt;
  const auto value = integer_at(id);
  if (!value) return wrong_kind(path_, key, gguf_get_kv_type(header_, id), "an integer");
  return value;
}

Result<std::optional<double>> GgufFile::number(const std::string& key) const {
  const std::int64_t id = gguf_find_key(header_, key.c_str());
  if (id < 0) return std::nullopt;
  switch (const gguf_type type = gguf_get_kv_type(header_, id); type) {
    case GGUF_TYPE_FLOAT32: return static_cast<double>(gguf_get_val_f32(header_, id));
    case GGUF_TYPE_FLOAT64: return gguf_get_val_f64(header_, id);
    default:
      if (const auto value = integer_at(id)) return static_cast<double>(*value);
      return wrong_kind(path_, key, type, "a number");
  }
}

Result<std::optional<std::string>> GgufFile::text(const std::string& key) const {
  const std::int64_t id = gguf_find_key(header_, key.c_str());
  if (id < 0) return std::nullopt;
  const gguf_type type = gguf_get_kv_type(header_, id);
  if (type != GGUF_TYPE_STRING) return wrong_kind(path_, key, type, "text");
  return std::string(gguf_get_val_str(header_, id));
}

Result<std::optional<std::vector<std::int64_t>>> GgufFile::integers(const std::string& key) const {
  const std::int64_t id = gguf_find_key(header_, key.c_str());
  if (id < 0) return std::nullopt;
  std::vector<std::int64_t> values;
  if (gguf_get_kv_type(header_, id) != GGUF_TYPE_ARRAY) {
    const auto value = integer_at(id);
    if (!value) return wrong_kind(path_, key, gguf_get_kv_type(header_, id), "integers");
    values.push_back(*value);
    return values;
  }
  const gguf_type type = gguf_get_arr_type(header_, id);
  if (type == GGUF_TYPE_STRING) return wrong_kind(path_, key, type, "integers");
  const void* raw = gguf_get_arr_data(header_, id);
  for (std::size_t i = 0; i < gguf_get_arr_n(header_, id); ++i) {
    const auto value = read_integer(type, raw, i);
    if (!value) return wrong_kind(path_, key, type, "integers");
    values.push_back(*value);
  }
  return values;
}

Result<std::optional<std::vector<std::string>>> GgufFile::texts(const std::string& key) const {
  const std::int64_t id = gguf_find_key(header_, key.c_str());
  if (id < 0) return std::nullopt;
  const gguf_type type = gguf_get_kv_type(header_, id);
  if (type != GGUF_TYPE_ARRAY) return wrong_kind(path_, key, type, "an array of text");
  const gguf_type element = gguf_get_arr_type(header_, id);
  if (element != GGUF_TYPE_STRING) return wrong_kind(path_, key, element, "an array of text");
  std::vector<std::string> values;
  values.reserve(gguf_get_arr_n(header_, id));
  for (std::size_t i = 0; i < gguf_get_arr_n(header_, id); ++i) {
    values.emplace_back(gguf_get_arr_str(header_, id, i));
  }
  return values;
}

bool GgufFile::is_array(const std::string& key) const {
  const std::int64_t id = gguf_find_key(header_, key.c_str());
  return id >= 0 && gguf_get_kv_type(header_, id) == GGUF_TYPE_ARRAY;
}

std::optional<std::int64_t> GgufFile::array_size(const std::string& key) const {
  if (!is_array(key)) return std::nullopt;
  return static_cast<std::int64_t>(gguf_get_arr_n(header_, gguf_find_key(header_, key.c_str())));
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto it = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const GgufTensor& t, std::string_view wanted) { return t.name < wanted; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

}  // namespace sluice
