// Weights of 4 and 8 bits in a layout whose products are fast with few columns
// (decode) and with many (prefill): of ggml's types Q4_0, Q4_1, Q4_K and Q8_0.
//
// Sixteen rows lie interleaved: of each 32 weights of a row, four neighbours at a
// time beside those of the other fifteen, so that one instruction multiplies
// sixteen rows with four numbers of a column. A column is rounded to 8 bits in
// groups of 32 once, for all matrices that it meets, as ggml rounds it. A
// column's result depends on no other column, to the bit.
//
// Immutable once packed; shared by all runners.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace sluice {

// What 32 weights of a row become: scale * number + least.
enum class PackedKind : std::uint8_t {
  kNibbles,  // f16 scale, f16 least, numbers of 4 bits
  kBytes,    // f16 scale, numbers of 8 bits; least is -128 * scale
};

inline constexpr std::int64_t kPackedBlock = 32;  // weights that share a scale
inline constexpr std::int64_t kPackedRows = 16;   // rows that lie interleaved

// Columns rounded to 8 bits: of each, `size` integers, then a scale and a scaled
// sum of every 32 of them, both f32.
struct RoundedColumns {
  std::byte* data = nullptr;
  std::size_t stride = 0;  // bytes from a column to the next
  std::int64_t size = 0;   // numbers a column, a multiple of 32
  std::int64_t count = 0;

  static constexpr std::size_t bytes(std::int64_t size) {
    constexpr auto kExtra = static_cast<std::int64_t>(2 * sizeof(float));
    return static_cast<std::size_t>(size + size / kPackedBlock * kExtra);
  }
};

struct FloatColumns {
  const float* data = nullptr;
  std::size_t stride = 0;  // floats
};

class PackedMatrix {
 public:
  // Whether this processor multiplies such weights faster in this layout.
  [[nodiscard]] static bool helps(ggml_type type, std::int64_t columns);

  // `columns`: numbers a row, whole blocks of `type`; `from`: rows of such blocks.
  // helps() must be true.
  PackedMatrix(ggml_type type, std::int64_t rows, std::int64_t columns, const std::byte* from);

  [[nodiscard]] PackedKind kind() const { return kind_; }
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t columns() const { return columns_; }
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(groups()) * group_bytes();
  }

  // Of 16 rows: for each block of columns the 16 scales, with kNibbles the 16
  // leasts, and the interleaved numbers.
  [[nodiscard]] std::int64_t groups() const { return (rows_ + kPackedRows - 1) / kPackedRows; }
  [[nodiscard]] std::size_t group_bytes() const;
  [[nodiscard]] const std::byte* group(std::int64_t index) const {
    return data_.get() + static_cast<std::size_t>(index) * group_bytes();
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  PackedKind kind_;
  std::int64_t rows_;
  std::int64_t columns_;
  std::unique_ptr<std::byte, Free> data_;
};

// The share of thread `ith` of `nth` in rounding `x` to `out`.
void round_columns(const FloatColumns& x, const RoundedColumns& out, std::int64_t ith,
                   std::int64_t nth);

// The share of thread `ith` of `nth` in y = W x; a column of y has W.rows()
// floats, `stride` floats from the next.
void multiply(const PackedMatrix& weights, const RoundedColumns& x, float* y, std::size_t stride,
              std::int64_t ith, std::int64_t nth);

}  // namespace sluice
