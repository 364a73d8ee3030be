#include <cstdio>
#include <exception>

#include "options.h"

// Start-up errors are one line and exit code 2.
int main(int argc, char** argv) {
  try {
    const sluice::CommandLine line = sluice::parse_command_line(argc, argv);
    switch (line.command) {
      case sluice::Command::kServe: return sluice::serve(line.serve);
      case sluice::Command::kGateway: return sluice::gateway(line.gateway);
      case sluice::Command::kInstance: return sluice::instance(line.instance);
      case sluice::Command::kClusterUp: return sluice::cluster_up(line.up);
      case sluice::Command::kTop: return sluice::top(line.top);
      case sluice::Command::kDrain: return sluice::drain(line.drain);
      case sluice::Command::kRun: return sluice::run(line.run);
      case sluice::Command::kInspect: return sluice::inspect(line.inspect);
      case sluice::Command::kDevices: return sluice::devices();
      case sluice::Command::kProfile: return sluice::profile(line.profile);
      case sluice::Command::kSimulate: return sluice::simulate(line.simulate);
      case sluice::Command::kPlan: return sluice::plan(line.plan);
      case sluice::Command::kReplay: return sluice::replay(line.replay);
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "sluice: %s\n", e.what());
  }
  return 2;
}
