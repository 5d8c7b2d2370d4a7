#include "client/ctl/render.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "client/ctl/json.h"
#include "client/ctl/render_devices.h"
#include "client/ctl/render_nodes.h"
#include "core/printable.h"
#include "core/size_text.h"
#include "core/text_table.h"
#include "proto/ledger_page.h"

namespace ravenstore::client::ctl {
const char* PriorityText(proto::TenantPriority priority) {
  switch (priority) {
    case proto::PRIORITY_LOW: return "low";
    case proto::PRIORITY_NORMAL: return "normal";
    case proto::PRIORITY_HIGH: return "high";
    default: return "";
  }
}

namespace {

using core::Printable;
using core::TextTable;
using Level = Finding::Level;

// More clients than these are left to `ravenctl clients`.
constexpr size_t kClientsInStatus = 10;

std::string Size(uint64_t bytes) {
  return core::SizeText(core::Bytes(bytes));
}

// "1 client", "3 clients".
std::string Counted(uint64_t number, const std::string& noun) {
  return std::to_string(number) + ' ' + noun + (number == 1 ? "" : "s");
}

std::string BackendText(const std::string& backend) {
  return backend == "host" ? "host (simulated device)" : backend;
}

std::string DevicesText(const proto::Welcome& welcome, size_t columns) {
  TextTable table("<<~>");
  table.Row({"DEVICE", "UUID", "NAME", "MEMORY"});
  for (int i = 0; i < welcome.devices_size(); ++i) {
    const proto::Device& device = welcome.devices(i);
    table.Row({std::to_string(i), Printable(device.uuid()), Printable(device.name()),
               Size(device.total_bytes())});
  }
  return table.Text(columns);
}

std::string RateText(uint64_t bytes_per_second) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f GB/s", static_cast<double>(bytes_per_second) / 1e9);
  return text;
}

// The devices' tiers come first, each with the rates of its link, as the planner reckons.
std::string TiersText(const proto::Welcome& welcome, const proto::Stats& stats, size_t columns) {
  TextTable table("<>>>>>");
  table.Row({"TIER", "USED", "HELD", "CAPACITY", "COPY IN", "COPY OUT"});
  for (int i = 0; i < stats.tiers_size(); ++i) {
    const proto::TierStats& tier = stats.tiers(i);
    const bool linked = i < welcome.devices_size();
    table.Row({Printable(tier.name()), Size(tier.used()), Size(tier.held()),
               tier.capacity() == 0 ? "-" : Size(tier.capacity()),
               linked ? RateText(welcome.devices(i).link_up()) : "-",
               linked ? RateText(welcome.devices(i).link_down()) : "-"});
  }
  return table.Text(columns);
}

// Another one than the normal is set.
bool IsSet(proto::TenantPriority priority) {
  return priority == proto::PRIORITY_LOW || priority == proto::PRIORITY_HIGH;
}

// Whether a weight or a priority is set for its user.
bool HasShare(const proto::ClientInfo& client) {
  return client.weight() != 0 || IsSet(client.priority());
}

std::string BudgetsText(std::vector<proto::ClientInfo> clients, size_t columns) {
  std::stable_sort(clients.begin(), clients.end(), [](const auto& a, const auto& b) {
    return a.device_bytes() + a.host_bytes() > b.device_bytes() + b.host_bytes();
  });
  const bool shares = std::any_of(clients.begin(), clients.end(), HasShare);
  TextTable table(shares ? ">~>>>>>>" : ">~>>>>");
  const auto row = [&](std::vector<std::string> cells, std::string weight, std::string priority) {
    if (shares) cells.insert(cells.end(), {std::move(weight), std::move(priority)});
    table.Row(std::move(cells));
  };
  row({"CLIENT", "NAME", "DEVICE", "OF BUDGET", "HOST", "OF BUDGET"}, "WEIGHT", "PRIORITY");
  for (size_t i = 0; i < std::min(clients.size(), kClientsInStatus); ++i) {
    const proto::ClientInfo& client = clients[i];
    row({std::to_string(client.client()), Printable(client.name()), Size(client.device_bytes()),
         Size(client.device_budget()), Size(client.host_bytes()), Size(client.host_budget())},
        std::to_string(std::max(client.weight(), 1u)), PriorityText(client.priority()));
  }
  std::string text = table.Text(columns);
  if (clients.size() > kClientsInStatus) {
    text += "and " + std::to_string(clients.size() - kClientsInStatus) +
            " more (ravenctl clients lists all)\n";
  }
  return text;
}

std::string CountersText(const proto::Stats& stats, size_t columns) {
  const auto number = [](uint64_t n) { return std::to_string(n); };
  TextTable table("<|");
  table.Row({"tensors", number(stats.tensors()) + " of " + Counted(stats.clients(), "client") +
                            ", " + number(stats.creates()) + " created, " + number(stats.frees()) +
                            " freed"});
  table.Row({"gets", number(stats.gets()) + ": hits " + PercentText(stats.hits(), stats.gets()) +
                         ", on the way " + PercentText(stats.late_hits(), stats.gets()) +
                         ", misses " + PercentText(stats.misses(), stats.gets())});
  table.Row({"moved", "out " + Size(stats.bytes_out()) + ", in " + Size(stats.bytes_in())});
  table.Row({"prefetches", number(stats.prefetches())});
  const uint64_t predictions = stats.predictions_right() + stats.predictions_wrong();
  if (predictions > 0) {
    table.Row({"predictions", number(predictions) + " calls, wrong " +
                                  PercentText(stats.predictions_wrong(), predictions)});
  }
  if (stats.discarded() > 0) {
    table.Row({"discarded", number(stats.discarded()) + " to be recomputed, " +
                                number(stats.recomputes()) + " of them asked for again"});
  }
  table.Row({"kept", number(stats.rescues()) + " pages, as a get was faster than their leaving"});
  table.Row({"stalls", DurationText(stats.stall_ns()) + " waited in all, " +
                           number(stats.waiting()) + " waiting now"});
  if (stats.pinned_locked() > 0) {
    table.Row({"pinned", Size(stats.pinned_bytes()) + " of blocks in " +
                             Size(stats.pinned_locked()) + " of pinned memory"});
  }
  table.Row({"daemon", "memory " + Size(stats.daemon_rss_bytes()) + ", longest pause " +
                           DurationText(stats.loop_pause_max_ns()) + ", p99.9 " +
                           DurationText(stats.loop_pause_p999_ns())});
  if (stats.log_dropped() > 0 || stats.bad_requests() > 0) {
    table.Row({"trouble", number(stats.log_dropped()) + " log entries dropped, " +
                              number(stats.bad_requests()) + " bad requests"});
  }
  return table.Text(columns);
}

void AddCounters(JsonWriter& json, const proto::Stats& stats) {
  json.BeginObject("counters")
      .Field("creates", stats.creates())
      .Field("frees", stats.frees())
      .Field("gets", stats.gets())
      .Field("hits", stats.hits())
      .Field("late_hits", stats.late_hits())
      .Field("misses", stats.misses())
      .Field("prefetches", stats.prefetches())
      .Field("predictions_right", stats.predictions_right())
      .Field("predictions_wrong", stats.predictions_wrong())
      .Field("discarded", stats.discarded())
      .Field("recomputes", stats.recomputes())
      .Field("rescues", stats.rescues())
      .Field("bytes_out", stats.bytes_out())
      .Field("bytes_in", stats.bytes_in())
      .Field("stall_ns", stats.stall_ns())
      .Field("log_dropped", stats.log_dropped())
      .Field("bad_requests", stats.bad_requests())
      .Field("loop_pause_max_ns", stats.loop_pause_max_ns())
      .Field("loop_pause_p999_ns", stats.loop_pause_p999_ns())
      .EndObject();
}

const char* LevelText(Level level) {
  switch (level) {
    case Level::kOk: return "OK";
    case Level::kWarn: return "WARN";
    case Level::kFail: return "FAIL";
  }
  return "?";
}

// Of a user for whom something is set.
std::string ShareText(const proto::LimitsSet& limits) {
  std::string text;
  if (limits.weight() != 0) text += ", weight " + std::to_string(limits.weight());
  if (IsSet(limits.priority()))
    text += std::string(", priority ") + PriorityText(limits.priority());
  return text;
}

}  // namespace

void AddClient(JsonWriter& json, std::string_view name, const proto::ClientInfo& client) {
  json.BeginObject(name)
      .Field("client", client.client())
      .Field("pid", client.pid())
      .Field("uid", client.uid())
      .Field("name", client.name())
      .Field("tensors", client.tensors())
      .Field("device_bytes", client.device_bytes())
      .Field("device_budget_bytes", client.device_budget())
      .Field("host_bytes", client.host_bytes())
      .Field("host_budget_bytes", client.host_budget())
      .Field("pinned_bytes", client.pinned_bytes())
      .Field("in_use_bytes", client.in_use_bytes())
      .Field("waiting", client.waiting())
      .Field("weight", client.weight())
      .Field("priority", PriorityText(client.priority()))
      .EndObject();
}

std::string DurationText(uint64_t nanoseconds) {
  char text[48];
  const double ns = static_cast<double>(nanoseconds);
  const uint64_t seconds = nanoseconds / 1'000'000'000;
  const auto whole = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  if (nanoseconds == 0) return "0 s";
  if (nanoseconds < 1000) {
    std::snprintf(text, sizeof(text), "%llu ns", whole(nanoseconds));
  } else if (nanoseconds < 1'000'000) {
    std::snprintf(text, sizeof(text), "%.1f µs", ns / 1e3);
  } else if (nanoseconds < 1'000'000'000) {
    std::snprintf(text, sizeof(text), "%.1f ms", ns / 1e6);
  } else if (seconds < 60) {
    std::snprintf(text, sizeof(text), "%.1f s", ns / 1e9);
  } else if (seconds < 3600) {
    std::snprintf(text, sizeof(text), "%llu min %02llu s", whole(seconds / 60),
                  whole(seconds % 60));
  } else if (seconds < 86400) {
    std::snprintf(text, sizeof(text), "%llu h %02llu min", whole(seconds / 3600),
                  whole(seconds / 60 % 60));
  } else {
    std::snprintf(text, sizeof(text), "%llu d %llu h", whole(seconds / 86400),
                  whole(seconds / 3600 % 24));
  }
  return text;
}

std::string PercentText(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f%%",
                100 * static_cast<double>(part) / static_cast<double>(whole));
  return text;
}

std::string StatusText(const proto::Welcome& welcome, const proto::Stats& stats,
                       const std::vector<proto::ClientInfo>& clients, size_t columns) {
  std::string text = "ravenstored " + Printable(welcome.daemon_version()) + ", backend " +
                     BackendText(Printable(welcome.backend())) + ", up " +
                     DurationText(stats.uptime_ns()) + "\n\n";
  text += DevicesText(welcome, columns) + '\n';
  if (stats.devices_size() > 0) text += DeviceUsesText(stats, columns) + '\n';
  text += TiersText(welcome, stats, columns) + '\n';
  if (stats.has_cluster()) text += ClusterLine(stats) + '\n';
  if (!clients.empty()) text += BudgetsText(clients, columns) + '\n';
  return text + CountersText(stats, columns);
}

std::string StatusJson(const proto::Welcome& welcome, const proto::Stats& stats,
                       const std::vector<proto::ClientInfo>& clients) {
  JsonWriter json;
  json.BeginObject();
  json.BeginObject("daemon")
      .Field("version", welcome.daemon_version())
      .Field("protocol", welcome.protocol_version())
      .Field("backend", welcome.backend())
      .Field("simulated", welcome.backend() == "host")
      .Field("uptime_ns", stats.uptime_ns())
      .Field("rss_bytes", stats.daemon_rss_bytes())
      .EndObject();
  json.BeginArray("devices");
  for (int i = 0; i < welcome.devices_size(); ++i) {
    const proto::Device& device = welcome.devices(i);
    json.BeginObject()
        .Field("uuid", device.uuid())
        .Field("name", device.name())
        .Field("total_bytes", device.total_bytes())
        .Field("arena_bytes", device.arena_bytes())
        .Field("link_up_bytes_per_s", device.link_up())
        .Field("link_down_bytes_per_s", device.link_down());
    if (i < stats.devices_size()) AddDeviceUse(json, stats.devices(i));
    json.EndObject();
  }
  json.EndArray().BeginArray("tiers");
  for (const proto::TierStats& tier : stats.tiers()) {
    json.BeginObject()
        .Field("name", tier.name())
        .Field("capacity_bytes", tier.capacity())
        .Field("held_bytes", tier.held())
        .Field("used_bytes", tier.used())
        .EndObject();
  }
  json.EndArray().BeginArray("budgets");
  for (const proto::ClientInfo& client : clients) AddClient(json, {}, client);
  json.EndArray()
      .Field("tensors", stats.tensors())
      .Field("clients", stats.clients())
      .Field("waiting", stats.waiting());
  AddCounters(json, stats);
  return json.EndObject().Take();
}

std::string TensorsText(const std::vector<proto::TensorInfo>& tensors, bool more, size_t columns) {
  TextTable table(">>><<<~");
  table.Row({"ID", "CLIENT", "SIZE", "TIER", "STATE", "DIRTY", "NAME"});
  uint64_t bytes = 0;
  for (const proto::TensorInfo& tensor : tensors) {
    bytes += tensor.bytes();
    table.Row({std::to_string(tensor.id()), std::to_string(tensor.client()), Size(tensor.bytes()),
               Printable(tensor.tier()), Printable(tensor.state()), tensor.dirty() ? "dirty" : "-",
               Printable(tensor.name())});
  }
  return table.Text(columns) + Counted(tensors.size(), "tensor") + ", " + Size(bytes) +
         (more ? "; there are more (--limit 0 shows all)\n" : "\n");
}

std::string SetsText(const std::vector<proto::SetRow>& sets, size_t columns) {
  TextTable table("~>>>>>|");
  table.Row({"SET", "VERSION", "CLIENT", "SIZE", "OPEN", "IN USE", "PROCESSES"});
  uint64_t bytes = 0;
  for (const proto::SetRow& set : sets) {
    bytes += set.bytes();
    std::string pids;
    for (const int32_t pid : set.pids()) pids += (pids.empty() ? "" : " ") + std::to_string(pid);
    table.Row({Printable(set.name()), std::to_string(set.version()), std::to_string(set.client()),
               Size(set.bytes()), std::to_string(set.opens()), std::to_string(set.uses()), pids});
  }
  return table.Text(columns) + Counted(sets.size(), "set") + ", " + Size(bytes) + "\n";
}

std::string SetsJson(const std::vector<proto::SetRow>& sets) {
  JsonWriter json;
  json.BeginObject().BeginArray("sets");
  for (const proto::SetRow& set : sets) {
    json.BeginObject()
        .Field("name", set.name())
        .Field("version", set.version())
        .Field("uid", set.uid())
        .Field("client", set.client())
        .Field("bytes", set.bytes())
        .Field("opens", set.opens())
        .Field("uses", set.uses())
        .BeginArray("pids");
    for (const int32_t pid : set.pids()) json.Field({}, static_cast<uint32_t>(pid));
    json.EndArray().EndObject();
  }
  return json.EndArray().EndObject().Take();
}

std::string TensorsJson(const std::vector<proto::TensorInfo>& tensors, bool more) {
  JsonWriter json;
  json.BeginObject().BeginArray("tensors");
  for (const proto::TensorInfo& tensor : tensors) {
    json.BeginObject()
        .Field("id", tensor.id())
        .Field("client", tensor.client())
        .Field("name", tensor.name())
        .Field("bytes", tensor.bytes())
        .Field("device", tensor.device())
        .Field("tier", tensor.tier())
        .Field("state", tensor.state())
        .Field("dirty", tensor.dirty())
        .EndObject();
  }
  return json.EndArray().Field("more", more).EndObject().Take();
}

std::string KindsText(const proto::LegacyDevice& device) {
  std::string text;
  for (int i = 0; i < device.kinds_size() && i < static_cast<int>(proto::kLegacyKinds); ++i) {
    if (device.kinds(i) == 0) continue;
    if (!text.empty()) text += ", ";
    text += std::string(proto::kLegacyKindNames[i]) + " " + Size(device.kinds(i));
  }
  return text.empty() ? "-" : text;
}

namespace {

std::string StateText(const proto::LegacyJob& job) {
  std::string text = job.paused() ? ", paused" : "";
  if (job.waiting() != 0) {
    text +=
        ", waits for " + Size(job.waiting_bytes()) + " as number " + std::to_string(job.waiting());
  }
  return text;
}

std::string LegacyText(const std::vector<proto::LegacyJob>& jobs, size_t columns) {
  TextTable owners(">>>~<");
  owners.Row({"JOB", "PID", "UID", "NAME", "MODE"});
  TextTable devices(">~>>~");
  devices.Row({"JOB", "DEVICE", "USED", "VISIBLE", "BY KIND"});
  for (const proto::LegacyJob& job : jobs) {
    const std::string number = std::to_string(job.client());
    owners.Row({number, std::to_string(job.pid()), std::to_string(job.uid()), Printable(job.name()),
                Printable(job.mode()) + StateText(job)});
    for (const proto::LegacyDevice& device : job.devices()) {
      devices.Row({number, Printable(device.uuid()), Size(device.used()),
                   device.visible_memory() == 0 ? "all" : Size(device.visible_memory()),
                   KindsText(device)});
    }
  }
  return owners.Text(columns) + "\n" + devices.Text(columns) + Counted(jobs.size(), "legacy job") +
         "\n";
}

}  // namespace

void AddLegacyJob(JsonWriter& json, std::string_view name, const proto::LegacyJob& job) {
  json.BeginObject(name)
      .Field("client", job.client())
      .Field("pid", job.pid())
      .Field("uid", job.uid())
      .Field("name", job.name())
      .Field("mode", job.mode())
      .Field("paused", job.paused())
      .Field("waiting", job.waiting())
      .Field("waiting_bytes", job.waiting_bytes())
      .BeginArray("devices");
  for (const proto::LegacyDevice& device : job.devices()) {
    json.BeginObject()
        .Field("uuid", device.uuid())
        .Field("used_bytes", device.used())
        .Field("served_bytes", device.served())
        .Field("visible_memory_bytes", device.visible_memory())
        .BeginObject("kinds");
    for (int i = 0; i < device.kinds_size() && i < static_cast<int>(proto::kLegacyKinds); ++i) {
      json.Field(proto::kLegacyKindNames[i], device.kinds(i));
    }
    json.EndObject().EndObject();
  }
  json.EndArray().EndObject();
}

std::string ClientsText(const std::vector<proto::ClientInfo>& clients,
                        const std::vector<proto::LegacyJob>& jobs, size_t columns) {
  TextTable all(">>>~>>>>>>>>");
  TextTable identities(">>>~>>");
  TextTable memory(">>>>>>>");
  const auto add = [&](const std::vector<std::string>& first,
                       const std::vector<std::string>& counts,
                       const std::vector<std::string>& bytes) {
    std::vector<std::string> row = first;
    row.insert(row.end(), counts.begin(), counts.end());
    identities.Row(row);
    row.insert(row.end(), bytes.begin(), bytes.end());
    all.Row(row);
    row = bytes;
    row.insert(row.begin(), first.front());
    memory.Row(row);
  };
  add({"CLIENT", "PID", "UID", "NAME"}, {"TENSORS", "WAITING"},
      {"DEVICE", "OF BUDGET", "HOST", "OF BUDGET", "PINNED", "IN USE"});
  for (const proto::ClientInfo& client : clients) {
    add({std::to_string(client.client()), std::to_string(client.pid()),
         std::to_string(client.uid()), Printable(client.name())},
        {std::to_string(client.tensors()), std::to_string(client.waiting())},
        {Size(client.device_bytes()), Size(client.device_budget()), Size(client.host_bytes()),
         Size(client.host_budget()), Size(client.pinned_bytes()), Size(client.in_use_bytes())});
  }
  const std::string text =
      (all.Width() <= columns ? all.Text(columns)
                              : identities.Text(columns) + "\n" + memory.Text(columns)) +
      Counted(clients.size(), "client") + "\n";
  return jobs.empty() ? text : text + "\n" + LegacyText(jobs, columns);
}

std::string ClientsJson(const std::vector<proto::ClientInfo>& clients,
                        const std::vector<proto::LegacyJob>& jobs) {
  JsonWriter json;
  json.BeginObject().BeginArray("clients");
  for (const proto::ClientInfo& client : clients) AddClient(json, {}, client);
  json.EndArray().BeginArray("legacy_jobs");
  for (const proto::LegacyJob& job : jobs) AddLegacyJob(json, {}, job);
  return json.EndArray().EndObject().Take();
}

std::string LimitsText(const std::string& subject, const proto::LimitsSet& limits) {
  if (limits.device_budget() == 0 && limits.visible_memory() != 0) {
    return Printable(subject) + ": visible memory " + Size(limits.visible_memory()) +
           " of each device\n";
  }
  const std::string visible =
      limits.visible_memory() == 0 ? "" : ", visible memory " + Size(limits.visible_memory());
  std::string pools;
  for (const proto::PoolBudget& budget : limits.pool_budgets())
    pools += ", " + Printable(budget.pool()) + " budget " + Size(budget.bytes());
  const std::string guarantee =
      limits.device_guarantee() == 0 ? "" : " (" + Size(limits.device_guarantee()) + " guaranteed)";
  return Printable(subject) + ": device budget " + Size(limits.device_budget()) + guarantee +
         " on each device, host budget " + Size(limits.host_budget()) + pools + visible +
         ShareText(limits) + '\n';
}

std::string LimitsJson(const std::string& subject, const proto::LimitsSet& limits) {
  JsonWriter json;
  json.BeginObject()
      .Field("who", subject)
      .Field("device_budget_bytes", limits.device_budget())
      .Field("host_budget_bytes", limits.host_budget())
      .Field("device_guarantee_bytes", limits.device_guarantee())
      .Field("weight", limits.weight())
      .Field("priority", PriorityText(limits.priority()))
      .Field("visible_memory_bytes", limits.visible_memory())
      .BeginArray("pool_budgets");
  for (const proto::PoolBudget& budget : limits.pool_budgets()) {
    json.BeginObject()
        .Field("pool", budget.pool())
        .Field("budget_bytes", budget.bytes())
        .EndObject();
  }
  return json.EndArray().EndObject().Take();
}

std::string OrderedText(const proto::OrderJob& order, const proto::JobOrdered& ordered) {
  std::string text;
  if (ordered.clients() > 0) {
    const bool one = ordered.clients() == 1;
    text = "job " + Printable(order.job()) + ": " + std::to_string(ordered.clients()) +
           (one ? " client " : " clients ");
    text += order.wakes() ? (one ? "is awake\n" : "are awake\n")
                          : (one ? "sleeps, " : "sleep, ") + Size(ordered.bytes()) +
                                " of device memory went back\n";
  }
  for (const uint32_t job : ordered.elastic_jobs()) {
    text += "elastic job " + std::to_string(job) + ": " +
            (order.wakes() ? "may hold device memory again\n"
                           : "gives its device memory up, and goes on in host memory if it does\n");
  }
  return text;
}

std::string OrderedJson(const proto::OrderJob& order, const proto::JobOrdered& ordered) {
  JsonWriter json;
  json.BeginObject()
      .Field("job", order.job())
      .Field("tag", order.tag())
      .Field("asleep", !order.wakes())
      .Field("clients", ordered.clients())
      .Field("bytes", ordered.bytes())
      .BeginArray("elastic_jobs");
  for (const uint32_t job : ordered.elastic_jobs()) json.Field("", job);
  return json.EndArray().EndObject().Take();
}

namespace {

// "2 copies: 8.0 MiB on b (lease 1.4 s), 8.0 MiB on c (lease 900.0 ms)".
std::string RemoteText(const proto::RemoteReplica& remote) {
  std::string text = remote.copies() == 0   ? "not all of it is there"
                     : remote.copies() == 1 ? "1 copy"
                                            : std::to_string(remote.copies()) + " copies";
  const char* before = ": ";
  for (const proto::RemotePart& part : remote.parts()) {
    const int64_t left = part.lease_left_ns();
    text += before + Size(part.bytes()) + " on " +
            (part.node().empty() ? "another node" : Printable(part.node())) + " (lease " +
            (left > 0 ? DurationText(static_cast<uint64_t>(left)) : "expired") + ")";
    before = ", ";
  }
  if (remote.moving()) text += "; on its way to another node";
  if (remote.recalled()) text += "; wanted back";
  return text;
}

}  // namespace

std::string ExplainedText(const proto::TensorExplained& explained, size_t columns) {
  const proto::TensorInfo& tensor = explained.tensor();
  TextTable table("<|");
  table.Row({"tensor", std::to_string(tensor.id()) + " " + Printable(tensor.name())});
  table.Row({"of", "client " + std::to_string(tensor.client()) + ", " + Size(tensor.bytes())});
  table.Row({"is", Printable(tensor.state()) + ", on " + Printable(tensor.tier()) +
                       (explained.discarded()    ? ", discarded: to be recomputed"
                        : explained.prefetched() ? ", brought back unasked and not used yet"
                                                 : "")});
  if (explained.has_remote()) table.Row({"on nodes", RemoteText(explained.remote())});
  table.Row(
      {"next use",
       Printable(explained.future()) +
           (explained.needed_in_ns() > 0 ? ": in " + DurationText(explained.needed_in_ns()) : "") +
           (explained.confidence() > 0
                ? ", " + std::to_string(std::lround(explained.confidence() * 100)) + "% sure"
                : "")});
  table.Row({"leaving",
             (explained.copy_out_ns() > 0 ? "a copy of " + DurationText(explained.copy_out_ns())
                                          : "no copy") +
                 "; back in " + DurationText(explained.copy_back_ns()) +
                 (explained.recompute_ns() > 0
                      ? ", or recomputed in " + DurationText(explained.recompute_ns())
                      : "")});
  char value[32];
  std::snprintf(value, sizeof(value), "%.3g", explained.value());
  // A daemon that knows no priorities says nothing of it.
  const std::string priority =
      explained.priority().empty() ? "" : "; " + Printable(explained.priority()) + " priority";
  table.Row(
      {"worth", (explained.value() > 0
                     ? std::string(value) + " (of those on the device the largest leaves first)"
                     : "it cannot leave now") +
                    priority});
  const uint64_t predictions = explained.predictions_right() + explained.predictions_wrong();
  table.Row({"gets", std::to_string(explained.gets()) + "; of its client's " +
                         std::to_string(predictions) + " predictions " +
                         PercentText(explained.predictions_wrong(), predictions) + " wrong"});
  return table.Text(columns);
}

namespace {

void AddRemote(JsonWriter& json, const proto::RemoteReplica& remote) {
  json.BeginObject("remote")
      .Field("copies", remote.copies())
      .Field("moving", remote.moving())
      .Field("recalled", remote.recalled())
      .BeginArray("parts");
  for (const proto::RemotePart& part : remote.parts()) {
    json.BeginObject()
        .Field("node", part.node())
        .Field("bytes", part.bytes())
        .Field("lease_left_s", static_cast<double>(part.lease_left_ns()) / 1e9)
        .EndObject();
  }
  json.EndArray().EndObject();
}

}  // namespace

std::string ExplainedJson(const proto::TensorExplained& explained) {
  const proto::TensorInfo& tensor = explained.tensor();
  char value[32];
  char confidence[32];
  std::snprintf(value, sizeof(value), "%.6g", explained.value());
  std::snprintf(confidence, sizeof(confidence), "%.3g", explained.confidence());
  JsonWriter json;
  json.BeginObject()
      .Field("tensor", tensor.id())
      .Field("name", tensor.name())
      .Field("client", tensor.client())
      .Field("bytes", tensor.bytes())
      .Field("state", tensor.state())
      .Field("tier", tensor.tier())
      .Field("dirty", tensor.dirty())
      .Field("future", explained.future())
      .Field("confidence", confidence)
      .Field("needed_in_ns", explained.needed_in_ns())
      .Field("copy_back_ns", explained.copy_back_ns())
      .Field("copy_out_ns", explained.copy_out_ns())
      .Field("recompute_ns", explained.recompute_ns())
      .Field("discarded", explained.discarded())
      .Field("value", value)
      .Field("priority", explained.priority())
      .Field("prefetched", explained.prefetched())
      .Field("gets", explained.gets())
      .Field("predictions_right", explained.predictions_right())
      .Field("predictions_wrong", explained.predictions_wrong());
  if (explained.has_remote()) AddRemote(json, explained.remote());
  return json.EndObject().Take();
}

std::string RecordedText(const std::string& file, const proto::Recorded& recorded) {
  std::string text = std::to_string(recorded.ops_total()) + " calls of " +
                     Counted(recorded.clients(), "client") + " recorded in " + Printable(file) +
                     "\n";
  if (recorded.dropped() > 0) {
    text += std::to_string(recorded.dropped()) +
            " calls came faster than they could be taken and are not in it\n";
  }
  return text;
}

std::string RecordedJson(const std::string& file, const proto::Recorded& recorded) {
  JsonWriter json;
  json.BeginObject()
      .Field("file", file)
      .Field("calls", recorded.ops_total())
      .Field("clients", recorded.clients())
      .Field("dropped", recorded.dropped())
      .EndObject();
  return json.Take();
}

std::string FindingsText(const std::vector<Finding>& findings, size_t columns) {
  size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.check.size());
  std::string text;
  for (const Finding& finding : findings) {
    const std::string level = LevelText(finding.level);
    text += level + std::string(6 - level.size(), ' ') + finding.check +
            std::string(width - finding.check.size() + 2, ' ') +
            core::Wrapped(Printable(finding.what), columns, 6 + width + 2) + '\n';
    if (!finding.advice.empty()) {
      text += std::string(6 + width + 2, ' ') + "-> " +
              core::Wrapped(Printable(finding.advice), columns, 6 + width + 5) + '\n';
    }
  }
  const auto count = [&findings](Level level) {
    return std::count_if(findings.begin(), findings.end(),
                         [level](const Finding& finding) { return finding.level == level; });
  };
  return text + std::to_string(count(Level::kOk)) + " ok, " +
         Counted(static_cast<uint64_t>(count(Level::kWarn)), "warning") + ", " +
         Counted(static_cast<uint64_t>(count(Level::kFail)), "failure") + '\n';
}

std::string FindingsJson(const std::vector<Finding>& findings) {
  JsonWriter json;
  json.BeginObject().Field("healthy", Healthy(findings)).BeginArray("findings");
  for (const Finding& finding : findings) {
    json.BeginObject()
        .Field("level", LevelText(finding.level))
        .Field("check", finding.check)
        .Field("what", finding.what)
        .Field("advice", finding.advice)
        .EndObject();
  }
  return json.EndArray().EndObject().Take();
}

std::string ErrorJson(const core::Error& error) {
  return JsonWriter()
      .BeginObject()
      .BeginObject("error")
      .Field("code", core::Name(error.code))
      .Field("message", error.message)
      .EndObject()
      .EndObject()
      .Take();
}

}  // namespace ravenstore::client::ctl
