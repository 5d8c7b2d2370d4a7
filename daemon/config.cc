#include "daemon/config.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "core/size_text.h"
#include "core/suggest.h"
#include "ipc/unique_fd.h"
#include "proto/packet.h"
#include "transport/address.h"
#include "transport/transport.h"

namespace ravenstore::daemon {

namespace {

using core::Bytes;
using core::Error;
using core::ErrorCode;

constexpr size_t kFileMax = size_t{1} << 20;

// Reads a value from its node, or says what is accepted.
template <typename T>
using Reader = std::function<std::optional<std::string>(const toml::node&, T*)>;

struct Key {
  std::function<std::optional<std::string>(const toml::node&, Config*)> set;
  std::function<bool(const Config&, const Config&)> same;
  std::function<void(const Config&, Config*)> copy;
  // What is wrong with the value, given the other values; null: every value is valid.
  std::function<std::optional<std::string>(const Config&)> fault = nullptr;
  bool live = false;  // may change while the daemon runs
};

template <typename T>
Key Of(T Config::*value, Reader<T> read) {
  return {
      .set = [value, read = std::move(read)](
                 const toml::node& node, Config* config) { return read(node, &(config->*value)); },
      .same = [value](const Config& a, const Config& b) { return a.*value == b.*value; },
      .copy = [value](const Config& from, Config* to) { to->*value = from.*value; }};
}

Key Live(Key key) {
  key.live = true;
  return key;
}

Key Checked(Key key, std::function<std::optional<std::string>(const Config&)> fault) {
  key.fault = std::move(fault);
  return key;
}

Key Text(std::string Config::*value) {
  return Of<std::string>(
      value, [](const toml::node& node, std::string* target) -> std::optional<std::string> {
        const auto text = node.value_exact<std::string>();
        if (!text) return "a string";
        *target = *text;
        return std::nullopt;
      });
}

Key OneOf(std::string Config::*value, std::vector<std::string> choices) {
  return Of<std::string>(
      value,
      [choices = std::move(choices)](const toml::node& node,
                                     std::string* target) -> std::optional<std::string> {
        const auto text = node.value_exact<std::string>();
        std::string accepted = "one of";
        for (const auto& choice : choices) {
          if (text == choice) {
            *target = choice;
            return std::nullopt;
          }
          accepted += " \"" + choice + "\"";
        }
        return accepted;
      });
}

std::optional<std::string> ReadSize(const toml::node& node, Bytes* target) {
  static const std::string kAccepted = "a size: a number of bytes, or a string such as \"12GiB\"";
  if (const auto number = node.value_exact<int64_t>()) {
    if (*number < 0) return kAccepted;
    *target = Bytes(static_cast<uint64_t>(*number));
    return std::nullopt;
  }
  const auto text = node.value_exact<std::string>();
  const auto bytes = text ? core::ParseBytes(*text) : std::nullopt;
  if (!bytes) return kAccepted;
  *target = *bytes;
  return std::nullopt;
}

Key Size(Bytes Config::*value) {
  return Of<Bytes>(value, ReadSize);
}

Key SizeOrDefault(std::optional<Bytes> Config::*value) {
  return Of<std::optional<Bytes>>(
      value,
      [](const toml::node& node, std::optional<Bytes>* target) -> std::optional<std::string> {
        if (node.value_exact<std::string>() == "default") {
          target->reset();
          return std::nullopt;
        }
        Bytes bytes;
        if (const auto accepted = ReadSize(node, &bytes)) return *accepted + ", or \"default\"";
        *target = bytes;
        return std::nullopt;
      });
}

template <typename Number>
Key Whole(Number Config::*value, int64_t least, int64_t most, std::string accepted = "") {
  if (accepted.empty()) {
    accepted = "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  }
  return Of<Number>(value,
                    [least, most, accepted](const toml::node& node,
                                            Number* target) -> std::optional<std::string> {
                      const auto number = node.value_exact<int64_t>();
                      if (!number || *number < least || *number > most) return accepted;
                      *target = static_cast<Number>(*number);
                      return std::nullopt;
                    });
}

Key WeightOrDefault(std::optional<uint32_t> Config::*value) {
  return Of<std::optional<uint32_t>>(
      value,
      [](const toml::node& node, std::optional<uint32_t>* target) -> std::optional<std::string> {
        target->reset();
        if (node.value_exact<std::string>() == "default") return std::nullopt;
        const auto number = node.value_exact<int64_t>();
        if (!number || *number < 1 || *number > proto::kWeightMost) {
          return "a whole number from 1 to " + std::to_string(proto::kWeightMost) +
                 ", or \"default\"";
        }
        *target = static_cast<uint32_t>(*number);
        return std::nullopt;
      });
}

Key Flag(bool Config::*value) {
  return Of<bool>(value, [](const toml::node& node, bool* target) -> std::optional<std::string> {
    const auto flag = node.value_exact<bool>();
    if (!flag) return "true or false";
    *target = *flag;
    return std::nullopt;
  });
}

Key Time(core::Duration Config::*value, core::Duration unit, const char* accepted) {
  return Of<core::Duration>(
      value,
      [unit, accepted](const toml::node& node,
                       core::Duration* target) -> std::optional<std::string> {
        const auto number = node.value<double>();
        if (!number || !(*number >= 0 && *number <= 1e9)) return accepted;  // NaN is neither
        *target = core::Duration(static_cast<int64_t>(*number * static_cast<double>(unit.count())));
        return std::nullopt;
      });
}

std::optional<std::string> ReadTexts(const toml::node& node, std::vector<std::string>* target) {
  static const std::string kAccepted = "a list of strings that are not empty";
  const toml::array* list = node.as_array();
  if (list == nullptr) return kAccepted;
  target->clear();
  for (const toml::node& item : *list) {
    const auto text = item.value_exact<std::string>();
    if (!text || text->empty()) return kAccepted;
    target->push_back(*text);
  }
  return std::nullopt;
}

Key Texts(std::vector<std::string> Config::*value) {
  return Of<std::vector<std::string>>(value, ReadTexts);
}

// Of nodes, by name.
using Addresses = std::map<std::string, std::string>;

std::optional<std::string> ReadPeers(const toml::node& node, Addresses* target) {
  std::vector<std::string> peers;
  if (const auto accepted = ReadTexts(node, &peers)) return accepted;
  target->clear();
  for (const std::string& peer : peers) {
    const size_t equals = peer.find('=');
    const std::string name = peer.substr(0, equals);
    if (equals == std::string::npos || equals + 1 == peer.size() || !transport::IsNodeName(name)) {
      return "a list of nodes as \"NAME=ADDRESS:PORT\", not \"" + peer + "\"";
    }
    if (!target->emplace(name, peer.substr(equals + 1)).second) {
      return "a list that names a node once: \"" + name + "\" is there twice";
    }
  }
  return std::nullopt;
}

Key Peers(Addresses Config::*value) {
  return Of<Addresses>(value, ReadPeers);
}

Key Number(double Config::*value, std::string accepted) {
  return Of<double>(value,
                    [accepted = std::move(accepted)](const toml::node& node,
                                                     double* target) -> std::optional<std::string> {
                      const auto number = node.value<double>();
                      if (!number || !std::isfinite(*number) || *number < 0) return accepted;
                      *target = *number;
                      return std::nullopt;
                    });
}

Key Rate(double Config::*value, const char* zero) {
  return Number(value, std::string("bytes per second, or 0 ") + zero);
}

// Faults.

constexpr Bytes kPage = core::MiB(2);

auto WholePages(Bytes Config::*value, bool or_none = false) {
  return [value, or_none](const Config& config) -> std::optional<std::string> {
    const Bytes bytes = config.*value;
    if (or_none && bytes == Bytes{0}) return std::nullopt;
    if (bytes > core::kRangeMax)
      return "must be at most " + core::SizeText(core::kRangeMax) + ", not " +
             core::SizeText(bytes);
    if (bytes != Bytes{0} && bytes.RoundUp(kPage) == bytes) return std::nullopt;
    return "must be a multiple of 2 MiB, not " + core::SizeText(bytes);
  };
}

std::optional<std::string> FaultOfPage(const Config& config) {
  const Bytes page = config.page;
  if (page == Bytes{0} ||
      (page >= kPage && page <= core::GiB(1) && std::has_single_bit(page.count())))
    return std::nullopt;
  return "must be a power of two from 2 MiB to 1 GiB, not " + core::SizeText(page);
}

// The least that a device hands out is a page.
auto ABudget(Bytes Config::*value) {
  return [value](const Config& config) -> std::optional<std::string> {
    const Bytes bytes = config.*value;
    if (bytes == Bytes{0} || bytes >= kPage) return std::nullopt;
    return "must be 0 (all there is) or at least 2 MiB, not " + core::SizeText(bytes);
  };
}

std::optional<std::string> FaultOfGuarantee(const Config& config) {
  const Bytes guarantee = config.device_guarantee.value_or(Bytes{0});
  if (config.device_budget == Bytes{0} || guarantee <= config.device_budget) return std::nullopt;
  return "must be at most limits.device_budget, " + core::SizeText(config.device_budget) +
         ", not " + core::SizeText(guarantee);
}

std::optional<std::string> FaultOfChunk(const Config& config) {
  const Bytes chunk = config.chunk;
  // Sums of several are reckoned with, which must not overflow.
  if (chunk >= core::MiB(1) && chunk <= core::GiB(1) &&
      chunk.RoundUp(core::kExtentAlignment) == chunk) {
    return std::nullopt;
  }
  return "must be 1 MiB to 1 GiB and a multiple of 512 bytes, not " + core::SizeText(chunk);
}

std::optional<std::string> FaultOfAhead(const Config& config) {
  if (config.pool_ahead <= core::kRangeMax) return std::nullopt;
  return "must be at most " + core::SizeText(core::kRangeMax) + ", not " +
         core::SizeText(config.pool_ahead);
}

std::optional<std::string> FaultOfPool(const Config& config) {
  if (config.pool_size > core::kRangeMax) {
    return "must be at most " + core::SizeText(core::kRangeMax) + ", not " +
           core::SizeText(config.pool_size);
  }
  if (config.pool_size != Bytes{0} && config.pool_size < config.pool_step) {
    return "must be at least one host_pool.step, " + core::SizeText(config.pool_step) + ", not " +
           core::SizeText(config.pool_size);
  }
  return std::nullopt;
}

std::optional<std::string> FaultOfFolder(const Config& config) {
  if (config.file_pool_path.starts_with('/')) return std::nullopt;
  return "must be the absolute path of a folder, not \"" + config.file_pool_path + "\"";
}

std::optional<std::string> FaultOfHistory(const Config& config) {
  if (config.history_path.empty() || config.history_path.starts_with('/')) return std::nullopt;
  return "must be the absolute path of a folder, or empty, not \"" + config.history_path + "\"";
}

std::string NumberText(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", number);
  return text;
}

std::optional<std::string> FaultOutside(double least, double most, double number) {
  if (number >= least && number <= most) return std::nullopt;
  return "must be " + NumberText(least) + " to " + NumberText(most) + ", not " + NumberText(number);
}

std::optional<std::string> FaultOfSample(const Config& config) {
  return FaultOutside(10, 10'000, core::Milliseconds(config.harvest_sample));
}

// What is free is remembered for so long.
std::optional<std::string> FaultOfRise(const Config& config) {
  const double rise = core::Seconds(config.harvest_rise);
  if (rise <= 3600) return std::nullopt;
  return "must be at most 3600, not " + NumberText(rise);
}

std::optional<std::string> FaultOfHarvestReturn(const Config& config) {
  return FaultOutside(1, 60'000, core::Milliseconds(config.harvest_return));
}

// Below that a chunk would take minutes.
std::optional<std::string> FaultOfBusyRate(const Config& config) {
  constexpr double kLeast = 1e6;
  const double rate = config.harvest_busy_bytes_per_second;
  if (rate == 0 || rate >= kLeast) return std::nullopt;
  return "must be 0 (no cap) or at least " + NumberText(kLeast) + ", not " + NumberText(rate);
}

std::optional<std::string> FaultOfSlowdown(const Config& config) {
  const double most = config.admission_max_slowdown;
  if (most == 0 || most >= 1) return std::nullopt;
  return "must be 0 (no cap) or at least 1, not " + NumberText(most);
}

std::optional<std::string> FaultOfOthers(const Config& config) {
  if (config.host_others <= config.host_device_total) return std::nullopt;
  return "must be at most host_backend.total, " + core::SizeText(config.host_device_total) +
         ", not " + core::SizeText(config.host_others);
}

std::optional<std::string> FaultOfPath(const Config& config) {
  if (!config.socket_path.empty() && config.socket_path.size() <= 107) return std::nullopt;
  return "must have 1 to 107 bytes: \"" + config.socket_path + "\"";
}

std::optional<std::string> FaultOfUuids(const Config& config) {
  std::set<std::string> seen;
  for (const auto& uuid : config.uuids) {
    if (!seen.insert(uuid).second)
      return "must name a device once: \"" + uuid + "\" is there twice";
  }
  return std::nullopt;
}

bool IsSet(const Config& config) {
  return !config.cluster_node.empty();
}

std::optional<std::string> FaultOfNode(const Config& config) {
  if (!IsSet(config) || transport::IsNodeName(config.cluster_node)) return std::nullopt;
  return "must be 1 to " + std::to_string(transport::kNodeNameMax) +
         " letters, digits, '.', '-' and '_', or empty, not \"" + config.cluster_node + "\"";
}

std::optional<std::string> FaultOfListen(const Config& config) {
  if (!IsSet(config)) return std::nullopt;
  if (config.cluster_listen.empty()) {
    return "must be the address and port at which other nodes reach this one, such as "
           "\"192.0.2.1:7420\": \"cluster.node\" is set";
  }
  // The transport would refuse it only after the daemon began to start.
  const auto address = transport::ParseOwnAddress(config.cluster_listen);
  if (address.ok()) return std::nullopt;
  return "is " + config.cluster_listen + ", but " + address.error().message;
}

auto AnAbsolutePath(std::string Config::*value) {
  return [value](const Config& config) -> std::optional<std::string> {
    if ((config.*value).starts_with('/')) return std::nullopt;
    return "must be an absolute path, not \"" + config.*value + "\"";
  };
}

std::optional<std::string> FaultOfNodes(const Config& config) {
  for (const std::string& name : config.cluster_nodes) {
    if (!transport::IsNodeName(name)) return "must list names of nodes: \"" + name + "\" is none";
  }
  return std::nullopt;
}

std::optional<std::string> FaultOfPeers(const Config& config) {
  if (!config.cluster_peers.contains(config.cluster_node)) return std::nullopt;
  return "must not name this node, \"" + config.cluster_node + "\"";
}

auto WholePieces(Bytes Config::*value) {
  return [value](const Config& config) -> std::optional<std::string> {
    const Bytes bytes = config.*value;
    if (bytes.RoundUp(kClusterPiece) == bytes && bytes <= core::kRangeMax) return std::nullopt;
    return "must be a multiple of " + core::SizeText(kClusterPiece) + " and at most " +
           core::SizeText(core::kRangeMax) + ", not " + core::SizeText(bytes);
  };
}

std::optional<std::string> FaultOfLease(const Config& config) {
  return FaultOutside(1, 600, core::Seconds(config.cluster_lease));
}

std::optional<std::string> FaultOfRecall(const Config& config) {
  return FaultOutside(0.1, 600, core::Seconds(config.cluster_recall));
}

std::optional<std::string> FaultOfTransport(const Config& config) {
  if (config.cluster_transport == "tls" || config.cluster_trusted_fabric) return std::nullopt;
  return "is \"ucx\", which neither encrypts nor asks for a key: whoever reaches its port owns "
         "this daemon. Set \"cluster.trusted_fabric\" to true if all who do are trusted, or use "
         "\"tls\"";
}

std::optional<std::string> FaultOfUcxDevices(const Config& config) {
  if (config.cluster_transport == "tls" || !config.cluster_ucx_devices.empty()) return std::nullopt;
  return "must name the devices that UCX may use, such as \"mlx5_0:1\" or \"eth0\": "
         "\"cluster.transport\" is \"ucx\"";
}

// Of other nodes.
std::map<std::string, Key> ClusterKeys() {
  using std::chrono::seconds;
  using C = Config;
  static constexpr const char* kSeconds = "a number of seconds";
  return {
      {"cluster.node", Checked(Text(&C::cluster_node), FaultOfNode)},
      {"cluster.listen", Checked(Text(&C::cluster_listen), FaultOfListen)},
      {"cluster.key", Checked(Text(&C::cluster_key), AnAbsolutePath(&C::cluster_key))},
      {"cluster.state", Checked(Text(&C::cluster_state), AnAbsolutePath(&C::cluster_state))},
      {"cluster.machine", Text(&C::cluster_machine)},
      {"cluster.nodes", Checked(Texts(&C::cluster_nodes), FaultOfNodes)},
      {"cluster.peers", Checked(Peers(&C::cluster_peers), FaultOfPeers)},
      {"cluster.etcd", Texts(&C::cluster_etcd)},
      {"cluster.etcd_ca", Text(&C::cluster_etcd_ca)},
      {"cluster.etcd_certificate", Text(&C::cluster_etcd_certificate)},
      {"cluster.etcd_key", Text(&C::cluster_etcd_key)},
      {"cluster.size", Checked(Size(&C::cluster_size), WholePieces(&C::cluster_size))},
      {"cluster.lend", Checked(Size(&C::cluster_lend), WholePieces(&C::cluster_lend))},
      {"cluster.lend_each",
       Checked(Size(&C::cluster_lend_each), WholePieces(&C::cluster_lend_each))},
      {"cluster.reserve", SizeOrDefault(&C::cluster_reserve)},
      {"cluster.copies", Whole(&C::cluster_copies, 1, 2)},
      {"cluster.lease_s", Checked(Time(&C::cluster_lease, seconds(1), kSeconds), FaultOfLease)},
      {"cluster.recall_s", Checked(Time(&C::cluster_recall, seconds(1), kSeconds), FaultOfRecall)},
      {"cluster.transport",
       Checked(OneOf(&C::cluster_transport, {"tls", "ucx"}), FaultOfTransport)},
      {"cluster.trusted_fabric", Flag(&C::cluster_trusted_fabric)},
      {"cluster.ucx_transports", Text(&C::cluster_ucx_transports)},
      {"cluster.ucx_devices", Checked(Text(&C::cluster_ucx_devices), FaultOfUcxDevices)},
  };
}

// Of the simulated devices.
std::map<std::string, Key> HostBackendKeys() {
  using std::chrono::microseconds;
  using C = Config;
  return {
      {"host_backend.devices", Whole(&C::host_devices, 1, 16)},
      {"host_backend.others", Checked(Size(&C::host_others), FaultOfOthers)},
      {"host_backend.utilization", Whole(&C::host_utilization, 0, 100)},
      {"host_backend.total", Size(&C::host_device_total)},
      {"host_backend.bytes_per_second", Rate(&C::host_bytes_per_second, "for no limit")},
      {"host_backend.peer_bytes_per_second", Rate(&C::host_peer_bytes_per_second, "for no limit")},
      {"host_backend.check_moves", Flag(&C::host_check_moves)},
      {"host_backend.latency_us",
       Time(&C::host_latency, microseconds(1), "a number of microseconds")},
  };
}

// All others.
std::map<std::string, Key> MakeKeys() {
  using std::chrono::microseconds;
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  using C = Config;
  static constexpr const char* kMicroseconds = "a number of microseconds";
  static constexpr const char* kMilliseconds = "a number of milliseconds";
  static constexpr const char* kSeconds = "a number of seconds";
  return {
      {"socket.path", Checked(Text(&C::socket_path), FaultOfPath)},
      {"socket.group", Text(&C::socket_group)},
      {"socket.mode", Whole(&C::socket_mode, 0, 0777, "a whole number from 0 to 0o777")},
      {"devices.backend", OneOf(&C::backend, {"auto", "cuda", "host"})},
      {"devices.uuids", Checked(Texts(&C::uuids), FaultOfUuids)},
      {"devices.page", Checked(Size(&C::page), FaultOfPage)},
      {"devices.usual_budget", Size(&C::usual_budget)},
      {"limits.device_budget", Live(Checked(Size(&C::device_budget), ABudget(&C::device_budget)))},
      {"limits.host_budget", Live(Checked(Size(&C::host_budget), ABudget(&C::host_budget)))},
      {"limits.peer_budget", Live(Checked(Size(&C::peer_budget), ABudget(&C::peer_budget)))},
      {"limits.file_budget", Live(Checked(Size(&C::file_budget), ABudget(&C::file_budget)))},
      {"limits.remote_budget", Live(Checked(Size(&C::remote_budget), ABudget(&C::remote_budget)))},
      {"limits.device_guarantee",
       Live(Checked(SizeOrDefault(&C::device_guarantee), FaultOfGuarantee))},
      {"limits.weight", Live(WeightOrDefault(&C::weight))},
      {"limits.priority", Live(OneOf(&C::priority, {"low", "normal", "high"}))},
      {"limits.visible_memory", Size(&C::visible_memory)},
      {"limits.device_reserve", Size(&C::device_reserve)},
      {"limits.clients_max", Whole(&C::clients_max, 1, 100000)},
      {"limits.single_user", Flag(&C::single_user)},
      {"limits.kept_sets", Size(&C::kept_sets)},
      {"host_pool.size", Checked(Size(&C::pool_size), FaultOfPool)},
      {"host_pool.step", Checked(Size(&C::pool_step), WholePages(&C::pool_step))},
      {"host_pool.ahead", Checked(Size(&C::pool_ahead), FaultOfAhead)},
      {"host_pool.numa_node", Whole(&C::pool_numa_node, -1, 1023)},
      {"peer_pool.size",
       Checked(Size(&C::peer_pool_size), WholePages(&C::peer_pool_size, /*or_none=*/true))},
      {"file_pool.path", Checked(Text(&C::file_pool_path), FaultOfFolder)},
      {"file_pool.size",
       Checked(Size(&C::file_pool_size), WholePages(&C::file_pool_size, /*or_none=*/true))},
      {"file_pool.read_bytes_per_second",
       Rate(&C::file_pool_read_bytes_per_second, "for what is measured")},
      {"file_pool.write_bytes_per_second",
       Rate(&C::file_pool_write_bytes_per_second, "for what is measured")},
      {"harvest.reserve", SizeOrDefault(&C::harvest_reserve)},
      {"harvest.sample_ms",
       Checked(Time(&C::harvest_sample, milliseconds(1), kMilliseconds), FaultOfSample)},
      {"harvest.rise_s", Checked(Time(&C::harvest_rise, seconds(1), kSeconds), FaultOfRise)},
      {"harvest.step", Size(&C::harvest_step)},
      {"harvest.size",
       Checked(Size(&C::harvest_size), WholePages(&C::harvest_size, /*or_none=*/true))},
      {"harvest.give_back_ms_per_gib",
       Checked(Time(&C::harvest_return, milliseconds(1), kMilliseconds), FaultOfHarvestReturn)},
      {"harvest.busy_bytes_per_second",
       Checked(Rate(&C::harvest_busy_bytes_per_second, "for no cap"), FaultOfBusyRate)},
      {"history.path", Checked(Text(&C::history_path), FaultOfHistory)},
      {"admission.max_slowdown",
       Checked(Number(&C::admission_max_slowdown, "a factor, or 0 for no cap"), FaultOfSlowdown)},
      {"admission.settle_s", Time(&C::admission_settle, seconds(1), kSeconds)},
      {"transfer.chunk", Checked(Size(&C::chunk), FaultOfChunk)},
      {"loop.spin_us", Time(&C::spin, microseconds(1), kMicroseconds)},
      {"loop.poll_us", Time(&C::poll, microseconds(1), kMicroseconds)},
      {"log.level", Live(OneOf(&C::log_level, {"trace", "debug", "info", "warn", "error"}))},
      {"shutdown.drain_s", Live(Time(&C::drain, seconds(1), kSeconds))},
      {"shutdown.restart_timeout_s", Live(Time(&C::restart_timeout, seconds(1), kSeconds))},
  };
}

const std::map<std::string, Key>& Keys() {
  static const auto* keys = [] {
    auto* all = new std::map<std::string, Key>(MakeKeys());
    all->merge(ClusterKeys());
    all->merge(HostBackendKeys());
    return all;
  }();
  return *keys;
}

Error At(const std::string& name, const toml::source_region& source, const std::string& what) {
  return {ErrorCode::kInvalidArgument,
          name + ":" + std::to_string(source.begin.line) + ": " + what};
}

// Keys of earlier releases that have no effect any more.
constexpr std::string_view kRemovedKeys[] = {"devices.memory",    "devices.slab",
                                             "planner.learn",     "planner.policy",
                                             "transfer.preclean", "transfer.prefetch"};

std::string UnknownKey(const std::string& key) {
  static const auto* const names = [] {
    auto* all = new std::vector<std::string>;
    for (const auto& [name, known] : Keys()) all->push_back(name);
    return all;
  }();
  const std::string meant = core::DidYouMean(key, *names);
  return "unknown key \"" + key + "\"" + (meant.empty() ? ";" : meant) +
         " deploy/ravenstored.toml lists them";
}

// What is wrong, by line.
using Faults = std::multimap<toml::source_index, Error>;

// ParseConfig, with all that is wrong. Values are compared with others only once all were read.
Faults Parse(const std::string& text, const std::string& name, Config* config) {
  toml::table root;
  try {
    root = toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    return {{error.source().begin.line,
             At(name, error.source(), "not TOML: " + std::string(error.description()))}};
  }
  Faults faults;
  const auto add = [&](const toml::source_region& source, const std::string& what) {
    faults.emplace(source.begin.line, At(name, source, what));
  };
  std::vector<std::pair<std::string, toml::source_region>> there;
  for (const auto& [section, content] : root) {
    const std::string section_name(section.str());
    const toml::table* table = content.as_table();
    if (table == nullptr) {
      add(content.source(), "\"" + section_name + "\" is outside every [section]");
      continue;
    }
    for (const auto& [key, node] : *table) {
      const std::string full = section_name + "." + std::string(key.str());
      const auto known = Keys().find(full);
      if (std::find(std::begin(kRemovedKeys), std::end(kRemovedKeys), full) !=
          std::end(kRemovedKeys)) {
        spdlog::warn("{}: \"{}\" has no effect any more; remove the line", name, full);
      } else if (known == Keys().end()) {
        add(node.source(), UnknownKey(full));
      } else if (const auto accepted = known->second.set(node, config)) {
        add(node.source(), "\"" + full + "\" must be " + *accepted);
      } else {
        there.emplace_back(full, node.source());
      }
    }
  }
  if (!faults.empty()) return faults;
  for (const auto& [full, source] : there) {
    const Key& key = Keys().at(full);
    if (key.fault == nullptr) continue;
    if (const auto fault = key.fault(*config)) add(source, "\"" + full + "\" " + *fault);
  }
  return faults;
}

core::Result<std::string> ReadFile(const std::string& path) {
  const auto fail = [&path](const std::string& what) {
    return Error{ErrorCode::kInvalidArgument, path + ": " + what};
  };
  // Without waiting for the writer of a FIFO.
  const ipc::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) return fail(std::string("cannot be read: ") + std::strerror(errno));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return fail("is no regular file");
  }
  std::string text(kFileMax + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t more = ::read(file.get(), text.data() + size, text.size() - size);
    if (more < 0) return fail(std::string("cannot be read: ") + std::strerror(errno));
    if (more == 0) break;
    size += static_cast<size_t>(more);
  }
  if (size > kFileMax) return fail("has more than 1 MiB: this is no configuration");
  text.resize(size);
  return text;
}

}  // namespace

core::Status ParseConfig(const std::string& text, const std::string& name, Config* config) {
  const Faults faults = Parse(text, name, config);
  if (faults.empty()) return core::Ok();
  return faults.begin()->second;
}

core::Status LoadConfig(const std::string& path, Config* config) {
  RAVEN_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseConfig(text, path, config);
}

std::vector<Error> FaultsOfFile(const std::string& path) {
  const core::Result<std::string> text = ReadFile(path);
  if (!text.ok()) return {text.error()};
  Config config;
  std::vector<Error> errors;
  for (const auto& [line, error] : Parse(*text, path, &config)) errors.push_back(error);
  if (!errors.empty()) return errors;
  // Of keys that are not there.
  if (const core::Status status = CheckConfig(config); !status.ok())
    errors.push_back({status.error().code, path + ": " + status.error().message});
  return errors;
}

core::Status CheckConfig(const Config& config) {
  for (const auto& [name, key] : Keys()) {
    if (key.fault == nullptr) continue;
    if (const auto fault = key.fault(config)) {
      return Error{ErrorCode::kInvalidArgument, "\"" + name + "\" " + *fault};
    }
  }
  return core::Ok();
}

ConfigChanges Adopt(const Config& wanted, Config* running) {
  ConfigChanges changes;
  for (const auto& [name, key] : Keys()) {
    if (key.same(wanted, *running)) continue;
    (key.live ? changes.adopted : changes.need_restart).push_back(name);
    if (key.live) key.copy(wanted, running);
  }
  return changes;
}

}  // namespace ravenstore::daemon
