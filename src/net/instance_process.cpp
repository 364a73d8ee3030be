#include "net/instance_process.h"

#include <fmt/format.h>

#include <utility>

#include "net/engine_loop.h"
#include "net/gateway_links.h"
#include "net/protocol.h"

namespace sluice {

class InstanceProcess::Impl {
 public:
  Impl(const InstanceProcessOptions& options, std::unique_ptr<GatewayDirectory> directory,
       LocalInstance instance, const SamplerFactory& samplers, const Clock& clock)
      : links({.name = options.name,
               .role = options.role,
               .model = options.model,
               .kv_layout = options.kv_layout,
               .model_name = options.model_name,
               .vocabulary = options.vocabulary,
               .context = instance.engine.max_context,
               .security = options.security},
              std::move(directory), clock),
        engine({.role = options.role,
                .block_tokens = instance.engine.kv.window.block_tokens,
                .max_running = instance.engine.max_running,
                .step_token_budget = instance.engine.batch.max_step_tokens},
               instance.engine, std::move(instance.runner), std::move(instance.host), samplers,
               clock, links, options.inbox_capacity) {
    links.start(engine);
    engine.start();
  }
  ~Impl() { stop(); }

  // The links first: gateways place nothing here any more, and what runs goes on elsewhere
  // after the last token that left.
  void stop() {
    links.stop();
    engine.stop();
  }

  GatewayLinks links;
  EngineLoop engine;
};

Result<std::unique_ptr<InstanceProcess>> InstanceProcess::start(InstanceProcessOptions options,
                                                                LocalInstance instance,
                                                                const SamplerFactory& samplers,
                                                                const Clock& clock) {
  if (options.name.empty() || options.name.size() > kMaxName) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("an instance's name has 1 to {} bytes, \"{}\" has {}", kMaxName,
                            options.name, options.name.size()));
  }
  TRY(auto directory, make_directory(options.join));
  return std::unique_ptr<InstanceProcess>(new InstanceProcess(
      std::make_unique<Impl>(options, std::move(directory), std::move(instance), samplers, clock)));
}

InstanceProcess::InstanceProcess(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
InstanceProcess::~InstanceProcess() = default;

std::int32_t InstanceProcess::attached() const {
  return impl_->links.attached();
}
std::int32_t InstanceProcess::active() const {
  return impl_->links.active();
}
bool InstanceProcess::engine_ended() const {
  return impl_->links.engine_ended();
}
bool InstanceProcess::drain_asked() const {
  return impl_->links.drain_asked();
}
void InstanceProcess::drain() {
  impl_->engine.drain();
}
void InstanceProcess::stop() {
  impl_->stop();
}
std::string InstanceProcess::learned_lengths() const {
  return impl_->engine.learned_lengths();
}

}  // namespace sluice
