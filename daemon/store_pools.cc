#include "daemon/store_pools.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/check.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::DeviceId;
using core::PoolId;
using core::PoolKind;
using core::ToInt;

namespace {

// After memory that could not be had. Shorter: more requests fail. Longer: memory that is free
// again is used later.
constexpr auto kPause = std::chrono::seconds(1);
// What other nodes lend and that stays empty for this time is returned. Shorter: it is borrowed
// again. Longer: others do without it.
constexpr auto kLentIdleFor = std::chrono::seconds(10);

// The device copies to and from the pool by itself, or the pool has no device.
bool Reaches(DeviceId device, const AwayMemory& memory) {
  return !memory.owner() || (*memory.owner() != device && !memory.IsStaged(device));
}

}  // namespace

core::LinkModel StorePools::Member::LinkOf(DeviceId device) const {
  core::LinkModel link = of.links[ToInt(device)];
  if (rate > 0) {
    link.up_bytes_per_second = std::min(link.up_bytes_per_second, rate);
    link.down_bytes_per_second = std::min(link.down_bytes_per_second, rate);
  }
  return link;
}

StorePools::StorePools(Options options, const device::Devices& devices, AwayMemory* host,
                       Hooks hooks)
    : options_(std::move(options)), hooks_(std::move(hooks)), reached_(devices.size()) {
  Add({.id = core::kHostPool,
       .pool = {.kind = PoolKind::kHost, .capacity = options_.host_capacity},
       .memory = host,
       .links = options_.links},
      {.range = options_.host_capacity,
       .step = options_.host_step,
       .unit = core::kExtentAlignment,
       .ahead = options_.host_ahead,
       .pause = kPause},
      "the host pool");
  for (const Other& other : options_.others) {
    const core::Pool& pool = other.pool;
    PoolMemory::Options memory{.range = pool.capacity, .granularity = pool.granularity};
    if (pool.chunk > Bytes{}) {
      memory.step = pool.chunk;
      memory.pause = kPause;
      // Of other nodes' memory the chunks are of one size; of a device's a chunk is made ahead.
      const bool remote = pool.kind == PoolKind::kRemote;
      memory.unit = remote ? pool.chunk : options_.device_granularity;
      memory.ahead = remote ? Bytes{} : pool.chunk;
      if (remote) memory.idle = kLentIdleFor;
    }
    Add(other, memory, core::NameOf(pool));
  }
  for (uint16_t i = 0; i < reached_.size(); ++i) {
    for (auto& [id, member] : members_) {
      if (Reaches(DeviceId{i}, *member.of.memory)) reached_[i].push_back(&member);
    }
    std::stable_sort(reached_[i].begin(), reached_[i].end(), [i](const Member* a, const Member* b) {
      return a->of.links[i].up_bytes_per_second > b->of.links[i].up_bytes_per_second;
    });
  }
}

void StorePools::Add(Other other, PoolMemory::Options memory, const std::string& name) {
  const PoolId id = other.id;
  PagePool::Hooks hooks{.grow =
                            [this, id](const auto& part) {
                              hooks_.grow({id, part.offset, part.bytes});
                            },
                        .release =
                            [this, id](const auto& part) {
                              hooks_.shrink({id, part.offset, part.bytes});
                            }};
  // Nothing comes to one that comes and goes before its first limit.
  const bool is_limited = other.pool.chunk > Bytes{};
  Member& member = members_[id];
  member.of = std::move(other);
  member.pool = std::make_unique<PagePool>(
      PagePool::Options{.name = name, .memory = memory, .transfers = options_.transfers},
      member.of.memory, std::move(hooks), is_limited ? Bytes{} : memory.range);
}

core::Status StorePools::Open(const device::Devices& devices) {
  for (auto& [id, member] : members_) {
    for (uint16_t i = 0; i < devices.size(); ++i) {
      if (!Reaches(DeviceId{i}, *member.of.memory)) continue;
      const auto owner = member.of.memory->owner();
      core::Pacer* const pacer = owner && hooks_.pacer ? hooks_.pacer(*owner) : nullptr;
      RAVEN_RETURN_IF_ERROR(member.pool->AddDevice(DeviceId{i}, devices[i]->info().uuid, pacer));
    }
    if (member.has_chunks())
      RAVEN_RETURN_IF_ERROR(
          member.pool->AddHost(&host(), member.of.pool.covered, options_.exchange));
  }
  return core::Ok();
}

core::plan::PoolNumber StorePools::HostOf(DeviceId device) const {
  const auto& reached = Of(device);
  const auto found = std::find_if(reached.begin(), reached.end(), [](const Member* member) {
    return member->of.id == core::kHostPool;
  });
  RAVEN_CHECK(found != reached.end());
  return static_cast<core::plan::PoolNumber>(found - reached.begin());
}

std::vector<core::plan::CopyPool> StorePools::CopyPoolsOf(DeviceId device) const {
  std::vector<core::plan::CopyPool> pools;
  for (const Member* member : Of(device)) {
    const core::LinkModel link = member->LinkOf(device);
    pools.push_back({.capacity = Bytes{},
                     .in_rate = link.up_bytes_per_second,
                     .out_rate = link.down_bytes_per_second,
                     .per_copy = link.latency});
  }
  return pools;
}

const StorePools::Member* StorePools::HarvestOf(DeviceId device) const {
  for (const auto& [id, member] : members_) {
    if (member.is_harvested() && member.of.memory->owner() == device) return &member;
  }
  return nullptr;
}

StorePools::Member* StorePools::HarvestOf(DeviceId device) {
  return const_cast<Member*>(std::as_const(*this).HarvestOf(device));
}

Bytes StorePools::Harvested(DeviceId device) const {
  const Member* const member = HarvestOf(device);
  return member == nullptr ? Bytes{} : member->pool->memory().committed();
}

void StorePools::Divide(const PagePool& pool, std::vector<Use>* uses) {
  std::map<core::ClientId, Bytes> of_client;
  std::map<core::TenantId, Bytes> of_tenant;
  Bytes redundant;
  for (const Use& use : *uses) {
    of_client[use.client] += use.used;
    of_tenant[use.tenant] += use.used;
    redundant += use.redundant;
  }
  for (Use& use : *uses) {
    const Bytes left = std::min(Minus(use.client_budget, of_client[use.client]),
                                Minus(use.tenant_budget, of_tenant[use.tenant]));
    use.may_have = use.used + std::min(left, pool.Room() + redundant - use.redundant);
  }
}

void StorePools::EndCopies() {
  for (auto& [id, member] : members_) member.pool->EndCopies();
}

bool StorePools::Poll(core::Tick now) {
  bool busy = false;
  for (auto& [id, member] : members_) busy |= member.pool->Poll(now);
  return busy;
}

bool StorePools::IsCopying() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const auto& of) { return of.second.pool->IsCopying(); });
}

core::Tick StorePools::NextPump(core::Tick poll) const {
  core::Tick next = core::kNever;
  for (const auto& [id, member] : members_) next = std::min(next, member.pool->NextPump(poll));
  return next;
}

core::Tick StorePools::NextWake() const {
  core::Tick next = core::kNever;
  for (const auto& [id, member] : members_) next = std::min(next, member.pool->NextWake());
  return next;
}

std::string StorePools::NameOf(PoolId pool) const {
  if (pool == core::kHostPool) return "host";
  const auto found = members_.find(pool);
  if (found != members_.end()) return core::NameOf(found->second.of.pool);
  return "device " + std::to_string(ToInt(core::DeviceOf(pool)));
}

core::TierView StorePools::TierOf(PoolId pool) const {
  const Member& member = members_.at(pool);
  const PoolMemory& memory = member.pool->memory();
  if (member.failed) return {};
  const Bytes most = member.has_chunks() ? member.lent : member.of.pool.capacity;
  return {.capacity = std::min(most, member.of.pool.capacity),
          .held = memory.committed(),
          .used = memory.used()};
}

}  // namespace ravenstore::daemon
