// Runs one HTTP request's generations and answers its client.
//
// Lives in a coroutine on the connection's I/O thread. Whatever way it ends --
// answered, client gone, exception -- its destructor cancels what still runs, so
// that the cluster's memory is free at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gateway/context.h"
#include "gateway/exchange.h"
#include "gateway/generation_job.h"
#include "gateway/mailbox.h"

namespace sluice {

class GenerationRun final {
 public:
  GenerationRun(GatewayContext& context, Exchange& exchange, GenerationJob job, ApiKeys::Use use);
  ~GenerationRun();
  GenerationRun(const GenerationRun&) = delete;
  GenerationRun& operator=(const GenerationRun&) = delete;

  [[nodiscard]] Task<void> run();
  // The gateway stops: the client is told so, and what runs is cancelled.
  void stop();

 private:
  struct Progress {
    RequestId id;
    bool submitted = false;
    bool ended = false;  // the cluster knows it no more
    TimePoint arrival{};
    TimePoint first_token{};
    TimePoint last_token{};
    Duration queued{};
  };

  [[nodiscard]] std::optional<ApiError> submit_all();
  // Events to increments; to SSE in `out_` if the answer is a stream.
  void apply(const std::vector<TokenEvent>& events);
  void apply_one(std::size_t index, const TokenEvent& event);
  void finish_empty();
  void fail(std::size_t index, ApiError error);
  void note_times(Progress& progress, const TokenEvent& event);
  void end(std::size_t index, FinishReason reason);
  void cancel_all();
  [[nodiscard]] bool abandoned() const;
  [[nodiscard]] bool all_finished() const;
  [[nodiscard]] Usage usage() const;
  [[nodiscard]] Task<void> answer_stream();
  [[nodiscard]] Task<void> answer_whole();

  GatewayContext& context_;
  Exchange& exchange_;
  GenerationJob job_;
  ApiKeys::Use use_;
  Mailbox mailbox_;
  std::vector<Progress> progress_;
  std::vector<TokenEvent> events_;
  std::string out_;                // SSE to be written
  std::optional<ApiError> error_;  // the first one; ends the whole answer
  std::int32_t counted_ = 0;       // of context_.active
};

}  // namespace sluice
