// `sluice top`: what the cluster says of itself, on a terminal.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "base/time.h"
#include "console.h"
#include "http_get.h"
#include "options.h"
#include "or_throw.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kDecisions = 12;  // lines

struct Counter {
  std::int64_t generated = 0;
  TimePoint at{};
};

Json fetch(const TopOptions& options, const char* path) {
  Json json = Json::parse(or_throw(http_get(options.url, path, options.api_key)), nullptr, false);
  if (json.is_discarded()) throw std::runtime_error(options.url + path + " is not JSON");
  return json;
}

// A share of memory as ten characters.
std::string bar(std::int64_t part, std::int64_t whole) {
  constexpr int kWidth = 10;
  const auto filled = whole > 0 ? static_cast<int>(std::clamp<std::int64_t>(
                                      (part * kWidth + whole - 1) / whole, 0, kWidth))
                                : 0;
  return std::string(static_cast<std::size_t>(filled), '#') +
         std::string(static_cast<std::size_t>(kWidth - filled), '.');
}

// Free blocks at the next window ends: what schedulers see of it.
std::string outlook_of(const Json& instance) {
  std::string text;
  for (const Json& point : instance.at("outlook")) {
    text += fmt::format("{}{}@{:.1f}s", text.empty() ? "" : " ",
                        point.at("free_blocks").get<std::int64_t>(),
                        std::max(0.0, point.at("in_ms").get<double>() / 1e3));
    if (text.size() > 28) break;
  }
  return text.empty() ? "-" : text;
}

void show_instances(const Json& memory, std::map<std::int64_t, Counter>& last, TimePoint now) {
  fmt::print(
      "{:>3} {:<14} {:<8} {:>6} {:>4} {:>4} {:>4} {:>7} {:<10} {:>13} {:>6} {:>7} {:>7}  {}\n",
      "id", "name", "role", "age ms", "busy", "run", "wait", "prefill", "memory", "granted/total",
      "cached", "window", "tokens/s", "free at");
  for (const Json& i : memory.at("instances")) {
    const auto id = i.at("instance").get<std::int64_t>();
    const Json& blocks = i.at("blocks");
    const auto granted = blocks.at("granted").get<std::int64_t>();
    const auto total = blocks.at("total").get<std::int64_t>();
    const auto generated = i.at("generated_tokens").get<std::int64_t>();
    double rate = 0;
    if (const auto it = last.find(id); it != last.end() && generated >= it->second.generated) {
      rate =
          static_cast<double>(generated - it->second.generated) / to_seconds(now - it->second.at);
    }
    last[id] = {generated, now};
    fmt::print(
        "{:>3} {:<14.14} {:<8} {:>6.0f} {:>3.0f}% {:>4} {:>4} {:>7} {:<10} {:>13} {:>6} {:>6.0f}m "
        "{:>7.1f}  "
        "{}\n",
        id, i.value("name", "-"),
        i.at("draining").get<bool>() ? "draining" : i.at("role").get<std::string>(),
        i.at("report_age_ms").get<double>(), 100 * i.at("device").at("busy").get<double>(),
        i.at("running_sequences").get<std::int64_t>(), i.at("waiting_requests").get<std::int64_t>(),
        i.at("uncomputed_tokens").get<std::int64_t>(), bar(granted, total),
        fmt::format("{}/{}", granted, total), blocks.at("cached").get<std::int64_t>(),
        i.at("window").at("length_ms").get<double>(), rate, outlook_of(i));
  }
}

void show_decisions(const Json& decisions) {
  fmt::print("\n{:<17} {:>8} {:<15} {:>4} {:>7} {:>7} {:>9}  {}\n", "placements", "age s",
             "outcome", "on", "prompt", "output", "TTFT ms", "not eligible");
  std::size_t lines = 0;
  for (const Json& d : decisions.at("decisions")) {
    if (lines++ == kDecisions) break;
    std::string rejected;
    double ttft = 0;
    for (const Json& c : d.at("candidates")) {
      if (c.at("instance") == d.at("instance")) ttft = c.at("predicted_ttft_ms").get<double>();
      if (c.at("rejection") == "none" || rejected.size() > 40) continue;
      rejected +=
          fmt::format("{}{}:{}", rejected.empty() ? "" : " ", c.at("instance").get<std::int64_t>(),
                      c.at("rejection").get<std::string>());
    }
    fmt::print("{:<17} {:>8.1f} {:<15} {:>4} {:>7} {:>7} {:>9.1f}  {}\n",
               d.at("request").get<std::string>(), d.at("age_ms").get<double>() / 1e3,
               d.at("outcome").get<std::string>(), d.at("instance").dump(),
               d.at("prompt_tokens").get<std::int64_t>(),
               d.at("max_new_tokens").get<std::int64_t>(), ttft, rejected);
  }
}

}  // namespace

int top(const TopOptions& options) {
  StopSignals signals;
  const SteadyClock clock;
  const bool live = !options.once && isatty(STDOUT_FILENO) != 0;
  std::map<std::int64_t, Counter> last;
  do {
    const Json memory = fetch(options, "/debug/memory");
    const Json decisions = fetch(options, "/debug/decisions");
    if (live) fmt::print("\x1b[H\x1b[2J");
    fmt::print("sluice top  {}  {} instances, {} of {} requests queued{}\n\n", options.url,
               memory.at("instances").size(), memory.at("queued_requests").get<std::int64_t>(),
               memory.at("queue_limit").get<std::int64_t>(),
               memory.at("draining").get<bool>() ? ", draining" : "");
    show_instances(memory, last, clock.now());
    show_decisions(decisions);
    std::fflush(stdout);
  } while (!options.once && !signals.wait_for(from_seconds(options.interval_seconds)));
  return 0;
}

}  // namespace sluice
