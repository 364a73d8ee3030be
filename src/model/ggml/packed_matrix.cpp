#include "model/ggml/packed_matrix.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <optional>

#include "base/check.h"
#include "model/ggml/packed_kernels.h"

namespace sluice {
namespace {

constexpr std::size_t kHalf = sizeof(ggml_fp16_t);
constexpr std::size_t kAlignment = 64;
constexpr std::int64_t kQuad = 4;  // neighbours that lie together
constexpr std::int64_t kColumnsAtOnce = 64;

std::optional<PackedKind> kind_of(ggml_type type) {
  switch (type) {
    case GGML_TYPE_Q4_0:
    case GGML_TYPE_Q4_1:
    case GGML_TYPE_Q4_K: return PackedKind::kNibbles;
    case GGML_TYPE_Q8_0: return PackedKind::kBytes;
    default: return std::nullopt;
  }
}

// 32 weights, whatever type they came in.
struct Block {
  ggml_fp16_t scale = 0;
  ggml_fp16_t least = 0;
  std::array<std::uint8_t, kPackedBlock> numbers{};
};

ggml_fp16_t half_at(const std::byte* at) {
  ggml_fp16_t half = 0;
  std::memcpy(&half, at, kHalf);
  return half;
}

std::uint8_t byte_at(const std::byte* at, std::size_t index) {
  return std::to_integer<std::uint8_t>(at[index]);
}

Block read_q8_0(const std::byte* at) {
  Block block{half_at(at), 0, {}};
  // Unsigned, by 128 larger, since the processor's instruction wants one side so.
  for (std::size_t i = 0; i < kPackedBlock; ++i) {
    block.numbers[i] = byte_at(at, kHalf + i) ^ std::uint8_t{0x80};
  }
  return block;
}

void read_nibbles(const std::byte* at, Block& block) {
  for (std::size_t i = 0; i < kPackedBlock / 2; ++i) {
    block.numbers[i] = byte_at(at, i) & 15U;
    block.numbers[i + kPackedBlock / 2] = byte_at(at, i) >> 4U;
  }
}

Block read_q4_0(const std::byte* at) {
  Block block{half_at(at), 0, {}};
  block.least = ggml_fp32_to_fp16(-8.0F * ggml_fp16_to_fp32(block.scale));
  read_nibbles(at + kHalf, block);
  return block;
}

Block read_q4_1(const std::byte* at) {
  Block block{half_at(at), half_at(at + kHalf), {}};
  read_nibbles(at + 2 * kHalf, block);
  return block;
}

// Eight blocks share two factors; each has a scale and a minimum of 6 bits, the
// high bits of the last four in those of the first four. The products of factor
// and scale are rounded to f16, a hundredth of what rounding columns costs.
Block read_q4_k(const std::byte* super, std::size_t index) {
  const float scale_factor = ggml_fp16_to_fp32(half_at(super));
  const float least_factor = ggml_fp16_to_fp32(half_at(super + kHalf));
  const std::byte* sixes = super + 2 * kHalf;
  const auto six = [&](std::size_t first) -> unsigned {
    if (index < 4) return byte_at(sixes, first + index) & 63U;
    const unsigned low = byte_at(sixes, index + 4);
    return ((first == 0 ? low : low >> 4U) & 15U) |
           (static_cast<unsigned>(byte_at(sixes, first + index - 4)) >> 6U << 4U);
  };
  Block block;
  block.scale = ggml_fp32_to_fp16(scale_factor * static_cast<float>(six(0)));
  block.least = ggml_fp32_to_fp16(-least_factor * static_cast<float>(six(4)));
  const std::byte* pairs = sixes + 12 + index / 2 * kPackedBlock;
  for (std::size_t i = 0; i < kPackedBlock; ++i) {
    const unsigned pair = byte_at(pairs, i);
    block.numbers[i] = static_cast<std::uint8_t>(index % 2 == 0 ? pair & 15U : pair >> 4U);
  }
  return block;
}

// The 32 weights from `column` on of a row of ggml's blocks.
Block read(ggml_type type, const std::byte* row, std::int64_t column) {
  const std::byte* at =
      row + column / ggml_blck_size(type) * static_cast<std::int64_t>(ggml_type_size(type));
  switch (type) {
    case GGML_TYPE_Q4_0: return read_q4_0(at);
    case GGML_TYPE_Q4_1: return read_q4_1(at);
    case GGML_TYPE_Q4_K:
      return read_q4_k(at, static_cast<std::size_t>(column % ggml_blck_size(type) / kPackedBlock));
    default: return read_q8_0(at);
  }
}

std::size_t row_block_bytes(PackedKind kind) {
  return kind == PackedKind::kNibbles ? 2 * kHalf + kPackedBlock / 2 : kHalf + kPackedBlock;
}

// Puts a row's block at its place among the sixteen.
void place(PackedKind kind, const Block& block, std::int64_t row, std::byte* to) {
  auto* halves = reinterpret_cast<ggml_fp16_t*>(to);
  halves[row] = block.scale;
  if (kind == PackedKind::kBytes) {
    std::byte* quads = to + kPackedRows * kHalf;
    for (std::int64_t i = 0; i < kPackedBlock; i += kQuad) {
      std::memcpy(quads + i * kPackedRows + row * kQuad,
                  &block.numbers[static_cast<std::size_t>(i)], kQuad);
    }
    return;
  }
  halves[kPackedRows + row] = block.least;
  std::byte* quads = to + 2 * kPackedRows * kHalf;
  constexpr std::int64_t kApart = kPackedBlock / 2;  // number i lies in a byte with i + 16
  for (std::int64_t i = 0; i < kApart; ++i) {
    const auto n = static_cast<std::size_t>(i);
    quads[i / kQuad * kQuad * kPackedRows + row * kQuad + i % kQuad] =
        static_cast<std::byte>(block.numbers[n] | block.numbers[n + kApart] << 4U);
  }
}

}  // namespace

bool PackedMatrix::helps(ggml_type type, std::int64_t columns) {
  const std::optional<PackedKind> kind = kind_of(type);
  return kind && columns % ggml_blck_size(type) == 0 && packed::is_fast(*kind);
}

PackedMatrix::PackedMatrix(ggml_type type, std::int64_t rows, std::int64_t columns,
                           const std::byte* from)
    : kind_(kind_of(type).value_or(PackedKind::kBytes)), rows_(rows), columns_(columns) {
  CHECK(helps(type, columns));
  CHECK(rows > 0 && columns > 0);
  const std::size_t size = (bytes() + kAlignment - 1) / kAlignment * kAlignment;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, size)));
  if (data_ == nullptr) throw std::bad_alloc();
  if (rows % kPackedRows != 0) std::memset(data_.get(), 0, size);
  const std::size_t from_row = ggml_row_size(type, columns);
  const std::size_t to_block = row_block_bytes(kind_) * kPackedRows;
  for (std::int64_t row = 0; row < rows; ++row, from += from_row) {
    std::byte* to = data_.get() + static_cast<std::size_t>(row / kPackedRows) * group_bytes();
    for (std::int64_t column = 0; column < columns; column += kPackedBlock, to += to_block) {
      place(kind_, read(type, from, column), row % kPackedRows, to);
    }
  }
}

std::size_t PackedMatrix::group_bytes() const {
  return static_cast<std::size_t>(columns_ / kPackedBlock * kPackedRows) * row_block_bytes(kind_);
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
      packed::multiply_group(weights.kind(), weights.group(g), part, rows, to + g * kPackedRows,
                             stride);
    }
  }
}

}  // namespace sluice
