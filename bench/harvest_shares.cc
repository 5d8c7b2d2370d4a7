#include "bench/harvest_shares.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/planner.h"
#include "core/types.h"
#include "tests/core/world.h"

namespace ravenstore::bench {

using core::Bytes;
using core::ClientId;
using core::Handle;
using core::KiB;
using core::TenantId;

namespace {

// All sizes are so many times smaller than those of the device that they stand for: it has 80 GiB.
constexpr uint64_t kSmaller = 32768;
constexpr Bytes Gib(uint64_t gib) {
  return Bytes(core::GiB(gib).count() / kSmaller);
}
constexpr Bytes kDevice = Gib(80);
constexpr Bytes kTensor = Bytes(Gib(1).count() / 4);
constexpr core::DeviceId kTheDevice{0};

struct Tenant {
  uint32_t weight;
  uint64_t guarantee_gib;
  uint64_t cap_gib;
};
constexpr std::array<Tenant, 8> kTenants = {{{1, 4, 80},
                                             {1, 0, 80},
                                             {2, 0, 80},
                                             {2, 8, 80},
                                             {3, 2, 80},
                                             {4, 4, 12},
                                             {5, 0, 80},
                                             {8, 2, 16}}};
constexpr TenantId IdOf(size_t tenant) {
  return TenantId{static_cast<uint32_t>(tenant + 1)};
}

constexpr size_t kEvents = 100'000;
constexpr size_t kClientsMost = 2;            // of one tenant
constexpr Bytes kWorkingSet = Gib(48);        // of each client
constexpr size_t kAtOnce = 8;                 // gets of each client
constexpr size_t kEventsBetweenMoves = 2000;  // of clients, that come or go
constexpr core::Duration kBetween = std::chrono::milliseconds(1);
constexpr core::Duration kTimeout = std::chrono::seconds(1);

core::World::Options Node() {
  core::World::Options options;
  core::PlannerOptions& planner = options.planner;
  planner.device_capacity = {kDevice};
  planner.arena = {kDevice * 2};
  planner.granularity = core::kExtentAlignment;
  planner.slab = KiB(2);  // 64 MiB
  planner.host_capacity = Gib(1024);
  planner.host_step = planner.host_capacity;
  planner.guaranteed_part = 8;  // as the daemon's
  planner.preclean = false;     // what leaves is copied then, and for whom
  options.check_invariants = false;
  return options;
}

// What each of those who are present should hold: its guarantee and, of the rest, a part by its
// weight, within its cap.
std::array<double, kTenants.size()> DueTo(const std::array<size_t, kTenants.size()>& clients) {
  std::array<double, kTenants.size()> due{};
  const auto sum_at = [&](double level) {
    double sum = 0;
    for (size_t i = 0; i < kTenants.size(); ++i) {
      const Tenant& tenant = kTenants[i];
      const auto guarantee = static_cast<double>(Gib(tenant.guarantee_gib).count());
      const auto cap = static_cast<double>(Gib(tenant.cap_gib).count());
      due[i] = clients[i] == 0 ? 0 : std::min(cap, guarantee + level * tenant.weight);
      sum += due[i];
    }
    return sum;
  };
  double low = 0;
  double high = static_cast<double>(kDevice.count());
  for (int i = 0; i < 60; ++i) {
    const double level = (low + high) / 2;
    (sum_at(level) > static_cast<double>(kDevice.count()) ? high : low) = level;
  }
  return due;
}

class Shares {
 public:
  explicit Shares(uint32_t seed) : random_(seed) {}

  void Play(size_t events) {
    for (size_t i = 0; i < kTenants.size(); ++i) {
      world_.SetTenant(IdOf(i), {.device = Gib(kTenants[i].cap_gib),
                                 .host = Gib(1024),
                                 .device_guarantee = Gib(kTenants[i].guarantee_gib),
                                 .weight = kTenants[i].weight});
      Come(i);
      Settle();
    }
    while (events_ < events) {
      if (events_ >= (moves_ + 1) * kEventsBetweenMoves) ComeOrGo();
      for (const ClientId client : world_.Clients()) Use(client);
      Settle();
    }
  }

  double ErrorOf(size_t tenant) const { return std::abs(held_[tenant] / due_[tenant] - 1); }
  size_t robbed() const { return world_.robbed(); }
  size_t moves() const { return moves_; }
  uint64_t events() const { return events_; }

 private:
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }

  void Come(size_t tenant) {
    const ClientId client =
        world_.Attach(IdOf(tenant), {.device = Gib(kTenants[tenant].cap_gib), .host = Gib(1024)});
    tenants_[client] = tenant;
    ++clients_[tenant];
    for (Bytes made; made < kWorkingSet; made += kTensor, ++events_)
      world_.Create(client, kTensor, kTheDevice, kTimeout);
  }

  void ComeOrGo() {
    ++moves_;
    ++events_;
    const size_t tenant = Below(kTenants.size());
    if (clients_[tenant] == 0 || (clients_[tenant] < kClientsMost && Below(2) == 0))
      return Come(tenant);
    for (const ClientId client : world_.Clients()) {
      if (tenants_.at(client) != tenant) continue;
      --clients_[tenant];
      return world_.Kill(client);
    }
  }

  // Some of the client's tensors that are away are read and written.
  void Use(ClientId client) {
    std::vector<Handle> handles = world_.Handles(client);
    std::shuffle(handles.begin(), handles.end(), random_);
    size_t asked = 0;
    for (const Handle handle : handles) {
      if (asked == kAtOnce) break;
      if (world_.StateOf(handle) != proto::LeaseState::kAway) continue;
      ++asked;
      events_ += world_.Get(handle, kTheDevice, kTimeout);
    }
  }

  // Everything that is under way ends, and what was taken in use is put; then a moment passes.
  void Settle() {
    for (bool more = true; more;) {
      world_.PollAll();
      more = !world_.slab_jobs().empty() || !world_.copies().empty();
      while (!world_.slab_jobs().empty()) world_.FinishSlab(0, true);
      while (!world_.copies().empty()) world_.FinishCopy(0, true);
      for (const ClientId client : world_.Clients()) {
        for (const Handle handle : world_.Handles(client)) {
          if (world_.StateOf(handle) != proto::LeaseState::kInUse) continue;
          world_.Write(handle);
          world_.Put(handle, {});
          world_.RunStream(handle);
          ++events_;
          more = true;
        }
      }
      world_.Advance(kBetween / 10);
    }
    const auto due = DueTo(clients_);
    for (size_t i = 0; i < kTenants.size(); ++i) {
      if (clients_[i] == 0) continue;
      due_[i] += due[i];
      held_[i] += static_cast<double>(world_.planner().View(IdOf(i), kTheDevice).held.count());
    }
    world_.Advance(kBetween);
  }

  core::World world_{Node()};
  std::mt19937 random_;
  std::map<ClientId, size_t> tenants_;
  std::array<size_t, kTenants.size()> clients_{};
  std::array<double, kTenants.size()> due_{};  // sums over moments
  std::array<double, kTenants.size()> held_{};
  size_t events_ = 0;
  size_t moves_ = 0;  // of clients, that came or went
};

}  // namespace

void MeasureShares(double scale, uint32_t seed, const Report& report) {
  Shares shares(seed);
  shares.Play(static_cast<size_t>(kEvents * scale));
  double worst = 0;
  for (size_t i = 0; i < kTenants.size(); ++i) {
    worst = std::max(worst, shares.ErrorOf(i));
  }
  report(
      {.name = "harvest.share_error",
       .unit = "of what is due",
       .value = worst,
       .target = 0.05,
       .detail = std::to_string(shares.events()) + " events, " + std::to_string(shares.moves()) +
                 " times a client came or went; of all there is, of which a 64th is never lent"});
  report({.name = "harvest.guarantees_broken",
          .unit = "moments",
          .value = static_cast<double>(shares.robbed()),
          .target = 0});
}

}  // namespace ravenstore::bench
