#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "reports.h"
#include "runs.h"
#include "simulate_options.h"
#include "trace_files.h"

namespace sluice {
namespace {

template <class T>
T or_stop(Result<T>&& result) {
  if (!result) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

std::string roles_of(const ClusterSpec& cluster) {
  std::string text;
  for (const Role role : {Role::kUnified, Role::kPrefill, Role::kDecode}) {
    const auto count = std::count_if(cluster.nodes.begin(), cluster.nodes.end(),
                                     [role](const NodeOptions& node) { return node.role == role; });
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, role_name(role));
  }
  return text;
}

void describe(const Trace& trace, const ClusterSpec& cluster) {
  double prompt = 0;
  double output = 0;
  for (const TraceRequest& r : trace.requests) {
    prompt += r.prompt_tokens;
    output += r.output_tokens;
  }
  const auto n = static_cast<double>(trace.requests.size());
  fmt::print(
      "{}: {} requests over {:.0f} s, {:.2f} a second; mean prompt {:.0f} tokens, answer "
      "{:.0f}\n{} instances ({}) of {} and {} KV tokens\n",
      trace.name, trace.requests.size(), to_seconds(trace.span()),
      n / std::max(1e-9, to_seconds(trace.span())), prompt / n, output / n, cluster.nodes.size(),
      roles_of(cluster), cluster.devices.front()->name,
      cluster.nodes.front().engine.kv.num_blocks *
          std::int64_t{cluster.nodes.front().engine.kv.window.block_tokens});
}

void show_progress(double share) {
  constexpr int kWidth = 40;
  static int shown = -1;
  const int percent = static_cast<int>(100 * share);
  if (percent == shown) return;
  shown = percent;
  const int filled = percent * kWidth / 100;
  fmt::print(stderr, "\r[{:<{}}] {:3}%", std::string(static_cast<std::size_t>(filled), '#'), kWidth,
             percent);
  if (percent == 100) fmt::print(stderr, "\r{:<{}}\r", "", kWidth + 8);
  std::fflush(stderr);
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw std::runtime_error(path.string() + " cannot be written");
}

void write_all(const SimulateOptions& options, const Trace& trace,
               const std::vector<RunResult>& runs, const std::vector<MeanResult>& means) {
  const std::filesystem::path folder = options.out;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  write(folder / "runs.csv", csv_of(runs));
  write(folder / "runs.json", json_of(options, runs));
  write(folder / "report.html", html_of(options, trace, means));
  fmt::print("runs.csv, runs.json and report.html are in {}\n", options.out);
}

}  // namespace

Trace load_trace(const SimulateOptions& options) {
  TraceSource source;
  source.name_or_path = options.trace;
  source.folder = options.trace_folder;
  source.begin = from_seconds(options.from_s);
  if (options.to_s > 0) source.end = from_seconds(options.to_s);
  source.seed = static_cast<std::uint64_t>(options.first_seed);
  Trace trace = or_stop(read_trace(source));
  if (options.spread_ticks) spread_ticks(trace);
  if (options.requests > 0) limit(trace, options.requests);
  if (!options.prefixes) {
    for (TraceRequest& r : trace.requests) r.num_blocks = 0;
    trace.blocks.clear();
  }
  return trace;
}

int simulate(const SimulateOptions& given) {
  SimulateOptions options = given;
  if (std::find(options.policies.begin(), options.policies.end(), "all") !=
      options.policies.end()) {
    options.policies.assign(policy_names().begin(), policy_names().end());
  }
  const ServiceLevel level = or_stop(parse_service_level(options.slo));
  ClusterSpec cluster = or_stop(read_cluster(options.cluster));
  if (const Status roles = set_roles(cluster, options.prefill, options.decode); !roles) {
    throw std::runtime_error(roles.error().message);
  }
  const Trace trace = load_trace(options);
  describe(trace, cluster);
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto runs = run_all(options, trace, cluster, level, [terminal](double share) {
    if (terminal) show_progress(share);
  });
  const auto means = means_of(runs);
  fmt::print("{}", table_of(means));
  double wall = 0;
  std::uint64_t events = 0;
  int broken = 0;
  for (const RunResult& run : runs) {
    wall += run.wall_s;
    events += run.events;
    for (const std::string& violation : run.violations) {
      ++broken;
      fmt::print(stderr, "sluice: {} seed {}: {}\n", run.key.policy, run.key.seed, violation);
    }
    if (!run.finished) fmt::print("{}: not everything had ended in time\n", run.key.policy);
  }
  fmt::print("{} runs, {} events, {:.1f} s of one core\n", runs.size(), events, wall);
  if (!options.out.empty()) write_all(options, trace, runs, means);
  return broken == 0 ? 0 : 1;
}

}  // namespace sluice
