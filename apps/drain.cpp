#include <fmt/format.h>

#include "net/drain_call.h"
#include "options.h"
#include "or_throw.h"

namespace sluice {

int drain(const DrainOptions& options) {
  const ClusterSecurity security = or_throw(load_security(options.security));
  or_throw(drain_instance(options.gateway, options.instance, security));
  fmt::print("instance {} takes nothing new and ends when what it runs has ended\n",
             options.instance);
  return 0;
}

}  // namespace sluice
