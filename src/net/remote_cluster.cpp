#include "net/remote_cluster.h"

#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "net/gateway_directory.h"
#include "net/instance_registry.h"
#include "net/process_id.h"
#include "net/scheduler_loop.h"

namespace sluice {
namespace {

std::string announced_address(const RemoteClusterOptions& options, std::uint16_t port) {
  if (!options.advertise.empty()) return options.advertise;
  const auto at = parse_host_port(options.listen);
  const std::string host = at ? at->host : "127.0.0.1";
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("{}:{}", v6 ? "[" + host + "]" : host, port);
}

}  // namespace

class RemoteCluster::Impl final : public InstancePort {
 public:
  Impl(const RemoteClusterOptions& options, std::unique_ptr<PlacementPolicy> policy,
       const Clock& clock, TokenSink& sink)
      : capacity_(options.inbox_capacity),
        inbox_(options.inbox_capacity),
        scheduler_(options.scheduler, std::move(policy), options.snapshot_interval, inbox_, *this,
                   sink, clock) {}
  ~Impl() override { stop(); }

  Status begin(const RemoteClusterOptions& options, const Clock& clock) {
    TRY(registry_, InstanceRegistry::start({.listen = options.listen,
                                            .gateway = options.name,
                                            .model = options.model,
                                            .model_name = options.model_name,
                                            .vocabulary = options.vocabulary,
                                            .context = options.context,
                                            .lease = options.lease,
                                            .process = random_process(),
                                            .security = options.security},
                                           inbox_, clock));
    scheduler_.start();
    TRY(announcement_,
        announce(options.join, options.name, announced_address(options, registry_->port())));
    return {};
  }

  // Who calls in is refused first; then every request that is left is ended here.
  void stop() {
    accepting_.store(false);
    announcement_.reset();
    inbox_.push_urgent(ClosingMessage{});
    if (registry_) registry_->stop();
    scheduler_.stop();
  }

  Status submit_request(std::unique_ptr<Request> request) {
    if (!accepting_.load()) return fail(ErrorCode::kUnavailable, "the server is stopping");
    SchedulerMessage message = SubmitMessage{std::move(request)};
    if (inbox_.push(std::move(message))) return {};
    if (!accepting_.load()) return fail(ErrorCode::kUnavailable, "the server is stopping");
    Error busy{ErrorCode::kBusy,
               fmt::format("{} requests are waiting to be scheduled (limit)", capacity_), 1};
    return tl::unexpected(std::move(busy));
  }
  void cancel_request(RequestId request) { inbox_.push_urgent(CancelMessage{request}); }
  [[nodiscard]] const SchedulerLoop& scheduler() const { return scheduler_; }
  [[nodiscard]] std::uint16_t port() const { return registry_->port(); }

 private:
  // InstancePort, on the scheduler's loop, which runs only while there is a registry.
  bool submit(const Placement& placement, std::unique_ptr<Request>& request) override {
    return registry_->submit(placement, request);
  }
  void cancel(const Placement& placement, RequestId request) override {
    registry_->cancel(placement, request);
  }
  void abandon(const Placement& placement) override { registry_->abandon(placement); }

  const std::size_t capacity_;
  SchedulerInbox inbox_;
  std::unique_ptr<InstanceRegistry> registry_;
  SchedulerLoop scheduler_;
  std::unique_ptr<Announcement> announcement_;
  std::atomic<bool> accepting_{true};
};

Result<std::unique_ptr<RemoteCluster>> RemoteCluster::start(RemoteClusterOptions options,
                                                            const Clock& clock, TokenSink& sink) {
  auto policy = make_policy(options.policy, options.placement, Rng(options.seed));
  if (!policy) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("no placement policy is called '{}'", options.policy));
  }
  TRY_STATUS(parse_host_port(options.listen).map([](const HostPort&) {}));
  auto impl = std::make_unique<Impl>(options, std::move(policy), clock, sink);
  TRY_STATUS(impl->begin(options, clock));
  return std::unique_ptr<RemoteCluster>(new RemoteCluster(std::move(impl)));
}

RemoteCluster::RemoteCluster(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RemoteCluster::~RemoteCluster() {
  stop();
}

std::uint16_t RemoteCluster::port() const {
  return impl_->port();
}
Status RemoteCluster::submit(std::unique_ptr<Request> request) {
  return impl_->submit_request(std::move(request));
}
void RemoteCluster::cancel(RequestId request) {
  impl_->cancel_request(request);
}
std::shared_ptr<const ClusterSnapshot> RemoteCluster::snapshot() const {
  return impl_->scheduler().snapshot();
}
bool RemoteCluster::ready() const {
  return impl_->scheduler().ready();
}
void RemoteCluster::stop() {
  impl_->stop();
}

}  // namespace sluice
