#include "replay.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "trace_files.h"

namespace sluice {
namespace {

// The choices of one policy for one role, those recorded or those made now.
struct Sum {
  std::int64_t decisions = 0;
  std::int64_t same = 0;
  std::int64_t other = 0;
  std::int64_t none = 0;  // of `other`: nobody now
  std::vector<double> ttft_s;
  double peak = 0;  // sum
  double most = 0;

  void add(const Prediction& predicted) {
    ttft_s.push_back(predicted.ttft_s);
    peak += predicted.peak;
    most = std::max(most, predicted.peak);
  }
};

double quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double last = static_cast<double>(values.size() - 1);
  return values[static_cast<std::size_t>(q * last + 0.5)];
}

std::string line_of(const std::string& name, Role role, Sum& sum) {
  const auto chosen = static_cast<double>(std::max<std::size_t>(1, sum.ttft_s.size()));
  double mean = 0;
  for (const double s : sum.ttft_s) mean += s / chosen;
  const double share = 100.0 * static_cast<double>(sum.other) /
                       static_cast<double>(std::max<std::int64_t>(1, sum.decisions));
  return fmt::format(
      "{:<18} {:<8} {:>9} {:>6} {:>6} {:>5.1f}% {:>5} {:>8.1f}ms {:>8.1f}ms {:>8.1f}ms {:>6.1f}% "
      "{:>6.1f}%\n",
      name, role_name(role), sum.decisions, sum.same, sum.other, share, sum.none, 1e3 * mean,
      1e3 * quantile(sum.ttft_s, 0.5), 1e3 * quantile(sum.ttft_s, 0.99), 100 * sum.peak / chosen,
      100 * sum.most);
}

bool same(const ReplayedChoice& c) {
  return c.chosen == c.recorded->chosen;
}

std::string id_or_none(const std::optional<InstanceId>& id) {
  return id ? fmt::format("{}", id->value) : std::string();
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(path.string() + " cannot be written");
}

}  // namespace

std::vector<ReplayedChoice> replay_decisions(std::span<const RecordedDecision> decisions,
                                             const ReplayOptions& options) {
  std::vector<ReplayedChoice> choices;
  for (const std::string& name : options.policies) {
    const auto policy = make_policy(
        name, {.max_report_age = from_seconds(options.max_report_age_s)}, Rng(options.seed));
    if (policy == nullptr) throw std::runtime_error(fmt::format("no policy \"{}\"", name));
    for (const RecordedDecision& recorded : decisions) {
      const DecisionInputs& inputs = *recorded.inputs;
      if (recorded.policy == name) policy->resume(inputs.state);
      const Decision decision = decide_again(inputs, *policy);
      ReplayedChoice choice{.policy = name, .recorded = &recorded};
      if (decision.placement) {
        choice.chosen = decision.placement->instance;
        choice.predicted = predict(inputs, *choice.chosen);
      }
      if (recorded.chosen) choice.predicted_recorded = predict(inputs, *recorded.chosen);
      choices.push_back(std::move(choice));
    }
  }
  return choices;
}

std::string replay_table(const std::vector<ReplayedChoice>& choices) {
  std::string text =
      fmt::format("{:<18} {:<8} {:>9} {:>6} {:>6} {:>6} {:>5} {:>10} {:>10} {:>10} {:>7} {:>7}\n",
                  "policy", "for", "decisions", "same", "other", "share", "none", "TTFT mean",
                  "p50", "p99", "memory", "most");
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    Sum recorded;
    std::vector<std::pair<std::string, Sum>> sums;
    for (const ReplayedChoice& c : choices) {
      if (c.recorded->inputs->query.role != role) continue;
      if (sums.empty() || sums.back().first != c.policy) sums.emplace_back(c.policy, Sum{});
      Sum& sum = sums.back().second;
      ++sum.decisions;
      ++(same(c) ? sum.same : sum.other);
      if (!c.chosen && c.recorded->chosen) ++sum.none;
      if (c.chosen) sum.add(c.predicted);
      if (sums.size() > 1) continue;  // what was recorded is the same for all
      ++recorded.decisions;
      ++recorded.same;
      if (c.recorded->chosen) recorded.add(c.predicted_recorded);
    }
    if (sums.empty()) continue;
    text += line_of("(as recorded)", role, recorded);
    for (auto& [policy, sum] : sums) text += line_of(policy, role, sum);
  }
  return text;
}

std::string replay_csv(const std::vector<ReplayedChoice>& choices) {
  std::string text =
      "policy,for,request,by,recorded_policy,prompt_tokens,recorded,chosen,"
      "recorded_ttft_s,ttft_s,recorded_memory,memory,instances_known,instances\n";
  for (const ReplayedChoice& c : choices) {
    const RecordedDecision& r = *c.recorded;
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", c.policy,
                        role_name(r.inputs->query.role), r.request, r.by, r.policy,
                        r.inputs->query.prompt_tokens, id_or_none(r.chosen), id_or_none(c.chosen),
                        c.predicted_recorded.ttft_s, c.predicted.ttft_s, c.predicted_recorded.peak,
                        c.predicted.peak, r.inputs->rows.size(), r.inputs->table_rows);
  }
  return text;
}

std::string replay_json(const std::vector<ReplayedChoice>& choices) {
  nlohmann::json root{{"choices", nlohmann::json::array()}};
  const auto choice_of = [](const std::optional<InstanceId>& id, const Prediction& predicted) {
    if (!id) return nlohmann::json(nullptr);
    return nlohmann::json{
        {"instance", id->value}, {"ttft_s", predicted.ttft_s}, {"memory", predicted.peak}};
  };
  for (const ReplayedChoice& c : choices) {
    const RecordedDecision& r = *c.recorded;
    root["choices"].push_back({{"policy", c.policy},
                               {"for", role_name(r.inputs->query.role)},
                               {"request", r.request},
                               {"by", r.by},
                               {"recorded_policy", r.policy},
                               {"prompt_tokens", r.inputs->query.prompt_tokens},
                               {"recorded", choice_of(r.chosen, c.predicted_recorded)},
                               {"chosen", choice_of(c.chosen, c.predicted)},
                               {"instances_known", r.inputs->rows.size()},
                               {"instances", r.inputs->table_rows}});
  }
  return root.dump(1) + "\n";
}

void add_replay_options(CLI::App& app, ReplayOptions& o) {
  app.add_option("file", o.file, "what a server said at /debug/decisions?inputs=1")->required();
  const std::vector<std::string> known(policy_names().begin(), policy_names().end());
  app.add_option("--policy", o.policies, "placement policies that decide again, or all")
      ->delimiter(',')
      ->check([known](const std::string& name) -> std::string {
        if (name == "all" || std::find(known.begin(), known.end(), name) != known.end()) return {};
        return fmt::format("no policy \"{}\"; there are {}", name, fmt::join(known, ", "));
      })
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of ties, where the policy is not the recorded one")
      ->capture_default_str();
  app.add_option("--max-report-age", o.max_report_age_s,
                 "seconds after which a load counts for nothing (30 behind `sluice gateway`)")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  app.add_option("--out", o.out, "folder for replay.csv and replay.json");
}

int replay(const ReplayOptions& given) {
  ReplayOptions options = given;
  if (std::ranges::find(options.policies, "all") != options.policies.end()) {
    options.policies.assign(policy_names().begin(), policy_names().end());
  }
  const auto text = read_file(options.file);
  if (!text) throw std::runtime_error(text.error().message);
  const auto file = parse_decisions(options.file, *text);
  if (!file) throw std::runtime_error(file.error().message);
  if (file->decisions.empty()) {
    throw std::runtime_error(fmt::format(
        "{}: none of its {} decisions has its inputs: ask for /debug/decisions?inputs=1",
        options.file, file->without_inputs));
  }
  const auto choices = replay_decisions(file->decisions, options);
  fmt::print("{}", replay_table(choices));
  if (file->without_inputs > 0) {
    fmt::print("{} decisions came without inputs and are left out\n", file->without_inputs);
  }
  const auto parts = std::ranges::count_if(file->decisions, [](const RecordedDecision& d) {
    return d.inputs->rows.size() < d.inputs->table_rows;
  });
  if (parts > 0) {
    fmt::print("{} decisions were made among more instances than the 64 whose loads are kept\n",
               parts);
  }
  if (!options.out.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.out, error);
    write(std::filesystem::path(options.out) / "replay.csv", replay_csv(choices));
    write(std::filesystem::path(options.out) / "replay.json", replay_json(choices));
    fmt::print("replay.csv and replay.json are in {}\n", options.out);
  }
  return 0;
}

}  // namespace sluice
