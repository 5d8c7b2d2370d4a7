// One device: its clients, and the decisions between them.
//
// Clients whose calls are all expected have one plan (core/plan/shared_plan.h). Otherwise each has
// a share of the device (core/decide/tenant_shares.h) and a plan of its own. Clients join and leave
// at any time.
//
// A client's calls are passed in order. A create or a get that returns kWaits goes on later: after
// each Advance() the owner calls HoldWaiting() for each client that TakeWoken() names. A call that
// holds its pages may still wait for their bytes: the backend's Grant or Refuse ends that. Create,
// get, put and free are calls of the client's CPU; BeginUse and EndUse follow its stream.
//
// Advance() begins what there is to do, after a batch of calls and reports. Time is its argument.
//
// Owns: each client's executor and foresight. Backends and the port outlive it; a backend may end
// when HasClient() is false. Units: pages, bytes; each client's virtual time for its calls.
// Threads: one at a time; the same calls have the same result. Errors: CallResult; and the
// backend's Refuse. The owner checks that a client's call fits the tensor's state. Cost: a call as
// PageExecutor and ClientForesight; O(clients) for Advance(); a shared plan as
// ResidencyPlan::MakeShared.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/decide/page_shares.h"
#include "core/decide/page_transfer.h"
#include "core/decide/peak_turns.h"
#include "core/schedule/client_foresight.h"
#include "core/schedule/device_demands.h"
#include "core/schedule/device_plans.h"
#include "core/schedule/device_tenants.h"
#include "core/schedule/free_pages.h"
#include "core/schedule/overdue_pages.h"
#include "core/schedule/page_maker.h"
#include "core/schedule/scheduled_client.h"
#include "core/types.h"

namespace ravenstore::core {

enum class CallResult : uint8_t {
  kHeld,      // it holds its pages; bytes may be on their way
  kWaits,     // for room
  kTooLarge,  // it needs more pages than the device has, and cannot use copies in place
  // a create, or a get of a tensor that was discarded: all that lives would have no place on the
  // device and in other pools
  kNoPlace,
  kNoAddresses,  // a create: the client's range of addresses has no place of that size
  kLost,         // a get: a pool has lost the tensor's bytes
};

class PageScheduler {
 public:
  struct Options {
    uint32_t pages = 0;            // of the device
    DeviceId device{};             // for the port
    Duration making{0};            // that it takes to make a page for another client
    uint32_t guaranteed_part = 0;  // as DeviceTenants
    Duration patience{0};          // as OverduePages
  };
  struct Client {
    ClientId id{};
    PageBackend* backend = nullptr;
    plan::PlanLimits limits;  // .pages: its first share, at most the free pages
    std::unique_ptr<ClientForesight> foresight = nullptr;  // null: what is learned, with hints
    bool waits_for_stream = false;                         // as ScheduledClient::Options
    TenantId tenant{};
    uint32_t most = UINT32_MAX;   // pages that it may hold
    Bytes addresses{UINT64_MAX};  // the range for whole pages
    bool has_slots = true;        // of `foresight` null: as ClientForesight
  };

  // `maker` outlives it.
  PageScheduler(const Options& options, PageMaker* maker);

  // ---- Clients.
  // REQUIRES: the id is no client's.
  void Join(Client client);
  // The client may hold that many pages from now on. `trims`: it keeps no page in which nothing
  // lives, until its next create or call that waits.
  void SetMost(ClientId client, uint32_t pages, bool trims);
  // The tenants' limits, which the next Advance() follows.
  DeviceTenants& tenants() { return tenants_; }
  // Pages of the device that clients may have: fewer than Options::pages if others need it.
  void SetPages(uint32_t pages);
  // The client makes no call any more; its tensors live.
  void EndCalls(ClientId client);
  // The client is gone, and so are its streams. Its moves under way go on.
  void Leave(ClientId client);
  // It has joined, and its memory is not released yet.
  bool HasClient(ClientId client) const { return by_id_.count(client) > 0; }
  const ScheduledClient& client(ClientId client) const { return *by_id_.at(client); }

  // ---- Calls of a client's CPU. `at`: the client's virtual time.
  // The row has no tensor. Of a create that fails or is refused, it has none afterwards.
  enum class Creates : uint8_t {
    kOnDevice,
    kInPlace,  // as UseInPlace(); or no pool has room for it
    kInUse,    // the pages of its place are resident, and the client uses it already
  };
  CallResult Create(ClientId client, ClientCall create, Creates how = Creates::kOnDevice);
  // Of a tensor whose bytes were discarded (PageExecutor::SetRecomputes) it is as a create.
  CallResult Get(ClientId client, TensorNumber tensor, Duration at);
  // A get of a resident tensor that the client has made without asking.
  void Use(ClientId client, TensorNumber tensor, Duration at);
  // As Get(), of a client that can use copies in place: it does so, even if there is room. It does
  // not wait. Returns kWaits if it cannot: a unit is on its way, or a call waits for one. Then
  // nothing has changed.
  CallResult UseInPlace(ClientId client, TensorNumber tensor, Duration at);
  CallEnd Put(ClientId client, TensorNumber tensor, bool modifies, const NextUse& next_use,
              Duration at, Priority priority = Priority::kNormal);
  // The row is free when EndUse() has ended the call. `stream`: that it is behind the work of; if
  // its create named this one, too, the stream's later work may have its place immediately.
  CallEnd Free(ClientId client, TensorNumber tensor, Duration at, StreamId stream = kNoStream);
  void Step(ClientId client) { Of(client).Step(); }
  // Since the last time: a waiting call may go on.
  bool TakeWoken(ClientId client) { return Of(client).TakeWoken(); }
  // The first call that waits for room holds its pages now. nullopt: none waits, or there is no
  // room.
  std::optional<TensorNumber> HoldWaiting(ClientId client);
  // The call has waited too long, for room or for bytes. Returns false if none waits.
  bool Refuse(ClientId client, TensorNumber tensor);

  // ---- The client's stream.
  // It has come to a create or a get; a tensor that did not live does. REQUIRES: the tensor is
  // resident.
  void BeginUse(ClientId client, TensorNumber tensor);
  void EndUse(ClientId client, const CallEnd& end);
  // The tensor's bytes will not be used any more; its row stays. REQUIRES: it lives, and its word
  // is "away".
  void EndBytes(ClientId client, TensorNumber tensor);

  // ---- Reports of backends and of the port.
  // Something has happened that the client's moves may go on with. The executor is for a backend's
  // reports, but for copies in and mappings that may fail.
  PageExecutor& Moved(ClientId client) { return Touch(client)->executor(); }
  enum class Arrival : uint8_t { kMapped, kCopiedIn };
  void Arrived(ClientId client, plan::Unit unit, Arrival how, bool ok);
  // A page that the client had to release is destroyed.
  void PageReleased(ClientId client);
  void PageMade(ClientId client);
  void PlanMade(const std::shared_ptr<PlanWork>& work);

  // ---- Work.
  void Advance(Duration now);
  // Clients whose calls may go on since then. Some may be gone, and some be named twice.
  std::span<const ClientId> started() const { return started_; }
  // Pages that went from one client to another, or were made for one that joined.
  uint64_t pages_made() const { return pages_made_; }

 private:
  ScheduledClient& Of(ClientId client) { return *by_id_.at(client); }
  ScheduledClient* Touch(ClientId client);
  void See(ScheduledClient* client, const ClientCall& call);
  CallResult HoldOrRefuse(ScheduledClient* client, const ClientCall& call);
  void HandOver();
  // Divides the device among its clients.
  void DividePages(Duration now);
  // Of each client that something has happened to.
  void StartTouched();
  void Start(ScheduledClient* client);
  void WakeWaiting();
  void EraseReleased();

  const Options options_;
  uint32_t pages_;  // that clients may have
  PageMaker* const maker_;
  FreePages free_pages_;
  OverduePages overdue_;
  DeviceTenants tenants_{options_.guaranteed_part};
  std::map<ClientId, std::unique_ptr<ScheduledClient>> by_id_;  // also those that are gone
  std::vector<ScheduledClient*> clients_;                       // that are not, as they joined
  std::vector<ClientId> removed_;
  std::vector<ClientId> touched_;  // since the last Advance()
  std::vector<ClientId> started_;
  DeviceDemands demands_{&tenants_};
  // The demands that the shares are of, with the turn; their version. nullopt: the clients or what
  // they may hold are others since.
  std::vector<decide::PageDemand> divided_;
  std::optional<uint64_t> shared_;
  DevicePlans plans_;
  std::optional<decide::PeakTurn> turn_;
  uint64_t pages_made_ = 0;
  // Kept for their memory.
  std::vector<decide::PageNeed> needs_;
};

}  // namespace ravenstore::core
