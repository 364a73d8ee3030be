// A tree of lower bounds over the rows of a load table, so that the best of ten
// thousand instances is found without looking at all of them.
//
// Leaf i bounds row i; an inner node bounds its two children. Whoever searches
// skips a subtree whose bounds exclude it: the answer is exact, the cost is
// about the logarithm of the number of rows. Owned by its LoadTable.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/time.h"

namespace sluice {

// No row below a node has less wait, more room, ... than this says. The default
// is that of no row at all: every search skips it.
//
// Time to first token is linear in the prompt, so the least over some rows is
// concave in it: between two prompts for which it is known the chord is a bound,
// and a close one.
struct LoadBounds {
  static constexpr std::array<float, 4> kPrompts = {0, 256, 2048, 16384};
  static constexpr float kNever = std::numeric_limits<float>::infinity();

  std::array<float, 4> cost_s{kNever, kNever, kNever, kNever};     // for kPrompts
  float token_s = kNever;                                          // of the cost, a prompt token
  float wait_s = kNever;                                           // shortest wait
  std::int32_t output = std::numeric_limits<std::int32_t>::max();  // shortest likely output
  std::int64_t free_tokens = -1;        // most room at the end of the outlook
  TimePoint newest = TimePoint::min();  // latest report
  std::int32_t waiting = std::numeric_limits<std::int32_t>::max();  // shortest own queue
  std::uint8_t roles = 0;  // bit set of wanted roles that it serves

  // Cost of a prompt of n tokens: at_once + n * per_token.
  void set_cost(double at_once, double per_token) {
    constexpr double kRoundDown = 1 - 1e-6;  // floats must stay bounds
    for (std::size_t i = 0; i < cost_s.size(); ++i) {
      cost_s[i] = static_cast<float>((at_once + per_token * kPrompts[i]) * kRoundDown);
    }
    token_s = static_cast<float>(per_token * kRoundDown);
  }

  // Finite only where there is a row.
  [[nodiscard]] double cost(std::int32_t prompt_tokens) const {
    const auto prompt = static_cast<double>(prompt_tokens);
    for (std::size_t i = 1; i < cost_s.size(); ++i) {
      if (prompt > kPrompts[i]) continue;
      const double share = (prompt - kPrompts[i - 1]) / (kPrompts[i] - kPrompts[i - 1]);
      return (cost_s[i - 1] + share * (cost_s[i] - cost_s[i - 1])) * (1 - 1e-6);
    }
    return cost_s.back() + (prompt - kPrompts.back()) * token_s;
  }

  void widen(const LoadBounds& b) {
    for (std::size_t i = 0; i < cost_s.size(); ++i) cost_s[i] = std::min(cost_s[i], b.cost_s[i]);
    token_s = std::min(token_s, b.token_s);
    wait_s = std::min(wait_s, b.wait_s);
    output = std::min(output, b.output);
    free_tokens = std::max(free_tokens, b.free_tokens);
    newest = std::max(newest, b.newest);
    waiting = std::min(waiting, b.waiting);
    roles = static_cast<std::uint8_t>(roles | b.roles);
  }
};

class LoadIndex final {
 public:
  // Makes room for `rows` leaves; keeps those that there are.
  void resize(std::size_t rows) {
    const std::size_t wanted = std::bit_ceil(std::max<std::size_t>(rows, 1));
    if (wanted <= leaves_) return;
    std::vector<LoadBounds> nodes(2 * wanted);
    for (std::size_t i = 0; i < leaves_; ++i) nodes[wanted + i] = nodes_[leaves_ + i];
    for (std::size_t i = wanted - 1; i > 0; --i) nodes[i] = both(nodes, i);
    nodes_ = std::move(nodes);
    leaves_ = wanted;
  }

  void set(std::size_t row, const LoadBounds& bounds) {
    std::size_t i = leaves_ + row;
    nodes_[i] = bounds;
    for (i /= 2; i > 0; i /= 2) nodes_[i] = both(nodes_, i);
  }

  // Node 1 is the root, 2i and 2i+1 are the children of i, leaves() + row a leaf.
  [[nodiscard]] const LoadBounds& node(std::size_t i) const { return nodes_[i]; }
  [[nodiscard]] std::size_t leaves() const { return leaves_; }

 private:
  [[nodiscard]] static LoadBounds both(const std::vector<LoadBounds>& nodes, std::size_t i) {
    LoadBounds bounds = nodes[2 * i];
    bounds.widen(nodes[2 * i + 1]);
    return bounds;
  }

  std::size_t leaves_ = 0;
  std::vector<LoadBounds> nodes_;
};

}  // namespace sluice
