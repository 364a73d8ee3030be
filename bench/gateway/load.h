// A client of many connections: streams of completions, closed loop or at a rate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

struct LoadOptions {
  std::uint16_t port = 0;
  std::string model = "m";
  int streams = 32;  // connections, each with one request at a time
  int tokens = 64;   // a request
  int prompt_words = 32;
  double seconds = 5;  // after a second of warming up
  double rate = 0;     // requests a second in all; 0: as fast as answers come
};

struct LoadResult {
  double seconds = 0;
  std::int64_t requests = 0, failed = 0;
  std::int64_t tokens = 0;               // events with a choice in them
  std::vector<double> first_ms, all_ms;  // of each request, from when it was due
};

[[nodiscard]] LoadResult run_load(const LoadOptions& options);

}  // namespace sluice
