// Random lives of a small node, checked at every step by tests/core/world.h.
//
// A failure aborts and prints the seed and the step. RAVENSTORE_FUZZ_SEED=n runs one seed alone and
// prints every action of the planner; RAVENSTORE_FUZZ_RUNS=n sets how many seeds are run.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/check.h"
#include "tests/core/world.h"

namespace ravenstore::core {
namespace {

using proto::LeaseState;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Bytes kUnit = kExtentAlignment;
constexpr int kStepsPerRun = 2000;

// For the message when a check fails deep inside.
volatile uint32_t g_seed = 0;
volatile int g_step = 0;

void SayWhere(int) {
  std::fprintf(stderr, "planner_fuzz_test: seed %u step %d\n", g_seed, g_step);
}

class Life {
 public:
  Life(uint32_t seed, bool verbose) : random_(seed), world_(MakeOptions(verbose)) {
    const uint32_t tenants = 1 + Below(2);
    for (uint32_t id = 1; id <= tenants; ++id) world_.SetTenant(TenantId{id}, RandomBudgets(200));
    tenants_ = tenants;
    const uint32_t clients = 1 + Below(3);
    for (uint32_t i = 0; i < clients; ++i) Attach();
  }

  void Step() {
    const uint32_t dice = Below(1000);
    if (dice < 2) return Attach();
    if (dice < 3) return Kill();
    if (dice < 6) return ChangeLimits();
    if (dice < 12) return MarkStep();
    if (dice < 300) return MachineStep();
    if (lazy_ ? dice < 330 : dice < 560) return DaemonStep();
    if (dice < 600) return world_.Advance(microseconds(1 + Below(dice % 7 == 0 ? 20000 : 200)));
    ClientStep();
  }

  // Everything comes to rest, and then nothing may be left over.
  void Wind() {
    Settle();
    for (const ClientId client : world_.Clients()) {
      for (const Handle handle : world_.Handles(client)) ReadBack(handle);
    }
    for (const ClientId client : world_.Clients()) {
      for (const Handle handle : world_.Handles(client)) RAVEN_CHECK(world_.Free(handle));
    }
    Settle();
    for (const ClientId client : world_.Clients()) {
      RAVEN_CHECK(world_.Handles(client).empty());
      const ClientView view = world_.planner().View(client);
      RAVEN_CHECK(view.tensors == 0);
      RAVEN_CHECK(view.host_used == Bytes(0));
      RAVEN_CHECK(view.device_used == Bytes(0));
      RAVEN_CHECK(view.in_use == Bytes(0));
    }
    RAVEN_CHECK(world_.planner().HostTier().used == Bytes(0));
    for (const ClientId client : world_.Clients()) ExpectRoomFor(client);
  }

  const PlannerStats& stats() { return world_.planner().stats(); }

 private:
  World::Options MakeOptions(bool verbose) {
    World::Options options;
    PlannerOptions& planner = options.planner;
    planner.slab = kUnit * (8u << Below(3));
    planner.granularity = kUnit * 4;
    devices_ = 1 + Below(2);
    for (uint32_t i = 0; i < devices_; ++i) {
      planner.device_capacity.push_back(kUnit * (32 + 4 * Below(40)));
      planner.arena.push_back(kUnit * (64 + 4 * Below(40)));
    }
    roomy_ = Chance(70);
    planner.host_capacity = kUnit * ((roomy_ ? 400 : 32) + Below(300));
    planner.host_step = kUnit * 16;
    planner.host_ahead = kUnit * (16 * Below(3));
    planner.link.up_bytes_per_second = 100e6;
    planner.link.down_bytes_per_second = 100e6;
    planner.in_flight = kUnit * (4 + Below(60));
    planner.in_flight_copies = 1 + Below(8);
    planner.prefetch = Below(4) != 0;
    planner.preclean = Below(4) != 0;
    planner.learn = Below(4) != 0;
    constexpr Policy kPolicies[] = {Policy::kValue, Policy::kValue, Policy::kLru, Policy::kGdsf};
    planner.policy = kPolicies[Below(4)];
    options.lane_entries = 2 + Below(40);
    if (verbose) {
      options.trace = [](const std::string& text) {
        std::fprintf(stderr, "  step %d: %s\n", g_step, text.c_str());
      };
    }
    lazy_ = Chance(35);
    hints_ = Chance(40) ? 0 : (Chance(60) ? 7 : 2);
    fail_percent_ = Below(2) == 0 ? 0 : Below(30);
    recompute_percent_ = Chance(60) ? 0 : 10 + Below(60);
    return options;
  }

  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }
  bool Chance(uint32_t percent) { return Below(100) < percent; }
  DeviceId RandomDevice() { return DeviceId{static_cast<uint16_t>(Below(devices_))}; }
  Budgets RandomBudgets(uint32_t most) {
    if (!roomy_) return {kUnit * (4 + Below(most)), kUnit * Below(2 * most)};
    return {kUnit * (32 + Below(most)), kUnit * (300 + Below(300))};
  }
  Duration RandomTimeout() { return milliseconds(Chance(80) ? 1000 : Below(30)); }
  Bytes RandomSize() {
    switch (Below(4)) {
      case 0: return Bytes(1 + Below(1024));
      case 1: return kUnit * (1 + Below(30));
      default: return kUnit * (1 + Below(8));
    }
  }
  NextUse RandomHint() {
    // Some lives mix everything, in others all hints are of one kind, as a real client's are.
    const uint32_t kind = hints_ == 0 || Chance(10) ? Below(8) : hints_;
    switch (kind) {
      case 0:
      case 1: return {};
      case 2:
      case 3:
        return {NextUse::Kind::kAt, world_.now() + microseconds(int64_t{Below(3000)} - 300), 0};
      case 4: return {NextUse::Kind::kNever, {}, 0};
      default: return {NextUse::Kind::kOrder, {}, int64_t{Below(40)} - 20};
    }
  }
  // Some less than copying, some more; most tensors cannot be made anew.
  Duration RandomRecompute() {
    return Chance(recompute_percent_) ? microseconds(1 + Below(200)) : microseconds(0);
  }
  std::optional<Handle> RandomHandle() {
    const auto clients = world_.Clients();
    if (clients.empty()) return std::nullopt;
    const auto handles = world_.Handles(clients[Below(static_cast<uint32_t>(clients.size()))]);
    if (handles.empty()) return std::nullopt;
    return handles[Below(static_cast<uint32_t>(handles.size()))];
  }
  // Where the races are.
  std::optional<Handle> HandleUnderCopy() {
    if (world_.copies().empty()) return std::nullopt;
    const auto& copy = world_.copies()[Below(static_cast<uint32_t>(world_.copies().size()))];
    const auto clients = world_.Clients();
    if (std::find(clients.begin(), clients.end(), copy.handle.client) == clients.end()) {
      return std::nullopt;
    }
    return copy.handle;
  }
  std::optional<ClientId> RandomClient() {
    const auto clients = world_.Clients();
    if (clients.empty()) return std::nullopt;
    return clients[Below(static_cast<uint32_t>(clients.size()))];
  }

  void Attach() {
    if (world_.Clients().size() >= 5) return;
    const TenantId tenant{1 + Below(tenants_)};
    world_.Attach(tenant, RandomBudgets(120));
  }
  void Kill() {
    if (const auto client = RandomClient()) world_.Kill(*client);
  }
  void ChangeLimits() {
    const TenantId tenant{1 + Below(tenants_)};
    if (Chance(50)) return world_.SetTenant(tenant, RandomBudgets(200));
    if (const auto client = RandomClient()) world_.SetClient(*client, RandomBudgets(120));
  }

  void MarkStep() {
    if (const auto client = RandomClient()) world_.Step(*client);
  }

  void MachineStep() {
    if (Chance(50) && !world_.copies().empty()) {
      const auto index = Below(static_cast<uint32_t>(world_.copies().size()));
      return world_.FinishCopy(index, !Chance(fail_percent_));
    }
    if (Chance(50) && !world_.slab_jobs().empty()) {
      const auto index = Below(static_cast<uint32_t>(world_.slab_jobs().size()));
      return world_.FinishSlab(index, !Chance(fail_percent_));
    }
    if (const auto handle = RandomHandle()) world_.RunStream(*handle);
  }

  void DaemonStep() {
    const auto client = RandomClient();
    if (!client) return;
    // A daemon that comes round seldom finds much at once, and acts on it only afterwards.
    switch (Below(4)) {
      case 0: return world_.PollLog(*client, lazy_ ? 100 : 1 + Below(6));
      case 1: return world_.PollTickets();
      default: return world_.PollRequests(*client, 1 + Below(3));
    }
  }

  void ClientStep() {
    const auto client = RandomClient();
    if (!client) return;
    if (Chance(18)) {
      if (world_.Handles(*client).size() >= 25) return;
      // One by one: the order in which arguments are evaluated is the compiler's choice.
      const Bytes size = RandomSize();
      const DeviceId device = RandomDevice();
      const Duration timeout = RandomTimeout();
      world_.Create(*client, size, device, timeout, Chance(15));
      return;
    }
    const auto handle = Chance(20) ? HandleUnderCopy() : RandomHandle();
    if (!handle) return;
    switch (world_.StateOf(*handle)) {
      case LeaseState::kInUse:
        if (Chance(40)) return world_.Write(*handle);
        if (Chance(10)) return world_.RunStream(*handle);
        if (Chance(96)) {
          const NextUse hint = RandomHint();
          return world_.Put(*handle, hint, RandomRecompute());
        }
        world_.Free(*handle);
        return;
      case LeaseState::kIdle:
      case LeaseState::kLeaving:
      case LeaseState::kAway:
        if (Chance(6)) {
          world_.Free(*handle);
        } else if (Chance(60)) {
          const DeviceId device = Chance(90) ? world_.DeviceOf(*handle) : RandomDevice();
          world_.Get(*handle, device, RandomTimeout());
        }
        return;
      case LeaseState::kLost: world_.Free(*handle); return;
      default: return;
    }
  }

  // Nothing fails any more, and everything under way ends.
  void Settle() {
    for (int round = 0; round < 60; ++round) {
      while (!world_.slab_jobs().empty()) world_.FinishSlab(0, true);
      while (!world_.copies().empty()) world_.FinishCopy(0, true);
      for (const ClientId client : world_.Clients()) {
        for (const Handle handle : world_.Handles(client)) {
          if (world_.StateOf(handle) == LeaseState::kInUse) {
            world_.RunStream(handle);
            world_.Put(handle, {});
          }
          world_.RunStream(handle);
        }
      }
      world_.PollAll();
      world_.Advance(milliseconds(25));
    }
    RAVEN_CHECK(world_.planner().stats().waiting == 0);
  }

  void ReadBack(Handle handle) {
    if (world_.StateOf(handle) == LeaseState::kLost) return;
    RAVEN_CHECK(world_.Get(handle, world_.DeviceOf(handle), milliseconds(20)));
    for (int round = 0; round < 30 && world_.StateOf(handle) != LeaseState::kInUse; ++round) {
      world_.PollAll();
      while (!world_.slab_jobs().empty()) world_.FinishSlab(0, true);
      while (!world_.copies().empty()) world_.FinishCopy(0, true);
      world_.Advance(milliseconds(1));
    }
    while (!world_.copies().empty()) world_.FinishCopy(0, true);
    // It may be denied (the host may have no room for those that make way), but not lost.
    if (world_.StateOf(handle) == LeaseState::kInUse) {
      world_.RunStream(handle);
      world_.Put(handle, {});
    }
    world_.PollAll();
  }

  // With nothing left in the store, a client within its budgets gets room.
  void ExpectRoomFor(ClientId client) {
    const Bytes least = kUnit * 4;
    if (world_.planner().View(client).budgets.device < least) return;
    const Handle handle = world_.Create(client, kUnit, DeviceId{0}, milliseconds(500));
    for (int round = 0; round < 300; ++round) {
      world_.PollAll();
      if (world_.AnswerOf(handle) != World::Answer::kWaiting) break;
      while (!world_.slab_jobs().empty()) world_.FinishSlab(0, true);
      world_.Advance(milliseconds(1));
    }
    RAVEN_CHECK(world_.AnswerOf(handle) == World::Answer::kGranted);
    world_.Free(handle);
    world_.RunStream(handle);
    world_.PollAll();
  }

  std::mt19937_64 random_;
  uint32_t devices_ = 1;
  uint32_t tenants_ = 1;
  uint32_t fail_percent_ = 0;
  uint32_t hints_ = 0;
  uint32_t recompute_percent_ = 0;
  bool roomy_ = true;
  bool lazy_ = false;
  World world_;
};

// What the lives have seen, so that a fuzzer that only scratches the surface is noticed.
struct Seen {
  uint64_t hits = 0;
  uint64_t late_hits = 0;
  uint64_t misses = 0;
  uint64_t prefetches = 0;
  uint64_t rescues = 0;
  uint64_t drops = 0;
  uint64_t given_up = 0;
  uint64_t recomputes = 0;
  uint64_t predictions = 0;
};
Seen g_seen;

void Live(uint32_t seed, bool verbose) {
  g_seed = seed;
  g_step = 0;
  Life life(seed, verbose);
  for (int step = 1; step <= kStepsPerRun; ++step) {
    g_step = step;
    life.Step();
  }
  g_step = kStepsPerRun + 1;
  life.Wind();
  const PlannerStats& stats = life.stats();
  g_seen.hits += stats.hits;
  g_seen.late_hits += stats.late_hits;
  g_seen.misses += stats.misses;
  g_seen.prefetches += stats.prefetches;
  g_seen.rescues += stats.rescues;
  g_seen.drops += stats.drops_clean;
  g_seen.given_up += stats.given_up;
  g_seen.recomputes += stats.recomputes;
  g_seen.predictions += stats.predictions_right + stats.predictions_wrong;
}

TEST(PlannerFuzzTest, KeepsItsPromisesInRandomLives) {
  std::signal(SIGABRT, SayWhere);
  if (const char* seed = std::getenv("RAVENSTORE_FUZZ_SEED")) {
    return Live(static_cast<uint32_t>(std::strtoul(seed, nullptr, 10)), true);
  }
  const char* given = std::getenv("RAVENSTORE_FUZZ_RUNS");
  const auto runs =
      given == nullptr ? 400 : static_cast<uint32_t>(std::strtoul(given, nullptr, 10));
  std::printf("seeds 1 to %u, %d steps each\n", runs, kStepsPerRun);
  for (uint32_t seed = 1; seed <= runs; ++seed) Live(seed, false);
  std::printf("hits %lu, late %lu, misses %lu, prefetches %lu, rescues %lu, clean drops %lu\n",
              g_seen.hits, g_seen.late_hits, g_seen.misses, g_seen.prefetches, g_seen.rescues,
              g_seen.drops);
  std::printf("given up %lu, made anew %lu, predictions %lu\n", g_seen.given_up, g_seen.recomputes,
              g_seen.predictions);
  if (runs < 50) return;
  EXPECT_GT(g_seen.late_hits, 0u);
  EXPECT_GT(g_seen.misses, 100u);
  EXPECT_GT(g_seen.prefetches, 100u);
  EXPECT_GT(g_seen.rescues, 100u);
  EXPECT_GT(g_seen.drops, 100u);
  EXPECT_GT(g_seen.given_up, 100u);
  EXPECT_GT(g_seen.recomputes, 100u);
  EXPECT_GT(g_seen.predictions, 100u);
}

}  // namespace
}  // namespace ravenstore::core
