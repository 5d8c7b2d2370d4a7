#include "client/ctl/render_devices.h"

#include <cstdint>
#include <utility>

#include "client/ctl/render.h"
#include "core/printable.h"
#include "core/size_text.h"
#include "core/text_table.h"

namespace ravenstore::client::ctl {
namespace {

using core::Printable;
using core::TextTable;

// A driver that does not answer leaves the figures as they were.
constexpr uint64_t kStale = 15'000'000'000;  // nanoseconds: the longest interval, and half of it

std::string Size(uint64_t bytes) {
  return core::SizeText(core::Bytes(bytes));
}

// "4711 12.0 GiB, 4712".
std::string ProcessesText(const proto::DeviceUse& use) {
  std::string text;
  for (const proto::DeviceProcess& process : use.processes()) {
    text += (text.empty() ? "" : ", ") + std::to_string(process.pid());
    if (process.bytes() != 0) text += ' ' + Size(process.bytes());
  }
  return text;
}

std::string OwnersText(const proto::DeviceUse& use) {
  std::string text = Size(use.total()) + ": store " + Size(use.store());
  for (const auto& [what, bytes] :
       {std::pair(use.has_harvest() ? ", harvested " : ", peer pool ", use.peer_pool()),
        std::pair(", the daemon's context ", use.context()),
        std::pair(", legacy jobs ", use.jobs())}) {
    if (bytes != 0) text += what + Size(bytes);
  }
  const std::string compute = "; compute " + ComputeText(use);
  if (!use.fault().empty())
    return text + compute + "; the rest is not known: " + Printable(use.fault());
  return text + ", others " + Size(use.others()) + ", free " + Size(use.free()) + " (at least " +
         Size(use.least_free()) + " in the last minute), of it idle " + Size(use.idle()) + compute +
         (use.age_ns() > kStale ? "; seen " + DurationText(use.age_ns()) + " ago" : "");
}

}  // namespace

std::string ComputeText(const proto::DeviceUse& use) {
  const std::string text = use.busy() ? "busy" : "idle";
  return use.has_utilization() ? text + ' ' + std::to_string(use.utilization()) + '%' : text;
}

std::string DeviceUsesText(const proto::Stats& stats, size_t columns) {
  TextTable table("<|");
  for (int i = 0; i < stats.devices_size(); ++i) {
    const proto::DeviceUse& use = stats.devices(i);
    table.Row({"device " + std::to_string(i), OwnersText(use)});
    if (use.processes_size() > 0)
      table.Row({"", "its largest processes, as the driver names them: " + ProcessesText(use)});
  }
  return table.Text(columns);
}

std::string DeviceUsesTable(const proto::Stats& stats, size_t columns) {
  if (stats.devices_size() == 0) return "";
  TextTable table("<>>>>>>~");
  table.Row({"DEVICE", "MEMORY", "STORE", "JOBS", "OTHERS", "FREE", "IDLE", "PROCESSES"});
  for (int i = 0; i < stats.devices_size(); ++i) {
    const proto::DeviceUse& use = stats.devices(i);
    const auto known = [&](uint64_t bytes) { return use.fault().empty() ? Size(bytes) : "-"; };
    table.Row({std::to_string(i) + (use.busy() ? " busy" : ""), Size(use.total()),
               Size(use.store() + use.peer_pool() + use.context()), Size(use.jobs()),
               known(use.others()), known(use.free()), known(use.idle()), ProcessesText(use)});
  }
  return table.Text(columns);
}

void AddDeviceUse(JsonWriter& json, const proto::DeviceUse& use) {
  json.Field("busy", use.busy());
  if (use.has_utilization()) json.Field("utilization_percent", use.utilization());
  json.BeginObject("memory")
      .Field("fault", use.fault())
      .Field("store_bytes", use.store())
      .Field("peer_pool_bytes", use.peer_pool())
      .Field("context_bytes", use.context())
      .Field("jobs_bytes", use.jobs())
      .Field("others_bytes", use.others())
      .Field("free_bytes", use.free())
      .Field("least_free_bytes", use.least_free())
      .Field("idle_bytes", use.idle())
      .Field("age_ns", use.age_ns())
      .BeginArray("processes");
  for (const proto::DeviceProcess& process : use.processes()) {
    json.BeginObject().Field("pid", process.pid()).Field("bytes", process.bytes()).EndObject();
  }
  json.EndArray().EndObject();
}

}  // namespace ravenstore::client::ctl
