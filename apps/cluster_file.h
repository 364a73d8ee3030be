// The file of `sluice cluster up`.
//
//   model: model.gguf          # these are everybody's
//   context: 4096
//   gateways:
//     - port: 8080             # settings of `sluice gateway`
//   instances:
//     - count: 2               # so many alike
//       role: unified          # and settings of `sluice instance`
//
// Names, the addresses at which instances join, and --join follow from it where they
// are not given.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace sluice {

struct ProcessSpec {
  std::string name;
  std::vector<std::string> arguments;  // with the program in front
};

// kInvalidArgument: one line that says what is wrong and where. Whether a process has a
// setting of some name is its own to say.
[[nodiscard]] Result<std::vector<ProcessSpec>> read_cluster_file(const std::string& path);

}  // namespace sluice
