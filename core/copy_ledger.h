// Copies under way between devices and the other pools, and whether more may begin.
//
// Between a device and each other pool as much is in flight, in each direction, as keeps the link
// busy, and no more: what is in flight is not taken back, and goes before what comes later. Where a
// part is guaranteed, each tenant may always have that part of it in flight, however much others
// copy (docs/decisions/0026).
//
// Owns: the counts. Threads: one at a time. Cost: O(log clients).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "core/types.h"

namespace ravenstore::core {

class CopyLedger {
 public:
  struct Limit {
    Bytes bytes;
    uint32_t copies = 0;
  };
  struct Options {
    size_t devices = 0;
    size_t pools = 0;
    Limit ahead;   // of copies that nobody waits for: beyond it no more are chosen
    Limit demand;  // of those that gets wait for
    // Of each limit a tenant may have this part, whatever others have: 8 means an eighth. 0: none.
    uint64_t guaranteed_part = 0;
  };
  // Off the device, or onto it.
  enum class Way : uint8_t { kOut, kIn };
  struct InFlight {
    Bytes bytes;
    uint32_t copies = 0;
  };
  // By the other pool, then by Way.
  using Flights = std::vector<std::array<InFlight, 2>>;
  // A client's copies between a device and another pool.
  struct Lane {
    ClientId client{};
    DeviceId device{};
    PoolId pool{};
  };

  explicit CopyLedger(const Options& options)
      : options_(options), devices_(options.devices, Flights(options.pools)) {}

  void Attach(ClientId client, TenantId tenant);
  // Its copies that are still under way count for their devices alone, until they end.
  void Detach(ClientId client);
  // REQUIRES for Begin, MayBegin and MayDemand: the lane's client is attached.
  void Begin(const Lane& lane, Way way, Bytes size);
  void End(const Lane& lane, Way way, Bytes size);

  const Flights& Of(DeviceId device) const { return devices_[ToInt(device)]; }
  const InFlight& Of(DeviceId device, PoolId pool, Way way) const {
    return Of(device)[ToInt(pool)][static_cast<size_t>(way)];
  }
  // So much is on its way off the device that what more leaves is not chosen yet: half of what may
  // be in flight is.
  bool HasEnough(const Lane& lane) const {
    return Of(lane.device, lane.pool, Way::kOut).bytes >= AheadMost();
  }
  Bytes AheadMost() const { return Bytes(options_.ahead.bytes.count() / 2); }
  // The limit of copies ahead takes one of `more` bytes beside those under way: a first one always.
  bool Takes(const InFlight& under_way, Bytes more) const;
  // A copy that nobody waits for, and one that a get waits for, may begin.
  bool MayBegin(const Lane& lane, Way way, Bytes more) const {
    return Takes(Of(lane.device, lane.pool, way), more) ||
           IsGuaranteed(lane, way, more, options_.ahead);
  }
  bool MayDemand(const Lane& lane, Way way) const;
  // However much others copy: the client's tenant has so few copies under way.
  bool IsGuaranteed(const Lane& lane, Way way, Bytes more) const {
    return IsGuaranteed(lane, way, more, options_.ahead);
  }

 private:
  using ByDevice = std::vector<Flights>;
  struct Client {
    TenantId tenant{};
    ByDevice flights;
  };

  ByDevice None() const { return ByDevice(options_.devices, Flights(options_.pools)); }
  bool IsGuaranteed(const Lane& lane, Way way, Bytes more, const Limit& limit) const;

  const Options options_;
  ByDevice devices_;
  std::map<TenantId, ByDevice> tenants_;
  std::map<ClientId, Client> clients_;
};

}  // namespace ravenstore::core
