// The OpenAI HTTP API in front of a cluster.
//
// Text lives here and only here: the gateway applies the chat template,
// tokenizes, builds Requests, and turns token events back into messages. It
// knows the cluster by its ports (cluster/serving.h) and the model by its text
// side (model/model.h).
//
// Life: construct; give sink() to the Serving; start(serving); ...;
// begin_drain(), wait_drained(); stop(); destroy the Serving; destroy this. The
// Serving may call the sink until it is destroyed, so it goes first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "cluster/serving.h"
#include "cluster/telemetry.h"
#include "model/model.h"

namespace sluice {

// What one client may cost. Whoever goes over a limit gets an error with its number.
struct GatewayLimits {
  std::int32_t max_connections = 10'000;
  std::int32_t max_requests = 4'096;  // generations asked for by open HTTP requests
  std::size_t max_header_bytes = 64 << 10;
  std::size_t max_body_bytes = 32 << 20;
  std::int32_t max_json_depth = 100;
  std::int32_t max_prompts = 1'024;  // in one completion request
  std::int32_t max_choices = 128;    // `n`
  std::int32_t max_stop_strings = 16;
  std::size_t max_stop_bytes = 1'024;         // of one stop string
  std::size_t max_grammar_bytes = 256 << 10;  // GBNF or JSON schema
  std::int32_t max_messages = 16'384;
  std::int32_t max_tools = 512;
  std::int32_t max_logprobs = 20;  // alternatives a token
  std::int32_t max_logit_bias = 1'024;
  std::size_t max_tenant_bytes = 128;       // x-gateway-inference-fairness-id
  std::size_t max_length_class_bytes = 64;  // sluice_length_class
  std::int32_t max_listed_tokens = 1'024;   // of each list of tokens or bad words
  // A client that does not read: a stream with more unsent tokens is cancelled.
  std::int32_t max_unsent_tokens = 4'096;
  std::int32_t send_buffer_bytes = 0;  // of a connection's socket; 0: the system's choice
  Duration header_timeout = std::chrono::seconds(30);  // first to last byte of the header
  Duration body_timeout = std::chrono::seconds(120);
  Duration write_timeout = std::chrono::seconds(60);  // without any progress
  Duration idle_timeout = std::chrono::seconds(120);  // of a kept-alive connection
};

// A key that clients may send, and what it may cost. See api_keys.h.
struct ApiKey {
  std::string key;
  std::string name;                      // in messages and as the tenant; never the key itself
  std::int64_t requests_per_minute = 0;  // HTTP requests that generate; 0: any number
  std::int64_t tokens_per_minute = 0;    // prompt and generated; 0: any number
  std::int64_t concurrent_requests = 0;  // at a time; 0: any number
};

// PEM files: a certificate, with those that vouch for it behind it, and its key. Both or none.
struct TlsFiles {
  std::string certificate;
  std::string key;
};

struct GatewayOptions {
  std::string host = "127.0.0.1";          // an address or a name
  std::uint16_t port = 8080;               // 0: any that is free, see port()
  std::int32_t num_threads = 2;            // I/O threads; 1 to 64
  std::string model_id;                    // what clients call the model; empty: ModelInfo::id
  std::vector<std::string> model_aliases;  // other names that are accepted
  bool accept_any_model = false;           // serve whatever name a client gives
  std::int32_t context_tokens = 0;         // longest sequence; 0: ModelInfo::trained_context
  std::vector<ApiKey> api_keys;            // empty: no key is asked for
  TlsFiles tls;                            // none: plain HTTP
  // Browsers' origins that may call; "localhost" means any port of this host, "*" everyone.
  std::vector<std::string> cors_origins{"localhost"};
  std::string version = "0.1.0";
  // Priorities by name, for the header x-gateway-inference-objective.
  std::map<std::string, std::int32_t> objectives;
  bool page = true;        // the page at /
  bool benchmark = false;  // take `sluice_output_length`, see request_parser.h
  GatewayLimits limits;
};

// Thread-safe but for construction and destruction.
class Gateway final {
 public:
  // The clock is the one that the cluster uses: requests carry its times.
  Gateway(GatewayOptions options, const Model& model, const Clock& clock, Telemetry& telemetry);
  ~Gateway();
  Gateway(const Gateway&) = delete;
  Gateway& operator=(const Gateway&) = delete;

  // Where the cluster sends token events. Valid as long as this object.
  [[nodiscard]] TokenSink& sink();

  // Binds, listens and starts the I/O threads; returns when connections are
  // taken. kInvalidArgument: an option is out of range, or a file of `tls` is no
  // good; kUnavailable: the
  // address cannot be bound.
  [[nodiscard]] Status start(Serving& serving);
  // The bound port; 0 before start().
  [[nodiscard]] std::uint16_t port() const;

  // Reads the files of `tls` again, for connections that come from now on. An error leaves
  // what was; so does a gateway without TLS.
  [[nodiscard]] Status reload_certificate();

  // From now on /ready is 503 and new generations are refused with 503; those
  // that run go on. Returns at once.
  void begin_drain();
  // True when no generation is left; false when the time is over or stop() was called.
  [[nodiscard]] bool wait_drained(Duration limit);
  // Generations that are running or waiting.
  [[nodiscard]] std::int32_t active_requests() const;

  // Cancels what is left, closes every connection and joins the threads. May be
  // called by any thread but the gateway's own, more than once.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
