// What each engine does next, of what is possible now: copies out, maps, copies in.
//
// It takes a view of the client's units and returns what to start; the caller starts it. Nothing is
// changed. An engine asks again when it is free, or when the view has changed.
//
// Owns: nothing. Units: positions, bytes. Threads: one at a time. Cost: O(log units) a question;
// a search for a sparse slot page may look at all slot pages of a class.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/plan/copy_pools.h"
#include "core/plan/deadlines.h"
#include "core/plan/move_queues.h"
#include "core/plan/page_supply.h"
#include "core/plan/residency_plan.h"
#include "core/plan/slot_pages.h"
#include "core/plan/unit_state.h"

namespace ravenstore::core::plan {

// What will be created without a plan, at an even rate.
struct ExpectedGrowth {
  Bytes bytes;
  Position from = 0;
  Position until = 0;

  Bytes Before(Position need) const;
};

struct MoveView {
  std::span<const UnitState> units;
  const MoveQueues& queues;
  const ResidencyPlan& plan;
  const Deadlines& deadlines;
  const PageSupply& supply;
  const SlotPages& slot_pages;
  const PlanLimits& limits;
  const CopyPools& copies;
  Bytes coming_most;      // from one pool, ahead of need
  uint32_t leaving = 0;   // copies out under way of units that leave
  uint32_t expected = 0;  // pages that are being made for the client
  uint32_t surplus = 0;   // pages that are held beyond the client's share
  Bytes ready;            // of clean idle units that stay
  ExpectedGrowth growth;
};

// A unit to be mapped, and where its physical memory comes from.
struct MapChoice {
  enum class From : uint8_t {
    kSlotRoom,  // a resident page of its class has room
    kSupply,
    kSparse,  // a slot page is emptied by copies on the device
    kDead,    // the page of a unit where nothing lives
  };
  Unit unit = 0;
  From from = From::kSupply;
  PageSupply::Source source{};  // of kSupply
  Unit dead = 0;                // of kDead
};

// The first unit that may be mapped and finds no memory: where it is needed; kWaitedFor: a call
// waits. nullopt: there is none.
std::optional<Position> FirstLack(const MoveView& view);
// Where the client itself needs the free page that it needs last; kNoPosition: nowhere. nullopt: no
// page is free.
std::optional<Position> LastSpare(const MoveView& view);
// The unit whose copy to the pool begins; its leaving position is the first.
std::optional<Unit> NextOut(const MoveView& view, PoolNumber pool);
// The unit whose copy from the pool begins: the one that is needed first.
std::optional<Unit> NextIn(const MoveView& view, PoolNumber pool);
// The unit that is mapped next. One that comes must fit from now until it is needed, unless a call
// waits for it.
std::optional<MapChoice> NextMap(const MoveView& view);
// Where nothing that is away fits, and not all can be in time: the idle unit that is needed last,
// and later than the first that is away, of no higher priority. A clean one before a dirty one.
std::optional<Unit> NextExchange(const MoveView& view);
// Where a call waits for memory and nothing is leaving: the idle unit that leaves first
// (eviction_rank.h), of those that are clean or for which a pool has room.
std::optional<Unit> NextEmergency(const MoveView& view);
// A call waits for memory: for a unit whose bytes are away, or for one that has none yet.
bool AwaitsReturn(const MoveView& view);
bool AwaitsCreation(const MoveView& view);
// The unit that is away in the pool and was used last, where a page is free for it. nullopt: there
// is none, or a call waits for another unit to return. O(units).
std::optional<Unit> NextReturn(const MoveView& view, PoolNumber pool);
// Units that leave; 0 if no pool has room for any of them.
size_t LeavingNow(const MoveView& view);
// The bytes of the unit that leaves first, if no pool has room for any that leaves. If none leaves:
// those of an idle one, if no pool has room for any that is dirty.
std::optional<Bytes> LackedCopyRoom(const MoveView& view);

}  // namespace ravenstore::core::plan
