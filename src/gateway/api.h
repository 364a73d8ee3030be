// The endpoints: which path means what.
#pragma once

#include "gateway/context.h"
#include "gateway/router.h"

namespace sluice {

// The context must outlive the router.
void add_generation_routes(Router& router, GatewayContext& context);  // chat, completions, ...
void add_text_routes(Router& router, GatewayContext& context);        // models, tokenize, ...
void add_admin_routes(Router& router, GatewayContext& context);  // health, metrics, debug, page

}  // namespace sluice
