#include "options.h"

#include <fmt/format.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>
#include <stdexcept>

#include "api_key_file.h"
#include "memory/memory_policy.h"
#include "scheduling/placement.h"

namespace sluice {

Result<std::size_t> parse_size(const std::string& text) {
  static const std::map<std::string, int> kUnits = {
      {"", 0},     {"b", 0},  {"k", 10},  {"kb", 10},  {"kib", 10}, {"m", 20},  {"mb", 20},
      {"mib", 20}, {"g", 30}, {"gb", 30}, {"gib", 30}, {"t", 40},   {"tb", 40}, {"tib", 40}};
  char* rest = nullptr;
  const double number = std::strtod(text.c_str(), &rest);
  std::string unit(rest);
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto it = kUnits.find(unit);
  if (rest == text.c_str() || it == kUnits.end() || !(number >= 0) || number > 1e15) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" is not a size; write bytes, or 512M, 1.5GiB", text));
  }
  return static_cast<std::size_t>(std::ldexp(number, it->second));
}

std::string format_size(std::size_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

namespace {

CLI::Option* add_size(CLI::App& app, const std::string& name, std::size_t& target,
                      const std::string& help) {
  return app
      .add_option_function<std::string>(
          name,
          [&target, name](const std::string& text) {
            auto size = text == "auto" ? Result<std::size_t>(0) : parse_size(text);
            if (!size) throw CLI::ValidationError(name, size.error().message);
            target = *size;
          },
          help)
      ->type_name("SIZE");
}

void add_kv_type(CLI::App& app, KvType& type) {
  app.add_option_function<std::string>(
         "--kv-type", [&type](const std::string& name) { type = kv_type_of(name).value(); },
         "type of the KV cache: f16, or q8_0 for half the memory (default f16)")
      ->check(CLI::IsMember({"f16", "q8_0"}));
}

void add_device(CLI::App& app, std::string& device) {
  app.add_option("--device", device, "where the model runs: cpu, cuda[:N], vulkan[:N] or auto")
      ->capture_default_str();
}

void add_log_level(CLI::App& app, std::string& level) {
  app.add_option("--log-level", level, "trace, debug, info, warning or error")
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error"}))
      ->capture_default_str();
}

void read_objectives(const std::vector<std::string>& all, ServeOptions& o) {
  for (const std::string& text : all) {
    const std::size_t equals = text.find('=');
    std::int32_t priority = 0;
    const char* end = text.data() + text.size();
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size() ||
        std::from_chars(text.data() + equals + 1, end, priority).ptr != end) {
      throw CLI::ValidationError("--objective", fmt::format("\"{}\" is not NAME=PRIORITY", text));
    }
    o.objectives[text.substr(0, equals)] = priority;
  }
}

void add_memory(CLI::App& app, ServeOptions& o) {
  add_size(
      app, "--kv-host-memory", o.kv_host_memory,
      "host memory in all for the KV of sequences that are paused in a shortage (default: none)");
  const std::vector<std::string> memory_policies(memory_policy_names().begin(),
                                                 memory_policy_names().end());
  app.add_option("--memory-policy", o.memory_policy, "how KV memory is granted")
      ->check(CLI::IsMember(memory_policies))
      ->capture_default_str();
  app.add_option("--forecast-state", o.forecast_state,
                 "keep what was learned of output lengths in this file over restarts")
      ->type_name("FILE");
}

void add_decode_policy(CLI::App& app, ServeOptions& o) {
  std::vector<std::string> policies(policy_names().begin(), policy_names().end());
  app.add_option("--decode-policy", o.decode_policy,
                 "how a prefill engine chooses the decode engine")
      ->check(CLI::IsMember(policies))
      ->capture_default_str();
}

void add_engines(CLI::App& app, ServeOptions& o) {
  app.add_option("--instances", o.instances,
                 "engines in this process; threads and memory are shared out")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  auto* prefill = app.add_option("--prefill", o.prefill,
                                 "engines that prefill, and hand what they have prefilled over")
                      ->check(CLI::Range(1, 32))
                      ->excludes("--instances");
  auto* decode = app.add_option("--decode", o.decode, "engines that decode what is handed over")
                     ->check(CLI::Range(1, 32))
                     ->needs(prefill);
  prefill->needs(decode);
  add_decode_policy(app, o);
}

StepPace read_pace(const std::string& text) {
  std::array<std::int64_t, 4> us{};
  const char* at = text.data();
  const char* end = at + text.size();
  for (std::size_t i = 0; i < us.size(); ++i) {
    const auto [next, error] = std::from_chars(at, end, us[i]);
    const bool last = i + 1 == us.size();
    if (error != std::errc() || us[i] < 0 || us[i] > 10'000'000 || (next == end) != last ||
        (!last && *next != ',')) {
      throw CLI::ValidationError(
          "--benchmark-step",
          fmt::format("\"{}\" is not four numbers between 0 and 10000000", text));
    }
    at = last ? next : next + 1;
  }
  using std::chrono::microseconds;
  return {microseconds(us[0]), microseconds(us[1]), microseconds(us[2]), microseconds(us[3])};
}

void add_context(CLI::App& app, ServeOptions& o) {
  app.add_option("--context", o.context,
                 "longest sequence, tokens (default: what the model was trained for, if it fits)")
      ->check(CLI::Range(0, 1 << 24));
}

// Of every command that has a configuration file.
void add_model(CLI::App& app, ServeOptions& o) {
  app.add_option("model,--model", o.model, "the model, a GGUF file")->required();
  app.add_option("--config", "a YAML file with these same names; flags win over it")
      ->type_name("FILE");
  add_context(app, o);
  app.add_option("--drain-seconds", o.drain_seconds, "on SIGTERM, wait so long for what runs")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  add_log_level(app, o.log_level);
}

// The HTTP side, and the global scheduler behind it.
void add_front(CLI::App& app, ServeOptions& o) {
  app.add_flag("--benchmark", o.benchmark,
               "for load tests: take each request's true output length, for the sampler only");
  app.add_option("--model-name", o.model_name, "what clients call the model (default: its file)");
  app.add_option("--chat-template", o.chat_template,
                 "a Jinja chat template in place of the model's own")
      ->type_name("FILE");
  app.add_flag("--any-model-name", o.accept_any_model, "serve whatever model name a client gives");
  app.add_option("--host", o.host, "address to listen on")->capture_default_str();
  app.add_option("--port", o.port, "TCP port; 0 takes a free one")->capture_default_str();
  app.add_option(
         "--https-certificate", o.https.certificate,
         "PEM file: serve HTTPS with this certificate and what vouches for it; SIGHUP reads "
         "it again")
      ->type_name("FILE");
  app.add_option("--https-key", o.https.key, "PEM file: its key")
      ->type_name("FILE")
      ->needs("--https-certificate");
  app.get_option("--https-certificate")->needs("--https-key");
  // One value a flag: the word after it may be the model.
  app.add_option("--api-key", o.api_keys, "key that clients must send; may be repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  app.add_option_function<std::string>(
         "--api-keys", [&o](const std::string& file) { o.limited_keys = read_api_keys(file); },
         "a YAML file with keys and what each may use a minute (docs/configuration.md)")
      ->type_name("FILE");
  app.add_option("--cors-origin", o.cors_origins,
                 "browser origin that may call; may be repeated; * is everyone")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option_function<std::vector<std::string>>(
         "--objective", [&o](const std::vector<std::string>& all) { read_objectives(all, o); },
         "NAME=PRIORITY: what x-gateway-inference-objective: NAME means; may be repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  app.add_option("--io-threads", o.io_threads, "threads for connections")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--queue-limit", o.queue_limit, "most requests that wait for an instance")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  std::vector<std::string> policies(policy_names().begin(), policy_names().end());
  app.add_option("--policy", o.policy, "how an instance is chosen")
      ->check(CLI::IsMember(policies))
      ->capture_default_str();
}

// What makes an engine's steps as long as they are.
void add_step_sizes(CLI::App& app, ServeOptions& o) {
  add_device(app, o.device);
  app.add_option("--threads", o.threads, "compute threads in all (default: one a core)")
      ->check(CLI::Range(0, 1024));
  add_size(app, "--kv-memory", o.kv_memory,
           "KV cache in all, e.g. 2GiB (default: by model and free memory)");
  add_kv_type(app, o.kv_type);
  app.add_option("--block-tokens", o.block_tokens, "tokens a KV block")
      ->check(CLI::IsMember({8, 16, 32, 64, 128}))
      ->capture_default_str();
  app.add_option("--max-batch-tokens", o.max_batch_tokens, "most tokens a step computes")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option(
         "--mixed-step-ratio", o.mixed_step_ratio,
         "a step with long prompts in it may take so many times what its decode rows take alone")
      ->check(CLI::Range(1.0, 100.0))
      ->capture_default_str();
  app.add_option("--max-running", o.max_running, "most sequences that run at once, an instance")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_flag("--repack,!--no-repack", o.repack, "use faster weight layouts where there are (on)");
}

void add_speculative(CLI::App& app, std::string& speculative) {
  app.add_option("--speculative", speculative,
                 "ngram guesses tokens from the sequence's own text, where that is faster; answers "
                 "stay the same")
      ->check(CLI::IsMember({"off", "ngram"}))
      ->capture_default_str();
}

// The engines of the process.
void add_engine(CLI::App& app, ServeOptions& o) {
  add_step_sizes(app, o);
  add_memory(app, o);
  app.add_flag("--prefix-cache,!--no-prefix-cache", o.prefix_cache,
               "keep and share the KV of equal prefixes (on)");
  add_speculative(app, o.speculative);
  app.add_option_function<std::string>(
      "--benchmark-step", [&o](const std::string& text) { o.pace = read_pace(text); },
      "for load tests: a step takes at least so many microseconds: "
      "BASE,PREFILL_TOKEN,DECODE_ROW,CONTEXT_THOUSAND");
}

void add_serve(CLI::App& app, ServeOptions& o) {
  add_model(app, o);
  add_front(app, o);
  add_engine(app, o);
  add_engines(app, o);
  app.get_option("--benchmark-step")->needs("--benchmark");
}

void add_security(CLI::App& app, SecurityFiles& files) {
  app.add_option("--cluster-token-file", files.token, "file with the secret that all share");
  app.add_option("--tls-ca", files.ca, "PEM file: who is trusted; with the next two, mutual TLS");
  app.add_option("--tls-certificate", files.certificate, "PEM file: this process's certificate");
  app.add_option("--tls-key", files.key, "PEM file: its key");
}

void add_cluster(CLI::App& app, ClusterOptions& o, const char* join_help) {
  app.add_option("--name", o.name, "what it is called; the same after a restart");
  app.add_option("--join", o.join, join_help)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->delimiter(',');
  add_security(app, o.security);
}

void add_gateway(CLI::App& app, GatewayCommandOptions& o) {
  add_model(app, o.front);
  add_front(app, o.front);
  add_cluster(app, o.cluster, "etcd://host:port/cluster to announce itself in; may be repeated");
  app.add_option("--listen", o.listen, "host:port at which instances join; port 0 takes a free one")
      ->capture_default_str();
  app.add_option("--advertise", o.advertise, "the host:port that etcd is told (default: --listen)");
  app.add_option("--lease-seconds", o.lease_seconds,
                 "an instance of which nothing came for so long is gone")
      ->check(CLI::Range(0.5, 3600.0))
      ->capture_default_str();
  app.add_option("--hung-seconds", o.hung_seconds,
                 "an instance that lives but made no step for so long is given up")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
}

void add_instance(CLI::App& app, InstanceOptions& o) {
  add_model(app, o.engine);
  add_engine(app, o.engine);
  add_cluster(app, o.cluster, "gateways: host:port, or etcd://host:port/cluster; may be repeated");
  app.get_option("--join")->required();
  app.add_option("--role", o.role, "unified, prefill or decode")
      ->check(CLI::IsMember({"unified", "prefill", "decode"}))
      ->capture_default_str();
  app.add_option("--listen", o.listen,
                 "host:port at which instances that hand over reach it; port 0 takes a free one")
      ->capture_default_str();
  app.add_option("--advertise", o.advertise,
                 "the host:port that they are told (default: --listen)");
  add_decode_policy(app, o.engine);
  app.add_option("--handoff-lease-seconds", o.handoff_lease_seconds,
                 "an instance of which nothing came for so long is handed nothing, and what was "
                 "reserved for it is given back; longer than the longest step")
      ->check(CLI::Range(0.5, 3600.0))
      ->capture_default_str();
  app.add_flag("--shared-kv,!--no-shared-kv", o.shared_kv,
               "let instances of the same host and user read KV in place when it is handed over "
               "(on; huge pages are rarer in such memory)");
  app.add_flag("--kv-tcp,!--no-kv-tcp", o.kv_tcp,
               "KV between hosts goes over TCP connections of its own where it can (on; with "
               "certificates it goes over the instances' gRPC streams in any case)");
  app.add_option("--kv-port", o.kv_port,
                 "where KV comes on such a connection, at the host of --listen; 0 takes a free one")
      ->capture_default_str();
  app.add_option("--kv-ucx", o.kv_ucx,
                 "KV between hosts goes over UCX: auto, where there is RDMA; on, over whatever UCX "
                 "finds, TCP included, among hosts that trust each other; or off")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
  app.add_option("--kv-ucx-port", o.kv_ucx_port,
                 "where it comes then, at the host of --listen; 0 takes a free one")
      ->capture_default_str();
  app.add_flag("--kv-checksum", o.checksum, "check the KV that is sent by its checksum as well");
}

void add_drain(CLI::App& app, DrainOptions& o) {
  app.add_option("instance", o.instance, "its name")->required();
  app.add_option("--gateway", o.gateway, "host:port at which instances join a gateway")
      ->capture_default_str();
  add_security(app, o.security);
}

void add_up(CLI::App& app, UpOptions& o) {
  app.add_option("file", o.file, "a YAML file that says which processes")->required();
  app.add_flag("--check", o.check, "only say what would be started");
}

void add_top(CLI::App& app, TopOptions& o) {
  app.add_option("url", o.url, "of a server or gateway")->capture_default_str();
  app.add_option("--api-key", o.api_key, "key to send");
  app.add_option("--interval", o.interval_seconds, "seconds between two looks")
      ->check(CLI::Range(0.1, 60.0))
      ->capture_default_str();
  app.add_flag("--once", o.once, "look once, write lines, end");
}

void add_run(CLI::App& app, RunOptions& o) {
  app.add_option("model", o.model, "the model, a GGUF file")->required();
  app.add_option("prompt", o.prompt, "what to say to it; - reads standard input")->required();
  app.add_option("--system", o.system, "a system message");
  app.add_flag("--raw", o.raw, "continue the text as it is, without the chat template");
  add_device(app, o.device);
  app.add_option("--threads", o.threads, "compute threads (default: one a core)")
      ->check(CLI::Range(0, 1024));
  app.add_option("--max-tokens", o.max_tokens, "most tokens to generate")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--temperature", o.temperature, "0 is greedy")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  app.add_option("--seed", o.seed, "of the sampler; 0 takes a new one")->capture_default_str();
  add_size(app, "--kv-memory", o.kv_memory, "KV cache (default: what one context needs)");
  add_kv_type(app, o.kv_type);
  add_speculative(app, o.speculative);
  add_log_level(app, o.log_level);
}

void add_inspect(CLI::App& app, InspectOptions& o) {
  app.add_option("model", o.model, "the model, a GGUF file")->required();
  add_kv_type(app, o.kv_type);
  add_size(app, "--memory", o.memory, "say how many tokens fit in this (default 1GiB)");
}

void add_profile(CLI::App& app, ProfileOptions& o) {
  app.add_option("model", o.engine.model, "the model, a GGUF file")->required();
  app.add_option("--output", o.output, "file to write (default: standard output)");
  app.add_option("--name", o.name, "of the profile (default: the model's)");
  app.add_option("--rounds", o.rounds, "times that each kind of step is measured")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_context(app, o.engine);
  add_step_sizes(app, o.engine);
  add_log_level(app, o.engine.log_level);
}

// The settings of a YAML file as arguments, to stand before those of the command line.
std::vector<std::string> arguments_of(const std::string& file, const CLI::App& app) {
  YAML::Node root;
  try {
    root = YAML::LoadFile(file);
  } catch (const YAML::BadFile&) {
    throw std::runtime_error(fmt::format("cannot read {}", file));
  } catch (const YAML::Exception& e) {
    throw std::runtime_error(fmt::format("{}: {}", file, e.what()));
  }
  if (!root.IsMap() && !root.IsNull()) {
    throw std::runtime_error(fmt::format("{}: must be a list of \"name: value\" lines", file));
  }
  std::vector<std::string> arguments;
  for (const auto& entry : root) {
    const auto name = entry.first.as<std::string>();
    if (app.get_option_no_throw("--" + name) == nullptr || name == "config") {
      throw std::runtime_error(fmt::format("{}: there is no setting \"{}\"", file, name));
    }
    if (entry.second.IsScalar()) {
      arguments.push_back(fmt::format("--{}={}", name, entry.second.Scalar()));
    } else if (entry.second.IsSequence()) {
      for (const auto& value : entry.second) {
        if (!value.IsScalar())
          throw std::runtime_error(fmt::format("{}: \"{}\" must hold plain values", file, name));
        arguments.push_back(fmt::format("--{}={}", name, value.Scalar()));
      }
    } else {
      throw std::runtime_error(
          fmt::format("{}: \"{}\" must be a value or a list of values", file, name));
    }
  }
  return arguments;
}

// argv without the program, with the configuration file's settings put in front
// of the subcommand's own, so that the last one given wins.
std::vector<std::string> expand_config(int argc, char** argv, const CLI::App& app) {
  std::vector<std::string> args(argv + 1, argv + argc);
  const auto commands = app.get_subcommands(
      [&](const CLI::App* sub) { return !args.empty() && sub->get_name() == args[0]; });
  if (commands.empty()) return args;
  const CLI::App* command = commands.front();
  if (command->get_option_no_throw("--config") == nullptr) return args;
  std::string file;
  for (std::size_t i = 1; i < args.size(); ++i) {
    if (args[i] == "--config" && i + 1 < args.size()) file = args[i + 1];
    if (args[i].rfind("--config=", 0) == 0) file = args[i].substr(9);
  }
  if (file.empty()) return args;
  const auto settings = arguments_of(file, *command);
  args.insert(args.begin() + 1, settings.begin(), settings.end());
  return args;
}

// The commands that work without a model.
void add_simulator(CLI::App& app, CommandLine& result) {
  const auto add = [&](Command command, const char* name, const char* what) {
    CLI::App* sub = app.add_subcommand(name, what);
    sub->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::Throw);
    sub->callback([&result, command] { result.command = command; });
    return sub;
  };
  add_simulate_options(
      *add(Command::kSimulate, "simulate",
           "run the schedulers and the memory manager on a virtual clock, over a trace"),
      result.simulate);
  add_plan_options(
      *add(Command::kPlan, "plan", "say how many instances a trace needs to be served in time"),
      result.plan);
  add_replay_options(*add(Command::kReplay, "replay",
                          "let other policies make the decisions of a server that runs"),
                     result.replay);
}

// What tells two processes of a host apart where no name was given.
std::string default_name() {
  char host[64] = "host";
  (void)gethostname(host, sizeof(host) - 1);
  return fmt::format("{}-{}", host, getpid());
}

}  // namespace

CommandLine parse_command_line(int argc, char** argv) {
  CommandLine result;
  CLI::App app("sluice: serves large language models", "sluice");
  app.set_version_flag("--version", SLUICE_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  CLI::App* serve_app =
      app.add_subcommand("serve", "serve a model behind an OpenAI-compatible API");
  CLI::App* gateway_app = app.add_subcommand(
      "gateway", "serve the API from instances in other processes, which join it");
  CLI::App* instance_app =
      app.add_subcommand("instance", "run one engine for gateways in other processes");
  CLI::App* cluster_app = app.add_subcommand("cluster", "several processes on this host");
  CLI::App* up_app = cluster_app->add_subcommand("up", "start what a file says, until a signal");
  cluster_app->require_subcommand(1);
  CLI::App* top_app = app.add_subcommand("top", "watch instances, load and placements, live");
  CLI::App* drain_app =
      app.add_subcommand("drain", "ask an instance to hand over what it runs and end");
  CLI::App* run_app = app.add_subcommand("run", "answer one prompt in the terminal");
  CLI::App* devices_app =
      app.add_subcommand("devices", "list what models can run on here, and its memory");
  CLI::App* inspect_app = app.add_subcommand("inspect", "say what is in a model file");
  CLI::App* profile_app = app.add_subcommand(
      "profile", "measure what steps of a model take here, for simulate and plan");
  for (CLI::App* sub : {serve_app, gateway_app, instance_app, up_app, top_app, drain_app, run_app,
                        inspect_app, devices_app, profile_app}) {
    sub->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  add_simulator(app, result);
  add_serve(*serve_app, result.serve);
  result.gateway.cluster.name = result.instance.cluster.name = default_name();
  add_gateway(*gateway_app, result.gateway);
  add_instance(*instance_app, result.instance);
  add_up(*up_app, result.up);
  add_top(*top_app, result.top);
  add_drain(*drain_app, result.drain);
  add_run(*run_app, result.run);
  add_inspect(*inspect_app, result.inspect);
  add_profile(*profile_app, result.profile);

  std::vector<std::string> args = expand_config(argc, argv, app);
  std::reverse(args.begin(), args.end());  // CLI11 takes them from the back
  try {
    app.parse(args);
  } catch (const CLI::Success& e) {
    std::exit(app.exit(e));
  } catch (const CLI::ParseError& e) {
    throw std::runtime_error(fmt::format("{} (see sluice --help)", e.what()));
  }
  if (result.serve.prefill > 0) result.serve.instances = result.serve.prefill + result.serve.decode;
  if (gateway_app->parsed()) result.command = Command::kGateway;
  if (instance_app->parsed()) result.command = Command::kInstance;
  if (up_app->parsed()) result.command = Command::kClusterUp;
  if (top_app->parsed()) result.command = Command::kTop;
  if (drain_app->parsed()) result.command = Command::kDrain;
  if (run_app->parsed()) result.command = Command::kRun;
  if (inspect_app->parsed()) result.command = Command::kInspect;
  if (devices_app->parsed()) result.command = Command::kDevices;
  if (profile_app->parsed()) result.command = Command::kProfile;
  return result;
}

}  // namespace sluice
