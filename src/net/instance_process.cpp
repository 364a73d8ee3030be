#include "net/instance_process.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "net/engine_loop.h"
#include "net/gateway_directory.h"
#include "net/gateway_links.h"
#include "net/peer_links.h"
#include "net/process_id.h"
#include "net/protocol.h"
#include "net/tcp_transfer.h"
#include "net/ucx_transfer.h"
#include "transfer/kv_ways.h"

namespace sluice {

namespace {

PeerOptions peer_options(const InstanceProcessOptions& options, std::uint64_t process) {
  const InstanceHandoffs& handoffs = options.handoffs;
  const bool part = handoffs.arena.valid();
  return {.name = options.name,
          .role = part ? options.role : Role::kUnified,
          .process = process,
          .kv = {options.model, handoffs.arena.layout},
          .kv_layout = options.kv_layout,
          .vocabulary = options.vocabulary,
          .listen = part ? handoffs.listen : "",
          .advertise = handoffs.advertise,
          .lease = handoffs.lease,
          .arena = handoffs.file,
          .security = options.security};
}

// Other processes may be in a long step as well, but must not be waited for as long as one
// of this process is.
HandoffOptions handoff_options(const InstanceHandoffs& handoffs) {
  HandoffOptions options;
  options.lease = handoffs.lease;
  options.reserve_timeout = std::max<Duration>(options.reserve_timeout, handoffs.lease / 2);
  return options;
}

PlacementLimits placement_limits(const InstanceHandoffs& handoffs) {
  PlacementLimits limits;
  limits.max_report_age = std::max(limits.max_report_age, handoffs.lease);
  return limits;
}

}  // namespace

class InstanceProcess::Impl {
 public:
  Impl(const InstanceProcessOptions& options, std::unique_ptr<GatewayDirectory> directory,
       LocalInstance instance, const SamplerFactory& samplers, const Clock& clock,
       std::uint64_t process = random_process())
      : peers(std::make_shared<PeerLinks>(peer_options(options, process), clock)),
        links({.name = options.name,
               .role = options.role,
               .model = options.model,
               .kv_layout = options.kv_layout,
               .model_name = options.model_name,
               .vocabulary = options.vocabulary,
               .context = instance.engine.max_context,
               .process = process,
               .security = options.security},
              std::move(directory), clock),
        engine({.role = options.role,
                .block_tokens = instance.engine.kv.window.block_tokens,
                .max_running = instance.engine.max_running,
                .step_token_budget = instance.engine.batch.max_step_tokens},
               instance.engine, std::move(instance.runner), std::move(instance.host), samplers,
               clock, links, options.inbox_capacity) {
    engine.watch(std::move(instance.device));
    if (options.handoffs.arena.valid()) join(options.handoffs, options);
  }
  ~Impl() { stop(); }

  Status start(const InstanceProcessOptions& options) {
    if (ucx_failed) return tl::unexpected(*ucx_failed);
    if (options.role != Role::kPrefill && !options.handoffs.listen.empty()) {
      TRY(const HostPort at, parse_host_port(options.handoffs.listen));
      for (KvConnections* way : kv) {
        const bool tcp = std::string_view(way->transport()) == "tcp";
        TRY_STATUS(way->listen(at.host, std::to_string(tcp ? options.handoffs.kv_port
                                                           : options.handoffs.kv_ucx_port)));
      }
    }
    TRY_STATUS(peers->start(engine, links, kv));
    links.start(engine, *peers);
    engine.start();
    return {};
  }

  // The links first: gateways place nothing here any more, and what runs goes on elsewhere
  // after the last token that left.
  void stop() {
    links.stop();
    peers->stop();
    engine.stop();
  }

  std::shared_ptr<PeerLinks> peers;
  GatewayLinks links;
  EngineLoop engine;
  KvWayList kv;                     // the engine's; none: KV goes over the stream of peers
  std::optional<Error> ucx_failed;  // though it is wanted

 private:
  void join(const InstanceHandoffs& handoffs, const InstanceProcessOptions& options) {
    auto pieces = std::make_unique<PeerTransfer>(
        handoffs.arena, PeerTransferOptions{.checksum = handoffs.checksum}, *peers);
    HandoffParts parts;
    parts.options = {.self = PeerLinks::kSelf,
                     .role = options.role,
                     .kv = {options.model, handoffs.arena.layout},
                     .memory = kPieceMemory,
                     .handoff = handoff_options(handoffs)};
    parts.policy = make_policy(handoffs.policy, placement_limits(handoffs), Rng(random_process()));
    parts.pieces = pieces.get();
    std::vector<std::unique_ptr<KvStream>> streams;
    // They gather from and scatter into memory of the host, and do not encrypt.
    if (handoffs.arena.base != nullptr && !options.security.tls()) streams = connections(handoffs);
    parts.transfer = std::make_unique<KvWays>(std::move(pieces), std::move(streams), *peers);
    parts.peers = peers;
    engine.join(std::move(parts));
  }

  // The best first.
  std::vector<std::unique_ptr<KvStream>> connections(const InstanceHandoffs& handoffs) {
    std::vector<std::unique_ptr<KvStream>> streams;
    const auto add = [&](std::unique_ptr<KvConnections> way) {
      kv.push_back(way.get());
      streams.push_back(std::move(way));
    };
    const auto wake = [this] { engine.look(); };
    const bool forced = handoffs.kv_ucx == KvUcx::kOn;
    if (forced || (handoffs.kv_ucx == KvUcx::kAuto && rdma_is_there())) {
      auto ucx = make_ucx_transfer(handoffs.arena,
                                   {.checksum = handoffs.checksum, .any_network = forced}, wake);
      if (ucx) {
        add(std::move(*ucx));
      } else if (forced) {
        ucx_failed = ucx.error();
      } else {
        spdlog::warn("there is RDMA, but KV does not go over it: {}", ucx.error().message);
      }
    }
    if (handoffs.kv_tcp) {
      add(std::make_unique<TcpTransfer>(handoffs.arena,
                                        TcpTransferOptions{.checksum = handoffs.checksum}, wake));
    }
    return streams;
  }
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
  if (!make_policy(options.handoffs.policy, {}, Rng(1))) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("no placement policy is called '{}'", options.handoffs.policy));
  }
  if (options.role != Role::kUnified && !options.handoffs.arena.valid()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a {} instance needs an arena to hand KV over from or into",
                            role_name(options.role)));
  }
  TRY(auto directory, make_directory(options.join));
  instance.engine.hands_over = options.role == Role::kPrefill;
  auto impl =
      std::make_unique<Impl>(options, std::move(directory), std::move(instance), samplers, clock);
  TRY_STATUS(impl->start(options));
  return std::unique_ptr<InstanceProcess>(new InstanceProcess(std::move(impl)));
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
