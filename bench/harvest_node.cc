#include "bench/harvest_node.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/ctl/session.h"
#include "core/check.h"
#include "core/types.h"
#include "device/open.h"
#include "ipc/clock.h"
#include "tests/daemon/daemon_process.h"
#include "tests/ipc/short_directory.h"

namespace ravenstore::bench {
namespace {

using daemon::DaemonProcess;
using std::chrono::seconds;

constexpr int kRounds = 3;  // of the owner
constexpr seconds kPatience{60};
constexpr const char* kUser = "the user of device 0";

const Figure kClean{.name = "harvest.giveback_clean_ms", .unit = "ms", .target = 100};
const Figure kDirty{.name = "harvest.giveback_dirty_vs_bound", .unit = "x", .target = 1.5};
const Figure kWait{.name = "harvest.client_wait_p99_ms_per_gib", .unit = "ms", .target = 50};
const Figure kErrors{.name = "harvest.client_out_of_memory", .unit = "errors", .target = 0};

// Sizes are in units: of either device the store has ten, of which eight may be harvested. Device 1
// belongs to an owner, device 0 to a user whose tensors take one unit there. The link of simulated
// devices to the host is slower than what a busy machine copies between them.
class Node {
 public:
  Node(std::string backend, uint64_t unit, uint64_t device_total)
      : backend_(std::move(backend)), unit_(unit) {
    const bool host = backend_ == "host";
    const auto size = [](uint64_t bytes) { return std::to_string(bytes); };
    std::ofstream(config()) << "[limits]\ndevice_reserve = " << size(device_total - 10 * unit)
                            << "\n[host_pool]\nsize = " << size(20 * unit)
                            << "\nstep = " << size(unit) << "\nahead = " << size(unit)
                            << "\n[harvest]\nsize = " << size(8 * unit)
                            << "\nreserve = " << size(unit)
                            << "\nsample_ms = 10\nrise_s = 0\nstep = "
                            << size(std::min<uint64_t>(unit / 4, core::MiB(256).count())) << '\n'
                            << (host
                                    ? "[host_backend]\ndevices = 2\ntotal = " + size(10 * unit) +
                                          "\nbytes_per_second = 2e8\npeer_bytes_per_second = 1e10\n"
                                    : "");
  }

  uint64_t unit() const { return unit_; }
  uint64_t tensor() const { return unit_ / 16; }
  std::vector<std::string> flags() const { return {"--config", config()}; }
  const std::string& backend() const { return backend_; }

 private:
  std::string config() const { return directory_ / "config"; }

  const std::string backend_;
  const uint64_t unit_;
  ipc::ShortDirectory directory_;
};

// A daemon, and a user of device 0 of whose tensors most lie in what is harvested of device 1.
class Harvested {
 public:
  explicit Harvested(const Node& node)
      : node_(node),
        daemon_(node.flags(), node.backend()),
        user_(Store::connect({.socket = daemon_.socket(),
                              .name = kUser,
                              .device_budget = node.unit(),
                              .timeout = kPatience})) {
    for (uint64_t i = 0; i < 7 * 16; ++i) {
      tensors_.push_back(user_.create(node.tensor()));
      user_.put(tensors_.back(), nullptr);
    }
  }

  const DaemonProcess& daemon() const { return daemon_; }
  // Uses all in order, so that all but the last leave again. Returns false if harvested memory
  // still holds too little after kPatience.
  bool Fill() {
    const core::Tick end = ipc::Now() + kPatience;
    while (ipc::Now() < end) {
      Sweep(Access::kReadWrite);
      if (Use().harvest().used() >= 5 * node_.unit()) return true;
    }
    return false;
  }
  // Brings every tensor to the device, where it stays in addition to its copy.
  void BringAll() {
    proto::SetLimits limits;
    client::ctl::Session session = Ask();
    const auto clients = session.Clients();
    RAVEN_CHECK(clients.ok());
    for (const proto::ClientInfo& client : *clients) {
      if (client.name() == kUser) limits.set_client(client.client());
    }
    limits.set_device_budget(9 * node_.unit());
    RAVEN_CHECK(session.SetLimits(limits).ok());
    Sweep(Access::kReadOnly);
  }
  proto::HarvestReturned ReturnHarvested() {
    proto::ReturnHarvest wanted;
    wanted.set_device(1);
    wanted.set_bytes(Use().peer_pool());
    wanted.set_within_ns(static_cast<uint64_t>(core::Duration(kPatience).count()));
    const auto returned = Ask().ReturnHarvest(wanted);
    RAVEN_CHECK(returned.ok());
    return *returned;
  }
  // Bytes per second from device 1 to the host.
  double Link() { return static_cast<double>(Ask().welcome().devices(1).link_down()); }
  proto::DeviceUse Use() {
    const auto stats = Ask().Stats();
    RAVEN_CHECK(stats.ok());
    return stats->devices(1);
  }

 private:
  client::ctl::Session Ask() {
    auto session = client::ctl::Session::Open(daemon_.socket(), seconds(30));
    RAVEN_CHECK(session.ok());
    return *std::move(session);
  }
  void Sweep(Access access) {
    for (Tensor& tensor : tensors_) {
      user_.get(tensor, nullptr, {.access = access, .blocking = true});
      user_.put(tensor, nullptr);
    }
  }

  const Node& node_;
  DaemonProcess daemon_;
  Store user_;
  std::vector<Tensor> tensors_;
};

void ReportFigure(Figure figure, const Report& report, double value, std::string detail) {
  figure.value = value;
  figure.detail = std::move(detail);
  report(figure);
}
void Skip(Figure figure, const Report& report, const std::string& why) {
  figure.skipped = why;
  report(figure);
}

std::string GibText(uint64_t bytes) {
  return std::to_string(static_cast<double>(bytes) / 0x1p30) + " GiB";
}

void MeasureReturns(const Node& node, const Report& report) {
  constexpr const char* kNotFilled = "too little of it came to lie in harvested memory";
  Harvested dirty(node);
  if (!dirty.Fill()) return Skip(kDirty, report, kNotFilled);
  const double bound = static_cast<double>(dirty.Use().harvest().used()) / dirty.Link();
  const proto::HarvestReturned first = dirty.ReturnHarvested();
  Figure figure = kDirty;
  figure.bound = bound * 1e3;
  ReportFigure(figure, report, static_cast<double>(first.took_ns()) / 1e9 / bound,
               GibText(first.bytes()) + first.late());
  Harvested clean(node);
  if (!clean.Fill()) return Skip(kClean, report, kNotFilled);
  clean.BringAll();
  const proto::HarvestReturned second = clean.ReturnHarvested();
  ReportFigure(kClean, report, static_cast<double>(second.took_ns()) / 1e6,
               GibText(second.bytes()) + second.late());
}

void MeasureOwner(const Node& node, const Report& report) {
  Harvested harvested(node);
  Store owner = Store::connect({.socket = harvested.daemon().socket(), .timeout = kPatience});
  std::vector<double> waits;
  double errors = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (!harvested.Fill()) return Skip(kWait, report, "device 1 was not harvested again");
    std::vector<Tensor> own;
    for (int i = 0; i < 9 * 16; ++i) {
      const core::Tick begin = ipc::Now();
      try {
        own.push_back(owner.create(node.tensor(), {.device = 1}));
      } catch (const OutOfMemory&) {
        ++errors;
      }
      waits.push_back(core::Milliseconds(ipc::Now() - begin) * 0x1p30 /
                      static_cast<double>(node.tensor()));
    }
    owner.free(std::move(own), nullptr);
    owner.trim();
  }
  ReportFigure(kWait, report, Quantile(waits, 0.99), std::to_string(waits.size()) + " allocations");
  ReportFigure(kErrors, report, errors, "of the owner, a client of the store");
}

}  // namespace

void MeasureHarvestNode(const std::string& backend, const Report& report) {
  uint64_t unit = core::MiB(32).count();
  uint64_t total = 10 * unit;
  if (backend == "cuda") {
    const auto devices = device::OpenDevices("cuda", {});
    const bool two = devices.ok() && devices->size() > 1 && (*devices)[0]->Reaches(*(*devices)[1]);
    if (!two) {
      for (const Figure& figure : {kDirty, kClean, kWait, kErrors})
        Skip(figure, report, "needs two GPUs that reach one another");
      return;
    }
    unit = core::GiB(1).count();
    total = devices->front()->info().total.count();
  }
  const Node node(backend, unit, total);
  MeasureReturns(node, report);
  MeasureOwner(node, report);
}

}  // namespace ravenstore::bench
