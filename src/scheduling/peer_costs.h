// What a step costs at an instance that has not measured it yet: what its peers found.
//
// A fresh instance's own step-time model is a guess. Taken at its word it looks free
// or slow, so it gets every request or none, and who gets none never learns. Each
// instance is therefore judged by its own fit and that of its role's instances,
// weighted by the steps that it has seen; prefill terms by the steps with prefill.
//
// Belongs to its LoadTable; every call takes constant time.
#pragma once

#include <array>

#include "scheduling/load_report.h"

namespace sluice {

class PeerCosts final {
 public:
  static constexpr double kEnough = 32;  // steps after which an instance is taken at its word

  // An instance's last report; remove() takes the arguments of the add() that it undoes.
  void add(Role role, const StepCost& cost) { count(role, cost, 1); }
  void remove(Role role, const StepCost& cost) { count(role, cost, -1); }
  [[nodiscard]] StepCost judge(Role role, const StepCost& own) const;
  // So much more (or less) is known than when this last said true that what was
  // judged since then should be judged again.
  [[nodiscard]] bool learned();

 private:
  struct Sum {
    StepCost weighted;  // sums of the terms; the counts are not used
    double steps = 0;   // weight of the decode terms and the base
    double prefill = 0;
  };
  void count(Role role, const StepCost& cost, double sign);

  std::array<Sum, 3> by_role_{};
  double known_ = 0;   // sum of all weights
  double judged_ = 0;  // of them when learned() last said true
};

}  // namespace sluice
