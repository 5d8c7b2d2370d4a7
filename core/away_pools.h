// The pools where tensors lie that are away from their devices: how much room each has, and what it
// costs to have a tensor there.
//
// Where a tensor that leaves goes is the least sum of three times: its copy there, behind what is
// in flight; its copy back; and the price of the room, which is what others lose whom it keeps from
// a pool that is scarce (docs/decisions/0041, 0042).
//
// Owns: the pools' bookkeeping. Threads: one at a time. Cost: O(pools) a query, but for what says
// otherwise.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/away_pool.h"
#include "core/copy_ledger.h"
#include "core/eviction.h"
#include "core/topology.h"
#include "core/types.h"

namespace ravenstore::core {

// What other nodes lend and that stays empty for so long goes back to them, at most twice as long
// after it became so.
inline constexpr Duration kLentIdleFor = std::chrono::seconds(10);

class AwayPools {
 public:
  // Why a chunk goes: whoever lends it wants it back, or what is in it is lost.
  enum class Taken : uint8_t { kRecalled, kLost };
  struct Member : AwayPool {
    using AwayPool::AwayPool;
    // A tensor found no room lately, although redundant copies might make way.
    Tick scarce_until{};
    // Tensors that had to leave needed redundant copies' room lately: none are made ahead before.
    Tick short_until{};
    bool failed = false;  // for good: nothing lies there, nothing goes there
    // As the topology says; chunk: 0 of one of fixed size.
    Bytes chunk{};
    bool covered = false;
    // Of one that comes and goes: whose memory it is, if a device's; what it may hold; when it may
    // grow again; when what lies in closed chunks may be copied on.
    std::optional<DeviceId> owner{};
    Bytes most{};
    Tick grows_after{};
    Tick moves_after{};
    bool look = false;  // what lies in closed chunks may be able to leave
    // Of a device's: what of `most` its own clients want, and what is given back ahead of what they
    // and jobs will want next, until when.
    Bytes claimed{};
    Bytes ahead{};
    Tick ahead_until{};
    // Of other nodes': chunks that do not open again, by offset; those that were empty at the last
    // look and still are, and when the next look is.
    std::map<Bytes, Taken> taken{};
    std::set<Bytes> idle{};
    Tick idle_look{};

    bool comes_and_goes() const { return chunk > Bytes{0}; }
    // Whether some of the block's memory is lost.
    bool IsLost(Block block) const;
  };
  using Members = std::map<PoolId, Member>;

  // The topology's pools but those of its first `devices` devices; it outlives this.
  AwayPools(const Topology* topology, size_t devices, Bytes host_capacity);
  // The topology has the same pools, but other rates.
  void RatesChanged();

  Member& operator[](PoolId pool) { return pools_.at(pool); }
  const Member& operator[](PoolId pool) const { return pools_.at(pool); }
  Member& host() { return pools_.at(kHostPool); }
  const Member& host() const { return pools_.at(kHostPool); }
  Members::iterator begin() { return pools_.begin(); }
  Members::iterator end() { return pools_.end(); }
  Members::const_iterator begin() const { return pools_.begin(); }
  Members::const_iterator end() const { return pools_.end(); }
  // The pool of what is harvested of the device's memory, where there is one.
  std::optional<PoolId> HarvestOf(DeviceId device) const { return harvested_[ToInt(device)]; }
  // Of all but the host pool.
  std::vector<PoolId> OtherIds() const;
  std::vector<Bytes> OtherCapacities() const;

  // The largest tensor that the pool takes, be it that it must grow first. `host_most`, here and
  // below: the host pool grows to so much at most.
  Bytes RoomIn(PoolId pool, Bytes host_most) const;
  // The device's links to the pools, with their room.
  AwayLinks LinksOf(DeviceId device, Bytes host_most) const;

  // Somebody waits for the room of what leaves a device, or not yet.
  enum class Leaving : uint8_t { kNow, kAhead };
  // What leaves, and what is on its way off the same device.
  struct Departure {
    DeviceId home{};
    Bytes size;
    Leaving leaving = Leaving::kNow;
    const CopyLedger::Flights& flights;
    Tick now{};
  };
  // A pool where it may go.
  struct Choice {
    Duration cost;
    Duration price;
    PoolId pool;
  };
  // Those first whose cost and price are the least; whether they have room is not asked.
  std::vector<Choice> For(const Departure& departure) const;
  // The first of them that has room; the first, where none has.
  PoolId Next(const Departure& departure, Bytes host_most) const;

 private:
  AwayLinks MakeLinks(DeviceId device) const;
  Duration PlacingCost(const Departure& departure, PoolId pool) const;
  Duration PriceOfRoom(const Departure& departure, PoolId pool) const;

  const Topology* topology_;
  Members pools_;
  std::vector<AwayLinks> links_;                  // of each device, but for their room
  std::vector<std::optional<PoolId>> harvested_;  // of each device
};

}  // namespace ravenstore::core
