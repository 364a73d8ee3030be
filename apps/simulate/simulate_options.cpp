#include "simulate_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "lines.h"
#include "memory/memory_policy.h"
#include "scheduling/placement.h"
#include "simulation/decode_choice.h"

namespace sluice {
namespace {

// "2s", "50ms", or a plain number.
std::optional<double> seconds_of(std::string_view text) {
  double unit = 1;
  if (text.ends_with("ms")) {
    unit = 1e-3;
    text.remove_suffix(2);
  } else if (text.ends_with('s')) {
    text.remove_suffix(1);
  }
  const auto value = number_of(text);
  if (!value || !(*value >= 0) || *value > 1e6) return std::nullopt;
  return *value * unit;
}

}  // namespace

Result<ServiceLevel> parse_service_level(const std::string& text) {
  ServiceLevel level;
  for (const std::string_view field : fields_of(text)) {
    const std::size_t at = field.find('=');
    const std::string_view key = field.substr(0, at);
    const auto value =
        at == std::string_view::npos ? std::nullopt : seconds_of(field.substr(at + 1));
    if (value && key == "ttft") {
      level.ttft_s = *value;
    } else if (value && key == "tpot") {
      level.tpot_s = *value;
    } else if (value && key == "prefill") {
      level.ttft_prefill_factor = *value;
    } else {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("\"{}\" is not like ttft=2s, tpot=50ms or prefill=3 (0 to 1000000)", field));
    }
  }
  return level;
}

void add_simulate_options(CLI::App& app, SimulateOptions& o) {
  app.add_option("--trace", o.trace, "a trace's name or a file")->required();
  app.add_option("--traces", o.trace_folder, "folder of the traces with names")
      ->capture_default_str();
  app.add_option("--cluster", o.cluster, "a YAML file, or like 16xh100-8b+4xa100-8b")
      ->capture_default_str();
  app.add_option("--prefill", o.prefill, "so many instances of the cluster only prefill")
      ->check(CLI::Range(0, 20000));
  app.add_option("--decode", o.decode, "and so many of the others only decode")
      ->check(CLI::Range(0, 20000));
  app.add_option("--decode-choice", o.decode_choices,
                 "who chooses the decode instance: local (the prefill instance), central (one "
                 "scheduler, after prefill), placement (with the prefill instance); and by which "
                 "policy, as in local/two-choices; several are compared")
      ->delimiter(',')
      ->check([](const std::string& text) -> std::string {
        const auto choice = parse_decode_choice(text);
        return choice ? std::string() : choice.error().message;
      })
      ->capture_default_str();
  const std::vector<std::string> known(policy_names().begin(), policy_names().end());
  app.add_option("--policy", o.policies, "placement policies to compare, or all")
      ->delimiter(',')
      ->check([known](const std::string& name) -> std::string {
        if (name == "all" || std::find(known.begin(), known.end(), name) != known.end()) return {};
        return fmt::format("no policy \"{}\"; there are {}", name, fmt::join(known, ", "));
      })
      ->capture_default_str();
  const std::vector<std::string> memory(memory_policy_names().begin(), memory_policy_names().end());
  app.add_option("--memory-policy", o.memory_policies,
                 "memory policies of the instances to compare")
      ->delimiter(',')
      ->check([memory](const std::string& name) -> std::string {
        if (memory_policy_of(name)) return {};
        return fmt::format("no memory policy \"{}\"; there are {}", name, fmt::join(memory, ", "));
      })
      ->capture_default_str();
  app.add_option("--rate", o.rates, "times the trace's own rate; several give a curve")
      ->delimiter(',')
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  app.add_option("--seeds", o.seeds, "runs of each, which differ by seed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--first-seed", o.first_seed, "the first of them")->check(CLI::Range(0, 1 << 30));
  app.add_option("--report-delay", o.report_delay_s, "load reports arrive so late, seconds")
      ->check(CLI::Range(0.0, 60.0));
  app.add_flag("--ledger,!--no-ledger", o.ledger, "count what was sent and not yet reported (on)");
  app.add_option("--from", o.from_s, "second of the trace to begin at")
      ->check(CLI::Range(0.0, 1e9));
  app.add_option("--to", o.to_s, "second of the trace to end at")->check(CLI::Range(0.0, 1e9));
  app.add_option("--requests", o.requests, "at most so many requests");
  app.add_flag("--spread-ticks,!--no-spread-ticks", o.spread_ticks,
               "spread requests that share a timestamp until the next one (on)");
  app.add_flag("--prefixes,!--no-prefixes", o.prefixes, "keep the trace's shared prefixes (on)");
  app.add_option("--max-tokens", o.max_tokens,
                 "that clients allow (default: the power of two above the longest answer)")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--slo", o.slo, "what counts as good: ttft + prefill x its own prefill time; tpot")
      ->capture_default_str();
  app.add_option("--jobs", o.jobs, "runs side by side (default: one a core)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--out", o.out, "folder for runs.csv, runs.json and report.html");
}

}  // namespace sluice
