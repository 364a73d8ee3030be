// What `serve` and `gateway` have in common: the HTTP side, from options to the last signal.
#pragma once

#include <cstdint>
#include <string>

#include "console.h"
#include "gateway/gateway.h"
#include "model/model_info.h"
#include "options.h"

namespace sluice {

[[nodiscard]] GatewayOptions gateway_options(const ServeOptions& options, const ModelInfo& model,
                                             std::int32_t context);

// The text of --chat-template; empty: the model's own. Throws.
[[nodiscard]] std::string chat_template_of(const ServeOptions& options);

void print_welcome(const ServeOptions& options, const std::string& model, std::uint16_t port);

// First signal: no new work, what runs may end. Second signal, or time over: stop. Where there
// is HTTPS a hangup reads its files again instead.
void wait_and_drain(StopSignals& signals, Gateway& gateway, const ServeOptions& options);

}  // namespace sluice
