#include "client/ctl/render_harvest.h"

#include <cstdio>
#include <utility>

#include "client/ctl/json.h"
#include "client/ctl/render_devices.h"
#include "core/printable.h"
#include "core/size_text.h"
#include "core/text_table.h"

namespace ravenstore::client::ctl {
namespace {

std::string Size(uint64_t bytes) {
  return core::SizeText(core::Bytes(bytes));
}
std::string MillisecondsText(uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f ms", static_cast<double>(ns) / 1e6);
  return text;
}

template <typename Each>
void ForEach(const proto::Stats& stats, std::optional<uint32_t> device, Each each) {
  for (int i = 0; i < stats.devices_size(); ++i) {
    if (!stats.devices(i).has_harvest()) continue;
    if (!device || std::cmp_equal(*device, i)) each(i, stats.devices(i));
  }
}

}  // namespace

std::string HarvestText(const proto::Stats& stats, std::optional<uint32_t> device, size_t columns) {
  core::TextTable table("<>>>>>>>>>");
  table.Row({"DEVICE", "OWNER", "HARVESTED", "USED", "MOST", "GIVE-BACKS", "GIVEN", "LATE", "LAST",
             "LONGEST"});
  bool any = false;
  ForEach(stats, device, [&](int number, const proto::DeviceUse& use) {
    const proto::HarvestUse& harvest = use.harvest();
    table.Row({std::to_string(number), ComputeText(use), Size(use.peer_pool()),
               Size(harvest.used()), Size(harvest.most()), std::to_string(harvest.returns()),
               Size(harvest.bytes()), std::to_string(harvest.missed()),
               MillisecondsText(harvest.last_ns()), MillisecondsText(harvest.longest_ns())});
    any = true;
  });
  if (any) return table.Text(columns);
  const std::string of_device = device ? " of device " + std::to_string(*device) : "";
  return "nothing is harvested" + of_device +
         ": harvest.size in the daemon's configuration says how much may be, of several devices\n";
}

std::string HarvestJson(const proto::Stats& stats, std::optional<uint32_t> device) {
  JsonWriter json;
  json.BeginObject().BeginArray("devices");
  ForEach(stats, device, [&](int number, const proto::DeviceUse& use) {
    const proto::HarvestUse& harvest = use.harvest();
    json.BeginObject()
        .Field("device", static_cast<uint64_t>(number))
        .Field("busy", use.busy())
        .Field("harvested_bytes", use.peer_pool())
        .Field("used_bytes", harvest.used())
        .Field("most_bytes", harvest.most())
        .Field("give_backs", harvest.returns())
        .Field("given_bytes", harvest.bytes())
        .Field("late", harvest.missed())
        .Field("last_ns", harvest.last_ns())
        .Field("longest_ns", harvest.longest_ns())
        .EndObject();
  });
  return json.EndArray().EndObject().Take();
}

std::string ReturnedText(const proto::ReturnHarvest& wanted,
                         const proto::HarvestReturned& returned) {
  const std::string text = "device " + std::to_string(wanted.device()) + ": " +
                           Size(returned.bytes()) + " given back in " +
                           MillisecondsText(returned.took_ns());
  if (returned.late().empty()) return text + "\n";
  return text + ", of " + Size(wanted.bytes()) + ": " + core::Printable(returned.late()) +
         "; the rest follows\n";
}

std::string ReturnedJson(const proto::HarvestReturned& returned) {
  return JsonWriter()
      .BeginObject()
      .Field("given_bytes", returned.bytes())
      .Field("took_ns", returned.took_ns())
      .Field("late", returned.late())
      .EndObject()
      .Take();
}

}  // namespace ravenstore::client::ctl
