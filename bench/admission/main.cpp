// Runs one token world and prints one line of JSON. bench/admission (Python)
// makes the lengths, runs the cases and prints the tables.
#include <fmt/format.h>
#include <fmt/ostream.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>

#include "token_world.h"

namespace sluice {
namespace {

const std::map<std::string, WindowLength> kLengthRules = {{"bounded", WindowLength::kBounded},
                                                          {"completion", WindowLength::kCompletion},
                                                          {"mean", WindowLength::kMean},
                                                          {"longest", WindowLength::kLongest},
                                                          {"fixed", WindowLength::kFixed}};

struct Arguments {
  WorldOptions world;
  std::string lengths;   // a file: prompt, output and client, one request a line
  std::string timeline;  // a file to write, or none
  std::string policy = "windowed";
  std::int64_t pool_tokens = 120'000;
};

Arguments parse(int argc, char** argv) {
  Arguments a;
  WindowOptions& window = a.world.kv.window;
  window.step_token_budget = 8192;
  CLI::App app("One instance without compute under a memory policy.");
  app.add_option("--lengths", a.lengths, "prompt, output and client, one request a line")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--timeline", a.timeline, "write one line of CSV a measured step");
  app.add_option("--policy", a.policy)
      ->check(CLI::IsMember(
          std::vector<std::string>(memory_policy_names().begin(), memory_policy_names().end())));
  app.add_option("--pool", a.pool_tokens, "tokens of KV")->check(CLI::Range(1, 1 << 30));
  app.add_option("--cap", a.world.cap, "max_tokens of every request")->required();
  app.add_option("--warm-up", a.world.warm_up_steps);
  app.add_option("--steps", a.world.steps)->required();
  app.add_option("--seed", a.world.seed);
  app.add_option("--max-running", a.world.max_running);
  app.add_option("--budget", window.step_token_budget, "tokens a step computes");
  app.add_option("--length-rule", window.length)->transform(CLI::CheckedTransformer(kLengthRules));
  app.add_option("--fixed-steps", window.fixed_steps);
  app.add_option_function<double>(
      "--hold-up", [&window](double seconds) { window.hold_up = from_seconds(seconds); },
      "of an answer, seconds, that few may suffer");
  app.add_flag("--classes", a.world.classes, "clients are classes of the forecast");
  app.add_option("--hints", a.world.hint_error, "clients hint at lengths, off by this factor");
  app.add_option("--unused-share", window.unused_share);
  app.add_option("--max-steps", window.max_steps);
  app.add_option("--min-steps", window.min_steps);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  a.world.kv.policy = *memory_policy_of(a.policy);
  a.world.kv.prefix_cache = false;
  a.world.kv.num_blocks = static_cast<std::int32_t>(a.pool_tokens / window.block_tokens);
  a.world.kv.seed = a.world.seed;
  return a;
}

std::vector<RequestLengths> read_lengths(const Arguments& a) {
  std::ifstream file(a.lengths);
  std::vector<RequestLengths> lengths;
  RequestLengths request;
  while (file >> request.prompt >> request.output >> request.client) {
    const std::int64_t most = std::int64_t{request.prompt} + a.world.cap;
    if (request.prompt < 1 || most > a.pool_tokens) {
      throw std::runtime_error(
          fmt::format("a prompt of {} tokens and {} to generate never fit in {}", request.prompt,
                      a.world.cap, a.pool_tokens));
    }
    lengths.push_back(request);
  }
  if (lengths.empty()) throw std::runtime_error(a.lengths + ": no lengths");
  return lengths;
}

int main_of(int argc, char** argv) {
  const Arguments a = parse(argc, argv);
  const std::vector<RequestLengths> lengths = read_lengths(a);
  TokenWorld world(a.world, lengths);
  std::ofstream csv;
  std::function<void(const WorldStep&)> watch;
  if (!a.timeline.empty()) {
    csv.open(a.timeline);
    csv << "step,opened,steps,bound,demand,granted,written,peak,running\n";
    watch = [&csv](const WorldStep& s) {
      fmt::print(csv, "{},{},{},{},{},{},{},{},{}\n", s.step, s.opened ? 1 : 0, s.window.plan.steps,
                 static_cast<int>(s.window.plan.bound), s.window.plan.demand_blocks,
                 s.kv.granted_blocks, s.kv.written_blocks, s.window.plan.peak_blocks, s.running);
    };
  }
  const WorldResult r = world.run(watch);
  const auto steps = static_cast<double>(r.steps);
  fmt::print(R"({{"policy": "{}", "pool": {}, "seed": {}, "steps": {}, "finished": {}, )"
             R"("tokens": {}, "recomputed": {}, "preemptions": {}, "warm_up_preemptions": {}, )"
             R"("windows": {}, "running": {:.2f}, "written": {:.5f}, "unused": {:.5f}, )"
             R"("plan_us": {:.2f}}})"
             "\n",
             a.policy, a.pool_tokens, a.world.seed, r.steps, r.finished, r.tokens, r.recomputed,
             r.preemptions, r.warm_up_preemptions, r.windows, r.running / steps, r.written / steps,
             r.unused / steps,
             1e6 * r.plan_seconds / static_cast<double>(std::max<std::int64_t>(r.windows, 1)));
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  try {
    return sluice::main_of(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "admission_bench: %s\n", error.what());
    return 2;
  }
}
