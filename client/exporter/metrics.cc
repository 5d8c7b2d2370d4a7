#include "client/exporter/metrics.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "client/ctl/by_user.h"
#include "client/ctl/estimate_sums.h"
#include "core/saturating.h"

namespace ravenstore::client::exporter {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

using core::AddSaturating;
using core::SaturatingSum;

constexpr double kNanosecond = 1e-9;
constexpr char kOther[] = "other";

// The rows with the sums of each label value: of the first `most` rows, and of all others as
// "other". Rows with one label value become one row, since Prometheus refuses a page that has a
// series twice.
template <typename Sums>
std::map<std::string, Sums> Bounded(const std::vector<std::pair<std::string, Sums>>& rows,
                                    size_t most) {
  std::map<std::string, Sums> bounded;
  for (size_t i = 0; i < rows.size(); ++i)
    bounded[i < most ? rows[i].first : kOther].Add(rows[i].second);
  return bounded;
}

class Families {
 public:
  // What follows is of this one.
  Families& Gauge(const char* name, const char* help) {
    return Begin(name, help, MetricType::Gauge);
  }
  Families& Counter(const char* name, const char* help) {
    return Begin(name, help, MetricType::Counter);
  }
  template <typename Number>
  Families& Add(Number value, Labels labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    (made_.back().type == MetricType::Gauge ? metric.gauge.value : metric.counter.value) =
        static_cast<double>(value);
    made_.back().metric.push_back(std::move(metric));
    return *this;
  }
  std::vector<MetricFamily> Take() { return std::move(made_); }

 private:
  Families& Begin(const char* name, const char* help, MetricType type) {
    made_.push_back({std::string("ravenstore_") + name, help, type, {}});
    return *this;
  }

  std::vector<MetricFamily> made_;
};

void AddDaemon(const Seen& seen, Families* to) {
  const proto::Stats& stats = seen.now.stats;
  to->Gauge("daemon_info", "Always 1; the daemon's version and backend.")
      .Add(1, {{"version", seen.welcome.daemon_version()}, {"backend", seen.welcome.backend()}});
  to->Gauge("daemon_uptime_seconds", "Since the daemon began.")
      .Add(static_cast<double>(stats.uptime_ns()) * kNanosecond);
  to->Gauge("daemon_resident_bytes",
            "Private memory of the daemon's process, with a host pool of CUDA's in huge pages.")
      .Add(stats.daemon_rss_bytes());
  to->Gauge("loop_pause_max_seconds", "The planner loop's longest pass.")
      .Add(static_cast<double>(stats.loop_pause_max_ns()) * kNanosecond);
  to->Gauge("loop_pause_p999_seconds", "The 99.9th percentile of the planner loop's passes.")
      .Add(static_cast<double>(stats.loop_pause_p999_ns()) * kNanosecond);
  to->Counter("log_entries_dropped_total", "Accesses that found a client's log full.")
      .Add(stats.log_dropped());
  to->Counter("bad_requests_total", "Of clients that ask for what makes no sense.")
      .Add(stats.bad_requests());
}

void AddMemory(const Seen& seen, Families* to) {
  const auto tiers = [&](const char* name, const char* help,
                         uint64_t (proto::TierStats::*value)() const) {
    to->Gauge(name, help);
    for (const proto::TierStats& tier : seen.now.stats.tiers())
      to->Add((tier.*value)(), {{"tier", tier.name()}});
  };
  tiers("tier_capacity_bytes", "What the store may use there.", &proto::TierStats::capacity);
  tiers("tier_held_bytes", "Memory that the store holds there.", &proto::TierStats::held);
  tiers("tier_used_bytes", "Of tensors there.", &proto::TierStats::used);
  to->Gauge("pinned_bytes", "Of blocks of pinned memory that clients hold.")
      .Add(seen.now.stats.pinned_bytes());
  to->Gauge("pinned_locked_bytes", "Of the pinned slabs that those blocks lie in.")
      .Add(seen.now.stats.pinned_locked());
  to->Gauge("link_bytes_per_second", "What a device's link carries, as measured at the start.");
  for (const proto::Device& device : seen.welcome.devices()) {
    to->Add(device.link_up(), {{"device", device.uuid()}, {"direction", "in"}});
    to->Add(device.link_down(), {{"device", device.uuid()}, {"direction", "out"}});
  }
}

// Of devices of which something is harvested.
void AddHarvests(const Seen& seen, Families* to) {
  std::vector<std::pair<std::string, const proto::DeviceUse*>> devices;
  const proto::Stats& stats = seen.now.stats;
  for (int i = 0; i < std::min(stats.devices_size(), seen.welcome.devices_size()); ++i) {
    if (stats.devices(i).has_harvest())
      devices.emplace_back(seen.welcome.devices(i).uuid(), &stats.devices(i));
  }
  const auto seconds = [](uint64_t ns) { return static_cast<double>(ns) / 1e9; };
  to->Gauge("harvest_bytes", "Harvested of a device; of that of tensors; and what may be.");
  for (const auto& [uuid, use] : devices) {
    to->Add(use->peer_pool(), {{"device", uuid}, {"of", "held"}});
    to->Add(use->harvest().used(), {{"device", uuid}, {"of", "used"}});
    to->Add(use->harvest().most(), {{"device", uuid}, {"of", "most"}});
  }
  to->Counter("harvest_given_back_bytes_total", "Of what was harvested.");
  for (const auto& [uuid, use] : devices) to->Add(use->harvest().bytes(), {{"device", uuid}});
  to->Counter("harvest_give_backs_total", "By whether they kept their deadline.");
  for (const auto& [uuid, use] : devices) {
    const uint64_t late = use->harvest().missed();
    const uint64_t all = std::max(use->harvest().returns(), late);
    to->Add(all - late, {{"device", uuid}, {"late", "no"}});
    to->Add(late, {{"device", uuid}, {"late", "yes"}});
  }
  to->Gauge("harvest_give_back_last_seconds", "What the last give-back took.");
  for (const auto& [uuid, use] : devices)
    to->Add(seconds(use->harvest().last_ns()), {{"device", uuid}});
  to->Gauge("harvest_give_back_longest_seconds", "And the longest.");
  for (const auto& [uuid, use] : devices)
    to->Add(seconds(use->harvest().longest_ns()), {{"device", uuid}});
}

// Whatever is known of the devices' memory.
void AddCompute(const Seen& seen, Families* to) {
  const proto::Stats& stats = seen.now.stats;
  const int devices = std::min(stats.devices_size(), seen.welcome.devices_size());
  to->Gauge("device_busy", "1 if the device computes, or did lately, or does not say; else 0.");
  for (int i = 0; i < devices; ++i)
    to->Add(stats.devices(i).busy() ? 1 : 0, {{"device", seen.welcome.devices(i).uuid()}});
  to->Gauge("device_utilization_ratio", "Of the last moments, in which kernels ran on the device.");
  for (int i = 0; i < devices; ++i) {
    if (stats.devices(i).has_utilization())
      to->Add(stats.devices(i).utilization() / 100.0, {{"device", seen.welcome.devices(i).uuid()}});
  }
}

struct ProcessSum {
  uint64_t bytes = 0;
  void Add(const ProcessSum& other) { AddSaturating(other.bytes, &bytes); }
};

// By process id.
std::map<std::string, ProcessSum> LargestProcesses(const proto::DeviceUse& use) {
  std::vector<std::pair<std::string, ProcessSum>> rows;
  for (const proto::DeviceProcess& process : use.processes())
    rows.emplace_back(std::to_string(process.pid()), ProcessSum{process.bytes()});
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  return Bounded(rows, kProcessesMax);
}

// Of devices whose use is known.
void AddDevices(const Seen& seen, bool with_processes, Families* to) {
  std::vector<std::pair<std::string, const proto::DeviceUse*>> devices;
  const proto::Stats& stats = seen.now.stats;
  for (int i = 0; i < std::min(stats.devices_size(), seen.welcome.devices_size()); ++i) {
    if (stats.devices(i).fault().empty())
      devices.emplace_back(seen.welcome.devices(i).uuid(), &stats.devices(i));
  }
  to->Gauge("device_memory_bytes", "By whose it is, free memory included.");
  for (const auto& [uuid, use] : devices) {
    to->Add(use->store(), {{"device", uuid}, {"of", "store"}});
    to->Add(use->peer_pool(), {{"device", uuid}, {"of", "peer pool"}});
    to->Add(use->context(), {{"device", uuid}, {"of", "context"}});
    to->Add(use->jobs(), {{"device", uuid}, {"of", "jobs"}});
    to->Add(use->others(), {{"device", uuid}, {"of", "others"}});
    to->Add(use->free(), {{"device", uuid}, {"of", "free"}});
  }
  to->Gauge("device_least_free_bytes", "What was free of a device in the last minute at least.");
  for (const auto& [uuid, use] : devices) to->Add(use->least_free(), {{"device", uuid}});
  to->Gauge("device_idle_bytes", "Of what is free: beyond the reserve, and for a while.");
  for (const auto& [uuid, use] : devices) to->Add(use->idle(), {{"device", uuid}});
  AddHarvests(seen, to);
  if (!with_processes) return;
  to->Gauge("device_process_bytes",
            "Of the largest processes beside the daemon, as the driver says.");
  for (const auto& [uuid, use] : devices) {
    for (const auto& [pid, process] : LargestProcesses(*use))
      to->Add(process.bytes, {{"device", uuid}, {"pid", pid}});
  }
}

void AddWork(const proto::Stats& stats, Families* to) {
  to->Gauge("tensors", "In the store.").Add(stats.tensors());
  to->Gauge("clients", "Attached.").Add(stats.clients());
  to->Gauge("requests_waiting", "For room, or for bytes that are on their way.")
      .Add(stats.waiting());
  to->Counter("creates_total", "Tensors that were made.").Add(stats.creates());
  to->Counter("frees_total", "Tensors that were freed.").Add(stats.frees());
  to->Counter("gets_total", "By where the bytes were: on the device, on their way, elsewhere.")
      .Add(stats.hits(), {{"found", "device"}})
      .Add(stats.late_hits(), {{"found", "on the way"}})
      .Add(stats.misses(), {{"found", "away"}});
  to->Counter("moved_bytes_total", "Copied into devices and out of them.")
      .Add(stats.bytes_in(), {{"direction", "in"}})
      .Add(stats.bytes_out(), {{"direction", "out"}});
  to->Counter("prefetches_total", "Tensors that were brought before they were asked for.")
      .Add(stats.prefetches());
  to->Counter("rescues_total", "Pages that stayed because a get was faster.").Add(stats.rescues());
  to->Counter("discards_total", "Tensors that left to be computed again.").Add(stats.discarded());
  to->Counter("recomputes_total", "Of these, those that were asked for again.")
      .Add(stats.recomputes());
  to->Counter("predictions_total", "Next uses that were learned, by whether they came true.")
      .Add(stats.predictions_right(), {{"came_true", "yes"}})
      .Add(stats.predictions_wrong(), {{"came_true", "no"}});
  to->Counter("stall_seconds_total", "In which requests waited for the daemon's answer.")
      .Add(static_cast<double>(stats.stall_ns()) * kNanosecond);
}

// By name. Users with the most bytes come first; only their names are looked up.
std::map<std::string, ctl::UserSums> LargestUsers(const ctl::Snapshot& now,
                                                  const NameOfUser& name_of) {
  const auto bytes = [](const ctl::UserSums& user) {
    return SaturatingSum(SaturatingSum(user.device, user.host),
                         SaturatingSum(user.pinned, user.of_jobs));
  };
  const auto by_uid = ctl::ByUser(now.clients, now.jobs);
  std::vector<std::pair<uid_t, ctl::UserSums>> users(by_uid.begin(), by_uid.end());
  std::stable_sort(users.begin(), users.end(),
                   [&](const auto& a, const auto& b) { return bytes(a.second) > bytes(b.second); });
  std::vector<std::pair<std::string, ctl::UserSums>> rows;
  for (const auto& [uid, user] : users)
    rows.emplace_back(rows.size() < kUsersMax ? name_of(uid) : kOther, user);
  return Bounded(rows, kUsersMax);
}

void AddUsers(const ctl::Snapshot& now, const NameOfUser& name_of, Families* to) {
  const auto users = LargestUsers(now, name_of);
  to->Gauge("user_bytes", "What a user's clients and jobs hold; what is in use is on devices.");
  for (const auto& [name, user] : users) {
    to->Add(user.device, {{"user", name}, {"place", "device"}});
    to->Add(user.in_use, {{"user", name}, {"place", "in use"}});
    to->Add(user.host, {{"user", name}, {"place", "host"}});
    to->Add(user.pinned, {{"user", name}, {"place", "pinned"}});
    to->Add(user.of_jobs, {{"user", name}, {"place", "jobs"}});
  }
  to->Gauge("user_clients", "A user's attached clients.");
  for (const auto& [name, user] : users) to->Add(user.clients, {{"user", name}});
  to->Gauge("user_requests_waiting", "Of a user's clients.");
  for (const auto& [name, user] : users) to->Add(user.waiting, {{"user", name}});
  to->Gauge("user_jobs", "A user's jobs under the interceptor.");
  for (const auto& [name, user] : users) to->Add(user.jobs, {{"user", name}});
}

// `devices`: those of the store. What jobs call by any other name is one series, "other".
void AddJobs(const std::vector<proto::LegacyJob>& jobs, const std::set<std::string>& devices,
             Families* to) {
  std::map<std::string, uint64_t> by_mode;
  std::map<std::string, std::pair<uint64_t, uint64_t>> by_device;  // used, served by the store
  uint64_t waiting = 0, paused = 0;
  for (const proto::LegacyJob& job : jobs) {
    ++by_mode[job.mode()];
    waiting += job.waiting() > 0 ? 1 : 0;
    paused += job.paused() ? 1 : 0;
    for (const proto::LegacyDevice& device : job.devices()) {
      auto& sums = by_device[devices.contains(device.uuid()) ? device.uuid() : "other"];
      AddSaturating(device.used(), &sums.first);
      AddSaturating(device.served(), &sums.second);
    }
  }
  to->Gauge("jobs", "Under the interceptor.");
  for (const auto& [mode, count] : by_mode) to->Add(count, {{"mode", mode}});
  to->Gauge("jobs_waiting", "In the queue for a device.").Add(waiting);
  to->Gauge("jobs_paused", "That hold no device memory until they are resumed.").Add(paused);
  to->Gauge("jobs_device_bytes", "Device memory that jobs hold; of it, in the store's pages.");
  for (const auto& [device, bytes] : by_device) {
    to->Add(bytes.first, {{"device", device}, {"of", "all"}});
    to->Add(bytes.second, {{"device", device}, {"of", "served"}});
  }
}

// How right estimates were, by source.
void AddEstimates(const std::vector<proto::JobRecord>& records, Families* to) {
  to->Gauge("commands_remembered", "Of which the daemon knows what they took.").Add(records.size());
  const auto sums = ctl::SumEstimates(records);
  to->Gauge("estimates", "The last one of each command, by source.");
  for (const auto& [source, sum] : sums) to->Add(sum.count, {{"source", source}});
  to->Gauge("estimates_under", "Of these: the job took more than was reserved.");
  for (const auto& [source, sum] : sums) to->Add(sum.under, {{"source", source}});
  to->Gauge("estimate_error_ratio", "Their mean error, beside what jobs took.");
  for (const auto& [source, sum] : sums) to->Add(sum.mean_error, {{"source", source}});
  to->Gauge("estimate_reserved_over_used_ratio", "What was reserved by them over what was used.");
  for (const auto& [source, sum] : sums) to->Add(sum.reserved_over_used, {{"source", source}});
}

struct NodeSums {
  uint64_t borrowed = 0;
  uint64_t lent = 0;
  uint64_t out = 0;
  uint64_t in = 0;
  // The shortest; not there without such a loan.
  std::optional<int64_t> lease_left_ns = std::nullopt;
  std::optional<int64_t> lent_lease_left_ns = std::nullopt;

  static void Shorten(std::optional<int64_t> other, std::optional<int64_t>* left) {
    if (other) *left = std::min(left->value_or(*other), *other);
  }
  void Add(const NodeSums& other) {
    AddSaturating(other.borrowed, &borrowed);
    AddSaturating(other.lent, &lent);
    AddSaturating(other.out, &out);
    AddSaturating(other.in, &in);
    Shorten(other.lease_left_ns, &lease_left_ns);
    Shorten(other.lent_lease_left_ns, &lent_lease_left_ns);
  }
};

// By name. The first names are kept, whatever the nodes hold: a counter must not move between
// two series.
std::map<std::string, NodeSums> FirstNodes(const proto::ClusterUse& cluster) {
  std::vector<std::pair<std::string, NodeSums>> rows;
  for (const proto::NodeUse& node : cluster.nodes()) {
    NodeSums sums{.borrowed = node.borrowed(),
                  .lent = node.lent(),
                  .out = SaturatingSum(node.written(), node.read_here()),
                  .in = SaturatingSum(node.read(), node.written_here())};
    if (node.borrowed() > 0) sums.lease_left_ns = node.lease_left_ns();
    if (node.lent() > 0) sums.lent_lease_left_ns = node.lent_lease_left_ns();
    rows.emplace_back(node.name(), sums);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return Bounded(rows, kNodesMax);
}

void AddNodes(const proto::ClusterUse& cluster, Families* to) {
  const auto nodes = FirstNodes(cluster);
  to->Gauge("cluster_node_bytes", "Borrowed of each other node, and lent to it.");
  for (const auto& [name, node] : nodes) {
    to->Add(node.borrowed, {{"node", name}, {"of", "borrowed"}});
    to->Add(node.lent, {{"node", name}, {"of", "lent"}});
  }
  to->Gauge("cluster_lease_left_seconds", "Of each loan; 0 or less: it expired.");
  for (const auto& [name, node] : nodes) {
    for (const auto& [of, left] :
         {std::pair("borrowed", node.lease_left_ns), std::pair("lent", node.lent_lease_left_ns)}) {
      if (left) to->Add(static_cast<double>(*left) * kNanosecond, {{"node", name}, {"of", of}});
    }
  }
  to->Counter("cluster_moved_bytes_total", "To each other node, and from there.");
  for (const auto& [name, node] : nodes) {
    to->Add(node.out, {{"node", name}, {"direction", "out"}});
    to->Add(node.in, {{"node", name}, {"direction", "in"}});
  }
}

// Of this node and the others.
void AddCluster(const Seen& seen, Families* to) {
  if (!seen.now.stats.has_cluster()) return;
  const proto::ClusterUse& cluster = seen.now.stats.cluster();
  to->Gauge("cluster_bytes", "Borrowed of other nodes, and lent to them; and the most of each.")
      .Add(cluster.held(), {{"of", "borrowed"}})
      .Add(cluster.size(), {{"of", "borrowed_most"}})
      .Add(cluster.lent(), {{"of", "lent"}})
      .Add(cluster.lendable(), {{"of", "lent_most"}});
  to->Gauge("cluster_bytes_per_second", "From and to other nodes, as measured last.")
      .Add(cluster.bytes_per_second());
  to->Gauge("cluster_nodes",
            "Others that are known, and of them those that this one is connected to.")
      .Add(cluster.nodes_known(), {{"state", "known"}})
      .Add(cluster.nodes_connected(), {{"state", "connected"}});
  to->Gauge("cluster_discovery_fails", "1 if it is not registered or etcd does not answer.");
  if (!cluster.discovery().empty()) to->Add(cluster.discovery_fails() ? 1 : 0);
  to->Counter("cluster_pieces_lost_total", "Of this node: what lay there alone is lost.")
      .Add(cluster.pieces_lost());
  to->Counter("cluster_recalls_total", "Pieces that were asked back of others.")
      .Add(cluster.pieces_recalled());
  to->Counter("cluster_recalls_late_total", "Of them those that were not given back in time.")
      .Add(cluster.pieces_taken());
  to->Counter("cluster_loans_lost_total", "Of this node; and of others that fell silent.")
      .Add(cluster.loans_lost());
  AddNodes(cluster, to);
}

}  // namespace

std::vector<MetricFamily> MetricsOf(const std::optional<Seen>& seen, const NameOfUser& name_of) {
  Families made;
  made.Gauge("up", "1 if the daemon answered, else 0.").Add(seen ? 1 : 0);
  if (!seen) return made.Take();
  AddDaemon(*seen, &made);
  AddMemory(*seen, &made);
  AddCompute(*seen, &made);
  AddDevices(*seen, /*with_processes=*/name_of != nullptr, &made);
  AddCluster(*seen, &made);
  AddWork(seen->now.stats, &made);
  std::set<std::string> devices;
  for (const proto::Device& device : seen->welcome.devices()) devices.insert(device.uuid());
  AddJobs(seen->now.jobs, devices, &made);
  AddEstimates(seen->now.records, &made);
  if (name_of) AddUsers(seen->now, name_of, &made);
  return made.Take();
}

}  // namespace ravenstore::client::exporter
