// What the commands of a cluster of several processes are told.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "net/cluster_security.h"
#include "serve_options.h"

namespace sluice {

// What the processes of a cluster have in common.
struct ClusterOptions {
  std::string name;               // empty: host and process id
  std::vector<std::string> join;  // host:port of gateways, or etcd://host:port/cluster
  SecurityFiles security;
};

struct InstanceOptions {
  ServeOptions engine;  // its model, memory and threads
  ClusterOptions cluster;
  std::string role = "unified";
  std::string listen = "127.0.0.1:0";  // where other instances reach it
  std::string advertise;               // what they are told
  double handoff_lease_seconds = 10;
  bool shared_kv = true;  // instances of the same host read what is handed over in place
  bool kv_tcp = true;     // what is sent goes over connections of its own
  std::uint16_t kv_port = 0;
  std::string kv_ucx = "auto";
  std::uint16_t kv_ucx_port = 0;
  bool checksum = false;  // of KV that is sent
};

struct GatewayCommandOptions {
  ServeOptions front;  // its model and its HTTP side
  ClusterOptions cluster;
  std::string listen = "127.0.0.1:7070";  // where instances join
  std::string advertise;                  // what etcd is told
  double lease_seconds = 5;
  std::int32_t hung_seconds = 30;
};

struct DrainOptions {
  std::string instance;
  std::string gateway = "127.0.0.1:7070";
  SecurityFiles security;
};

struct UpOptions {
  std::string file;
  bool check = false;  // says what would be started
};

struct TopOptions {
  std::string url = "http://127.0.0.1:8080";
  std::string api_key;
  double interval_seconds = 1;
  bool once = false;
};

}  // namespace sluice
