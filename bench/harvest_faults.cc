#include "bench/harvest_faults.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/ctl/session.h"
#include "core/check.h"
#include "core/types.h"
#include "ipc/clock.h"
#include "tests/daemon/faulty_server.h"
#include "tests/daemon/pattern.h"

namespace ravenstore::bench {
namespace {

using daemon::FaultyServer;
using device::HostFault;
using device::HostStep;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = HostStep::Kind;

// Of three devices two have users with more tensors than room, of which some move them to another
// device at times; the last has an owner that comes and goes.
constexpr int kDevices = 3;
constexpr int kOwner = 2;
constexpr int kClients = 20;
constexpr uint64_t kTensors = 320;    // of each, 4 MiB or so
constexpr uint64_t kBudget = MiB(2);  // of each on a device
constexpr uint64_t kOwned = 48;       // tensors, of 64 to 192 KiB
constexpr uint64_t kFaultsPerRun = 25500;
constexpr seconds kLongestRun{60};
// With a daemon that lives on, no get takes longer.
constexpr seconds kAnswered{30};

// How many in a thousand steps of each kind go wrong, as HostStep numbers them. After a copy off a
// device failed, its client's copies rest for 100 ms: these are few.
constexpr std::array<uint32_t, 9> kOften = {100, 50, 200, 100, 200, 20, 550, 5, 10};
// Memory that fails to be unmapped or unpinned is lost for good: at most this often in a daemon's
// life. Unmapping fails only on the owner's device, where no client has to find room for its data.
constexpr uint64_t kLostMost = 6;
// Of copies from the memory of the owner's device, which are copies back.
constexpr uint32_t kOftenFromOwner = 150;
constexpr const char* kNames[] = {"create", "map", "unmap", "pin",      "unpin",
                                  "open",   "up",  "down",  "to a peer"};
// Eight in a row lose a peer, and all data whose only copy is there.
constexpr int kInARowMost = 3;

uint64_t Mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// Threads: any.
class Injector {
 public:
  explicit Injector(uint64_t seed) : seed_(seed) {}

  HostFault Next(HostStep step) {
    const auto kind = static_cast<size_t>(step.kind);
    const uint64_t random = Mixed(seed_ + (uint64_t{kind} << 48) + ++steps_[kind]);
    HostFault fault = random % 1000 < Often(step) ? HowItFails(step, random) : HostFault::kNone;
    if (IsLost(step, fault) && lost_.fetch_add(1) >= kLostMost) fault = HostFault::kNone;
    if (step.kind == Kind::kToPeer && peers_are_dead_) fault = HostFault::kBreaksOff;
    if (step.IsCopy() && !peers_are_dead_) {
      if (fault == HostFault::kNone || fault == HostFault::kIsLate) {
        in_a_row_ = 0;
      } else if (++in_a_row_ > kInARowMost) {
        fault = HostFault::kNone;
        in_a_row_ = 0;
      }
    }
    if (fault != HostFault::kNone) ++injected_[kind];
    return fault;
  }
  void KillPeers(bool dead) { peers_are_dead_ = dead; }
  // Of another daemon.
  void BeginRun() { lost_ = 0; }

  uint64_t injected() const {
    uint64_t sum = 0;
    for (const auto& one : injected_) sum += one;
    return sum;
  }
  std::string ByKind() const {
    std::string text;
    for (size_t i = 0; i < injected_.size(); ++i) {
      if (injected_[i] == 0) continue;
      text += (text.empty() ? "" : ", ") + std::to_string(injected_[i]) + ' ' + kNames[i];
    }
    return text;
  }

 private:
  static bool IsLost(HostStep step, HostFault fault) {
    return (step.kind == Kind::kUnmap || step.kind == Kind::kUnpin) && fault != HostFault::kNone &&
           fault != HostFault::kIsLate;
  }
  static uint32_t Often(HostStep step) {
    if (step.kind == Kind::kUnmap && step.device != kOwner) return 0;
    const bool from_owner = step.kind == Kind::kToPeer && step.device == kOwner;
    return from_owner ? kOftenFromOwner : kOften[static_cast<size_t>(step.kind)];
  }
  static HostFault HowItFails(HostStep step, uint64_t random) {
    const uint64_t part = random / 1000 % 16;
    if (part == 0) return HostFault::kIsLate;
    if (part >= 12 && step.IsCopy()) return HostFault::kLies;
    return part < 5 ? HostFault::kRefused : HostFault::kBreaksOff;
  }

  const uint64_t seed_;
  std::array<std::atomic<uint64_t>, kOften.size()> steps_{};
  std::array<std::atomic<uint64_t>, kOften.size()> injected_{};
  std::atomic<uint64_t> lost_{0};  // in this run
  std::atomic<int> in_a_row_{0};
  std::atomic<bool> peers_are_dead_{false};
};

// What all clients met. Threads: any.
struct Counts {
  std::atomic<uint64_t> reads{0};
  std::atomic<uint64_t> bytes{0};
  std::atomic<uint64_t> wrong{0};       // bytes
  std::atomic<uint64_t> lost{0};        // tensors, and said so
  std::atomic<uint64_t> refused{0};     // calls
  std::atomic<uint64_t> unanswered{0};  // gets, with no faults any more
  std::string why;                      // of the last of them; of ReadAll's thread alone
  std::atomic<uint64_t> returned{0};
  std::atomic<uint64_t> compared{0};  // moves
  std::atomic<uint64_t> lies{0};      // among them, that left other bytes
};

// One attachment, whose tensors hold a pattern of their own in each version.
class Client {
 public:
  struct Options {
    uint64_t seed;
    int device;
    bool moves = false;   // to other devices
    uint64_t budget = 0;  // on each
  };

  Client(const std::string& socket, const Options& options, Counts* counts)
      : options_(options),
        random_(options.seed),
        next_seed_(options.seed << 32),
        counts_(*counts),
        store_(Store::connect({.socket = socket,
                               .name = "faults",
                               .device_budget = options.budget,
                               .timeout = seconds(2)})) {}

  void Make(uint64_t bytes) {
    try {
      Held held{store_.create(bytes, {.device = options_.device}), ++next_seed_};
      daemon::FillPattern(held.tensor.data(), bytes, held.seed);
      store_.put(held.tensor, nullptr);
      held_.push_back(std::move(held));
    } catch (const OutOfMemory&) {
      ++counts_.refused;
    }
  }
  uint64_t size() const { return held_.size(); }
  // Uses any tensor, or all in order. UseAll passes the order, so that they are fetched ahead.
  void UseAny() { Use(random_() % held_.size(), {}); }
  void UseAll() {
    for (size_t i = 0; i < held_.size(); ++i)
      Use(i, {.order = static_cast<int64_t>(round_ * held_.size() + i)});
    ++round_;
  }
  // Every tensor is read, or known to be lost.
  void ReadAll() {
    for (Held& held : held_) {
      try {
        Check(held, store_.get(held.tensor, nullptr, {.blocking = true, .timeout = kAnswered}));
        store_.put(held.tensor, nullptr);
      } catch (const Lost&) {
        ++counts_.lost;
      } catch (const Error& error) {
        ++counts_.unanswered;
        counts_.why = std::string(" (") + error.what() + ")";
      }
    }
  }
  uint64_t Random() { return random_(); }
  // In turn a block of pinned memory is written, and it is read and freed. At times all that is
  // idle of the user is given back.
  void UsePinned() {
    try {
      if (random_() % 4 == 0) store_.trim();
      if (block_) {
        counts_.wrong += daemon::WrongBytes(block_->data(), kBlock, block_seed_);
        return store_.free(*std::exchange(block_, std::nullopt));
      }
      block_ = store_.pinned(kBlock);
      daemon::FillPattern(block_->data(), kBlock, block_seed_ = ++next_seed_);
    } catch (const Error&) {
      ++counts_.refused;
    }
  }

 private:
  static constexpr uint64_t kBlock = MiB(2);  // a slab
  struct Held {
    Tensor tensor;
    uint64_t seed;
  };

  void Use(size_t index, const PutOptions& put) {
    Held& held = held_[index];
    try {
      const bool moves = options_.moves && random_() % 32 == 0;
      const int device = moves ? static_cast<int>(random_() % kOwner) : -1;
      void* data = store_.get(held.tensor, nullptr, {.device = device, .blocking = true});
      Check(held, data);
      if (random_() % 2 == 0)
        daemon::FillPattern(data, held.tensor.size(), held.seed = ++next_seed_);
      store_.put(held.tensor, nullptr, put);
    } catch (const Lost&) {
      ++counts_.lost;
      const uint64_t bytes = held.tensor.size();
      std::swap(held, held_.back());
      held_.pop_back();
      Make(bytes);
    } catch (const Error&) {
      ++counts_.refused;
    }
  }
  void Check(const Held& held, const void* data) {
    ++counts_.reads;
    counts_.bytes += held.tensor.size();
    counts_.wrong += daemon::WrongBytes(data, held.tensor.size(), held.seed);
  }

  const Options options_;
  std::mt19937_64 random_;
  uint64_t next_seed_;
  uint64_t round_ = 0;
  Counts& counts_;
  Store store_;
  std::vector<Held> held_;  // after the store that they are of
  std::optional<PinnedBlock> block_;
  uint64_t block_seed_ = 0;
};

// A daemon from its start to its end.
class DaemonRun {
 public:
  DaemonRun(FaultyServer::Peers peers, uint64_t seed, Injector* injector, Counts* counts)
      : seed_(seed),
        injector_(*injector),
        counts_(*counts),
        server_({.peers = peers,
                 .devices = kDevices,
                 .device = core::MiB(64),
                 .peer = core::MiB(24),
                 .host = core::MiB(120),
                 .fault = [injector](HostStep step) { return injector->Next(step); }}) {}

  // Runs until `until` faults were injected in total. With `peers_die` the peers die at the end.
  void Run(uint64_t until, bool peers_die) {
    std::deque<Client> clients;
    for (uint64_t i = 0; i < kClients; ++i) {
      clients.emplace_back(server_.socket(),
                           Client::Options{.seed = seed_ * 1000 + i,
                                           .device = static_cast<int>(i % 2),
                                           .moves = i < 4,
                                           .budget = kBudget},
                           &counts_);
    }
    injector_.BeginRun();
    server_.SetFaults(true);
    std::vector<std::thread> threads;
    for (Client& client : clients) threads.emplace_back([&] { Work(client); });
    threads.emplace_back([&] { RunOwner(); });
    threads.emplace_back([&] { RequestReturns(); });
    const core::Tick end = ipc::Now() + kLongestRun;
    while (injector_.injected() < until && ipc::Now() < end && counts_.wrong == 0)
      std::this_thread::sleep_for(milliseconds(1));
    if (peers_die) {
      injector_.KillPeers(true);
      std::this_thread::sleep_for(milliseconds(300));
    }
    over_ = true;
    for (std::thread& thread : threads) thread.join();
    server_.SetFaults(false);
    injector_.KillPeers(false);
    for (Client& client : clients) client.ReadAll();
    clients.clear();
    const core::Tick patience = ipc::Now() + kAnswered;
    while (!server_.IsEmpty()) RAVEN_CHECK(ipc::Now() < patience);
    server_.CheckInvariants();
    const auto checks = server_.Ask([](daemon::Loop& loop) { return loop.move_checks(); });
    counts_.compared += checks.checked;
    counts_.lies += checks.wrong;
  }

 private:
  void Work(Client& client) {
    while (!over_) {
      while (client.size() < kTensors && !over_) client.Make(512 * (8 + client.Random() % 40));
      for (int i = 0; i < 200 && client.size() > 0 && !over_; ++i) client.UseAny();
      client.UseAll();
      client.UsePinned();
    }
  }
  // The owner of the last device comes, uses its memory, and goes.
  void RunOwner() {
    for (uint64_t visit = 0; !over_; ++visit) {
      Client owner(server_.socket(), {.seed = seed_ * 1000 + 100 + visit, .device = kOwner},
                   &counts_);
      for (uint64_t i = 0; i < kOwned && !over_; ++i) owner.Make(KiB(64) * (1 + visit % 3));
      for (int i = 0; i < 200 && owner.size() > 0 && !over_; ++i) owner.UseAny();
    }
  }
  // Operators, other jobs and legacy jobs want memory of the devices.
  void RequestReturns() {
    std::mt19937_64 random(seed_);
    while (!over_) {
      const core::DeviceId device{static_cast<uint16_t>(random() % kDevices)};
      const bool by_others = random() % 2 == 0;
      if (by_others) {
        server_.SetOthers(core::ToInt(device), core::MiB(random() % 8));
      } else {
        const auto on_returned = [this](const daemon::Harvest::Returned&) { ++counts_.returned; };
        const bool asked = server_.Ask([&](daemon::Loop& loop) {
          const core::Bytes held = loop.store().Harvested(device);
          const core::Bytes wanted(random() % (held.count() + 1));
          return wanted > core::Bytes{} &&
                 loop.ReturnHarvest(device, wanted, milliseconds(50), on_returned).ok();
        });
        static_cast<void>(asked);
      }
      const core::Bytes limit = core::MiB(random() % 8 == 0 ? 44 : 64);
      server_.Ask([&](daemon::Loop& loop) {
        loop.Apply(core::DeviceLimit{device, limit});
        return true;
      });
      std::this_thread::sleep_for(milliseconds(20 + random() % 100));
    }
    for (int device = 0; device < kDevices; ++device) server_.SetOthers(device, core::Bytes{});
  }

  const uint64_t seed_;
  Injector& injector_;
  Counts& counts_;
  std::atomic<bool> over_{false};
  FaultyServer server_;
};

}  // namespace

void MeasureHarvestFaults(uint64_t faults, uint64_t seed, const Report& report) {
  spdlog::set_level(spdlog::level::off);
  Injector injector(seed);
  Counts counts;
  uint64_t run = 0;
  for (uint64_t until = 0; until < faults && counts.wrong == 0 && counts.unanswered == 0; ++run) {
    until = std::min(faults, until + kFaultsPerRun);
    const auto peers = run % 4 == 1 ? FaultyServer::Peers::kShare : FaultyServer::Peers::kHarvested;
    DaemonRun(peers, seed + run, &injector, &counts).Run(until, /*peers_die=*/run % 4 == 3);
  }
  const bool right = counts.wrong == 0 && counts.unanswered == 0;
  const auto text = [](const std::atomic<uint64_t>& count) { return std::to_string(count); };
  report({.name = "harvest.faults",
          .unit = "",
          .value = right ? static_cast<double>(injector.injected()) : 0,
          .target = 1e5,
          .at_least = true,
          .detail = text(counts.wrong) + " wrong bytes in " + text(counts.reads) + " reads of " +
                    std::to_string(counts.bytes / MiB(1)) + " MiB; " + text(counts.lost) +
                    " tensors lost and said so, " + text(counts.refused) + " calls refused, " +
                    text(counts.unanswered) + " without an answer" + counts.why + ", " +
                    text(counts.returned) + " give-backs asked for; " + text(counts.compared) +
                    " moves compared, " + text(counts.lies) + " of them seen to be wrong; " +
                    injector.ByKind() + "; " + std::to_string(run) + " daemons, seed " +
                    std::to_string(seed)});
}

}  // namespace ravenstore::bench
