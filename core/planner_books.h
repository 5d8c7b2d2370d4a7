// The planner's books: who is there, what each has, where every tensor is, and who waits.
//
// Each function changes all the ledgers and indexes that a change touches, so that they agree
// before and after (CheckInvariants), and notes the arenas that it may have helped. It decides
// nothing and proposes nothing: that is the scheduler's (core/scheduler.h).
//
// Owns: the catalog, clients with their arenas and predictors, quotas, pools, copies in flight,
// requests. Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/away_pools.h"
#include "core/catalog.h"
#include "core/client_arena.h"
#include "core/copy_ledger.h"
#include "core/events.h"
#include "core/planner.h"
#include "core/predictor.h"
#include "core/quota_tree.h"
#include "core/request_queue.h"

namespace ravenstore::core {

class PlannerBooks {
 public:
  explicit PlannerBooks(PlannerOptions options);

  // Views (planner_views.cc).
  // That the client has ever used. REQUIRES: it is attached.
  uint32_t SlotsOf(ClientId client) const;
  TensorId Find(ClientId client, SlotId slot) const;
  // Null, too, when its client is gone.
  const TensorRow* Find(TensorId id) const;
  TensorView ViewOf(const TensorRow& tensor) const;
  ClientView ViewOf(ClientId client) const;
  Explanation Explain(const TensorRow& tensor, Tick now) const;
  std::vector<ClientId> Clients() const;
  TierView DeviceTier(DeviceId device) const;
  Bytes Harvested(DeviceId device) const;
  Bytes HarvestStuck(DeviceId device) const;
  TenantView ViewOf(TenantId tenant, DeviceId device) const {
    const QuotaTree::Usage& usage = quota_.Of(tenant, PoolOf(device));
    return {usage.held - usage.reclaiming, quota_.Guarantee(tenant, PoolOf(device))};
  }
  Bytes Guaranteed(DeviceId device, TenantId asker) const {
    return quota_.GuaranteedHeld(asker, PoolOf(device));
  }
  std::string NameOf(PoolId pool) const { return core::NameOf(topology_.pools()[ToInt(pool)]); }
  TierView HostTier() const;
  std::vector<PoolId> OtherPools() const { return away_.OtherIds(); }
  TierView OtherTier(PoolId pool) const;
  Status MayPin(ClientId client, Bytes block, Bytes slab,
                const StorePlanner::IdlePinned& without) const;
  const PlannerStats& stats() const { return stats_; }
  const PlannerStats& StatsOf(ClientId client) const { return clients_.at(client)->stats; }
  void CheckInvariants() const;

 protected:
  struct Client {
    Client(const ClientAttached& attached, const Catalog* catalog,
           const Predictor::Options& predictions)
        : id(attached.client), tenant(attached.tenant), predictor(catalog, predictions) {}

    ClientId id;
    TenantId tenant;
    Bytes in_use;
    Predictor predictor;
    std::vector<std::unique_ptr<ClientArena>> arenas;  // by device; null until used
    TensorSlots slots;
    // By the pool where they are, copies of tensors that are on their device, about oldest first:
    // room that can be had. Ids that are no longer such stay in until they are come across.
    std::map<PoolId, std::deque<TensorId>> redundant_copies;
    PlannerStats stats;
  };
  struct Tenant {
    std::vector<Tick> device_full_until;  // one of its clients had to evict lately for its budget
  };
  struct Device {
    uint32_t allocating = 0;  // arenas that are
    Tick full_until{};        // a client had to evict lately because it is
  };
  // kMayDrop: for a tensor that has to leave, redundant copies of others may be discarded. A copy
  // that is only made ahead is not worth one: the two would replace each other for ever.
  enum class RedundantCopies { kKeep, kMayDrop };
  // What keeps an arena from growing.
  using Limit = QuotaTree::Limit;
  using Leaving = AwayPools::Leaving;
  using Way = CopyLedger::Way;

  Client* FindClient(ClientId client);
  // Null, too, when its client is gone.
  TensorRow* FindTensor(TensorId id);
  ClientArena* ArenaOf(const ArenaId& id);
  ClientArena* ArenaOf(ClientId client, DeviceId device) { return ArenaOf({client, device}); }
  ClientArena* ArenaOf(const TensorRow& tensor) { return ArenaOf(tensor.client, tensor.device()); }
  Tick VirtualTime(const ClientArena& arena) const {
    return clients_.at(arena.client)->predictor.VirtualTime(now_);
  }
  bool Uses(Heuristic heuristic) const { return options_.heuristics.Uses(heuristic); }
  template <typename Counter, typename Amount>
  void Count(ClientId client, Counter counter, Amount amount);

  // Tensors.
  static TensorOfClient NameOf(const TensorRow& tensor) {
    return {tensor.id, tensor.client, tensor.slot};
  }
  // On its device, and in the other pool. REQUIRES: it has a place there.
  Place HomeOf(const TensorRow& tensor) {
    return {tensor.home.pool, ArenaOf(tensor)->space.OffsetOf(tensor.home.block)};
  }
  Place AwayOf(const Object& object) const {
    return {object.away.pool, away_[object.away.pool].OffsetOf(object.away.block)};
  }
  void SetInUse(TensorRow& tensor, bool in_use);
  void SetStreamComplete(TensorRow& tensor, bool stream_complete);
  // Counts the tensor among those that cannot leave their device, or no more, as it now is.
  void Repin(TensorRow& tensor);
  bool Evictable(const TensorRow& tensor) const;
  // Puts the tensor into its arena's index, or takes it out, as it now is.
  void Reindex(TensorRow& tensor);
  DueTensors::List& DueListOf(const TensorRow& tensor);
  void List(TensorRow& tensor);  // among the prefetch candidates
  void Unlist(TensorRow& tensor);
  void FreeDevice(TensorRow& tensor);
  void FreeAway(TensorRow& tensor);
  // Its bytes are discarded; the client recomputes them when it wants them.
  void DiscardBytes(TensorRow& tensor);
  // Without a copy: it is not needed, is on the host as it is, or is recomputed more cheaply.
  static bool CanDrop(const TensorRow& tensor) {
    return !tensor.needs_copy() || tensor.recompute > 0;
  }
  // The client itself said when it is needed, or in which order.
  static bool IsHinted(const Holding& holding) {
    return (holding.use_kind == UseKind::kAt && !holding.predicted) || IsOrdered(holding);
  }
  static bool IsOrdered(const Holding& holding) {
    return holding.use_kind == UseKind::kOrder && !holding.predicted;
  }

  // What is known of the next use of a tensor that is put.
  ExpectedUse ExpectedAfter(const PutSeen& event, TensorRow& tensor);
  // Writes what others' use says of tensors.
  void WriteChanges();
  // Its client used it, or it was freed or had to leave before. Nothing if it was not prefetched.
  void EndPrefetch(TensorRow& tensor, bool used);
  // A get of it: what is known of it and of its client grows.
  void CountGet(TensorRow& tensor);

  // Arenas.
  const QuotaTree::Usage& UsageOf(const ClientArena& arena) const {
    return quota_.Of(arena.client, arena.pool());
  }
  // Of what the arena may hold, whatever its addresses.
  Bytes BudgetOf(const ClientArena& arena) const { return quota_.Most(arena.client, arena.pool()); }
  // What the arena's first request, or one to come, may have of more slabs (QuotaTree::Room).
  using Coming = QuotaTree::Coming;
  Bytes RoomFor(const ClientArena& arena, Coming reclaiming = Coming::kIsHeld) const;
  // No slab is larger, or a tensor in use would keep too much from the others.
  Bytes LargestSlab(const ClientArena& arena) const;
  // With `more` bytes the arena's tenant would have more in use than its share.
  bool ExceedsShare(const ClientArena& arena, Bytes more) const {
    return quota_.ExceedsShare(arena.client, arena.pool(), more);
  }
  // With `more` the host would have no room for what others' guarantees may take back of what is
  // lent.
  bool LacksCover(const ClientArena& arena, Bytes more) const;
  void SetAllocationPhase(ClientArena& arena, bool allocation_phase);
  // Its client takes a tensor back: new ones are over for now.
  void TakeBack(ClientArena& arena);

  // Other pools, and copies to and from them.
  // The device's links to the pools, with their room.
  AwayLinks LinksOf(DeviceId device) const { return away_.LinksOf(device, quota_.HostForCopies()); }
  // So much of the arena is to leave.
  AwayPools::Departure DepartureOf(const ClientArena& arena, Bytes size, Leaving leaving) const {
    return {arena.device, size, leaving, copies_.Of(arena.device), now_};
  }
  // Of the arena's copies from or to the pool, and of the tensor's.
  static CopyLedger::Lane LaneOf(const ClientArena& arena, PoolId pool) {
    return {arena.client, arena.device, pool};
  }
  static CopyLedger::Lane LaneOf(const TensorRow& tensor) {
    return {tensor.client, tensor.device(), tensor.away.pool};
  }
  // Over which the next that leaves would be copied, be it of a slab's size or of that.
  CopyLedger::Lane NextLane(const ClientArena& arena) const {
    return NextLane(arena, options_.slab);
  }
  CopyLedger::Lane NextLane(const ClientArena& arena, Bytes size) const;
  // The pool has enough room that none must be pinned for it.
  bool HostHasHeadroom(Bytes size) const {
    return host_.LargestHole() >= size && host_.used() + options_.host_ahead + size <= host_.held();
  }
  // The place in the host pool that is kept for the tensor's bytes in another pool is free again,
  // if there is one.
  void FreeCover(const TensorRow& tensor);
  // The tensor is on its device and in another pool: its copy there is redundant.
  void NoteRedundantCopy(TensorRow& tensor);
  void DropRedundantCopies(Client& client, PoolId pool, Bytes need);
  // All clients, those first whose tenants give first of the pool (QuotaTree::RankOf).
  std::vector<Client*> ByRank(PoolId pool) const;
  // Whether the client has any there, and they may make room for `asking`.
  bool MayDropCopiesOf(const Client& client, PoolId pool, const Client& asking) const;
  // So much more of the budgets, where redundant copies may make way for it.
  bool MakeAwayBudget(Client& client, PoolId pool, Bytes of_client, Bytes of_tenant,
                      RedundantCopies redundant);

  // Requests.
  // A request of the client's waits, or a copy that a fetch reply named has not arrived.
  void BeginWait(ClientId client) { FindClient(client)->predictor.BeginWait(now_); }
  void EndWait(ClientId client);
  void Enqueue(Request request);
  // The arena's first request is out: what was prepared for it alone ends.
  void EndFirst(ClientArena& arena);
  // Takes the request out; the caller answers it.
  Request Dequeue(const Request& request);
  // It waits no more.
  void Forget(const Request& request);

  // Notes an arena that should be looked at; all where requests wait; the one where a fetch of the
  // tensor waits, if one does.
  void Touch(ClientArena* arena);
  void TouchWaiting();
  void TouchFetch(const TensorRow& tensor);
  // Room in another pool came free: arenas that could not evict for want of it try again.
  void AwayRoomCame();

  // What is in use lies in so many slabs that the request does not fit beside them, as it would if
  // that lay together. False until the last resort was tried.
  bool IsInPieces(const ClientArena& arena, const Request& request) const;
  // Why a client does not get what it asked for (planner_refusals.cc).
  std::string DescribeHolders(const Request& request) const;
  std::string WhyLost(const Object& object) const;  // its bytes, that is

  PlannerOptions options_;
  std::map<PoolId, double> rate_caps_;  // that hold now
  Topology topology_;                   // that of the options, with these
  Catalog catalog_;
  AwayPools away_;
  AwayPools::Member& host_ = away_.host();
  CopyLedger copies_;
  QuotaTree quota_;
  // By row the place in the host pool that is kept for what lies in another: for all that lies in
  // covered pools, which add speed, not room, and can always be given back; else while it moves on.
  std::map<uint32_t, ExtentMap::Block> covers_;
  // Ordered, as everything that is walked: the same events give the same plans.
  std::map<ClientId, std::shared_ptr<Client>> clients_;
  Client* last_found_ = nullptr;  // by FindClient
  std::map<TenantId, Tenant> tenants_;
  std::vector<Device> devices_;
  RequestQueue requests_;
  // Clients that are gone. Of their tensors those in `slots` are still to be forgotten, and what is
  // being copied once that is done.
  std::deque<std::shared_ptr<Client>> gone_;
  std::deque<ClientArena*> touched_;
  std::vector<Predictor::Change> changes_;  // to be written
  bool away_wanted_ = false;  // a tensor could not leave for want of room in another pool
  uint64_t redundant_copies_noted_ = 0;
  size_t answered_ = 0;  // requests, by the event that is looked at
  PlannerStats stats_;
  Tick now_{};  // of that event

 private:
  // What CheckInvariants adds up over the rows.
  struct Sums {
    std::map<ClientId, Bytes> in_use;
    std::map<std::pair<ClientId, PoolId>, Bytes> away;
    std::map<ClientId, uint64_t> tensors;
    std::map<ClientId, uint32_t> waits;
    std::map<std::pair<ClientId, DeviceId>, Bytes> live;
    std::map<std::pair<ClientId, DeviceId>, Bytes> pinned;
    std::map<std::pair<ClientId, DeviceId>, size_t> indexed;
    std::map<std::pair<ClientId, DeviceId>, size_t> listed;
    std::map<PoolId, Bytes> pools;
    // Under way, by device and other pool; of what was rescued it is not known.
    std::map<std::pair<DeviceId, PoolId>, Bytes> out;
    std::map<std::pair<DeviceId, PoolId>, Bytes> rescued;
    std::map<std::pair<DeviceId, PoolId>, Bytes> in;
  };
  void CheckRow(uint32_t row, Sums* sums) const;
  static void SumUpCopies(const Object& object, Sums* sums);
  void CheckChunks(const AwayPools::Member& pool) const;
  void CheckCopies(DeviceId device, Sums* sums) const;
  bool IsToBeForgotten(const TensorRow& tensor) const;
  void CheckQuotas(const ClientArena& arena, const Sums& sums) const;
  // Who holds slabs of the device, or blocks of pinned memory.
  std::string Holders(ClientId asker, PoolId pool) const;
  // Of a request that would fit beside what is in use, if that lay together.
  std::string DescribePieces(const ClientArena& arena, const Request& request) const;
  std::string HostHolder() const;
  std::string DescribePinned(ClientId asker, Bytes asked) const;
};

}  // namespace ravenstore::core
