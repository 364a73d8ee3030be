// What the processes of a cluster know each other by. Plain values.
#pragma once

#include <string>

#include "base/result.h"

namespace sluice {

struct ClusterSecurity {
  std::string token;        // empty: none is asked for
  std::string ca;           // PEM texts; all three or none
  std::string certificate;  //
  std::string key;          //
  [[nodiscard]] bool tls() const { return !ca.empty(); }
};

struct SecurityFiles {
  std::string token;
  std::string ca;
  std::string certificate;
  std::string key;
};

// kInvalidArgument: a file cannot be read or is empty, or some of the three are missing.
[[nodiscard]] Result<ClusterSecurity> load_security(const SecurityFiles& files);

}  // namespace sluice
