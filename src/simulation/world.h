// A cluster in virtual time: the global scheduler, agents, engines and memory
// managers that serve, unchanged, between simulated clients and devices.
//
// One thread, one event after the other; a run is a function of its options, its
// trace and its seed. What a client would see of each request is its Answer, and
// what nobody must ever see (a second end, a gap in the indices) is a violation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "cluster/global_scheduler.h"
#include "simulation/event_queue.h"
#include "simulation/gap_histogram.h"
#include "simulation/node.h"
#include "simulation/trace.h"
#include "simulation/world_options.h"

namespace sluice {

class World final : private InstancePort, private TokenSink {
 public:
  // `trace` and `model` outlive the world. The policy's name must be known.
  World(WorldOptions options, const Trace& trace, SimulatedModel& model);
  ~World() override;

  // Until every request has ended; false: the time limit came first. `progress` is
  // told the share of requests that have ended, now and then.
  bool run(const std::function<void(double)>& progress = {});
  // So much longer, whatever has ended: for what is on its way and for timeouts.
  void run_for(Duration time);

  [[nodiscard]] const std::vector<Answer>& answers() const { return answers_; }
  [[nodiscard]] const GapHistogram& gaps() const { return gaps_; }
  [[nodiscard]] const std::vector<LoadSample>& samples() const { return samples_; }
  [[nodiscard]] const std::vector<std::string>& violations() const { return violations_; }
  [[nodiscard]] const std::vector<std::unique_ptr<Node>>& nodes() const { return nodes_; }
  [[nodiscard]] const GlobalScheduler& scheduler() const { return scheduler_; }
  [[nodiscard]] const WorldOptions& options() const { return options_; }
  [[nodiscard]] TimePoint now() const { return clock_.now(); }
  [[nodiscard]] TimePoint begin() const { return begin_; }
  [[nodiscard]] std::uint64_t hash() const { return queue_.hash(); }
  [[nodiscard]] std::uint64_t events() const { return queue_.count(); }
  [[nodiscard]] std::size_t faults_survived() const { return faults_done_; }

  // Something goes wrong now, or a client leaves, as the trace's do.
  void strike(const Fault& fault);
  void leave(std::uint32_t request);

  // Called after each step of an instance, for checkers.
  std::function<void(const Node&)> after_step;

 private:
  enum class Kind : std::uint8_t {
    kArrival,
    kLeave,
    kCommand,
    kWake,
    kWords,
    kReport,
    kShared,
    kMail,
    kTick,
    kSample,
    kFault,
    kRestart
  };
  struct Link;
  // A request, a cancel, or the news that another instance is gone.
  using Wanted = std::variant<std::unique_ptr<Request>, RequestId, Placement>;
  using Queue = EventQueue<Kind>;

  void join_peers();
  void handle(const Queue::Event& event);
  void next();
  void arrive(std::uint32_t request);
  void schedule_followers(std::uint32_t request);
  void wake(std::uint32_t node, TimePoint at);
  void rouse(std::uint32_t node);
  void run_node(std::uint32_t node);
  void post_outboxes(std::uint32_t node);
  void deliver_command(std::uint32_t node);
  void deliver_words(std::uint32_t node);
  void deliver_report(std::uint32_t node);
  void deliver_shared(std::uint32_t node);
  void deliver_mail(std::uint32_t node);
  [[nodiscard]] bool fenced(std::uint32_t node, Incarnation incarnation);
  void post_command(std::uint32_t node, Wanted what, Incarnation incarnation);
  [[nodiscard]] bool cut_off(std::uint32_t node) const;
  void tell_peers(const Placement& gone);
  void restart(std::uint32_t node);
  void tick();
  void sample();
  void receive(const TokenEvent& event);
  [[nodiscard]] TimePoint delivery(TimePoint sent, TimePoint& last_on_link, Duration extra);
  void violate(RequestId request, const char* what);

  bool submit(const Placement& placement, std::unique_ptr<Request>& request) override;
  void cancel(const Placement& placement, RequestId request) override;
  void on_tokens(std::vector<TokenEvent>&& events) override;

  const WorldOptions options_;
  const Trace& trace_;
  const std::int32_t max_tokens_;
  ManualClock clock_;
  Rng rng_;
  Queue queue_;
  TimePoint begin_{};
  std::unique_ptr<CentralDecode> central_;  // null: prefill instances choose by themselves
  std::unique_ptr<NodePeers> peers_;        // null: there is but one instance
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Link> links_;                            // by node
  std::vector<std::vector<std::uint32_t>> followers_;  // by request; empty: nobody follows
  std::vector<Answer> answers_;
  GapHistogram gaps_;
  std::vector<LoadSample> samples_;
  std::vector<std::string> violations_;
  std::size_t next_arrival_ = 0;
  std::size_t ended_ = 0;
  std::size_t faults_done_ = 0;
  GlobalScheduler scheduler_;  // last: it holds references to what is above
};

}  // namespace sluice
