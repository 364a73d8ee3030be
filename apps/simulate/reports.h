// What is left of a simulation: a table for the terminal, CSV and JSON for other
// programs, a page with plots for people.
#pragma once

#include <string>
#include <vector>

#include "runs.h"

namespace sluice {

[[nodiscard]] std::string table_of(const std::vector<MeanResult>& means);
[[nodiscard]] std::string csv_of(const std::vector<RunResult>& runs);
[[nodiscard]] std::string json_of(const SimulateOptions& options,
                                  const std::vector<RunResult>& runs);
// One file, with no script and nothing from elsewhere.
[[nodiscard]] std::string html_of(const SimulateOptions& options, const Trace& trace,
                                  const std::vector<MeanResult>& means);

}  // namespace sluice
