// How long KV takes from one instance to another, by the number of tokens and by what
// carries it, beside memcpy and a plain loopback socket over the same bytes.
//
// Two processes: this one hands over, its child takes. Blocks are SmolLM2-135M's. All kinds
// take turns in each repeat, so that whatever else the machine does hits all of them.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "end.h"
#include "net/tcp_transfer.h"
#include "net/ucx_transfer.h"
#include "reference.h"
#include "transfer/local_transfer.h"

namespace sluice {
namespace {

constexpr KvLayout kLayout{
    .num_layers = 30, .num_kv_heads = 3, .head_dim_k = 64, .head_dim_v = 64, .block_tokens = 16};
constexpr HandoffKey kKey{RequestId{1}, 1, 0};

struct Arguments {
  std::vector<std::int32_t> tokens = {128, 512, 2048, 8192};
  std::int32_t repeats = 21;
  double step_ms = 0;
  bool ucx = false;
  PeerTransferOptions transfer;
  [[nodiscard]] std::int32_t most() const {
    return *std::max_element(tokens.begin(), tokens.end());
  }
};

Arguments parse(int argc, char** argv) {
  Arguments a;
  CLI::App app("What moving KV between two instances takes.");
  app.add_option("--tokens", a.tokens, "lengths of contexts")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 17));
  app.add_option("--repeats", a.repeats)->check(CLI::Range(1, 100'000));
  app.add_option("--step-ms", a.step_ms, "both engines compute: so long between two polls")
      ->check(CLI::Range(0.0, 10'000.0));
  app.add_option("--piece-bytes", a.transfer.piece_bytes)->check(CLI::Range(1, 1 << 26));
  app.add_option("--pieces", a.transfer.pieces_in_flight)->check(CLI::Range(1, 1 << 16));
  app.add_flag("--ucx", a.ucx, "KV over UCX as well; UCX_TLS says by what");
  app.add_flag("--checksum", a.transfer.checksum, "of what the wire carries");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return a;
}

template <class T>
T value(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

KvArena make_arena(std::int32_t blocks, ArenaKind kind) {
  KvArena arena = value(KvArena::create(kLayout, blocks, kind));
  if (auto touched = arena.touch(); !touched) throw std::runtime_error(touched.error().message);
  return arena;
}

std::vector<BlockId> all_blocks(std::int32_t count, std::int32_t first = 0) {
  std::vector<BlockId> blocks;
  for (std::int32_t i = 0; i < count; ++i) blocks.emplace_back(first + i);
  return blocks;
}

std::vector<BlockMove> moves(std::int32_t blocks, std::int32_t to) {
  std::vector<BlockMove> result;
  for (std::int32_t i = 0; i < blocks; ++i) result.push_back({BlockId{i}, BlockId{to + i}});
  return result;
}

// --- The child: the target -------------------------------------------------------

struct Ports {
  int peers = 0;
  int socket = 0;
  struct Kv {
    int port = 0;
    char secret[32] = {};
  };
  Kv tcp;
  Kv ucx;
};

std::unique_ptr<KvConnections> make_tcp(const Arguments& a, const KvView& arena,
                                        std::function<void()> wake) {
  return std::make_unique<TcpTransfer>(arena, TcpTransferOptions{.checksum = a.transfer.checksum},
                                       std::move(wake));
}
std::unique_ptr<KvConnections> make_ucx(const Arguments& a, const KvView& arena,
                                        std::function<void()> wake) {
  return value(make_ucx_transfer(arena, {.checksum = a.transfer.checksum, .any_network = true},
                                 std::move(wake)));
}

Ports::Kv serve(KvConnections& kv, std::int32_t blocks) {
  if (const auto listens = kv.listen("127.0.0.1", "0"); !listens) {
    throw std::runtime_error(listens.error().message);
  }
  kv.expect(kKey, all_blocks(blocks));
  Ports::Kv at{kv.port(), {}};
  kv.admit().copy(at.secret, sizeof at.secret);
  return at;
}

int take(const Arguments& a, int report_to) {
  const std::int32_t blocks = kLayout.blocks_for(a.most());
  const KvArena arena = make_arena(blocks, ArenaKind::kPrivate);
  SocketSink sink({arena.view().base, arena.bytes()});
  HandoffEnd end(arena, a.transfer);
  end.expect(kKey, all_blocks(blocks));
  const auto tcp = make_tcp(a, arena.view(), [] {});
  const auto ucx = a.ucx ? make_ucx(a, arena.view(), [] {}) : nullptr;
  const Ports ports{end.listen(), sink.port(), serve(*tcp, blocks),
                    ucx ? serve(*ucx, blocks) : Ports::Kv{}};
  if (::write(report_to, &ports, sizeof(ports)) != sizeof(ports)) return 1;
  end.run(from_seconds(a.step_ms / 1e3), [&] { return end.over(); });
  return 0;
}

// --- The parent: the source ------------------------------------------------------

using Times = std::vector<double>;  // seconds

Duration send(HandoffEnd& end, std::int32_t blocks, Duration step) {
  static std::uint64_t ticket = 0;
  const SteadyClock clock;
  const TimePoint begin = clock.now();
  const TransferTarget target{HandoffEnd::kOther.instance, HandoffEnd::kOther.incarnation, kKey,
                              kPieceMemory};
  const Status started = end.start(TransferTicket{++ticket}, target, moves(blocks, 0));
  if (!started) throw std::runtime_error(started.error().message);
  end.run(step, [&] { return !end.done().empty() || end.over(); });
  if (end.done().empty() || end.done()[0].outcome != TransferOutcome::kDone) {
    throw std::runtime_error("a transfer failed");
  }
  return clock.now() - begin;
}

// A connection of KV's own, and the source's loop.
class KvEnd final {
 public:
  template <class Make>
  KvEnd(const Make& make, const Arguments& a, const KvView& arena, const Ports::Kv& at)
      : transfer_(make(a, arena, [this] { woken_.push_urgent(true); })) {
    transfer_->connect(HandoffEnd::kOther, "127.0.0.1", at.port, {at.secret, kSecretBytes});
    for (int i = 0; i < 1000 && !transfer_->reaches(HandoffEnd::kOther); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  Duration send(std::int32_t blocks, Duration step) {
    const SteadyClock clock;
    const TimePoint begin = clock.now();
    const TransferTarget target{HandoffEnd::kOther.instance, HandoffEnd::kOther.incarnation, kKey,
                                kPieceMemory};
    const Status started = transfer_->start(TransferTicket{++ticket_}, target, moves(blocks, 0));
    if (!started) throw std::runtime_error(started.error().message);
    std::vector<TransferDone> done;
    std::vector<bool> woken;
    while (done.empty()) {
      if (step > Duration::zero()) {
        std::this_thread::sleep_for(step);
      } else {
        woken_.wait_and_drain(woken, std::chrono::seconds(1));
      }
      transfer_->poll(done);
    }
    if (done[0].outcome != TransferOutcome::kDone) throw std::runtime_error(done[0].error.message);
    return clock.now() - begin;
  }

 private:
  static constexpr std::size_t kSecretBytes = 16;
  Inbox<bool> woken_{1};
  std::unique_ptr<KvConnections> transfer_;
  std::uint64_t ticket_ = 0;
};

Duration send(LocalTransfer& local, std::int32_t blocks, std::int32_t to, Duration step) {
  const SteadyClock clock;
  const TimePoint begin = clock.now();
  if (!local.start(TransferTicket{1}, {}, moves(blocks, to))) throw std::runtime_error("refused");
  std::vector<TransferDone> done;
  for (local.poll(done); done.empty(); local.poll(done)) std::this_thread::sleep_for(step);
  return clock.now() - begin;
}

// Median, and between which values nine of ten lie.
std::string cell(Times times, double factor, int digits) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double q) {
    return factor * times[static_cast<std::size_t>(q * static_cast<double>(times.size() - 1) + .5)];
  };
  return fmt::format("{:.{}f} ({:.{}f}-{:.{}f})", at(.5), digits, at(.05), digits, at(.95), digits);
}

void print(const Arguments& a, const std::map<std::int32_t, std::map<std::string, Times>>& all) {
  std::vector<std::string> kinds = {"memcpy", "local", "shm", "socket", "tcp", "grpc"};
  if (a.ucx) kinds.emplace_back("ucx");
  fmt::print("ms\n\n| tokens | MiB |");
  for (const std::string& kind : kinds) fmt::print(" {} |", kind);
  fmt::print(" memcpy / shm | socket / tcp | socket / grpc |{}\n|---|---|---|---|---|",
             a.ucx ? " socket / ucx |" : "");
  for (std::size_t i = 0; i < kinds.size() + (a.ucx ? 1 : 0); ++i) fmt::print("---|");
  fmt::print("\n");
  for (const std::int32_t tokens : a.tokens) {
    const auto& times = all.at(tokens);
    const double mib =
        static_cast<double>(kLayout.blocks_for(tokens)) * kLayout.block_bytes() / (1 << 20);
    fmt::print("| {} | {:.1f} |", tokens, mib);
    for (const std::string& kind : kinds) fmt::print(" {} |", cell(times.at(kind), 1e3, 2));
    const auto ratio = [&](const char* limit, const char* ours) {
      Times ratios;  // of the same repeat
      for (std::size_t i = 0; i < times.at(ours).size(); ++i) {
        ratios.push_back(times.at(limit)[i] / times.at(ours)[i]);
      }
      return cell(ratios, 1, 2);
    };
    fmt::print(" {} | {} | {} |{}\n", ratio("memcpy", "shm"), ratio("socket", "tcp"),
               ratio("socket", "grpc"), a.ucx ? fmt::format(" {} |", ratio("socket", "ucx")) : "");
  }
}

void hand_over(const Arguments& a, const Ports& ports) {
  const std::int32_t most = kLayout.blocks_for(a.most());
  const Duration step = from_seconds(a.step_ms / 1e3);
  const KvArena arena = make_arena(2 * most, ArenaKind::kShared);
  const KvView view = arena.view();
  LocalTransfer local(view, {});
  SocketSource socket(ports.socket);
  HandoffEnd end(arena, a.transfer);
  end.call(ports.peers);
  if (!end.maps_arena()) throw std::runtime_error("the child cannot map this process's arena");

  KvEnd tcp(make_tcp, a, view, ports.tcp);
  std::optional<KvEnd> ucx;
  if (a.ucx) ucx.emplace(make_ucx, a, view, ports.ucx);

  Times round_trips;
  std::map<std::int32_t, std::map<std::string, Times>> all;
  for (std::int32_t repeat = -1; repeat < a.repeats; ++repeat) {  // the first warms up
    for (const std::int32_t tokens : a.tokens) {
      const std::int32_t blocks = kLayout.blocks_for(tokens);
      const std::span<const std::byte> bytes(
          view.base, static_cast<std::size_t>(blocks) * kLayout.block_bytes());
      const auto took = [&](const char* kind, Duration time) {
        if (repeat >= 0) all[tokens][kind].push_back(to_seconds(time));
      };
      const std::size_t half = static_cast<std::size_t>(most) * kLayout.block_bytes();
      took("memcpy", copy(bytes, view.base + half));
      took("local", send(local, blocks, most, step));
      end.name_blocks(true);
      took("shm", send(end, blocks, step));
      took("socket", socket.send(bytes));
      took("tcp", tcp.send(blocks, step));
      if (ucx) took("ucx", ucx->send(blocks, step));
      end.name_blocks(false);
      took("grpc", send(end, blocks, step));
      const Duration trip = end.round_trip();
      if (repeat >= 0) round_trips.push_back(to_seconds(trip));
    }
  }
  print(a, all);
  fmt::print("\na word there and its answer: {} us\n", cell(round_trips, 1e6, 0));
}

int main_of(int argc, char** argv) {
  const Arguments a = parse(argc, argv);
  int report[2];
  if (::pipe(report) != 0) throw std::runtime_error("no pipe");
  const pid_t child = ::fork();  // before gRPC has any thread
  if (child < 0) throw std::runtime_error("no second process");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    return take(a, report[1]);
  }
  ::close(report[1]);
  Ports ports;
  if (::read(report[0], &ports, sizeof(ports)) != sizeof(ports)) {
    throw std::runtime_error("the second process did not start");
  }
  hand_over(a, ports);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  try {
    return sluice::main_of(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "handoff_bench: {}\n", error.what());
    return 2;
  }
}
