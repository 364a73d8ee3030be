// A small seeded generator with value semantics (xoshiro256**, public domain
// algorithm by Blackman and Vigna). Equal seeds give equal streams everywhere.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace sluice {

class Rng {
 public:
  using result_type = std::uint64_t;

  explicit Rng(std::uint64_t seed) {
    for (auto& word : state_) {  // splitmix64 fills the state, so that any seed is a good one
      seed += 0x9e3779b97f4a7c15ULL;
      std::uint64_t z = seed;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
      word = z ^ (z >> 31);
    }
  }

  static constexpr std::uint64_t min() { return 0; }
  static constexpr std::uint64_t max() { return std::numeric_limits<std::uint64_t>::max(); }

  std::uint64_t operator()() {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // What is still to come follows from these words alone.
  using State = std::array<std::uint64_t, 4>;
  [[nodiscard]] const State& state() const { return state_; }
  void resume(const State& state) { state_ = state; }

  // Uniform in [0, n), n > 0; the bias below 2^-32 does not matter here.
  std::uint64_t below(std::uint64_t n) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>((*this)()) * n) >> 64);
  }
  // Uniform in [0, 1).
  double uniform() { return static_cast<double>((*this)() >> 11) * 0x1.0p-53; }

 private:
  State state_{};
};

}  // namespace sluice
