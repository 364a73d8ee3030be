#include "net/etcd.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "net/proto/etcd.grpc.pb.h"
#include "net/thread_name.h"

namespace sluice {
namespace {

constexpr std::chrono::seconds kCallLimit(3);
constexpr std::chrono::seconds kAgain(2);      // after a failure
constexpr std::chrono::seconds kLookAgain(5);  // where no change was announced
constexpr std::int64_t kLeaseSeconds = 10;

// A thread that can be told to stop, also while it waits for a call.
class Worker {
 public:
  Worker(const char* name, std::function<void(Worker&)> work)
      : thread_([this, name, work = std::move(work)] {
          set_thread_name(name);
          work(*this);
        }) {}
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      if (call_ != nullptr) call_->TryCancel();
    }
    changed_.notify_all();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // False: it is time to stop.
  bool wait(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return !changed_.wait_for(lock, time, [this] { return stopping_; });
  }
  // While it is set, stopping cancels the call. False: it is time to stop.
  bool set_call(grpc::ClientContext* call) {
    const std::lock_guard lock(mutex_);
    call_ = stopping_ ? nullptr : call;
    return !stopping_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;                // guarded by mutex_
  grpc::ClientContext* call_ = nullptr;  // guarded by mutex_
  std::thread thread_;                   // last: it uses the others
};

void set_limit(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + kCallLimit);
}

// The first key behind all that begin with `prefix`.
std::string end_of(std::string prefix) {
  ++prefix.back();  // it ends with '/'
  return prefix;
}

class EtcdWatch final : public GatewayDirectory {
 public:
  explicit EtcdWatch(const EtcdTarget& target)
      : target_(target),
        channel_(grpc::CreateChannel(target.endpoints, grpc::InsecureChannelCredentials())),
        worker_("etcd-watch", [this](Worker& worker) { work(worker); }) {}

  std::vector<GatewayAddress> addresses() override {
    const std::lock_guard lock(mutex_);
    return known_;
  }

 private:
  void work(Worker& worker) {
    bool reachable = true;
    while (true) {
      const std::int64_t revision = read();
      if ((revision >= 0) != reachable) {
        reachable = revision >= 0;
        if (reachable) {
          spdlog::info("etcd at {} answers again", target_.endpoints);
        } else {
          spdlog::warn("etcd at {} does not answer; the gateways known stay known",
                       target_.endpoints);
        }
      }
      if (revision < 0) {
        if (!worker.wait(kAgain)) return;
      } else if (!wait_for_change(worker, revision)) {
        return;
      }
    }
  }

  // The revision that was read; negative: it could not be.
  std::int64_t read() {
    grpc::ClientContext context;
    set_limit(context);
    etcdserverpb::RangeRequest request;
    request.set_key(target_.prefix);
    request.set_range_end(end_of(target_.prefix));
    etcdserverpb::RangeResponse response;
    const auto stub = etcdserverpb::KV::NewStub(channel_);
    if (!stub->Range(&context, request, &response).ok()) return -1;
    std::vector<GatewayAddress> found;
    for (const auto& kv : response.kvs()) {
      if (const auto at = parse_host_port(kv.value())) found.push_back({kv.value(), at->host});
    }
    std::sort(found.begin(), found.end());
    const std::lock_guard lock(mutex_);
    known_ = std::move(found);
    return response.header().revision();
  }

  // False: it is time to stop. True after a change, a failure, or a while.
  bool wait_for_change(Worker& worker, std::int64_t revision) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 6 * kLookAgain);
    if (!worker.set_call(&context)) return false;
    const auto stub = etcdserverpb::Watch::NewStub(channel_);
    auto stream = stub->Watch(&context);
    etcdserverpb::WatchRequest request;
    request.mutable_create_request()->set_key(target_.prefix);
    request.mutable_create_request()->set_range_end(end_of(target_.prefix));
    request.mutable_create_request()->set_start_revision(revision + 1);
    etcdserverpb::WatchResponse response;
    stream->Write(request);
    bool created = false;
    while (stream->Read(&response)) {
      if (!std::exchange(created, true)) continue;  // the first says that it watches
      break;
    }
    context.TryCancel();
    (void)stream->Finish();
    if (!worker.set_call(nullptr)) return false;
    return created || worker.wait(kAgain);
  }

  const EtcdTarget target_;
  const std::shared_ptr<grpc::Channel> channel_;
  std::mutex mutex_;
  std::vector<GatewayAddress> known_;  // guarded by mutex_
  Worker worker_;                      // last: it uses the others
};

class EtcdAnnouncement final : public Announcement {
 public:
  EtcdAnnouncement(const EtcdTarget& target, const std::string& gateway, std::string address)
      : target_(target),
        key_(target.prefix + gateway),
        address_(std::move(address)),
        channel_(grpc::CreateChannel(target.endpoints, grpc::InsecureChannelCredentials())),
        worker_("etcd-lease", [this](Worker& worker) { work(worker); }) {}

 private:
  void work(Worker& worker) {
    bool said = false;
    while (true) {
      const std::int64_t lease = write();
      if (lease == 0) {
        if (!std::exchange(said, true)) {
          spdlog::warn("etcd at {} does not answer; it is tried again", target_.endpoints);
        }
        if (!worker.wait(kAgain)) return;
        continue;
      }
      said = false;
      spdlog::info("announced {} in etcd as {}", address_, key_);
      if (!keep(worker, lease)) {
        revoke(lease);
        return;
      }
    }
  }

  // The lease under which the address is written; 0: it could not be.
  std::int64_t write() {
    grpc::ClientContext grant_context;
    set_limit(grant_context);
    etcdserverpb::LeaseGrantRequest grant;
    grant.set_ttl(kLeaseSeconds);
    etcdserverpb::LeaseGrantResponse granted;
    if (!etcdserverpb::Lease::NewStub(channel_)->LeaseGrant(&grant_context, grant, &granted).ok()) {
      return 0;
    }
    grpc::ClientContext context;
    set_limit(context);
    etcdserverpb::PutRequest put;
    put.set_key(key_);
    put.set_value(address_);
    put.set_lease(granted.id());
    etcdserverpb::PutResponse done;
    const bool ok = etcdserverpb::KV::NewStub(channel_)->Put(&context, put, &done).ok();
    return ok ? granted.id() : 0;
  }

  // Until the lease is lost (true) or it is time to stop (false).
  bool keep(Worker& worker, std::int64_t lease) {
    const auto stub = etcdserverpb::Lease::NewStub(channel_);
    while (worker.wait(std::chrono::seconds(kLeaseSeconds / 3))) {
      grpc::ClientContext context;
      set_limit(context);
      auto stream = stub->LeaseKeepAlive(&context);
      etcdserverpb::LeaseKeepAliveRequest request;
      request.set_id(lease);
      etcdserverpb::LeaseKeepAliveResponse response;
      const bool answered =
          stream->Write(request) && stream->WritesDone() && stream->Read(&response);
      context.TryCancel();
      (void)stream->Finish();
      if (!answered || response.ttl() <= 0) return true;
    }
    return false;
  }

  // A gateway that stops is not to be called for the rest of its lease.
  void revoke(std::int64_t lease) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
    etcdserverpb::LeaseRevokeRequest request;
    request.set_id(lease);
    etcdserverpb::LeaseRevokeResponse response;
    (void)etcdserverpb::Lease::NewStub(channel_)->LeaseRevoke(&context, request, &response);
  }

  const EtcdTarget target_;
  const std::string key_;
  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  Worker worker_;  // last: it uses the others
};

}  // namespace

Result<EtcdTarget> parse_etcd(const std::string& text) {
  std::string rest = text.substr(std::string(kEtcdScheme).size());
  std::string cluster = "default";
  if (const auto slash = rest.find('/'); slash != std::string::npos) {
    cluster = rest.substr(slash + 1);
    rest.resize(slash);
  }
  TRY_STATUS(parse_host_port(rest).map([](const HostPort&) {}));
  if (cluster.empty() || cluster.find('/') != std::string::npos) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" is not etcd://host:port/cluster", text));
  }
  return EtcdTarget{rest, fmt::format("/sluice/{}/gateways/", cluster)};
}

std::unique_ptr<GatewayDirectory> watch_etcd(const EtcdTarget& target) {
  return std::make_unique<EtcdWatch>(target);
}

std::unique_ptr<Announcement> announce_in_etcd(const EtcdTarget& target, const std::string& gateway,
                                               const std::string& address) {
  return std::make_unique<EtcdAnnouncement>(target, gateway, address);
}

}  // namespace sluice
