// `sluice simulate`, `sluice plan` and `sluice replay` alone, for machines and builds without the
// model library.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "plan.h"
#include "replay.h"
#include "simulate_options.h"

int main(int argc, char** argv) {
  CLI::App app("sluice's schedulers and memory manager on a virtual clock");
  app.require_subcommand(1);
  sluice::SimulateOptions simulate;
  sluice::PlanOptions plan;
  sluice::ReplayOptions replay;
  CLI::App* simulate_app = app.add_subcommand("simulate", "run them over a trace");
  CLI::App* plan_app = app.add_subcommand("plan", "say how many instances a trace needs");
  CLI::App* replay_app = app.add_subcommand("replay", "make a server's decisions again");
  sluice::add_simulate_options(*simulate_app, simulate);
  sluice::add_plan_options(*plan_app, plan);
  sluice::add_replay_options(*replay_app, replay);
  CLI11_PARSE(app, argc, argv);
  try {
    if (replay_app->parsed()) return sluice::replay(replay);
    return plan_app->parsed() ? sluice::plan(plan) : sluice::simulate(simulate);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "sluice: %s\n", e.what());
    return 2;
  }
}
