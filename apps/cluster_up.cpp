// `sluice cluster up FILE`: a set of processes on this host, from one file to one signal.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/time.h"
#include "cluster_file.h"
#include "console.h"
#include "options.h"
#include "or_throw.h"

namespace sluice {
namespace {

constexpr int kStartError = 2;  // exit code of a process whose options are wrong
constexpr Duration kRestartPause = std::chrono::seconds(1);
constexpr std::chrono::milliseconds kLook(100);

// One process and its output, line by line under its name.
class Child {
 public:
  explicit Child(ProcessSpec spec) : spec_(std::move(spec)) {}
  Child(const Child&) = delete;
  Child(Child&& other) noexcept
      : spec_(std::move(other.spec_)), pid_(other.pid_), output_(other.output_) {
    other.pid_ = other.output_ = -1;
  }
  ~Child() {
    if (output_ >= 0) close(output_);
  }

  void start() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe can be made");
    std::vector<char*> argv;
    for (std::string& argument : spec_.arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error(fmt::format("no process: {}", std::strerror(errno)));
    if (pid_ == 0) {
      setpgid(0, 0);  // a terminal's Ctrl-C is for this process alone, which passes it on once
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      execv("/proc/self/exe", argv.data());
      _exit(kStartError);
    }
    close(ends[1]);
    if (output_ >= 0) close(output_);
    output_ = ends[0];
    fcntl(output_, F_SETFL, O_NONBLOCK);
  }

  void signal(int number) const {
    if (pid_ > 0) kill(pid_, number);
  }

  // Passes on the lines that are there; without its end a line waits.
  void pass_on() {
    std::array<char, 4096> buffer{};
    for (;;) {
      const ssize_t count = read(output_, buffer.data(), buffer.size());
      if (count <= 0) break;
      line_.append(buffer.data(), static_cast<std::size_t>(count));
    }
    std::size_t begin = 0;
    for (std::size_t end = 0; (end = line_.find('\n', begin)) != std::string::npos;
         begin = end + 1) {
      fmt::print("{:<12} | {}\n", spec_.name, line_.substr(begin, end - begin));
    }
    line_.erase(0, begin);
    std::fflush(stdout);
  }

  // The exit code, or 128 and the signal; negative: it runs.
  int reap() {
    int status = 0;
    if (pid_ <= 0 || waitpid(pid_, &status, WNOHANG) != pid_) return -1;
    pid_ = -1;
    pass_on();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  [[nodiscard]] bool running() const { return pid_ > 0; }
  [[nodiscard]] int output() const { return output_; }
  [[nodiscard]] const std::string& name() const { return spec_.name; }
  TimePoint restart_at{};

 private:
  ProcessSpec spec_;
  pid_t pid_ = -1;
  int output_ = -1;
  std::string line_;
};

void wait_for_output(std::vector<Child>& children) {
  std::vector<pollfd> descriptors;
  for (const Child& child : children) {
    if (child.running()) descriptors.push_back({child.output(), POLLIN, 0});
  }
  poll(descriptors.data(), descriptors.size(), static_cast<int>(kLook.count()));
  for (Child& child : children) {
    if (child.output() >= 0) child.pass_on();
  }
}

// Until a signal, or until one says that its options are wrong. Who ends by itself is
// started again: an instance that crashed comes back as a new one.
int supervise(std::vector<Child>& children, StopSignals& signals) {
  const SteadyClock clock;
  while (!signals.wait_for(Duration::zero())) {
    wait_for_output(children);
    for (Child& child : children) {
      const int code = child.reap();
      if (code == kStartError) {
        spdlog::error("{} cannot start; stopping all", child.name());
        return kStartError;
      }
      if (code >= 0) {
        spdlog::warn("{} has ended with {}; it is started again", child.name(), code);
        child.restart_at = clock.now() + kRestartPause;
      } else if (!child.running() && clock.now() >= child.restart_at) {
        child.start();
      }
    }
  }
  return 0;
}

// Gateways first, so that no client comes any more; then all. A second signal kills.
void stop_all(std::vector<Child>& children, StopSignals& signals) {
  for (const Child& child : children) child.signal(SIGTERM);
  const auto any_runs = [&] {
    return std::any_of(children.begin(), children.end(),
                       [](const Child& c) { return c.running(); });
  };
  while (any_runs()) {
    wait_for_output(children);
    for (Child& child : children) (void)child.reap();
    if (!signals.wait_for(Duration::zero())) continue;
    for (const Child& child : children) child.signal(SIGKILL);
  }
}

}  // namespace

int cluster_up(const UpOptions& options) {
  start_logging("info");
  const std::vector<ProcessSpec> specs = or_throw(read_cluster_file(options.file));
  if (options.check) {
    for (const ProcessSpec& spec : specs) {
      fmt::print("{:<12} |", spec.name);
      for (const std::string& argument : spec.arguments) fmt::print(" {}", argument);
      fmt::print("\n");
    }
    return 0;
  }
  StopSignals signals;
  std::vector<Child> children;
  children.reserve(specs.size());
  for (const ProcessSpec& spec : specs) children.emplace_back(spec);
  for (Child& child : children) child.start();
  const int code = supervise(children, signals);
  stop_all(children, signals);
  return code;
}

}  // namespace sluice
