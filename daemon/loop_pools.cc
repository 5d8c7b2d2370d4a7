#include "daemon/loop_pools.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "daemon/threads.h"

namespace ravenstore::daemon {

using core::ToInt;

LoopPools::LoopPools(LoopState* state, Options options, size_t devices,
                     std::vector<std::unique_ptr<AwayMemory>> others)
    : state_(*state), options_(std::move(options)), devices_(devices) {
  auto next = static_cast<uint16_t>(1 + devices);
  for (auto& memory : others) memory_.emplace(core::PoolId{next++}, std::move(memory));
}

core::Status LoopPools::ReserveHost(const device::Devices& devices, core::Bytes capacity,
                                    int numa_node) {
  RAVEN_ASSIGN_OR_RETURN(auto range, devices.front()->ReservePoolVaRange(capacity, numa_node));
  memory_.emplace(core::kHostPool, HostMemory(devices, std::move(range)));
  return core::Ok();
}

std::vector<StorePools::Other> LoopPools::Others() const {
  std::vector<StorePools::Other> others;
  for (const auto& [id, memory] : memory_) {
    if (id == core::kHostPool) continue;
    StorePools::Other& other = others.emplace_back();
    other.id = id;
    other.pool = options_.topology.pools()[ToInt(id)];
    other.memory = memory.get();
    for (uint16_t i = 0; i < devices_; ++i)
      other.links.push_back(core::LinkBetween(options_.topology, core::DeviceId{i}, id));
  }
  return others;
}

core::TenantId LoopPools::WorkOf(core::PoolId pool) const {
  if (pool == core::kHostPool) return kNoUser;
  const core::Pool& of = options_.topology.pools()[ToInt(pool)];
  return of.kind == core::PoolKind::kRemote ? kOtherNodes : kNoUser;
}

void LoopPools::Pace(const std::vector<MemoryWatch::Seen>& seen) {
  for (auto& [owner, pacer] : pacers_) {
    const double rate = seen[ToInt(owner)].busy ? options_.busy_bytes_per_second : 0;
    if (rate == pacer.rate()) continue;
    pacer.SetRate(rate);
    for (const auto& [pool, memory] : memory_) {
      if (memory->owner() == owner) state_.Apply(core::PoolRate{pool, rate});
    }
    spdlog::debug("device {} is {}: others' copies to its memory are {}", ToInt(owner),
                  rate > 0 ? "busy" : "idle", rate > 0 ? "capped" : "not capped");
  }
}

void LoopPools::NoteFailed() {
  for (const auto& [pool, memory] : memory_) {
    if (failed_.contains(pool)) continue;
    const core::Status health = memory->Health();
    if (health.ok()) continue;
    failed_.insert(pool);
    spdlog::error("{} failed, what lies there alone is lost: {}", state_.views().NameOf(pool),
                  core::Describe(health.error()));
    state_.Apply(core::PoolFailed{pool});
  }
}

}  // namespace ravenstore::daemon
