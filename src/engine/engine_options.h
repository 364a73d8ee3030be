// What an engine is told when it is made.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/time.h"
#include "engine/batch_scheduler.h"
#include "memory/kv_manager.h"

namespace sluice {

struct EngineOptions {
  std::int32_t max_running = 64;    // sequences in a step
  std::int32_t max_waiting = 512;   // admitted to the instance, not to memory yet
  std::int32_t max_context = 4096;  // tokens of one sequence, prompt and output
  bool hands_over = false;          // sequences leave once they are prefilled
  std::int32_t draft_tokens = 0;    // most guesses of a sequence in a step; 0: none are made
  BatchOptions batch;
  KvOptions kv;
  std::string learned_lengths;  // of an earlier life: Engine::learned_lengths(); or empty
  // What copying one block to host memory takes, until copies have been measured.
  Duration host_block_copy = std::chrono::microseconds(100);
};

}  // namespace sluice
