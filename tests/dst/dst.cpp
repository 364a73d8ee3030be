// Runs seeds until there are enough, each twice; prints what a failing one was.
//
//   dst --seeds N [--first S]     N seeds
//   dst --minutes M [--first S]   as many as fit
//   dst --seed S                  one, with its configuration
//
// It stops at the first that fails, unless there is also --keep-going 1.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <map>
#include <string_view>

#include "base/time.h"
#include "checks.h"

namespace sluice::dst {
namespace {

// Seeds that once failed are run first, for ever.
constexpr std::array<std::uint64_t, 2> kOnceFailed = {1, 30077};

struct Totals {
  std::size_t seeds = 0;
  std::size_t faults = 0;
  std::size_t requests = 0;
  std::size_t lost = 0;
  double virtual_s = 0;
  HandoffCounts handoffs;
};

bool run_seed(std::uint64_t seed, bool verbose, Totals& totals) {
  const Plan plan(seed);
  if (verbose) fmt::print("{}\n", plan.describe());
  Verdict verdict = check(plan);
  const Verdict again = check(plan);
  if (verdict.hash != again.hash) verdict.problems.push_back("two runs of it differ");
  totals.seeds += 1;
  totals.faults += verdict.faults;
  totals.requests += verdict.requests;
  totals.lost += verdict.lost;
  totals.virtual_s += verdict.virtual_s;
  totals.handoffs += verdict.handoffs;
  if (verdict.problems.empty()) return true;
  fmt::print("FAILED {}\n", plan.describe());
  for (const std::string& problem : verdict.problems) fmt::print("  {}\n", problem);
  fmt::print("again: dst --seed {}\n", seed);
  return false;
}

int run(const std::map<std::string_view, std::uint64_t>& flags) {
  const auto flag = [&](std::string_view name, std::uint64_t otherwise) {
    const auto it = flags.find(name);
    return it == flags.end() ? otherwise : it->second;
  };
  Totals totals;
  bool ok = true;
  if (flags.contains("--seed")) return run_seed(flag("--seed", 0), true, totals) ? 0 : 1;
  const SteadyClock clock;
  const TimePoint end = clock.now() + std::chrono::minutes(flag("--minutes", 0));
  for (const std::uint64_t seed : kOnceFailed) ok = run_seed(seed, false, totals) && ok;
  const std::uint64_t first = flag("--first", 1000);
  const bool keep_going = flag("--keep-going", 0) != 0;
  const std::uint64_t least = flag("--seeds", flags.contains("--minutes") ? 1 : 20);
  for (std::uint64_t n = 0; (ok || keep_going) && (n < least || clock.now() < end); ++n) {
    ok = run_seed(first + n, false, totals) && ok;
  }
  fmt::print(
      "{} seeds, each twice; once: {:.1f} virtual hours, {} faults survived, {} requests, {} "
      "of them lost with their instance; {} handoffs done, {} reservations refused, {} targets "
      "lost, {} expired\n",
      totals.seeds, totals.virtual_s / 3600, totals.faults, totals.requests, totals.lost,
      totals.handoffs.moved, totals.handoffs.refused, totals.handoffs.lost,
      totals.handoffs.expired);
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace sluice::dst

int main(int argc, char** argv) {
  std::map<std::string_view, std::uint64_t> flags;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view value = argv[i + 1];
    const auto [end, error] =
        std::from_chars(value.data(), value.data() + value.size(), flags[argv[i]]);
    if (error != std::errc() || end != value.data() + value.size()) argc = 0;
  }
  if (argc % 2 == 0) {
    std::fputs("dst [--seed S | --seeds N | --minutes M] [--first S]\n", stderr);
    return 2;
  }
  return sluice::dst::run(flags);
}
