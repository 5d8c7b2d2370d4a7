// Which plans a device's clients have: one of all clients, or one of each.
//
// A plan is made apart from the scheduler (core/schedule/page_maker.h), which may take long. Until
// then the plan before remains, and its position follows the calls. A plan that comes too late is
// dropped: its client has left or its calls have jumped, another plan has begun, or the clients or
// pages of a common plan have become others. Of each client at most one plan of its own is under
// way, and of all clients at most one common plan. Changes meanwhile are planned when that one has
// come.
//
// Owns: the plans under way. The clients are the owner's. Units: pages. Threads: one at a time.
// Errors: none. Cost: O(calls + units + tensors) to begin a plan; O(units log units) when it comes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/schedule/device_tenants.h"
#include "core/schedule/free_pages.h"
#include "core/schedule/page_maker.h"
#include "core/schedule/plan_work.h"
#include "core/schedule/scheduled_client.h"
#include "core/types.h"

namespace ravenstore::core {

class DevicePlans {
 public:
  // Of the owner; all outlive it.
  struct Device {
    DeviceId id{};
    PageMaker* maker = nullptr;
    const std::vector<ScheduledClient*>* clients = nullptr;
    const uint32_t* pages = nullptr;  // that clients may have
    const DeviceTenants* tenants = nullptr;
    FreePages* free_pages = nullptr;
  };

  explicit DevicePlans(const Device& device) : device_(device) {}

  // All clients have one plan; else each has a share of the device and a plan of its own.
  bool are_shared() const { return are_shared_; }
  // The calls ahead of a client have become others, or there are none any more. null: the clients,
  // or what they may have, have become others.
  void Changed(ScheduledClient* of);
  // Since the last time, the clients have no common plan any more.
  bool TakeEnded() { return std::exchange(has_ended_, false); }
  // Clients with a common plan may have drifted apart.
  void Update();
  // Clients that have a new plan since the last time. Some may be gone, and some be listed twice.
  std::vector<ClientId> TakePlanned() { return std::exchange(just_planned_, {}); }
  // A plan has come.
  void Made(const std::shared_ptr<PlanWork>& work);

 private:
  struct UnderWay {
    bool again = false;  // another is to be made when it comes
  };

  bool CanShare() const;
  // Each client other than `but` gets a plan of its own.
  void EndSharing(const ScheduledClient* but);
  void BeginOwn(ScheduledClient* of);
  void BeginShared();
  void Begin(std::shared_ptr<PlanWork> work);
  void OwnMade(PlanWork* work);
  void SharedMade(PlanWork* work);
  // The clients of a common plan, in order.
  std::vector<ScheduledClient*> Planned() const;
  // All of its clients are as they were when it began.
  bool IsCurrent(const PlanWork& work) const;

  const Device device_;
  bool are_shared_ = false;
  bool has_ended_ = false;
  std::optional<UnderWay> shared_;
  std::map<ClientId, UnderWay> own_;    // also of clients that have left
  std::vector<ClientId> just_planned_;  // not taken yet
};

}  // namespace ravenstore::core
