// Products of packed weights against double precision, on every instruction set
// that this processor has.
#define HWY_WANT_AVX3_DL 1  // as the kernels want it
#include "model/ggml/packed_matrix.h"

#include <ggml.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/rng.h"

namespace sluice {
namespace {

constexpr std::size_t kUntouched = 3;  // floats between two columns of y, not to be written

std::vector<float> noise(Rng& rng, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& x : values) x = static_cast<float>(2 * rng.uniform() - 1);
  return values;
}

// Some weights in ggml's blocks, and what these say.
struct Weights {
  Weights(ggml_type of, std::int64_t num_rows, std::int64_t num_columns, Rng& rng)
      : rows(num_rows), columns(num_columns), type(of) {
    const std::vector<float> exact = noise(rng, rows * columns);
    blocks.resize(ggml_row_size(type, columns) * static_cast<std::size_t>(rows));
    ggml_quantize_chunk(type, exact.data(), blocks.data(), 0, rows, columns, nullptr);
    values.resize(exact.size());
    ggml_get_type_traits(type)->to_float(blocks.data(), values.data(), rows * columns);
  }
  [[nodiscard]] PackedMatrix packed() const { return {type, rows, columns, blocks.data()}; }
  [[nodiscard]] double dot(std::int64_t row, const float* x) const {
    double sum = 0;
    for (std::int64_t i = 0; i < columns; ++i) {
      sum += static_cast<double>(values[static_cast<std::size_t>(row * columns + i)]) * x[i];
    }
    return sum;
  }

  std::int64_t rows;
  std::int64_t columns;
  ggml_type type;
  std::vector<std::byte> blocks;
  std::vector<float> values;
};

// Columns that were rounded, by several threads' shares, and what they say now.
struct Columns {
  Columns(const std::vector<float>& x, std::int64_t size, std::int64_t nth)
      : memory(RoundedColumns::bytes(size) * (x.size() / static_cast<std::size_t>(size))),
        rounded{memory.data(), RoundedColumns::bytes(size), size,
                static_cast<std::int64_t>(x.size()) / size} {
    for (std::int64_t i = 0; i < nth; ++i) {
      round_columns({x.data(), static_cast<std::size_t>(size)}, rounded, i, nth);
    }
    for (std::int64_t c = 0; c < rounded.count; ++c) {
      const std::byte* at = rounded.data + static_cast<std::size_t>(c) * rounded.stride;
      const auto* integers = reinterpret_cast<const std::int8_t*>(at);
      for (std::int64_t i = 0; i < size; ++i) {
        float scale = 0;
        std::memcpy(&scale, at + size + i / kPackedBlock * 4, sizeof(scale));
        values.push_back(scale * static_cast<float>(integers[i]));
      }
    }
  }
  [[nodiscard]] const float* column(std::int64_t c) const {
    return values.data() + c * rounded.size;
  }

  std::vector<std::byte> memory;
  RoundedColumns rounded;
  std::vector<float> values;
};

std::vector<float> product(const PackedMatrix& w, const RoundedColumns& x, std::int64_t nth) {
  const auto stride = static_cast<std::size_t>(w.rows()) + kUntouched;
  std::vector<float> y(stride * static_cast<std::size_t>(x.count), -7.0F);
  for (std::int64_t i = 0; i < nth; ++i) multiply(w, x, y.data(), stride, i, nth);
  return y;
}

template <class Body>
void on_every_target(ggml_type type, Body body) {
  int tried = 0;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    if (PackedMatrix::helps(type, ggml_blck_size(type))) {
      SCOPED_TRACE(hwy::TargetName(target));
      body();
      ++tried;
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  if (tried == 0) GTEST_SKIP() << "no instruction set here for which this layout helps";
}

class PackedMatrixTest : public testing::TestWithParam<ggml_type> {};

TEST_P(PackedMatrixTest, ProductsAreThoseOfDoublePrecision) {
  on_every_target(GetParam(), [] {
    Rng rng(3);
    for (const std::int64_t size : {32, 64, 576, 768, 1536}) {
      if (size % ggml_blck_size(GetParam()) != 0) continue;
      for (const std::int64_t rows : {1, 16, 40, 63}) {
        const Weights weights(GetParam(), rows, size, rng);
        const PackedMatrix packed = weights.packed();
        for (const std::int64_t count : {1, 2, 3, 7, 8, 9, 37}) {
          const Columns x(noise(rng, size * count), size, 2);
          const std::vector<float> y = product(packed, x.rounded, 3);
          const auto stride = static_cast<std::int64_t>(kUntouched) + rows;
          for (std::int64_t c = 0; c < count; ++c) {
            for (std::int64_t r = 0; r < stride; ++r) {
              const float got = y[static_cast<std::size_t>(c * stride + r)];
              if (r >= rows) {
                ASSERT_EQ(got, -7.0F) << "a float that is another's";
              } else {
                // Q4_K's products of scales are rounded to f16.
                const double error = GetParam() == GGML_TYPE_Q4_K ? 2e-4 : 2e-6;
                ASSERT_NEAR(got, weights.dot(r, x.column(c)), error * static_cast<double>(size))
                    << size << " numbers, row " << r << " of " << rows << ", column " << c << " of "
                    << count;
              }
            }
          }
        }
      }
    }
  });
}

TEST_P(PackedMatrixTest, AColumnDependsOnNoOtherAndOnNoThread) {
  on_every_target(GetParam(), [] {
    Rng rng(5);
    constexpr std::int64_t kSize = 512;
    constexpr std::int64_t kRows = 50;
    constexpr std::int64_t kCount = 21;
    const Weights weights(GetParam(), kRows, kSize, rng);
    const PackedMatrix packed = weights.packed();
    const std::vector<float> values = noise(rng, kSize * kCount);
    const Columns x(values, kSize, 1);
    const std::vector<float> all = product(packed, x.rounded, 1);
    EXPECT_EQ(all, product(packed, x.rounded, 4));
    const std::size_t stride = kRows + kUntouched;
    for (std::int64_t c = 0; c < kCount; ++c) {
      const Columns one({values.begin() + c * kSize, values.begin() + (c + 1) * kSize}, kSize, 1);
      const std::vector<float> alone = product(packed, one.rounded, 1);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(),
                             all.begin() + c * static_cast<std::ptrdiff_t>(stride)))
          << "column " << c;
    }
  });
}

// Extremes of the numbers: sums of 16 bits must not overflow on any target. All
// bits set are the largest numbers of each type; scales are kept.
TEST_P(PackedMatrixTest, TheLargestNumbersDoNotOverflow) {
  on_every_target(GetParam(), [] {
    Rng rng(7);
    constexpr std::int64_t kSize = 512;
    const std::size_t block = ggml_type_size(GetParam());
    const auto numbers = static_cast<std::size_t>(ggml_blck_size(GetParam())) /
                         (GetParam() == GGML_TYPE_Q8_0 ? 1 : 2);
    const std::byte largest{static_cast<unsigned char>(GetParam() == GGML_TYPE_Q8_0 ? 0x7F : 0xFF)};
    for (const float sign : {1.0F, -1.0F}) {
      Weights weights(GetParam(), 16, kSize, rng);
      for (std::size_t i = 0; i < weights.blocks.size(); ++i) {
        if (i % block >= block - numbers) weights.blocks[i] = largest;
      }
      ggml_get_type_traits(GetParam())
          ->to_float(weights.blocks.data(), weights.values.data(), 16 * kSize);
      const Columns x(std::vector<float>(kSize * 9, sign), kSize, 1);
      const std::vector<float> y = product(weights.packed(), x.rounded, 1);
      for (std::int64_t r = 0; r < 16; ++r) {
        const double expected = weights.dot(r, x.column(8));
        EXPECT_NEAR(y[(16 + kUntouched) * 8 + static_cast<std::size_t>(r)], expected,
                    1e-3 * std::fabs(expected) + 1e-3);
      }
    }
  });
}

TEST(RoundedColumnsTest, ErrIsAtMostHalfAStepAndSumsAreTrue) {
  Rng rng(11);
  constexpr std::int64_t kSize = 96;
  std::vector<float> values = noise(rng, kSize * 5);
  std::fill_n(values.begin() + kSize, kPackedBlock, 0.0F);
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    const Columns x(values, kSize, 2);
    for (std::int64_t begin = 0; begin < std::ssize(values); begin += kPackedBlock) {
      const auto [low, high] =
          std::minmax_element(values.begin() + begin, values.begin() + begin + kPackedBlock);
      const float step = std::max(-*low, *high) / 127.0F;
      double sum = 0;
      for (std::int64_t i = begin; i < begin + kPackedBlock; ++i) {
        const auto at = static_cast<std::size_t>(i);
        EXPECT_NEAR(x.values[at], values[at], step * 0.501F);
        sum += x.values[at];
      }
      const std::byte* column =
          x.memory.data() + begin / kSize * static_cast<std::ptrdiff_t>(x.rounded.stride);
      float told = 0;
      const std::int64_t block = begin % kSize / kPackedBlock;
      std::memcpy(&told, column + kSize + (kSize / kPackedBlock + block) * 4, sizeof(told));
      EXPECT_NEAR(told, sum, 1e-4);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

INSTANTIATE_TEST_SUITE_P(Types, PackedMatrixTest,
                         testing::Values(GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q4_K,
                                         GGML_TYPE_Q8_0),
                         [](const auto& tested) { return ggml_type_name(tested.param); });

}  // namespace
}  // namespace sluice
