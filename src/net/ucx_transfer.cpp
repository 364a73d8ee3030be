#include "net/ucx_transfer.h"

#include <filesystem>
#include <fstream>
#include <string>

#if SLUICE_UCX

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <future>
#include <thread>

#include "net/kv_jobs.h"
#include "net/thread_name.h"
#include "net/ucx_frames.h"
#include "net/ucx_worker.h"
#include "transfer/peer_transfer.h"

namespace sluice {
namespace {

constexpr Duration kLastRetry = std::chrono::seconds(30);
constexpr Duration kLongest = std::chrono::minutes(1);  // between two looks at nothing
constexpr std::size_t kMaxStrangers = 64;               // that have not shown a secret yet
constexpr std::size_t kMaxPayload = std::size_t{64} << 20;

template <class T>
bool read(std::span<const std::byte> bytes, T& value) {
  if (bytes.size() != sizeof value) return false;
  std::memcpy(&value, bytes.data(), sizeof value);
  return true;
}

TimePoint now() {
  return SteadyClock().now();
}

// All but construction and post() belongs to the thread "kv-ucx".
class Mover final : private UcxEvents {
 public:
  Mover(KvShared& shared, const UcxTransferOptions& options) : shared_(shared), options_(options) {}
  ~Mover() override {
    if (!thread_.joinable()) return;
    stopping_.store(true);
    worker_->wake();
    thread_.join();
  }

  Status start(const UcxLibrary& ucx) {
    const std::size_t block = shared_.arena.layout.block_bytes();
    const std::size_t most = std::max(kMaxPayload, block + sizeof(BlockId));
    TRY(worker_, UcxWorker::create(ucx, options_.any_network, most, *this));
    thread_ = std::thread([this] { run(); });
    return {};
  }

  template <class Call>
  void post(Call call) {
    {
      const std::lock_guard lock(asking_);
      calls_.push_back(std::move(call));
    }
    worker_->wake();
  }

  // --- the target

  Result<int> listen(const std::string& host, const std::string& port) {
    return worker_->listen(host, port);
  }
  void admit(const KvSecret& secret) { ways_in_.push_back({secret, nullptr}); }
  void forget(const KvSecret& secret) {
    std::erase_if(ways_in_, [&](const WayIn& way) {
      if (!equal(way.secret, secret)) return false;
      if (way.endpoint != nullptr) worker_->close(way.endpoint);
      return true;
    });
  }

  // --- the source

  void connect(const KvPeer& peer, std::string host, int port, const KvSecret& secret) {
    disconnect(peer);
    WayOut& way = ways_out_[peer];
    way.host = std::move(host);
    way.port = std::to_string(port);
    way.secret = secret;
    way.retry = options_.first_retry;
    call(peer, way);
  }
  void disconnect(const KvPeer& peer) {
    shared_.set_reached(peer, false);
    const auto it = ways_out_.find(peer);
    if (it == ways_out_.end()) return;
    if (it->second.endpoint != nullptr) worker_->close(it->second.endpoint);
    for (const auto& job : it->second.jobs) shared_.fail_job(*job, "the connection is closed");
    ways_out_.erase(it);
  }
  void send(const KvPeer& peer, std::shared_ptr<KvJob> job) {
    const auto it = ways_out_.find(peer);
    if (it == ways_out_.end() || !it->second.welcome) {
      return shared_.fail_job(*job, "the connection to the peer was lost");
    }
    it->second.jobs.push_back(std::move(job));
  }

 private:
  struct WayIn {
    KvSecret secret;
    ucp_ep_h endpoint = nullptr;  // null: nobody has come
  };
  struct WayOut {
    std::string host;
    std::string port;
    KvSecret secret{};
    ucp_ep_h endpoint = nullptr;  // null: between two calls
    bool welcome = false;
    TimePoint due{};  // of the next call, or of the welcome
    Duration retry{};
    std::string told;  // the last failure that was logged
    std::deque<std::shared_ptr<KvJob>> jobs;
    std::int32_t in_flight = 0;  // frames
  };

  void run() {
    set_thread_name("kv-ucx");
    while (!stopping_.load()) {
      std::vector<std::function<void()>> calls;
      {
        const std::lock_guard lock(asking_);
        std::swap(calls, calls_);
      }
      for (const auto& call : calls) call();
      for (auto& [peer, way] : ways_out_) pump(way);
      worker_->progress(tick());
    }
  }

  // What is due; how long nothing else will be.
  Duration tick() {
    const TimePoint at = now();
    TimePoint next = at + kLongest;
    std::erase_if(strangers_, [&](const auto& stranger) {
      if (stranger.second <= at)
        worker_->close(stranger.first);
      else
        next = std::min(next, stranger.second);
      return stranger.second <= at;
    });
    for (auto& [peer, way] : ways_out_) {
      if (way.welcome) continue;
      if (way.due <= at && way.endpoint == nullptr) {
        call(peer, way);
      } else if (way.due <= at) {
        worker_->close(way.endpoint);
        lost(peer, way, "no answer in time");
      }
      next = std::min(next, way.due);
    }
    return std::max(next - at, Duration::zero());
  }

  // --- what UCX tells

  void accepted(ucp_ep_h from) override {
    if (strangers_.size() >= kMaxStrangers) return worker_->close(from);
    strangers_[from] = now() + options_.patience;
  }

  void broken(ucp_ep_h endpoint, const std::string& why) override {
    strangers_.erase(endpoint);
    for (WayIn& way : ways_in_) {
      if (way.endpoint == endpoint) way.endpoint = nullptr;
    }
    for (auto& [peer, way] : ways_out_) {
      if (way.endpoint == endpoint) return lost(peer, way, why);
    }
  }

  void message(unsigned id, ucp_ep_h from, std::span<const std::byte> header,
               std::span<const std::byte> payload) override {
    const bool right = id == kUcxHello   ? on_hello(from, header)
                       : id == kUcxFrame ? on_frame(from, header, payload)
                                         : on_answer(id, from, header, payload);
    if (right) return;
    spdlog::error("a message over UCX is not one of KV's; its connection is closed");
    worker_->close(from);
    broken(from, "it said what it should not");
  }

  // --- the source

  void call(const KvPeer& peer, WayOut& way) {
    way.due = now() + options_.patience;
    auto endpoint = worker_->connect(way.host, way.port);
    if (!endpoint) return lost(peer, way, endpoint.error().message);
    way.endpoint = *endpoint;
    UcxHello hello;
    hello.block_bytes = static_cast<std::uint32_t>(shared_.arena.layout.block_bytes());
    hello.secret = way.secret;
    worker_->send(way.endpoint, kUcxHello, hello);
  }

  void lost(const KvPeer& peer, WayOut& way, const std::string& why) {
    shared_.set_reached(peer, false);
    way.endpoint = nullptr;
    way.welcome = false;
    way.in_flight = 0;
    if (std::exchange(way.told, why) != why) {
      spdlog::warn("KV for instance {} does not go over UCX: {}:{}: {}", peer.instance.value,
                   way.host, way.port, why);
    }
    way.due = now() + way.retry;
    way.retry = std::min(2 * way.retry, kLastRetry);
    for (const auto& job : std::exchange(way.jobs, {})) {
      shared_.fail_job(*job, fmt::format("the connection broke: {}", why));
    }
  }

  bool on_answer(unsigned id, ucp_ep_h from, std::span<const std::byte> header,
                 std::span<const std::byte> payload) {
    const auto it = std::find_if(ways_out_.begin(), ways_out_.end(),
                                 [from](const auto& w) { return w.second.endpoint == from; });
    // One that was closed just now may say such a thing, one that calls may not.
    if (it == ways_out_.end()) return !strangers_.contains(from) && !has_come(from);
    auto& [peer, way] = *it;
    if (id == kUcxWelcome) {
      UcxWelcome welcome;
      if (!read(header, welcome) || welcome.magic != UcxWelcome{}.magic) return false;
      if (std::exchange(way.welcome, true)) return true;
      way.retry = options_.first_retry;
      way.told.clear();
      worker_->trust(from);
      spdlog::info("KV for instance {} goes over UCX to {}:{}", peer.instance.value, way.host,
                   way.port);
      shared_.set_reached(peer, true);
      return true;
    }
    UcxReceipt receipt;
    if (!read(header, receipt) || payload.size() > kMaxReceiptText || way.in_flight == 0) {
      return false;
    }
    --way.in_flight;
    take(way, receipt, {reinterpret_cast<const char*>(payload.data()), payload.size()});
    return true;
  }

  static void take(WayOut& way, const UcxReceipt& receipt, std::string text) {
    for (const auto& job : way.jobs) {
      if (job->ticket.value != receipt.ticket) continue;
      return job->answered(receipt.error, std::move(text));
    }
  }

  // Frames of its jobs in turn, as many as may be in flight; tells of those that are over.
  void pump(WayOut& way) {
    while (way.in_flight < options_.frames_in_flight) {
      const auto it = std::find_if(way.jobs.begin(), way.jobs.end(), [this](const auto& job) {
        return job->next < job->moves.size() && !job->error && !shared_.is_cancelled(*job);
      });
      if (it == way.jobs.end()) break;
      std::rotate(it, it + 1, way.jobs.end());
      send_frame(way, *way.jobs.back());
    }
    std::erase_if(way.jobs, [this](const auto& job) { return shared_.finish(*job); });
  }

  void send_frame(WayOut& way, KvJob& job) {
    const std::size_t block_bytes = shared_.arena.layout.block_bytes();
    const std::size_t count = std::clamp<std::size_t>(
        options_.frame_bytes / block_bytes, 1,
        std::min<std::size_t>(job.moves.size() - job.next, kMaxFrameBlocks));
    const std::size_t head = count * sizeof(BlockId);
    std::vector<std::byte> payload = worker_->buffer(head + count * block_bytes);
    for (std::size_t i = 0; i < count; ++i) {
      const BlockMove& move = job.moves[job.next + i];
      std::memcpy(payload.data() + i * sizeof(BlockId), &move.to, sizeof(BlockId));
      const std::lock_guard lock(shared_.moving);
      if (job.cancelled) return worker_->recycle(std::move(payload));
      std::memcpy(payload.data() + head + i * block_bytes, shared_.arena.at(move.from),
                  block_bytes);
    }
    UcxFrame frame;
    frame.ticket = job.ticket.value;
    frame.request = job.key.request.value;
    frame.attempt = job.key.attempt;
    frame.life = job.key.life;
    frame.blocks = static_cast<std::uint32_t>(count);
    if (options_.checksum) frame.checksum = checksum(std::span(payload).subspan(head));
    job.next += count;
    ++job.unanswered;
    ++way.in_flight;
    worker_->send(way.endpoint, kUcxFrame, frame, std::move(payload));
  }

  static std::uint64_t checksum(std::span<const std::byte> bytes) {
    return kv_checksum({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }

  // --- the target

  [[nodiscard]] bool has_come(ucp_ep_h from) const {
    return std::any_of(ways_in_.begin(), ways_in_.end(),
                       [from](const WayIn& way) { return way.endpoint == from; });
  }

  // A second connection of the same way replaces the first.
  bool on_hello(ucp_ep_h from, std::span<const std::byte> header) {
    UcxHello hello;
    const UcxHello ours;
    if (!read(header, hello) || hello.magic != ours.magic ||
        hello.block_bytes != shared_.arena.layout.block_bytes() || strangers_.erase(from) == 0) {
      return false;
    }
    bool welcome = false;
    for (WayIn& way : ways_in_) {
      if (!equal(way.secret, hello.secret)) continue;
      if (way.endpoint != nullptr) worker_->close(way.endpoint);
      way.endpoint = from;
      welcome = true;
    }
    if (!welcome) {
      spdlog::warn("a connection for KV came over UCX without a secret of this instance's");
      worker_->close(from);
      return true;
    }
    worker_->trust(from);
    worker_->send(from, kUcxWelcome, UcxWelcome{});
    return true;
  }

  bool on_frame(ucp_ep_h from, std::span<const std::byte> header,
                std::span<const std::byte> payload) {
    UcxFrame frame;
    if (!has_come(from)) return !strangers_.contains(from);  // it was closed just now
    if (!read(header, frame) || frame.blocks == 0 || frame.blocks > kMaxFrameBlocks) {
      return false;
    }
    const std::size_t head = frame.blocks * sizeof(BlockId);
    if (payload.size() != head + frame.blocks * shared_.arena.layout.block_bytes()) return false;
    to_.resize(frame.blocks);
    std::memcpy(to_.data(), payload.data(), head);
    const std::span<const std::byte> kv = payload.subspan(head);
    std::optional<Error> refused;
    if (frame.checksum != 0 && frame.checksum != checksum(kv)) {
      refused = {ErrorCode::kTransport, "the KV that came has another checksum than what was sent",
                 0};
    } else {
      refused = place(frame, kv);
    }
    UcxReceipt receipt;
    receipt.ticket = frame.ticket;
    std::vector<std::byte> text;
    if (refused) {
      receipt.error = 1 + static_cast<std::uint32_t>(refused->code);
      const std::size_t length = std::min<std::size_t>(refused->message.size(), kMaxReceiptText);
      receipt.text = static_cast<std::uint32_t>(length);
      text.resize(length);
      std::memcpy(text.data(), refused->message.data(), length);
    }
    worker_->send(from, kUcxReceipt, receipt, std::move(text));
    return true;
  }

  // A block at a time, each against the reservations of that moment.
  std::optional<Error> place(const UcxFrame& frame, std::span<const std::byte> kv) {
    const HandoffKey key{RequestId{frame.request}, frame.attempt, frame.life};
    const std::size_t block_bytes = shared_.arena.layout.block_bytes();
    std::optional<std::uint64_t> version;
    for (std::size_t i = 0; i < to_.size(); ++i) {
      const std::lock_guard lock(shared_.moving);
      if (version != shared_.expected.version()) {
        version = shared_.expected.version();
        if (Status allowed = shared_.expected.check(key, to_); !allowed) return allowed.error();
      }
      std::memcpy(shared_.arena.at(to_[i]), kv.data() + i * block_bytes, block_bytes);
    }
    return std::nullopt;
  }

  KvShared& shared_;
  const UcxTransferOptions options_;
  std::unique_ptr<UcxWorker> worker_;
  std::map<ucp_ep_h, TimePoint> strangers_;  // until when each is waited for
  std::vector<WayIn> ways_in_;
  std::map<KvPeer, WayOut> ways_out_;
  std::vector<BlockId> to_;  // of the present frame

  std::mutex asking_;
  std::vector<std::function<void()>> calls_;  // guarded by asking_
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

struct Parts {
  Parts(const KvView& arena, const UcxTransferOptions& options, std::function<void()> wake)
      : shared(arena, "ucx", std::move(wake)), mover(shared, options) {}
  KvShared shared;
  Mover mover;
};

class UcxTransfer final : public KvJobs {
 public:
  UcxTransfer(std::unique_ptr<Parts> parts, std::size_t max_in_flight)
      : KvJobs(parts->shared, max_in_flight), parts_(std::move(parts)) {}

  Status listen(const std::string& host, const std::string& port) override {
    std::promise<Result<int>> answer;
    mover().post([&] { answer.set_value(mover().listen(host, port)); });
    TRY(port_, answer.get_future().get());
    return {};
  }
  [[nodiscard]] int port() const override { return port_; }
  std::string admit() override {
    const KvSecret secret = random_secret();
    mover().post([this, secret] { mover().admit(secret); });
    return {secret.begin(), secret.end()};
  }
  void forget(const std::string& secret) override {
    mover().post([this, secret] { mover().forget(secret_of(secret)); });
  }
  void connect(const KvPeer& peer, const std::string& host, int port,
               const std::string& secret) override {
    mover().post([=, this] { mover().connect(peer, host, port, secret_of(secret)); });
  }
  void disconnect(const KvPeer& peer) override {
    mover().post([this, peer] { mover().disconnect(peer); });
  }

 private:
  void send(const KvPeer& peer, std::shared_ptr<KvJob> job) override {
    mover().post([this, peer, job = std::move(job)] { mover().send(peer, job); });
  }
  void look() override {
    mover().post([] {});
  }
  [[nodiscard]] Mover& mover() const { return parts_->mover; }

  std::unique_ptr<Parts> parts_;
  int port_ = 0;
};

}  // namespace

Result<std::unique_ptr<KvConnections>> make_ucx_transfer(const KvView& arena,
                                                         UcxTransferOptions options,
                                                         std::function<void()> wake) {
  TRY(const UcxLibrary* ucx, load_ucx());
  auto parts = std::make_unique<Parts>(arena, options, std::move(wake));
  TRY_STATUS(parts->mover.start(*ucx));
  return std::make_unique<UcxTransfer>(std::move(parts), options.max_in_flight);
}

}  // namespace sluice

#else

namespace sluice {

Result<std::unique_ptr<KvConnections>> make_ucx_transfer(const KvView&, UcxTransferOptions,
                                                         std::function<void()>) {
  return fail(ErrorCode::kUnavailable, "this program was built without UCX");
}

}  // namespace sluice

#endif

namespace sluice {

bool rdma_is_there() {
  namespace fs = std::filesystem;
  std::error_code ec;
  for (const auto& device : fs::directory_iterator("/sys/class/infiniband", ec)) {
    for (const auto& port : fs::directory_iterator(device.path() / "ports", ec)) {
      std::string state;
      std::getline(std::ifstream(port.path() / "state"), state);
      if (state.find("ACTIVE") != std::string::npos) return true;
    }
  }
  return false;
}

}  // namespace sluice
