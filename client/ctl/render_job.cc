#include "client/ctl/render_job.h"

#include <algorithm>
#include <limits>

#include "client/ctl/json.h"
#include "core/printable.h"
#include "core/size_text.h"
#include "core/text_table.h"
#include "proto/ledger_page.h"

namespace ravenstore::client::ctl {
namespace {

using core::Printable;
using core::TextTable;

// Of the largest ranges; JSON has all that the job showed.
constexpr int kRangesShown = 12;

std::string Size(uint64_t bytes) {
  return core::SizeText(core::Bytes(bytes));
}

// Rounded up, as an option takes it.
std::string WholeMiB(uint64_t bytes) {
  return std::to_string((bytes >> 20) + (bytes % (1 << 20) == 0 ? 0 : 1)) + "MiB";
}

uint64_t Sum(uint64_t a, uint64_t b) {
  return a > std::numeric_limits<uint64_t>::max() - b ? std::numeric_limits<uint64_t>::max()
                                                      : a + b;
}

uint64_t Less(uint64_t from, uint64_t what) {
  return from > what ? from - what : 0;
}

const proto::LegacyDevice* HeldOf(const proto::LegacyJob& job, const std::string& uuid) {
  for (const proto::LegacyDevice& device : job.devices()) {
    if (device.uuid() == uuid) return &device;
  }
  return nullptr;
}

// Device memory that the job holds in addition to the engine's.
uint64_t OthersOf(const JobView& view, const proto::ElasticDevice& device) {
  const proto::LegacyDevice* held = HeldOf(view.job, device.uuid());
  return held == nullptr ? 0 : Less(held->used(), device.device());
}

bool HasStalled(const proto::ElasticDevice& device) {
  return device.waits() > 0 || device.room_waits() > 0 || device.in_place() > 0;
}

std::string AgesText(const google::protobuf::RepeatedField<uint64_t>& bytes) {
  if (bytes.size() < 3) return "-";
  return Size(bytes.Get(0)) + " used within a second, " + Size(bytes.Get(1)) + " within ten, " +
         Size(bytes.Get(2)) + " longer ago";
}

std::string PlaceText(const proto::ElasticRange& range) {
  std::string text = range.away() == 0               ? "device"
                     : range.away() == range.bytes() ? "host"
                                                     : Size(range.away()) + " on the host";
  if (range.pinned()) text += ", for good";
  return text;
}

std::string StallsText(const proto::ElasticDevice& device) {
  if (!HasStalled(device)) return "none";
  return std::to_string(device.waits()) + " calls waited " + DurationText(device.waited_ns()) +
         " for moves, " + std::to_string(device.room_waits()) + " allocations " +
         DurationText(device.room_waited_ns()) + " for room; " + std::to_string(device.in_place()) +
         " calls used " + Size(device.in_place_bytes()) + " where they lay, on the host";
}

std::string FiguresText(const JobView& view, const proto::ElasticDevice& device, size_t columns) {
  TextTable table("<|");
  table.Row(
      {"device", Printable(device.uuid()) + ", as of " + DurationText(device.age_ns()) + " ago"});
  table.Row({"holds", Size(device.device()) + " of the " + Size(device.limit()) +
                          " that it may, and " + Size(device.host()) + " of the host's " +
                          Size(device.host_limit()) + "; others of the job's " +
                          Size(OthersOf(view, device))});
  table.Row({"live", Size(device.live()) + " (at most " + Size(device.peak()) +
                         "): " + Size(Less(device.live(), device.away())) + " on the device, " +
                         Size(device.away()) + " on the host; " + Size(device.pinned()) +
                         " stay where they are for good"});
  table.Row({"on device", AgesText(device.on_device())});
  table.Row({"on host", AgesText(device.on_host())});
  table.Row({"moved", Size(device.moved_in()) + " in, " + Size(device.moved_out()) + " out, " +
                          Size(device.dropped()) + " dropped without a copy"});
  table.Row({"stalls", StallsText(device)});
  table.Row({"plan", device.broken()    ? "a move failed, and nothing moves any more: see its log"
                     : device.learned() ? "its calls repeat: what comes next is known"
                                        : "its calls do not repeat, or not yet"});
  return table.Text(columns);
}

std::string RangesText(const proto::ElasticDevice& device, size_t columns) {
  if (device.ranges_size() == 0) return "";
  std::vector<proto::ElasticRange> ranges(device.ranges().begin(), device.ranges().end());
  std::stable_sort(ranges.begin(), ranges.end(),
                   [](const auto& a, const auto& b) { return a.bytes() > b.bytes(); });
  TextTable table("><>>>");
  table.Row({"SIZE", "WHERE", "CALLS", "LAST USE", "AGE"});
  for (int i = 0; i < std::min(device.ranges_size(), kRangesShown); ++i) {
    const proto::ElasticRange& range = ranges[static_cast<size_t>(i)];
    table.Row({Size(range.bytes()), PlaceText(range), std::to_string(range.calls()),
               range.calls() == 0 ? "never" : DurationText(range.unused_ns()) + " ago",
               DurationText(range.age_ns())});
  }
  const uint64_t others = Less(device.ranges_live(), kRangesShown);
  return "\n" + table.Text(columns) +
         (others > 0 ? "and " + std::to_string(others) + " that are smaller\n" : "");
}

std::string CallsText(const proto::ElasticDevice& device, size_t columns) {
  if (device.calls_size() == 0) return "";
  TextTable table("~>>>>>");
  table.Row({"LAST STALLS", "WAITED", "TIMES", "ON HOST", "ANYTHING", "LAST"});
  for (const proto::ElasticCall& call : device.calls()) {
    table.Row({Printable(call.name()), DurationText(call.waited_ns()), std::to_string(call.waits()),
               Size(call.in_place_bytes()), std::to_string(call.unknown()),
               DurationText(call.ago_ns()) + " ago"});
  }
  return "\n" + table.Text(columns);
}

void AddAdvice(const JobView& view, const proto::ElasticDevice& device,
               std::vector<std::string>* advice) {
  const auto say = [&](const std::string& text) { advice->push_back(text); };
  if (device.broken()) say("start it again: a move failed, and what it allocated since stays put");
  uint64_t unknown = 0;
  std::string name;
  for (const proto::ElasticCall& call : device.calls()) {
    unknown = Sum(unknown, call.unknown());
    if (call.unknown() > 0 && name.empty()) name = Printable(call.name());
  }
  if (unknown > 0) {
    say("nothing moves while a call may touch anything: lately " + std::to_string(unknown) +
        " of them, the last of " + name);
  }
  if (!HasStalled(device)) return;
  const uint64_t enough = Sum(device.enough(), OthersOf(view, device));
  if (device.enough() > device.limit()) {
    say("a budget of " + Size(enough) +
        " would have held all that it used at once (ravenctl limits --client " +
        std::to_string(view.job.client()) + " --visible-memory " + WholeMiB(enough) +
        ", if the job set itself none)");
  }
  if (device.pinned() > device.limit() / 8) {
    say(Size(device.pinned()) +
        " stay where they are for good: memory that is exported, registered, or named in tables");
  }
  if (!device.learned())
    say("steps that repeat would let memory come before it is needed: what comes next is unknown");
  if (device.host_limit() - std::min(device.host(), device.host_limit()) <
      device.host_limit() / 64) {
    say("the host's memory for it is used up: ravenrun --host SIZE gives more");
  }
}

void AddDevice(JsonWriter& json, const proto::ElasticDevice& device) {
  json.BeginObject().Field("uuid", device.uuid()).Field("age_ns", device.age_ns());
#define RAVEN_FIELD(name) json.Field(#name "_bytes", device.name())
  RAVEN_FIELD(limit);
  RAVEN_FIELD(device);
  RAVEN_FIELD(host);
  RAVEN_FIELD(host_limit);
  RAVEN_FIELD(live);
  RAVEN_FIELD(away);
  RAVEN_FIELD(pinned);
  RAVEN_FIELD(peak);
  RAVEN_FIELD(enough);
  RAVEN_FIELD(moved_in);
  RAVEN_FIELD(moved_out);
  RAVEN_FIELD(dropped);
#undef RAVEN_FIELD
  json.Field("uses", device.uses())
      .Field("in_place", device.in_place())
      .Field("in_place_bytes", device.in_place_bytes())
      .Field("waits", device.waits())
      .Field("waited_ns", device.waited_ns())
      .Field("room_waits", device.room_waits())
      .Field("room_waited_ns", device.room_waited_ns())
      .Field("learned", device.learned())
      .Field("broken", device.broken());
  static constexpr const char* kAges[] = {"second", "ten_seconds", "longer"};
  json.BeginObject("on_device_bytes");
  for (int i = 0; i < std::min(device.on_device_size(), 3); ++i)
    json.Field(kAges[i], device.on_device(i));
  json.EndObject().BeginObject("on_host_bytes");
  for (int i = 0; i < std::min(device.on_host_size(), 3); ++i)
    json.Field(kAges[i], device.on_host(i));
  json.EndObject().Field("ranges_live", device.ranges_live()).BeginArray("ranges");
  for (const proto::ElasticRange& range : device.ranges()) {
    json.BeginObject()
        .Field("address", range.address())
        .Field("bytes", range.bytes())
        .Field("away_bytes", range.away())
        .Field("calls", range.calls())
        .Field("age_ns", range.age_ns())
        .Field("unused_ns", range.unused_ns())
        .Field("pinned", range.pinned())
        .EndObject();
  }
  json.EndArray().BeginArray("calls");
  for (const proto::ElasticCall& call : device.calls()) {
    json.BeginObject()
        .Field("name", call.name())
        .Field("waits", call.waits())
        .Field("waited_ns", call.waited_ns())
        .Field("in_place", call.in_place())
        .Field("in_place_bytes", call.in_place_bytes())
        .Field("unknown", call.unknown())
        .Field("ago_ns", call.ago_ns())
        .EndObject();
  }
  json.EndArray().EndObject();
}

}  // namespace

std::vector<std::string> AdviceForJob(const JobView& view) {
  std::vector<std::string> advice;
  if (view.job.mode() != "elastic") {
    return {
        "its memory stays where it is: only what runs under ravenrun --mode elastic may exceed "
        "its budget, and is explained further"};
  }
  if (view.job.paused()) {
    advice.push_back("it is paused, and uses what it has on the host: ravenctl wake --job " +
                     std::to_string(view.job.client()));
  }
  if (view.devices.empty()) {
    advice.emplace_back(
        "no engine of it showed itself: it has allocated nothing of 2 MiB or more, or its log says "
        "why not (ravenrun --log FILE)");
  }
  for (const proto::ElasticDevice& device : view.devices) AddAdvice(view, device, &advice);
  if (advice.empty()) advice.emplace_back("nothing: it did not stall");
  return advice;
}

std::string PausedText(const JobView& view) {
  std::string text;
  for (const proto::ElasticDevice& device : view.devices) {
    const proto::LegacyDevice* held = HeldOf(view.job, device.uuid());
    if (held == nullptr) continue;
    const uint64_t pinned = std::min(device.pinned(), device.device());
    const uint64_t leaves = Less(device.device(), pinned);
    proto::LegacyDevice stays = *held;
    const int engine = static_cast<int>(proto::LegacyKind::kVmm);
    if (stays.kinds_size() > engine)
      stays.set_kinds(engine, Less(stays.kinds(engine), device.device()));
    text += "  " + Printable(device.uuid()) + ": " + Size(leaves) + " leave; " +
            Size(Less(held->used(), leaves)) + " stay until the process ends: " + KindsText(stays);
    if (pinned > 0) text += ", pinned " + Size(pinned);
    text += "\n";
  }
  if (text.empty()) return text;
  return text +
         "  (context: code, stacks and the driver's own; pool and async: allocations below 2 MiB "
         "and what libraries hold;\n   pinned: memory whose address the job gave to others)\n";
}

std::string JobText(const JobView& view, size_t columns) {
  const proto::LegacyJob& job = view.job;
  TextTable table("<|");
  table.Row({"job", std::to_string(job.client()) + " " + Printable(job.name()) + ", process " +
                        std::to_string(job.pid()) + " of user " + std::to_string(job.uid()) +
                        ", mode " + Printable(job.mode()) + (job.paused() ? ", paused" : "")});
  for (const proto::LegacyDevice& device : job.devices()) {
    table.Row({"uses", Size(device.used()) +
                           (device.visible_memory() == 0 ? " of all"
                                                         : " of " + Size(device.visible_memory())) +
                           " of " + Printable(device.uuid()) + ": " + KindsText(device)});
  }
  std::string text = table.Text(columns);
  for (const proto::ElasticDevice& device : view.devices) {
    text += "\n" + FiguresText(view, device, columns) + RangesText(device, columns) +
            CallsText(device, columns);
  }
  text += "\nwhat would help:\n";
  for (const std::string& advice : AdviceForJob(view))
    text += "  " + core::Wrapped(advice, columns, 2) + "\n";
  return text;
}

std::string JobJson(const JobView& view) {
  JsonWriter json;
  json.BeginObject();
  AddLegacyJob(json, "job", view.job);
  json.BeginArray("elastic");
  for (const proto::ElasticDevice& device : view.devices) AddDevice(json, device);
  json.EndArray().BeginArray("advice");
  for (const std::string& advice : AdviceForJob(view)) json.Field("", advice);
  return json.EndArray().EndObject().Take();
}

}  // namespace ravenstore::client::ctl
