// The daemon's configuration: a TOML file (deploy/ravenstored.toml explains every key), overridden
// by flags.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/types.h"

namespace ravenstore::daemon {

// Memory goes between nodes in pieces of this size.
inline constexpr core::Bytes kClusterPiece = core::MiB(64);

struct Config {
  // [socket]
  std::string socket_path = "/run/ravenstore/ravenstore.sock";
  std::string socket_group;  // empty: the daemon's own
  uint32_t socket_mode = 0660;
  // [devices]
  std::string backend = "auto";    // "cuda", "host", "auto"
  std::vector<std::string> uuids;  // empty: all that the driver shows
  core::Bytes page;  // 0: by the memory of each device and of the host pool, and usual_budget
  core::Bytes usual_budget;  // of a client; 0: device_budget
  // [limits] of every tenant (Unix user) until ravenctl changes them; 0: all there is
  core::Bytes device_budget;
  core::Bytes host_budget;
  core::Bytes peer_budget;  // of each peer pool
  core::Bytes file_budget;
  core::Bytes remote_budget;
  std::optional<core::Bytes>
      device_guarantee;             // not set ("default"): an eighth of each device; 0: nothing
  std::optional<uint32_t> weight;   // not set ("default"): surplus goes by what evictions cost
  std::string priority = "normal";  // "low", "normal", "high"
  core::Bytes visible_memory;  // of legacy jobs: the size that a device has for them; 0: its own
  core::Bytes device_reserve = core::GiB(1);  // of each device the store never takes
  uint32_t clients_max = 512;
  bool single_user = false;
  core::Bytes kept_sets;  // of named sets that no process has open; 0: they end
  // [host_pool]
  core::Bytes pool_size;  // 0: a quarter of the machine's memory
  core::Bytes pool_step = core::MiB(64);
  core::Bytes pool_ahead = core::MiB(256);
  int pool_numa_node = -1;  // -1: the first device's
  // [peer_pool]
  core::Bytes peer_pool_size;  // of each device; 0: none
  // [file_pool]
  std::string file_pool_path = "/var/lib/ravenstore/pool";
  core::Bytes file_pool_size;                  // 0: none
  double file_pool_read_bytes_per_second = 0;  // 0: measured
  double file_pool_write_bytes_per_second = 0;
  // [harvest]
  std::optional<core::Bytes> harvest_reserve;  // of each device; not set: an eighth
  core::Duration harvest_sample{std::chrono::milliseconds(100)};
  core::Duration harvest_rise{std::chrono::seconds(10)};
  core::Bytes harvest_step = core::MiB(256);
  core::Bytes harvest_size;  // of each device at most; 0: nothing is harvested
  core::Duration harvest_return{std::chrono::milliseconds(50)};  // of each GiB
  // Of others' copies together, from and to the memory of a device that computes; 0: no cap.
  double harvest_busy_bytes_per_second = 40e9;
  // [history] of jobs
  std::string history_path = "/var/lib/ravenstore/history";  // a folder; empty: it is not kept
  // [admission]
  double admission_max_slowdown = 1.5;  // 0: no cap
  core::Duration admission_settle{std::chrono::seconds(60)};
  // [cluster]
  std::string cluster_node;  // this node's name; empty: there is no cluster
  std::string cluster_listen;
  std::string cluster_key = "/etc/ravenstore/cluster.key";
  std::string cluster_state = "/var/lib/ravenstore/cluster";  // a folder
  std::string cluster_machine;                                // empty: what /etc/machine-id says
  std::vector<std::string> cluster_nodes;                     // allowed; empty: all with the key
  std::map<std::string, std::string> cluster_peers;           // names and addresses
  std::vector<std::string> cluster_etcd;                      // endpoints
  std::string cluster_etcd_ca;
  std::string cluster_etcd_certificate;
  std::string cluster_etcd_key;
  core::Bytes cluster_size;                    // of others' memory at most
  core::Bytes cluster_lend;                    // to others at most
  core::Bytes cluster_lend_each;               // to each other node; 0: cluster_lend
  std::optional<core::Bytes> cluster_reserve;  // of the machine's memory; not set: an eighth
  int cluster_copies = 1;
  core::Duration cluster_lease{std::chrono::seconds(10)};
  core::Duration cluster_recall{std::chrono::seconds(10)};
  std::string cluster_transport = "tls";  // "tls", "ucx"
  bool cluster_trusted_fabric = false;
  std::string cluster_ucx_transports = "tcp";
  std::string cluster_ucx_devices;  // named wherever cluster_transport is "ucx"
  // [transfer]
  core::Bytes chunk = core::MiB(16);
  // [loop]
  core::Duration spin{std::chrono::microseconds(200)};
  core::Duration poll{std::chrono::microseconds(50)};
  // [log]
  std::string log_level = "info";
  // [shutdown]
  core::Duration drain{std::chrono::seconds(5)};
  core::Duration restart_timeout{0};
  // [host_backend]
  int host_devices = 1;
  core::Bytes host_device_total = core::GiB(2);
  double host_bytes_per_second = 0;
  core::Duration host_latency{0};
  double host_peer_bytes_per_second = 0;
  core::Bytes host_others;        // of each device, held by other processes
  uint32_t host_utilization = 0;  // of each device, in percent
  bool host_check_moves = false;
};

// Reads `text`, the content of the file `name` (for messages), into `config`.
// Errors: kInvalidArgument naming the line, the key, what is wrong with it and what is accepted.
// Unknown keys are errors: a misspelt limit must not be ignored. Keys of earlier releases that have
// no effect any more are logged and left out.
core::Status ParseConfig(const std::string& text, const std::string& name, Config* config);
// The same of the file at `path`, which must be a regular one. Does not wait.
core::Status LoadConfig(const std::string& path, Config* config);

// All that is wrong with the file at `path`, by line, as LoadConfig and CheckConfig would
// say it one by one. Empty: a daemon takes it.
std::vector<core::Error> FaultsOfFile(const std::string& path);

// What is wrong with a value or between values: sizes that are multiples of others, and so on. Call
// it after the flags, which no line can be named for.
core::Status CheckConfig(const Config& config);

struct ConfigChanges {
  std::vector<std::string> adopted;
  std::vector<std::string> need_restart;
};
// Copies to `running` the values of `wanted` that may change while the daemon runs. Returns which
// keys those were, and which other keys differ.
ConfigChanges Adopt(const Config& wanted, Config* running);

}  // namespace ravenstore::daemon
