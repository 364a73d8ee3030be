#include "console.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>

namespace sluice {

void start_logging(const std::string& level) {
  auto logger = spdlog::stderr_color_mt("sluice");
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  logger->set_level(spdlog::level::from_str(level));
  spdlog::set_default_logger(std::move(logger));
}

std::function<void(double)> progress_of(std::string what) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  auto shown = std::make_shared<int>(-1);
  return [what = std::move(what), terminal, shown](double fraction) {
    constexpr int kWidth = 30;
    const int step = static_cast<int>(fraction * (terminal ? 100 : 4));
    if (step <= *shown) return;
    *shown = step;
    if (!terminal) {
      spdlog::info("{}: {} %", what, step * 25);
      return;
    }
    const int filled = static_cast<int>(fraction * kWidth);
    std::fprintf(stderr, "\r%s [%s%s] %3d %%%s", what.c_str(),
                 std::string(static_cast<std::size_t>(filled), '#').c_str(),
                 std::string(static_cast<std::size_t>(kWidth - filled), '.').c_str(), step,
                 fraction >= 1 ? "\n" : "");
    std::fflush(stderr);
  };
}

namespace {
sigset_t stop_set() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGHUP);
  return set;
}
}  // namespace

StopSignals::StopSignals() {
  const sigset_t set = stop_set();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

StopSignals::Signal StopSignals::wait() {
  const sigset_t set = stop_set();
  int signal = 0;
  sigwait(&set, &signal);
  return signal == SIGHUP ? Signal::kHangup : Signal::kStop;
}

bool StopSignals::wait_for(Duration time) {
  const sigset_t set = stop_set();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const timespec limit{seconds.count(), (time - seconds).count()};
  return sigtimedwait(&set, nullptr, &limit) > 0;
}

}  // namespace sluice
