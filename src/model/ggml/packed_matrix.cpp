#include "model/ggml/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/check.h"
#include "model/ggml/packed_kernels.h"

namespace sluice {
namespace {

constexpr std::size_t kHalf = 2;  // bytes of an f16
constexpr std::size_t kAlignment = 64;
constexpr std::int64_t kQuad = 4;  // neighbours that lie together
constexpr std::int64_t kColumnsAtOnce = 64;

// Puts one row's block at its place among the sixteen.
void pack_q4_1(const std::byte* block, std::int64_t row, std::byte* to) {
  const auto r = static_cast<std::size_t>(row);
  std::memcpy(to + r * kHalf, block, kHalf);
  std::memcpy(to + (kPackedRows + r) * kHalf, block + kHalf, kHalf);
  // ggml has number i beside number i + 16 in a byte, and so have we: the quads
  // need only be moved.
  const std::byte* numbers = block + 2 * kHalf;
  std::byte* quads = to + 2 * kPackedRows * kHalf;
  for (std::int64_t q = 0; q < kPackedBlock / 2 / kQuad; ++q) {
    std::memcpy(quads + (q * kPackedRows + row) * kQuad, numbers + q * kQuad, kQuad);
  }
}

// Stored unsigned, by 128 larger, since the instruction wants one side so.
void pack_q8_0(const std::byte* block, std::int64_t row, std::byte* to) {
  std::memcpy(to + static_cast<std::size_t>(row) * kHalf, block, kHalf);
  const std::byte* numbers = block + kHalf;
  std::byte* quads = to + kPackedRows * kHalf;
  for (std::int64_t i = 0; i < kPackedBlock; ++i) {
    quads[(i / kQuad * kPackedRows + row) * kQuad + i % kQuad] = numbers[i] ^ std::byte{0x80};
  }
}

std::size_t row_block_bytes(PackedType type) {
  return type == PackedType::kQ4_1 ? 2 * kHalf + kPackedBlock / 2 : kHalf + kPackedBlock;
}

}  // namespace

bool PackedMatrix::helps(PackedType type, std::int64_t columns) {
  return columns % kPackedBlock == 0 && packed::is_fast(type);
}

PackedMatrix::PackedMatrix(PackedType type, std::int64_t rows, std::int64_t columns,
                           const std::byte* from)
    : type_(type), rows_(rows), columns_(columns) {
  CHECK_GT(rows, 0);
  CHECK(columns > 0 && columns % kPackedBlock == 0);
  const std::size_t size = (bytes() + kAlignment - 1) / kAlignment * kAlignment;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, size)));
  if (data_ == nullptr) throw std::bad_alloc();
  if (rows % kPackedRows != 0) std::memset(data_.get(), 0, size);
  const std::size_t from_block = row_block_bytes(type);
  const std::size_t to_block = from_block * kPackedRows;
  const std::int64_t blocks = columns / kPackedBlock;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::byte* to = data_.get() + static_cast<std::size_t>(row / kPackedRows) * group_bytes();
    for (std::int64_t b = 0; b < blocks; ++b, from += from_block, to += to_block) {
      type == PackedType::kQ4_1 ? pack_q4_1(from, row % kPackedRows, to)
                                : pack_q8_0(from, row % kPackedRows, to);
    }
  }
}

std::size_t PackedMatrix::group_bytes() const {
  return static_cast<std::size_t>(columns_ / kPackedBlock * kPackedRows) * row_block_bytes(type_);
}

void round_columns(const FloatColumns& x, const RoundedColumns& out, std::int64_t ith,
                   std::int64_t nth) {
  for (std::int64_t c = out.count * ith / nth; c < out.count * (ith + 1) / nth; ++c) {
    const auto at = static_cast<std::size_t>(c);
    packed::round_column(x.data + at * x.stride, out.size, out.data + at * out.stride);
  }
}

void multiply(const PackedMatrix& weights, const RoundedColumns& x, float* y, std::size_t stride,
              std::int64_t ith, std::int64_t nth) {
  DCHECK(x.size == weights.columns());
  const std::int64_t groups = weights.groups();
  // So many columns stay in the cache while all rows pass.
  for (std::int64_t begin = 0; begin < x.count; begin += kColumnsAtOnce) {
    RoundedColumns part = x;
    part.data += static_cast<std::size_t>(begin) * x.stride;
    part.count = std::min(kColumnsAtOnce, x.count - begin);
    float* const to = y + static_cast<std::size_t>(begin) * stride;
    for (std::int64_t g = groups * ith / nth; g < groups * (ith + 1) / nth; ++g) {
      const std::int64_t rows = std::min(kPackedRows, weights.rows() - g * kPackedRows);
      packed::multiply_group(weights.type(), weights.group(g), part, rows, to + g * kPackedRows,
                             stride);
    }
  }
}

}  // namespace sluice
