// One instance without compute: the real KvManager with its planner, forecast and
// policy, a step that lasts a fixed time and makes a token for each that decodes,
// and a queue that is never empty.
//
// A request ends after its trace's output length, which only this world (and the
// oracle, through a type that nobody else can read) knows: every policy sees the
// trace's cap as max_tokens. Equal settings give equal results.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "memory/kv_manager.h"

namespace sluice {

struct RequestLengths {
  std::int32_t prompt = 0;
  std::int32_t output = 0;
  std::string client;  // whose it is
};

struct WorldOptions {
  KvOptions kv;
  std::int32_t cap = 0;  // max_tokens of every request
  std::int32_t max_running = 4096;
  std::int64_t warm_up_steps = 0;  // not measured: the forecast learns
  std::int64_t steps = 0;          // measured
  std::uint64_t seed = 1;
  bool classes = false;   // clients are classes of the forecast
  double hint_error = 0;  // clients hint at lengths, off by up to this factor; 0: they do not
};

// Sums over the measured steps.
struct WorldResult {
  std::int64_t steps = 0;
  std::int64_t finished = 0;
  std::int64_t tokens = 0;       // generated, each once
  std::int64_t recomputed = 0;   // tokens of KV that were computed once more
  std::int64_t preemptions = 0;  // sequences that lost their KV
  std::int64_t warm_up_preemptions = 0;
  std::int64_t windows = 0;
  double running = 0;       // sequences, summed over steps; so are
  double written = 0;       //   written blocks as a share of the pool,
  double unused = 0;        //   and those granted but not written
  double plan_seconds = 0;  // spent in open_window(), processor time
};

// One step as the time line shows it.
struct WorldStep {
  std::int64_t step = 0;
  const Window& window;
  bool opened = false;  // a window began with it
  KvStats kv;
  std::int32_t running = 0;
};

class TokenWorld final {
 public:
  // `lengths` is drawn from at random; it outlives the world.
  TokenWorld(const WorldOptions& options, const std::vector<RequestLengths>& lengths);

  WorldResult run(const std::function<void(const WorldStep&)>& watch = {});

 private:
  struct Sequence {
    RunningSequence view;
    RequestLengths lengths;
  };
  void renew();
  const Window& open(bool early);
  void admit_waiting();
  [[nodiscard]] bool try_admit(Sequence& sequence);
  void preempt(SequenceId victim);
  void step();
  [[nodiscard]] std::int64_t blocks_for_next_arrival() const;
  [[nodiscard]] std::span<const RunningSequence> views();
  [[nodiscard]] Sequence draw();

  const WorldOptions options_;
  const std::vector<RequestLengths>& lengths_;
  Rng rng_;
  KvManager kv_;
  StepTimeModel step_time_;
  LengthForecast forecast_;
  TimePoint now_{};
  std::vector<Token> tokens_;  // their values do not matter
  std::vector<Sequence> running_;
  std::deque<Sequence> waiting_;
  std::vector<RunningSequence> views_;
  std::uint64_t next_id_ = 1;
  bool renewed_for_arrival_ = false;
  bool opened_ = false;
  bool measuring_ = false;
  WorldResult result_;
};

}  // namespace sluice
