#include "bench/map_figures.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bench/map_client.h"
#include "ipc/clock.h"

namespace ravenstore::bench {
namespace {

using core::Duration;
using core::Tick;

struct Spec {
  std::string_view name;
  const char* unit;
  std::optional<double> target;
  bool of_gpu = false;  // needs a program on a GPU
};
const Spec kFigures[] = {
    {"store.map_us_per_gib", "us", 3500},
    {"store.unmap_us_per_gib", "us", 2600},
    {"store.map_peer_us_per_gib", "us", 5500, true},
    {"store.map_latency_us", "us", 150},
    {"store.map_latency_p99_us", "us", 600},
    {"store.map_latency_busy_us", "us", 150, true},
    {"store.map_latency_busy_p99_us", "us", 600, true},
    {"store.malloc_loop_slowdown", "x", 1.1, true},
    {"store.malloc_loop_back_to_back", "x", std::nullopt, true},
    {"store.kernel_slowdown_mapping", "x", 1.01, true},
    {"store.fill_ms_per_gib", "ms", 10},
    {"store.handed_over_ms_per_gib", "ms", 22},
};

// Pages in one Send while memory is made. More delay the first page of a batch, fewer wake the
// mapper more often.
constexpr size_t kBatch = 4;
// Pages that a client is releasing at most. More fill the ring, fewer make the daemon wait for the
// client.
constexpr size_t kReleasesAhead = 64;
// Instructions in the ring at most while a program runs. More delay the end of a turn, fewer leave
// the mapper idle.
constexpr size_t kOrdersAhead = 64;
constexpr double kLinkBytesPerSecond = 50.0 * (1 << 30);
// The pause before a map whose latency is measured, so that the mapper sleeps.
constexpr auto kIdle = std::chrono::milliseconds(1);
constexpr size_t kPagesMax = 512;
constexpr size_t kDriverPages = 64;

double MicrosecondsSince(Tick begin) {
  return core::Seconds(ipc::Now() - begin) * 1e6;
}
double MicrosecondsPerGib(Tick begin, size_t pages) {
  return MicrosecondsSince(begin) / static_cast<double>(pages) * kPagesPerGib;
}

template <typename... Values>
std::string Text(const char* format, Values... values) {
  char text[160];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

// What a scale of 1 measures, or less.
struct Counts {
  explicit Counts(double scale)
      : rounds(std::max(2, static_cast<int>(5 * scale))),
        latencies(std::max(50, static_cast<int>(1000 * scale))),
        seconds(std::max(0.05, 0.4 * scale)),
        pages(std::max<size_t>(32, static_cast<size_t>(kPagesMax * std::min(scale, 1.0)) / 2 * 2)) {
  }
  int rounds;
  int latencies;
  double seconds;  // of one turn of a program
  size_t pages;    // an even number
};

// The memory that the daemon makes, by slot. It maps each page, as it does for its copies.
class PageMaker {
 public:
  PageMaker(device::Device* device, size_t slots)
      : device_(device), range_(Must(device->ReserveVaRange(kPage * slots))) {}

  // Returns the descriptor for the client.
  ipc::UniqueFd Make(size_t slot) {
    const auto memory = Must(device_->CreateMemory(kPage));
    Must(range_->Map(kPage * slot, memory));
    return Must(memory->Export());
  }
  void Destroy(size_t slot) { Must(range_->Unmap(kPage * slot)); }

 private:
  device::Device* const device_;
  const std::unique_ptr<device::VaRange> range_;
};

// Makes pages and has `client` map them. Milliseconds per GiB.
double Fill(PageMaker& maker, MapClient& client, size_t pages) {
  const Tick begin = ipc::Now();
  for (size_t made = 0; made < pages;) {
    if (client.MayImport()) {
      client.ImportAndMap(made, maker.Make(made));
      if (++made % kBatch == 0) client.Send();
    }
    client.Poll();
  }
  client.Finish();
  return MicrosecondsPerGib(begin, pages) / 1000;
}

// Destroys the pages of `from`, and makes the same number for `to`. Milliseconds per GiB.
double HandOver(PageMaker& maker, MapClient& from, MapClient& to, size_t pages) {
  const Tick begin = ipc::Now();
  size_t asked = 0;
  size_t destroyed = 0;
  size_t made = 0;
  while (made < pages) {
    if (asked < pages && asked - destroyed < kReleasesAhead) {
      from.UnmapAndRelease(asked);
      if (++asked % kBatch == 0 || asked == pages) from.Send();
    }
    for (size_t released = from.Poll(); released > 0; --released) maker.Destroy(destroyed++);
    if (made < destroyed && to.MayImport()) {
      to.ImportAndMap(made, maker.Make(made));
      if (++made % kBatch == 0) to.Send();
    }
    to.Poll();
  }
  to.Finish();
  return MicrosecondsPerGib(begin, pages) / 1000;
}

void Empty(PageMaker& maker, MapClient& client, size_t pages) {
  for (size_t i = 0; i < pages; ++i) client.UnmapAndRelease(i);
  client.Finish();
  for (size_t i = 0; i < pages; ++i) maker.Destroy(i);
}

// Unmaps, or maps, all pages in a row. Microseconds per GiB.
double UnmapAll(MapClient& client, size_t pages) {
  const Tick begin = ipc::Now();
  for (size_t i = 0; i < pages; ++i) client.Unmap(i);
  client.Finish();
  return MicrosecondsPerGib(begin, pages);
}
double MapAll(MapClient& client, size_t pages) {
  const Tick begin = ipc::Now();
  for (size_t i = 0; i < pages; ++i) client.Map(i);
  client.Finish();
  return MicrosecondsPerGib(begin, pages);
}

// Microseconds of single maps by an idle mapper, while `more` returns true for their number.
template <typename More>
std::vector<double> Latencies(MapClient& client, More more) {
  std::vector<double> each;
  while (more(each.size())) {
    client.Unmap(0);
    client.Finish();
    std::this_thread::sleep_for(kIdle);
    const Tick begin = ipc::Now();
    client.Map(0);
    client.Finish();
    each.push_back(MicrosecondsSince(begin));
  }
  return each;
}

struct Mapped {
  double figure = 0;  // of the program
  double gib_per_second = 0;
};

// Maps a page and unmaps another every `interval` while the client's program runs. An interval of
// 0 keeps the mapper busy.
Mapped RunWhileMapping(MapClient& client, size_t pages, Work work, double seconds,
                       Duration interval) {
  const size_t half = pages / 2;
  UnmapAll(client, half);
  client.Begin(work, seconds);
  const Tick begin = ipc::Now();
  Tick next = begin;
  size_t turns = 0;
  for (; !client.Ended(); ++turns) {
    client.Map(turns % pages);
    client.Unmap((turns + half) % pages);
    client.Send();
    client.Poll();
    while (client.pending() > kOrdersAhead) client.Poll();
    next = std::max(next + interval, ipc::Now() - interval);  // after a delay without a burst
    if (next > ipc::Now()) std::this_thread::sleep_for(next - ipc::Now());
  }
  const double taken = core::Seconds(ipc::Now() - begin);
  const double figure = client.Await();
  for (size_t i = 0; i < pages; ++i) {
    if (!client.mapped(i)) client.Map(i);
  }
  client.Finish();
  return {figure, static_cast<double>(turns) / kPagesPerGib / taken};
}

double RunAlone(MapClient& client, Work work, double seconds) {
  client.Begin(work, seconds);
  return client.Await();
}

// The first `count` devices that this process may see.
std::string FirstVisible(int count) {
  const char* given = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string all = given != nullptr ? given : "0,1";
  size_t end = all.find(',');
  while (--count > 0 && end != std::string::npos) end = all.find(',', end + 1);
  return all.substr(0, end);
}

class Measurement {
 public:
  Measurement(const std::string& backend, double scale, const Report& report)
      : backend_(backend), on_gpu_(backend == "cuda"), counts_(scale), report_(report) {}

  void Run() {
    // Before any device is used here.
    MapClient pair(backend_, FirstVisible(2));
    MapClient client(backend_, FirstVisible(1));
    MapClient second(backend_, FirstVisible(1));
    ::setenv("CUDA_VISIBLE_DEVICES", FirstVisible(1).c_str(), 1);
    device::Devices devices;
    try {
      devices = OpenMapDevices(backend_);
    } catch (const std::runtime_error& error) {
      return SkipAll("needs a GPU: " + std::string(error.what()));
    }
    device::Device& device = *devices.front();
    // Half of the free memory: a page that is released may be freed late.
    const uint64_t room = Must(device.FreeBytes()).count() / 2 / kPage.count();
    counts_.pages = std::min<size_t>(counts_.pages, room / 2 * 2);
    if (counts_.pages == 0) return SkipAll("the device has too little free memory");
    PageMaker maker(&device, counts_.pages);
    for (MapClient* each : {&client, &second}) each->Open(device.info().uuid, counts_.pages);
    driver_ = client.MakeDriverCalls(std::min(kDriverPages, counts_.pages));

    MeasureFills(maker, client, second);
    MeasureRows(client);
    MeasureLatency(client);
    if (on_gpu_) {
      MeasureBusyLatency(client);
      MeasureMallocLoop(client);
      MeasureKernels(client);
    } else {
      for (const Spec& spec : kFigures) {
        if (spec.of_gpu) Skip(spec, "needs a GPU");
      }
    }
    Empty(maker, client, counts_.pages);
    if (on_gpu_) MeasurePeer(maker, device, pair);
  }

 private:
  static const Spec& SpecOf(std::string_view name) {
    for (const Spec& spec : kFigures) {
      if (spec.name == name) return spec;
    }
    throw std::runtime_error("no figure has this name");
  }
  void Add(std::string_view name, double value, std::optional<double> bound,
           std::string detail = {}) const {
    const Spec& spec = SpecOf(name);
    report_({.name = std::string(name),
             .unit = spec.unit,
             .value = value,
             .bound = bound,
             .target = on_gpu_ ? spec.target : std::nullopt,
             .detail = std::move(detail)});
  }
  void Skip(const Spec& spec, const std::string& why) const {
    report_({.name = std::string(spec.name), .unit = spec.unit, .skipped = why});
  }
  void SkipAll(const std::string& why) const {
    for (const Spec& spec : kFigures) Skip(spec, why);
  }
  std::string PagesText() const { return Text("%zu pages in a row", counts_.pages); }

  // Leaves all pages with `client`.
  void MeasureFills(PageMaker& maker, MapClient& client, MapClient& second) const {
    const size_t pages = counts_.pages;
    std::vector<double> fills;
    std::vector<double> handed_over;
    for (int i = 0; i < counts_.rounds; ++i) {
      fills.push_back(Fill(maker, client, pages));
      handed_over.push_back(HandOver(maker, client, second, pages));
      handed_over.push_back(HandOver(maker, second, client, pages));
      if (i + 1 < counts_.rounds) Empty(maker, client, pages);
    }
    const double fill = driver_.fill * kPagesPerGib / 1000;
    const double destroy = driver_.destroy * kPagesPerGib / 1000;
    Add("store.fill_ms_per_gib", Median(fills), fill, PagesText());
    Add("store.handed_over_ms_per_gib", Median(handed_over), fill + destroy, PagesText());
  }

  void MeasureRows(MapClient& client) const {
    std::vector<double> maps;
    std::vector<double> unmaps;
    for (int i = 0; i < counts_.rounds; ++i) {
      unmaps.push_back(UnmapAll(client, counts_.pages));
      maps.push_back(MapAll(client, counts_.pages));
    }
    Add("store.map_us_per_gib", Median(maps), driver_.map * kPagesPerGib, PagesText());
    Add("store.unmap_us_per_gib", Median(unmaps), driver_.unmap * kPagesPerGib, PagesText());
  }

  void MeasureLatency(MapClient& client) const {
    const auto count = static_cast<size_t>(counts_.latencies);
    auto each = Latencies(client, [count](size_t done) { return done < count; });
    AddLatencies("store.map_latency", each);
  }
  void MeasureBusyLatency(MapClient& client) const {
    RunAlone(client, Work::kMallocLoop, counts_.seconds);  // the program starts
    client.Begin(Work::kMallocLoop, 5 * counts_.seconds);
    auto each = Latencies(client, [&client](size_t) { return !client.Ended(); });
    client.Await();
    AddLatencies("store.map_latency_busy", each);
  }
  void AddLatencies(const std::string& name, std::vector<double>& each) const {
    const std::string detail = Text("%zu maps", each.size());
    Add(name + "_us", Median(each), driver_.map, detail);
    Add(name + "_p99_us", Quantile(each, 0.99), driver_.map, detail);
  }

  static Duration LinkInterval() {
    return core::FromSeconds(static_cast<double>(kPage.count()) / kLinkBytesPerSecond);
  }

  void MeasureMallocLoop(MapClient& client) const {
    std::vector<double> alone;
    std::vector<double> at_link;
    std::vector<double> back_to_back;
    double link_rate = 0;
    double full_rate = 0;
    for (int i = 0; i < counts_.rounds; ++i) {
      const auto run = [&](Duration interval, double* rate) {
        const Mapped mapped =
            RunWhileMapping(client, counts_.pages, Work::kMallocLoop, counts_.seconds, interval);
        *rate = mapped.gib_per_second;
        return mapped.figure;
      };
      alone.push_back(RunAlone(client, Work::kMallocLoop, counts_.seconds));
      at_link.push_back(run(LinkInterval(), &link_rate));
      back_to_back.push_back(run(Duration{0}, &full_rate));
    }
    const double base = Median(alone);
    const auto add = [&](const char* name, std::vector<double>& rounds, double rate) {
      const double slow = Median(rounds);
      Add(name, base / slow, base,
          Text("%.0f rounds/s alone, %.0f while %.1f GiB/s are mapped", base, slow, rate));
    };
    add("store.malloc_loop_slowdown", at_link, link_rate);
    add("store.malloc_loop_back_to_back", back_to_back, full_rate);
  }

  void MeasureKernels(MapClient& client) const {
    std::vector<double> alone;
    std::vector<double> with;
    double rate = 0;
    for (int i = 0; i < counts_.rounds; ++i) {
      alone.push_back(RunAlone(client, Work::kFills, counts_.seconds));
      const Mapped mapped =
          RunWhileMapping(client, counts_.pages, Work::kFills, counts_.seconds, LinkInterval());
      with.push_back(mapped.figure);
      rate = mapped.gib_per_second;
    }
    const double base = Median(alone);
    const double slow = Median(with);
    Add("store.kernel_slowdown_mapping", slow / base, base,
        Text("a fill takes %.4f ms alone, %.4f while %.1f GiB/s are mapped", base, slow, rate));
  }

  void MeasurePeer(PageMaker& maker, device::Device& device, MapClient& pair) const {
    const char* const kName = "store.map_peer_us_per_gib";
    const size_t pages = counts_.pages;
    if (pair.Open(device.info().uuid, pages) == 0) {
      return Skip(SpecOf(kName), "needs two GPUs that reach each other");
    }
    const DriverCalls calls = pair.MakeDriverCalls(std::min(kDriverPages, pages));
    Fill(maker, pair, pages);
    std::vector<double> maps;
    for (int i = 0; i < counts_.rounds; ++i) {
      UnmapAll(pair, pages);
      maps.push_back(MapAll(pair, pages));
    }
    Empty(maker, pair, pages);
    Add(kName, Median(maps), calls.map * kPagesPerGib, PagesText());
  }

  const std::string backend_;
  const bool on_gpu_;
  Counts counts_;
  const Report& report_;
  DriverCalls driver_;
};

}  // namespace

void MeasureMaps(const std::string& backend, double scale, const Report& report) {
  Measurement(backend, scale, report).Run();
}

}  // namespace ravenstore::bench
