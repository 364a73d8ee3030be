#include "model/ggml/attention.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"

namespace sluice {
namespace {

float normal(Rng& rng) {
  double sum = 0;
  for (int i = 0; i < 6; ++i) sum += rng.uniform();
  return static_cast<float>((sum - 3.0) * std::sqrt(2.0));
}

std::uint16_t half_from(float x) {
  // Nearest by search over the neighbours of a truncated value; |x| < 65504.
  const float a = std::fabs(x);
  int exponent = 0;
  const float mantissa = std::frexp(a, &exponent);  // a = mantissa * 2^exponent, in [0.5, 1)
  std::uint32_t bits = 0;
  if (a != 0.0F && exponent > -24) {
    if (exponent >= -13) {
      bits = (static_cast<std::uint32_t>(exponent + 14) << 10) +
             static_cast<std::uint32_t>(std::nearbyint((mantissa * 2 - 1) * 1024));
    } else {
      bits = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(a, 24)));
    }
  }
  return static_cast<std::uint16_t>(bits | (std::signbit(x) ? 0x8000U : 0U));
}

double decode(std::uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int mantissa = half & 1023;
  if (exponent == 31) return std::numeric_limits<double>::quiet_NaN();
  const double value =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (half & 0x8000) != 0 ? -value : value;
}

double double_from(std::uint16_t half) {
  static const std::vector<double> all = [] {
    std::vector<double> table;
    for (std::uint32_t i = 0; i < 65536; ++i)
      table.push_back(decode(static_cast<std::uint16_t>(i)));
    return table;
  }();
  return all[half];
}

struct TestSequence {
  std::int32_t position = 0;
  std::int32_t num_rows = 1;
};

// A batch over an arena whose memory is NaN wherever no token was written.
class World {
 public:
  World(KvLayout layout, std::int32_t num_heads, std::vector<TestSequence> sequences,
        std::uint64_t seed, float magnitude = 1.0F)
      : layout_(layout), num_heads_(num_heads), rng_(seed), magnitude_(magnitude) {
    std::int32_t blocks = 1;
    for (const TestSequence& s : sequences) blocks += layout.blocks_for(s.position + s.num_rows);
    std::vector<BlockId> free;
    for (std::int32_t b = 0; b < blocks; ++b) free.emplace_back(b);
    for (std::size_t i = free.size(); i > 1; --i) std::swap(free[i - 1], free[rng_.below(i)]);
    arena_.assign(layout.block_bytes() * static_cast<std::size_t>(blocks) / 2, 0x7E00);
    kv_ = {reinterpret_cast<std::byte*>(arena_.data()), layout, blocks};
    for (const TestSequence& s : sequences) {
      auto& table = tables_.emplace_back();
      for (std::int32_t b = 0; b < layout.blocks_for(s.position + s.num_rows); ++b) {
        table.push_back(free.back());
        free.pop_back();
      }
      num_rows_ += 1;  // a row that belongs to nobody, between sequences
      sequences_.push_back({table.data(), s.num_rows, num_rows_, s.position});
      num_rows_ += s.num_rows;
    }
    fill(q_, num_heads * layout.head_dim_k);
    fill(k_, layout.num_kv_heads * layout.head_dim_k);
    fill(v_, layout.num_kv_heads * layout.head_dim_v);
    for (std::size_t s = 0; s < sequences_.size(); ++s) fill_history(s);
  }

  // The first `tokens` tokens of two sequences come to lie in the same blocks.
  void share(std::size_t from, std::size_t to, std::int32_t tokens) {
    const auto n = static_cast<std::size_t>(tokens / layout_.block_tokens);
    const std::size_t both = std::min({n, tables_[from].size(), tables_[to].size()});
    std::copy_n(tables_[from].begin(), both, tables_[to].begin());
  }

  // The row of a token: f16 elements, or q8_0's integers and scales.
  [[nodiscard]] std::uint16_t* element(std::size_t s, std::int32_t token, std::int32_t layer,
                                       std::int32_t head, bool v) {
    const std::int32_t id =
        tables_[s][static_cast<std::size_t>(token / layout_.block_tokens)].value;
    const std::size_t offset =
        layout_.block_bytes() * static_cast<std::size_t>(id) +
        (v ? layout_.v_offset(layer, head) + layout_.v_row_bytes() * in_block(token)
           : layout_.k_offset(layer, head) + layout_.k_row_bytes() * in_block(token));
    return arena_.data() + offset / 2;
  }

  // What is stored there, exactly.
  [[nodiscard]] std::vector<double> stored(std::size_t s, std::int32_t token, std::int32_t layer,
                                           std::int32_t head, bool v) {
    const std::uint16_t* row = element(s, token, layer, head, v);
    const std::int32_t dim = v ? layout_.head_dim_v : layout_.head_dim_k;
    std::vector<double> values;
    for (std::int32_t i = 0; i < dim; ++i) {
      if (layout_.type == KvType::kQ8_0) {
        values.push_back(reinterpret_cast<const std::int8_t*>(row)[i] *
                         double_from(row[dim / 2 + i / kKvGroup]));
      } else {
        values.push_back(double_from(row[i]));
      }
    }
    return values;
  }

  // Runs all layers over `only` (empty: all sequences); [row][head][dim_v].
  std::vector<std::vector<float>> run(AttentionPlan& plan, AttentionLayer params,
                                      std::int32_t threads, std::vector<std::size_t> only = {}) {
    if (only.empty()) {
      only.resize(sequences_.size());
      std::iota(only.begin(), only.end(), std::size_t{0});
    }
    std::vector<AttentionSequence> batch;
    for (const std::size_t s : only) batch.push_back(sequences_[s]);
    plan.build(kv_, num_heads_, threads, batch);
    const std::ptrdiff_t out_stride = num_heads_ * layout_.head_dim_v;
    std::vector<std::vector<float>> results;
    for (std::int32_t layer = 0; layer < layout_.num_layers; ++layer) {
      params.layer = layer;
      std::vector<float> out(static_cast<std::size_t>(num_rows_ * out_stride), kUntouched);
      on_threads(threads, [&](std::int32_t ith) {
        store_kv(plan, layer, rows_of(k_, layout_.num_kv_heads, layout_.head_dim_k),
                 rows_of(v_, layout_.num_kv_heads, layout_.head_dim_v), ith, threads);
      });
      on_threads(threads, [&](std::int32_t ith) {
        attend(plan, params, rows_of(q_, num_heads_, layout_.head_dim_k),
               {out.data(), out_stride, layout_.head_dim_v}, ith, threads);
      });
      results.push_back(std::move(out));
    }
    return results;
  }

  // The largest difference from attention in double precision over what the
  // blocks hold, as a share of the largest value.
  double error(const std::vector<float>& out, const AttentionLayer& params) {
    double worst = 0;
    double largest = 1e-30;
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      for (std::int32_t r = 0; r < sequences_[s].num_rows; ++r) {
        for (std::int32_t h = 0; h < num_heads_; ++h) {
          const std::vector<double> expected = reference(s, r, h, params);
          for (std::int32_t i = 0; i < layout_.head_dim_v; ++i) {
            const double x = expected[static_cast<std::size_t>(i)];
            const float y = out[out_at(sequences_[s].row_begin + r, h, i)];
            largest = std::max(largest, std::fabs(x));
            const double difference = std::fabs(x - static_cast<double>(y));
            if (!(difference <= worst)) worst = difference;  // a NaN stays
            if (std::isnan(worst)) return worst;
          }
        }
      }
    }
    return worst / largest;
  }

  [[nodiscard]] std::size_t out_at(std::int32_t row, std::int32_t head, std::int32_t i) const {
    return static_cast<std::size_t>((row * num_heads_ + head) * layout_.head_dim_v + i);
  }

  static constexpr float kUntouched = -12345.0F;
  KvLayout layout_;
  std::int32_t num_heads_;
  std::vector<AttentionSequence> sequences_;
  std::int32_t num_rows_ = 0;
  std::vector<float> q_, k_, v_;

 private:
  template <class F>
  static void on_threads(std::int32_t n, const F& work) {
    std::vector<std::thread> threads;
    for (std::int32_t i = 1; i < n; ++i) threads.emplace_back([&work, i] { work(i); });
    work(0);
    for (auto& t : threads) t.join();
  }

  static HeadRows rows_of(const std::vector<float>& data, std::int32_t heads, std::int32_t dim) {
    return {data.data(), heads * dim, dim};
  }

  [[nodiscard]] std::size_t in_block(std::int32_t token) const {
    return static_cast<std::size_t>(token % layout_.block_tokens);
  }

  void fill(std::vector<float>& rows, std::int32_t width) {
    num_rows_ = std::max(num_rows_, 1);
    rows.resize(static_cast<std::size_t>(num_rows_ * width));
    for (float& x : rows) x = normal(rng_) * magnitude_;
  }

  void fill_history(std::size_t s) {
    std::vector<std::uint16_t> noise(1024);
    for (std::uint16_t& x : noise) x = half_from(normal(rng_) * magnitude_);
    for (std::int32_t t = 0; t < sequences_[s].position; ++t) {
      for (std::int32_t layer = 0; layer < layout_.num_layers; ++layer) {
        for (std::int32_t head = 0; head < layout_.num_kv_heads; ++head) {
          for (const bool v : {false, true}) {
            std::uint16_t* row = element(s, t, layer, head, v);
            const std::int32_t dim = v ? layout_.head_dim_v : layout_.head_dim_k;
            if (layout_.type == KvType::kF16) {
              for (std::int32_t i = 0; i < dim; ++i) row[i] = noise[rng_() % noise.size()];
              continue;
            }
            for (std::int32_t i = 0; i < dim / 2; ++i) row[i] = static_cast<std::uint16_t>(rng_());
            for (std::int32_t g = 0; g < dim / kKvGroup; ++g) {
              row[dim / 2 + g] = half_from(magnitude_ * static_cast<float>(rng_.uniform()) / 50);
            }
          }
        }
      }
    }
  }

  std::vector<double> reference(std::size_t s, std::int32_t r, std::int32_t h,
                                const AttentionLayer& params) {
    const std::int32_t position = sequences_[s].position + r;
    const std::int32_t head = h / (num_heads_ / layout_.num_kv_heads);
    const float* q =
        q_.data() + ((sequences_[s].row_begin + r) * num_heads_ + h) * layout_.head_dim_k;
    const std::int32_t first =
        params.sliding_window > 0 ? std::max(0, position - params.sliding_window + 1) : 0;
    std::vector<double> logits;
    for (std::int32_t t = first; t <= position; ++t) {
      const std::vector<double> k = stored(s, t, params.layer, head, false);
      double dot = 0;
      for (std::size_t i = 0; i < k.size(); ++i) dot += static_cast<double>(q[i]) * k[i];
      dot *= static_cast<double>(params.scale);
      const auto cap = static_cast<double>(params.logit_softcap);
      logits.push_back(cap != 0 ? cap * std::tanh(dot / cap) : dot);
    }
    double largest = *std::max_element(logits.begin(), logits.end());
    if (params.sinks != nullptr) largest = std::max(largest, static_cast<double>(params.sinks[h]));
    double sum =
        params.sinks != nullptr ? std::exp(static_cast<double>(params.sinks[h]) - largest) : 0.0;
    std::vector<double> out(static_cast<std::size_t>(layout_.head_dim_v), 0.0);
    for (std::int32_t t = first; t <= position; ++t) {
      const double weight = std::exp(logits[static_cast<std::size_t>(t - first)] - largest);
      sum += weight;
      const std::vector<double> v = stored(s, t, params.layer, head, true);
      for (std::size_t i = 0; i < out.size(); ++i) out[i] += weight * v[i];
    }
    for (double& x : out) x /= sum;
    return out;
  }

  Rng rng_;
  float magnitude_;
  std::vector<std::uint16_t> arena_;
  KvView kv_;
  std::vector<std::vector<BlockId>> tables_;
};

KvLayout layout_of(std::int32_t layers, std::int32_t kv_heads, std::int32_t dim_k,
                   std::int32_t dim_v, std::int32_t block_tokens) {
  KvLayout layout;
  layout.num_layers = layers;
  layout.num_kv_heads = kv_heads;
  layout.head_dim_k = dim_k;
  layout.head_dim_v = dim_v;
  layout.block_tokens = block_tokens;
  return layout;
}

AttentionLayer plain(const KvLayout& layout) {
  AttentionLayer params;
  params.scale = 1.0F / std::sqrt(static_cast<float>(layout.head_dim_k));
  return params;
}

std::vector<std::int64_t> targets() {
  std::vector<std::int64_t> all = hwy::SupportedAndGeneratedTargets();
  if (std::find(all.begin(), all.end(), HWY_STATIC_TARGET) == all.end()) {
    all.push_back(HWY_STATIC_TARGET);
  }
  return all;
}

// Each test runs on every instruction set that this processor has.
class Attention : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::GetChosenTarget().Update(GetParam()); }
  void TearDown() override { hwy::GetChosenTarget().DeInit(); }

  // Whether items cover each token of each group once.
  [[nodiscard]] bool covers_all_once() const {
    for (std::size_t g = 0; g < plan_.groups().size(); ++g) {
      const AttentionPlan::Group& group = plan_.groups()[g];
      std::vector<std::int32_t> seen(static_cast<std::size_t>(group.num_tokens), 0);
      for (const AttentionPlan::Item& item : plan_.items()) {
        if (static_cast<std::size_t>(item.group_begin) > g) continue;
        if (static_cast<std::size_t>(item.group_end) <= g) continue;
        for (std::int32_t t = item.token_begin; t < item.token_end; ++t) {
          ++seen[static_cast<std::size_t>(t)];
        }
      }
      if (std::any_of(seen.begin(), seen.end(), [](std::int32_t n) { return n != 1; }))
        return false;
    }
    return true;
  }

  AttentionPlan plan_;
};

INSTANTIATE_TEST_SUITE_P(Targets, Attention, testing::ValuesIn(targets()), [](const auto& target) {
  return std::string(hwy::TargetName(target.param));
});

constexpr double kTolerance = 3e-6;

TEST_P(Attention, UsesTheTarget) {
  EXPECT_STREQ(attention_target(), hwy::TargetName(GetParam()));
}

TEST_P(Attention, MatchesDoublePrecisionOverRandomShapes) {
  constexpr std::int32_t kDims[] = {8, 24, 64, 80, 96, 128, 192, 256};
  constexpr std::int32_t kGroupedDims[] = {32, 64, 64, 96, 128, 160, 192, 256};
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Rng rng(seed);
    const auto pick = [&](std::uint64_t n) { return static_cast<std::int32_t>(rng.below(n)); };
    const auto& dims = seed <= 25 ? kDims : kGroupedDims;
    const std::int32_t dim_k = dims[pick(8)];
    const std::int32_t dim_v = pick(2) == 0 ? dim_k : dims[pick(8)];
    const std::int32_t kv_heads = 1 + pick(3);
    const std::int32_t group = 1 + pick(17);
    KvLayout layout = layout_of(1 + pick(2), kv_heads, dim_k, dim_v, 1 << pick(8));
    if (seed > 25) layout.type = KvType::kQ8_0;
    std::vector<TestSequence> sequences;
    for (std::int32_t i = 1 + pick(3); i > 0; --i) {
      sequences.push_back({pick(3) == 0 ? pick(600) : pick(40), pick(2) == 0 ? 1 : 1 + pick(50)});
    }
    World world(layout, kv_heads * group, sequences, seed);
    AttentionLayer params = plain(layout);
    if (pick(3) == 0) params.sliding_window = 1 + pick(300);
    if (pick(3) == 0) params.logit_softcap = 1.0F + static_cast<float>(pick(30));
    std::vector<float> sinks(static_cast<std::size_t>(kv_heads * group));
    for (float& x : sinks) x = 2 * normal(rng);
    if (pick(3) == 0) params.sinks = sinks.data();
    const auto out = world.run(plan_, params, 1 + pick(3));
    for (std::int32_t layer = 0; layer < layout.num_layers; ++layer) {
      params.layer = layer;
      ASSERT_LT(world.error(out[static_cast<std::size_t>(layer)], params), kTolerance)
          << "seed " << seed << " layer " << layer << " dims " << dim_k << "/" << dim_v << " group "
          << group << " block " << layout.block_tokens << " window " << params.sliding_window
          << " cap " << params.logit_softcap;
    }
  }
}

TEST_P(Attention, CutsLongSequences) {
  const KvLayout layout = layout_of(1, 2, 64, 64, 16);
  World world(layout, 6, {{9000, 1}, {3, 1}, {700, 50}, {2000, 3}}, 7);
  const auto out = world.run(plan_, plain(layout), 2);
  EXPECT_EQ(plan_.items().size(), 18U + 1U + 2 * 3U + 8U);
  EXPECT_LT(world.error(out[0], plain(layout)), kTolerance);
  AttentionLayer window = plain(layout);
  window.sliding_window = 128;
  EXPECT_LT(world.error(world.run(plan_, window, 2)[0], window), kTolerance);
}

TEST_P(Attention, IsTheSameAloneAndInABatchOnAnyNumberOfThreads) {
  for (const std::int32_t group : {1, 3, 8}) {
    const KvLayout layout = layout_of(2, 2, 64, 80, 16);
    World world(layout, 2 * group, {{1000, 1}, {0, 110}, {17, 1}, {300, 5}, {1500, 40}},
                static_cast<std::uint64_t>(group));
    const auto batch = world.run(plan_, plain(layout), 3);
    EXPECT_EQ(world.run(plan_, plain(layout), 1), batch);
    EXPECT_EQ(world.run(plan_, plain(layout), 4, {4, 1, 0, 3, 2}), batch);
    for (std::size_t s = 0; s < world.sequences_.size(); ++s) {
      const auto alone = world.run(plan_, plain(layout), 2, {s});
      const AttentionSequence& sequence = world.sequences_[s];
      for (std::size_t layer = 0; layer < batch.size(); ++layer) {
        const auto begin = static_cast<std::ptrdiff_t>(world.out_at(sequence.row_begin, 0, 0));
        const auto end =
            static_cast<std::ptrdiff_t>(world.out_at(sequence.row_begin + sequence.num_rows, 0, 0));
        EXPECT_TRUE(std::equal(alone[layer].begin() + begin, alone[layer].begin() + end,
                               batch[layer].begin() + begin))
            << "sequence " << s << " layer " << layer << " group " << group;
      }
    }
  }
}

TEST_P(Attention, ReadsSharedBlocksOnceWithTheSameResult) {
  const KvLayout layout = layout_of(1, 2, 64, 64, 16);
  std::vector<TestSequence> sequences(30, {900, 1});
  sequences[3] = {600, 1};
  sequences[4] = {256, 2};
  sequences[5] = {255, 1};
  World world(layout, 6, sequences, 5);
  for (std::size_t s = 1; s < 26; ++s)
    world.share(0, s, s == 5 ? 240 : s < 12 && s != 4 ? 512 : 256);
  world.share(3, 20, 592);
  for (const std::int32_t window : {0, 200, 600}) {
    AttentionLayer params = plain(layout);
    params.sliding_window = window;
    const auto batch = world.run(plan_, params, 3);
    EXPECT_LT(world.error(batch[0], params), kTolerance);
    EXPECT_TRUE(std::any_of(plan_.items().begin(), plan_.items().end(),
                            [](const auto& i) { return i.group_end - i.group_begin > 20; }));
    EXPECT_TRUE(covers_all_once());
    for (const std::size_t s : {0U, 3U, 4U, 5U, 20U, 29U}) {
      const auto alone = world.run(plan_, params, 1, {s});
      const auto begin =
          static_cast<std::ptrdiff_t>(world.out_at(world.sequences_[s].row_begin, 0, 0));
      EXPECT_TRUE(std::equal(alone[0].begin() + begin, alone[0].begin() + begin + 6 * 64,
                             batch[0].begin() + begin))
          << "sequence " << s << " window " << window;
    }
  }
}

TEST_P(Attention, LeavesOtherRowsAlone) {
  const KvLayout layout = layout_of(1, 1, 64, 64, 16);
  World world(layout, 3, {{5, 2}, {40, 1}}, 3);
  const auto out = world.run(plan_, plain(layout), 2)[0];
  std::int32_t untouched = 0;
  for (std::int32_t row = 0; row < world.num_rows_; ++row) {
    untouched += static_cast<std::int32_t>(out[world.out_at(row, 0, 0)] == World::kUntouched);
  }
  EXPECT_EQ(untouched, 2);
}

TEST_P(Attention, StoresRowsAsF16) {
  const KvLayout layout = layout_of(2, 2, 24, 8, 4);
  World world(layout, 2, {{6, 9}, {0, 1}}, 11, 30.0F);
  world.run(plan_, plain(layout), 3);
  for (std::size_t s = 0; s < 2; ++s) {
    for (std::int32_t r = 0; r < world.sequences_[s].num_rows; ++r) {
      const std::int32_t row = world.sequences_[s].row_begin + r;
      for (std::int32_t head = 0; head < 2; ++head) {
        const std::int32_t token = world.sequences_[s].position + r;
        for (std::int32_t i = 0; i < 24; ++i) {
          const float x = world.k_[static_cast<std::size_t>((row * 2 + head) * 24 + i)];
          EXPECT_NEAR(double_from(world.element(s, token, 1, head, false)[i]),
                      static_cast<double>(x), std::fabs(static_cast<double>(x)) / 1024 + 6e-8);
        }
        for (std::int32_t i = 0; i < 8; ++i) {
          const float x = world.v_[static_cast<std::size_t>((row * 2 + head) * 8 + i)];
          EXPECT_NEAR(double_from(world.element(s, token, 1, head, true)[i]),
                      static_cast<double>(x), std::fabs(static_cast<double>(x)) / 1024 + 6e-8);
        }
      }
    }
  }
}

// Each element is off by half a scale at most, and by what the scale's own
// rounding leaves of the largest.
TEST_P(Attention, StoresRowsAsQ8) {
  KvLayout layout = layout_of(2, 2, 64, 32, 4);
  layout.type = KvType::kQ8_0;
  World world(layout, 2, {{6, 9}, {0, 1}}, 11, 30.0F);
  for (int i = 0; i < 32; ++i) world.v_[static_cast<std::size_t>(i)] = 0;  // a group of zeros
  world.run(plan_, plain(layout), 3);
  for (std::size_t s = 0; s < 2; ++s) {
    for (std::int32_t r = 0; r < world.sequences_[s].num_rows; ++r) {
      const std::int32_t row = world.sequences_[s].row_begin + r;
      const std::int32_t token = world.sequences_[s].position + r;
      for (std::int32_t head = 0; head < 2; ++head) {
        const auto stored = world.stored(s, token, 1, head, false);
        const float* x = world.k_.data() + static_cast<std::ptrdiff_t>((row * 2 + head) * 64);
        for (std::size_t group = 0; group < 64; group += kKvGroup) {
          float largest = 0;
          for (std::size_t i = 0; i < kKvGroup; ++i) {
            largest = std::max(largest, std::fabs(x[group + i]));
          }
          const double allowed = static_cast<double>(largest) / 127 * 0.5 * 1.01;
          for (std::size_t i = group; i < group + kKvGroup; ++i) {
            EXPECT_NEAR(stored[i], static_cast<double>(x[i]), allowed);
          }
        }
      }
    }
  }
}

// What quantising costs: the same rows through both types.
TEST_P(Attention, Q8IsNearF16) {
  KvLayout layout = layout_of(1, 2, 64, 64, 16);
  World f16(layout, 6, {{0, 300}, {0, 40}}, 3);
  layout.type = KvType::kQ8_0;
  World q8(layout, 6, {{0, 300}, {0, 40}}, 3);
  ASSERT_EQ(f16.k_, q8.k_);
  EXPECT_LT(static_cast<double>(layout.block_bytes()),
            0.54 * static_cast<double>(f16.layout_.block_bytes()));
  const auto exact = f16.run(plan_, plain(layout), 2)[0];
  const auto coarse = q8.run(plan_, plain(layout), 2)[0];
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (exact[i] == World::kUntouched) continue;
    error += std::pow(static_cast<double>(exact[i] - coarse[i]), 2);
    size += std::pow(static_cast<double>(exact[i]), 2);
  }
  EXPECT_LT(std::sqrt(error / size), 0.01);
}

TEST_P(Attention, SurvivesHugeLogits) {
  const KvLayout layout = layout_of(1, 1, 64, 64, 16);
  World world(layout, 4, {{100, 1}, {20, 40}}, 5, 300.0F);
  const auto out = world.run(plan_, plain(layout), 1);
  // Logits of about 1e5 in f32: only what the largest one selects is certain.
  EXPECT_LT(world.error(out[0], plain(layout)), 0.05);
}

TEST_P(Attention, ClampsWhatF16CannotHold) {
  const KvLayout layout = layout_of(1, 1, 8, 8, 16);
  World world(layout, 1, {{0, 1}}, 5);
  world.v_.assign(world.v_.size(), 1e9F);
  EXPECT_EQ(world.run(plan_, plain(layout), 1)[0][world.out_at(1, 0, 0)], 65504.0F);
}

TEST(AttentionShape, NamesWhatItCannotDo) {
  const auto message = [](const KvLayout& layout, std::int32_t heads) {
    const Status status = check_attention_shape(layout, heads);
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(message(layout_of(1, 3, 64, 64, 16), 9), "");
  EXPECT_NE(message(layout_of(1, 3, 60, 64, 16), 9).find("60 elements"), std::string::npos);
  EXPECT_NE(message(layout_of(1, 3, 64, 2048, 16), 9).find("up to 1024"), std::string::npos);
  EXPECT_NE(message(layout_of(1, 3, 64, 64, 16), 10).find("10 attention heads"), std::string::npos);
  EXPECT_NE(message(layout_of(1, 3, 64, 64, 24), 9).find("24 tokens"), std::string::npos);
  KvLayout quantised = layout_of(1, 3, 80, 64, 16);
  EXPECT_EQ(message(quantised, 9), "");
  quantised.type = KvType::kQ8_0;
  EXPECT_NE(message(quantised, 9).find("a KV cache of q8_0: need a multiple of 32"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice
