// One instance: from requests to token events, one step at a time.
//
// Synchronous: the loop that owns an Engine calls submit(), cancel() and step(); nothing here
// waits or knows a thread. Plans are made first and committed after (BatchScheduler,
// WindowPlanner); memory is granted a window at a time (memory/kv_manager.h).
//
// Invariant: every submitted request gets exactly one finishing event, and when
// it has it, all its blocks are free or kept as an unused prefix.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "engine/batch_scheduler.h"
#include "engine/engine_handoff.h"
#include "engine/engine_options.h"
#include "engine/engine_stats.h"
#include "engine/host_store.h"
#include "engine/remedy.h"
#include "engine/request.h"
#include "engine/room_forecast.h"
#include "engine/sequence.h"
#include "engine/tenants.h"
#include "engine/waiting_queue.h"
#include "memory/kv_manager.h"
#include "memory/length_forecast.h"
#include "memory/step_time_model.h"
#include "model/model_runner.h"

namespace sluice {

class Engine final {
 public:
  // All references outlive the engine. The runner is bound to its KV memory.
  Engine(const EngineOptions& options, ModelRunner& runner, const SamplerFactory& samplers,
         const Clock& clock, TokenSink& sink, const EnginePorts& ports = {});

  // Takes the request. A refusal (never fits, queue full, bad grammar) comes as
  // its finishing event, with the next call of step().
  void submit(std::unique_ptr<Request> request);

  // Whatever state it is in; its last event is kCancelled. Unknown or finished ones are ignored.
  void cancel(RequestId request);

  // One round: renew the window if it is over, admit, compute, emit. True if a
  // step ran; false if there is nothing to do until the next submit().
  bool step();

  // Ends every request with this error; the device has failed or the instance stops.
  void fail_all(const Error& error);

  // --- Handoffs, in engine_handoff.cpp -------------------------------------------

  // Running here, and past their prompt when the next step is done.
  [[nodiscard]] std::vector<RequestId> may_leave() const;
  // Null: not admitted here. Valid until the next non-const call.
  [[nodiscard]] const Sequence* find(RequestId request) const;
  [[nodiscard]] std::span<const BlockId> table(RequestId request) const;
  // It takes no more steps; its KV stays. False: it does not run here.
  [[nodiscard]] bool rest(RequestId request);
  // What rests runs again; from its tokens, if its KV had to yield meanwhile.
  void wake(RequestId request);
  // It is gone without an event, whatever it was doing; its blocks are free.
  void drop(RequestId request);
  // Who would have to yield if memory gets as short as the window's plan says; one a window.
  [[nodiscard]] std::optional<RequestId> next_to_yield() const;
  // As drop(), of that one: it runs elsewhere, before anything had to yield.
  void drop_for_room(RequestId request);
  // What rests ends, cancelled.
  void end_resting(RequestId request);
  // Takes memory for a sequence whose KV comes from elsewhere.
  [[nodiscard]] tl::expected<Arrival, ArrivalRefusal> reserve(ArrivalRequest arrival);
  // The KV of a reserved one is there: it takes part in the next step.
  [[nodiscard]] Status start(RequestId request, const ArrivedState& state);
  // Reservations that had to yield at a boundary; each is told once.
  [[nodiscard]] std::vector<RequestId> take_revoked();

  [[nodiscard]] bool idle() const {
    return running_.empty() && waiting_.empty() && yielded_.empty() && events_.empty();
  }
  [[nodiscard]] EngineLoad load() const;
  [[nodiscard]] EngineStats stats() const;
  // What the length forecast knows, as text for the options of a later life.
  [[nodiscard]] std::string learned_lengths() const { return forecast_.saved(); }
  // Requests taken since the last call: their ledger entries can end.
  [[nodiscard]] std::vector<RequestId> take_seen();
  void check_invariants() const;

 private:
  [[nodiscard]] Status accept(const Request& request) const;
  void renew_window();
  const Window& open_window(bool early);
  [[nodiscard]] std::int64_t blocks_for_next_arrival() const;
  void admit_waiting();
  [[nodiscard]] bool try_admit(Sequence& sequence);
  void resume(Sequence& sequence, std::int32_t cached_tokens);
  [[nodiscard]] bool prefix_is_coming(const Sequence& waiting) const;
  void give_way(SequenceId id);
  [[nodiscard]] RemedyCosts remedy_costs(const Sequence& sequence);
  void compute(const BatchPlan& plan);
  void apply(const BatchPlan& plan, StepOutput& output);
  void apply_row(const BatchRow& row, std::size_t index, StepOutput& output);
  void report_progress(Sequence& sequence);
  void apply_token(Sequence& sequence, Result<SampledToken>& sampled);
  void finish(Sequence& sequence, TokenEvent&& event);
  void end_cancelled(Sequence& sequence);
  [[nodiscard]] Duration until_room(RequestId request, std::int64_t blocks);
  void forget(std::unique_ptr<Sequence> sequence);
  void remove_finished();
  void flush_events();
  [[nodiscard]] WindowStats window_stats() const;
  [[nodiscard]] TokenEvent event_for(Sequence& sequence) const;
  [[nodiscard]] std::span<const RunningSequence> running_views();
  [[nodiscard]] std::int32_t decode_cap(const Sequence& sequence) const;
  [[nodiscard]] std::vector<BatchCandidate> candidates();

  // Constant after construction.
  const EngineOptions options_;
  ModelRunner& runner_;
  const SamplerFactory& samplers_;
  const Clock& clock_;
  TokenSink& sink_;
  const BatchScheduler batch_scheduler_;

  KvManager kv_;
  HostStore host_;
  StepTimeModel step_time_;
  LengthForecast forecast_;
  DraftRates draft_rates_;                          // of guesses, over all sequences
  std::vector<std::unique_ptr<Sequence>> running_;  // in the order of admission
  WaitingQueue waiting_;
  std::vector<std::unique_ptr<Sequence>> yielded_;  // rest, but had to give up their blocks
  std::vector<RequestId> revoked_;
  RoomForecast room_forecast_;  // for those that were refused
  Tenants tenants_;
  std::vector<TokenEvent> events_;  // to leave with this step
  std::vector<RequestId> seen_;
  std::vector<RunningSequence> views_;  // reused by running_views()
  SequenceId next_id_{1};
  bool renewed_for_arrival_ = false;  // at most one early renewal a window
  std::int64_t made_room_ = 0;        // the window in which one left for room
  EngineStats stats_;
};

}  // namespace sluice
