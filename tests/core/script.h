// Stories about the planner: tensors by name, one client unless said otherwise, and a world in
// which slabs come at once and copies take until the story says so.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "tests/core/rates.h"
#include "tests/core/world.h"

namespace ravenstore::core {

inline NextUse Order(int64_t order) {
  return {NextUse::Kind::kOrder, {}, order};
}
inline NextUse At(Tick at) {
  return {NextUse::Kind::kAt, at, 0};
}
inline NextUse NotNeeded() {
  return {NextUse::Kind::kNever, {}, 0};
}

class Script {
 public:
  struct Setting {
    Bytes capacity = KiB(64);  // of each device, and every device budget
    Bytes slab = KiB(4);
    Bytes host = KiB(1024);
    Bytes host_budget = KiB(1024);
    uint32_t devices = 1;
    bool prefetch = false;
    bool preclean = false;
    Bytes in_flight = KiB(256);
    double link = 50e9;              // bytes per second, as the planner reckons
    std::vector<double> links = {};  // of each device, where they differ
    Bytes incremental_from = MiB(32);
    std::vector<OtherPool> others = {};  // pools beside devices and host, PoolId{2} the first
    uint64_t guaranteed_part = 0;
    uint32_t demand_copies = 512;
    std::vector<Bytes> capacities = {};  // of each device, where they differ
  };
  enum class State { kWaiting, kRefused, kInUse, kIdle, kLeaving, kAway, kLost, kFreed };

  static constexpr TenantId kTenant{1};

  Script() : Script(Setting{}) {}
  explicit Script(const Setting& setting) : setting_(setting), world_(MakeOptions(setting)) {
    world_.SetTenant(kTenant, {setting.capacity, setting.host_budget});
    me_ = world_.Attach(kTenant, {setting.capacity, setting.host_budget});
    FinishSlabs();
  }

  // ---- What the client does, and the daemon learns of at once.
  Script& Create(const std::string& name, Bytes size, DeviceId device = DeviceId{0}) {
    handles_[name] =
        world_.Create(me_, size, device, kTimeout, fail_fast_, fail_stuck_, long_lived_);
    return Poll();
  }
  Script& Get(const std::string& name, DeviceId device) {
    EXPECT_TRUE(world_.Get(At(name), device, kTimeout)) << name;
    return Poll();
  }
  Script& Get(const std::string& name) { return Get(name, world_.DeviceOf(At(name))); }
  // Writes it and puts it.
  Script& Put(const std::string& name, NextUse next_use = {}) {
    world_.Write(At(name));
    return PutUnchanged(name, next_use);
  }
  Script& PutUnchanged(const std::string& name, NextUse next_use = {}) {
    return PutAs(Priority::kNormal, name, next_use);
  }
  Script& PutAs(Priority priority, const std::string& name, NextUse next_use = {}) {
    world_.Put(At(name), next_use, {}, priority);
    world_.RunStream(At(name));
    return Poll();
  }
  // A create, a write and a put.
  Script& Make(const std::string& name, Bytes size, NextUse next_use = {}) {
    return Create(name, size).Put(name, next_use);
  }
  Script& Free(const std::string& name) {
    EXPECT_TRUE(world_.Free(At(name))) << name;
    world_.RunStream(At(name));
    return Poll();
  }
  // Its stream reads and writes what it was given to; ends the test when bytes are wrong.
  Script& Use(const std::string& name) {
    world_.RunStream(At(name));
    return *this;
  }

  // ---- What the machine does.
  bool IsCopying(const std::string& name) { return FindCopy(name).has_value(); }
  World::CopyKind CopyKindOf(const std::string& name) {
    return world_.copies()[*FindCopy(name)].kind;
  }
  Script& CopyDone(const std::string& name, bool ok = true) {
    const auto index = FindCopy(name);
    RAVEN_CHECK(index.has_value());
    world_.FinishCopy(*index, ok);
    return FinishSlabs();
  }
  Script& CopyFails(const std::string& name) { return CopyDone(name, false); }
  Script& AllCopiesDone() {
    while (!world_.copies().empty()) {
      world_.FinishCopy(0, true);
      FinishSlabs();
    }
    return *this;
  }
  Script& Pass(Duration duration) {
    world_.Advance(duration);
    return FinishSlabs();
  }
  Script& Poll() {
    world_.PollAll();
    return FinishSlabs();
  }
  Script& FinishSlabs() {
    while (slabs_come_ && !world_.slab_jobs().empty()) world_.FinishSlab(0, true);
    return *this;
  }

  // ---- The setting.
  Script& As(ClientId client) { return me_ = client, *this; }
  ClientId me() const { return me_; }
  Script& FailFast(bool fail_fast) { return fail_fast_ = fail_fast, *this; }
  Script& FailStuck(bool fail_stuck) { return fail_stuck_ = fail_stuck, *this; }
  Script& LongLived(bool long_lived) { return long_lived_ = long_lived, *this; }
  Script& SlabsCome(bool come) { return slabs_come_ = come, FinishSlabs(); }
  Script& Budget(Bytes device) {
    world_.SetClient(me_, {device, setting_.host_budget});
    return FinishSlabs();
  }

  // Of its tenant.
  Script& TenantBudgets(const Budgets& budgets) {
    world_.SetTenant(kTenant, budgets);
    return FinishSlabs();
  }
  Script& DeviceCapacity(Bytes bytes) {
    world_.SetDevice(DeviceId{0}, bytes);
    return FinishSlabs();
  }

  Script& Trim() { return world_.Trim(me_), FinishSlabs(); }

  // ---- Looking.
  State StateOf(const std::string& name) {
    const Handle handle = At(name);
    if (world_.AnswerOf(handle) == World::Answer::kWaiting) return State::kWaiting;
    switch (world_.StateOf(handle)) {
      case proto::LeaseState::kInUse: return State::kInUse;
      case proto::LeaseState::kIdle: return State::kIdle;
      case proto::LeaseState::kLeaving: return State::kLeaving;
      case proto::LeaseState::kAway: return State::kAway;
      case proto::LeaseState::kLost: return State::kLost;
      default:
        return world_.AnswerOf(handle) == World::Answer::kRefused ? State::kRefused : State::kFreed;
    }
  }
  std::string Words(const std::string& name) { return world_.ErrorOf(At(name)).message; }
  TensorView View(const std::string& name) { return world_.planner().View(world_.IdOf(At(name))); }
  const PlannerStats& stats() { return world_.planner().stats(); }
  Bytes Held() { return world_.planner().View(me_).device_held; }
  Handle At(const std::string& name) const { return handles_.at(name); }
  World& world() { return world_; }

 private:
  static constexpr Duration kTimeout = std::chrono::seconds(1);

  static World::Options MakeOptions(const Setting& setting) {
    World::Options options;
    PlannerOptions& planner = options.planner;
    planner.slab = setting.slab;
    planner.granularity = Bytes(1024);
    planner.device_capacity = setting.capacities;
    planner.device_capacity.resize(setting.devices, setting.capacity);
    for (const Bytes capacity : planner.device_capacity) planner.arena.push_back(capacity * 2);
    planner.host_capacity = setting.host;
    planner.host_step = setting.host;
    planner.host_ahead = KiB(1);  // so that it is pinned at the attach
    planner.in_flight = setting.in_flight;
    planner.topology = setting.links.empty() ? DevicesAtRate(planner, setting.link)
                                             : DevicesAtRates(planner, setting.links);
    planner.topology = WithPools(planner.topology, setting.others);
    planner.incremental_from = setting.incremental_from;
    planner.guaranteed_part = setting.guaranteed_part;
    planner.demand_copies = setting.demand_copies;
    planner.prefetch = setting.prefetch;
    planner.preclean = setting.preclean;
    return options;
  }
  std::optional<size_t> FindCopy(const std::string& name) {
    for (size_t i = 0; i < world_.copies().size(); ++i) {
      if (world_.copies()[i].handle == At(name)) return i;
    }
    return std::nullopt;
  }

  Setting setting_;
  World world_;
  ClientId me_{};
  bool fail_fast_ = false;
  bool fail_stuck_ = false;
  bool long_lived_ = false;
  bool slabs_come_ = true;
  std::map<std::string, Handle> handles_;
};

}  // namespace ravenstore::core
