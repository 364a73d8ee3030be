// An operator's call to a gateway.
#pragma once

#include <string>

#include "base/result.h"
#include "net/cluster_security.h"

namespace sluice {

// Asks the gateway at host:port (where instances join it) to have an instance, by its
// name, take nothing new and end when what it runs has ended. kNotFound: there is none of
// that name; kUnavailable: no gateway answers.
[[nodiscard]] Status drain_instance(const std::string& gateway, const std::string& instance,
                                    const ClusterSecurity& security);

}  // namespace sluice
