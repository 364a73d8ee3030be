// `sluice replay`: what a live server decided, decided again by other policies.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "decision_file.h"
#include "scheduling/decision_inputs.h"

namespace CLI {
class App;
}

namespace sluice {

struct ReplayOptions {
  std::string file;
  std::vector<std::string> policies{"forecast"};
  std::uint64_t seed = 1;         // of ties, where the policy is not the recorded one
  double max_report_age_s = 120;  // older loads are not eligible
  std::string out;                // folder for replay.csv and replay.json; empty: the table only
};

// One decision under one policy.
struct ReplayedChoice {
  std::string policy;
  const RecordedDecision* recorded = nullptr;
  std::optional<InstanceId> chosen;
  Prediction predicted;           // of what was chosen now,
  Prediction predicted_recorded;  // and then
};

// In the order of `policies`, then of decisions. Where the policy is the one that decided it is in
// the state in which it was, and chooses what it chose; another begins with `seed` and goes on.
[[nodiscard]] std::vector<ReplayedChoice> replay_decisions(
    std::span<const RecordedDecision> decisions, const ReplayOptions& options);

[[nodiscard]] std::string replay_table(const std::vector<ReplayedChoice>& choices);
[[nodiscard]] std::string replay_csv(const std::vector<ReplayedChoice>& choices);
[[nodiscard]] std::string replay_json(const std::vector<ReplayedChoice>& choices);

void add_replay_options(CLI::App& app, ReplayOptions& options);
// Reads, replays, prints, writes. Throws std::runtime_error with one line.
int replay(const ReplayOptions& options);

}  // namespace sluice
