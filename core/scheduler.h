// The scheduler: what happens next to every tensor and slab. The only part of the planner that
// proposes actions; it owns no ledger, and asks those parts that do (core/planner_books.h).
//
// Every handler (On...) changes the books for one event and notes the arenas that it may have
// helped. Apply then serves each of them: requests first, then prefetch, then pre-cleaning.
//
// A request is answered by the way that is expected to cost the least time. What is compared, in
// seconds, and what is tried without comparing, says docs/decisions/0044.
//
// Owns: when it looks at what again. Threads: one at a time.
#pragma once

#include <algorithm>
#include <bitset>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/events.h"
#include "core/planner_books.h"
#include "core/reclaimer.h"
#include "core/timers.h"

namespace ravenstore::core {

// How much slabs that move for a request may cost in evictions. What other clients hold is weighted
// by the average priority of what would leave instead, since a priority ranks a client's own
// tensors only.
struct SlabCostLimit {
  double at_most = std::numeric_limits<double>::infinity();
  double weight = 1;
};
inline constexpr SlabCostLimit kOnlyEmpty{.at_most = 0};

// Pools, by their numbers.
using PoolSet = std::bitset<Topology::kPoolsMax>;

class Scheduler : public PlannerBooks {
 public:
  using PlannerBooks::PlannerBooks;

  void Apply(const Event& event, Tick now, Plan* plan);
  Tick NextWake() const;

 private:
  struct InOrder {
    bool operator()(const ArenaId* a, const ArenaId* b) const { return *a < *b; }
  };

  // What happened (scheduler_events.cc).
  void On(const TenantLimits& event);
  void On(const ClientAttached& event);
  void On(const ClientLimits& event);
  void On(const DeviceLimit& event);
  void On(const Trimmed& event);
  void On(const ClientGone& event);
  void On(const SlabAdded& event);
  void On(const SlabFailed& event);
  void On(const SlabRemoved& event);
  void On(const PoolGrown& event);
  void On(const PoolGrowFailed& event);
  void On(const PoolShrunk& event);
  void On(const PoolShrinkFailed& event);
  void On(const PoolFailed& event);
  void On(const PinnedHeld& event);
  void On(const PinnedUsed& event);
  void On(const PinnedWanted& event);
  void On(const CreateRequested& event);
  void On(const FetchRequested& event);
  void On(const FreeSeen& /*event*/) {}
  void On(const Freed& event);
  void On(const PutSeen& event);
  void On(const StreamComplete& event);
  void On(const GetSeen& event);
  void On(const StepMarked& event);
  void On(const TimePassed& event);

  // Copies and drops that ended (scheduler_copies.cc).
  void On(const Dropped& event);
  void On(const MoveProgressed& event);
  void On(const Moved& event);
  void EndLeave(TensorRow& tensor, const Moved& event);
  void EndClean(TensorRow& tensor, const Moved& event);
  void EndArrival(TensorRow& tensor, const Moved& event);
  // The copy of an irrevocable eviction failed: the tensor is lost if some of its room was given
  // away.
  void IrrevocableCopyFailed(ClientArena& arena, TensorRow& tensor);
  // A fetch that came while the tensor was to leave finds it where it wants it after all.
  void AnswerIfHere(TensorRow& tensor);
  // Answers a fetch of what is on its device, or on its way there.
  void ReplyInPlace(TensorRow& tensor, bool arriving);

  // Serving (scheduler.cc).
  void LimitsChanged(ClientArena& arena);
  // What one client frees may help another, which no event says: so each looks again from time to
  // time, the less often the more clients there are.
  Duration RetryAfter() const;
  // Everything that decides whether victims can be found.
  uint64_t ChangesFor(const ClientArena& arena) const;
  void ServeTouched();
  void Serve(ClientArena& arena);
  // Not even the last resort makes room for the arena's first request, as things are.
  bool WaitsInVain(const ClientArena& arena) const;
  // Nothing can leave or is on its way, and no other client keeps it from more memory: only puts
  // and frees of the request's own client would help.
  bool IsStuck(ClientArena& arena, const Request& request);
  // The request before was refused as memory was in pieces: all that can leaves first.
  bool StartsAnew(ClientArena& arena, const Request& request);
  bool TryServe(ClientArena& arena, const Request& request);
  bool TryCreate(ClientArena& arena, const Request& request);
  // Gives the create its room, if there is a hole; the request may be one that never waited.
  bool Grants(ClientArena& arena, const Request& request);
  // Where a new tensor goes, of which `stays` says that it is expected to stay in use.
  // REQUIRES: there is a hole that takes it.
  ExtentMap::Block PlaceFor(ClientArena& arena, const Request& request, bool stays) const;
  bool RestartsLayout(const ClientArena& arena, Bytes size) const;
  bool TryFetch(ClientArena& arena, const Request& request);
  // False when nothing that the planner can do helps: only a put, a free or a limit does.
  bool MakeRoom(ClientArena& arena, const Request& request);
  // Whether what is under way helps the arena's first request without waiting for a copy.
  bool HelpIsNear(const ClientArena& arena) const;
  void FailFastRequests(ClientArena& arena);

  // What leaves, and copies that begin (scheduler_evict.cc).
  void EvictAhead(ClientArena& arena, const Request& request);
  // What leaves next, of that size, would go over a link over which nothing leaves the device.
  bool IsNextLinkIdle(const ClientArena& arena, Bytes size) const;
  Bytes GrowthOf(const ClientArena& arena, Bytes need) const;
  // Among many small blocks a search in vain is dear, and each event may ask for one: it is
  // followed by a backoff that bounds its share of the time.
  bool MaySearch(ClientArena& arena);
  void BackOffSearch(ClientArena& arena, uint64_t searched_before);
  // Blocks looked at so far, by the arena's index and for slabs to empty.
  uint64_t SearchedFor(const ClientArena& arena) const {
    return arena.index->searched() + reclaimer_.searched();
  }
  // Begins to empty slabs of other tenants for what the arena's is due: its guarantee, or surplus
  // that is its by weight or priority.
  bool TakeDue(ClientArena& arena, Bytes need);
  // Whether `need` is a create's, and so much of a hinted arena that many leave for it.
  bool IsLarge(const ClientArena& arena, Bytes need) const;
  // Begins to evict what makes `need` contiguous bytes.
  bool FindVictims(ClientArena& arena, Bytes need);
  bool EvictRun(ClientArena& arena, Bytes need, const EvictionIndex::Limits& limits,
                RedundantCopies redundant);
  // All of the rows, or none: half a run costs and gives no room.
  bool EvictAll(ClientArena& arena, const std::vector<uint32_t>& rows, RedundantCopies redundant);
  // The tensor can leave: it needs no copy, or has a place for it.
  bool PlaceToLeave(const ClientArena& arena, TensorRow& tensor, RedundantCopies redundant);
  void Evict(ClientArena& arena, TensorRow& tensor);
  // Of a tensor that leaves: it does so that its slab can be given back.
  static void LeaveSlab(ClientArena& arena, Object& object);
  // Whether its eviction is irrevocable and incremental: where it is large and a request waits that
  // a part of it may serve.
  bool LeavesIrrevocably(const ClientArena& arena, const Object& object) const;
  static void EndLeaving(ClientArena& arena, Object& object);
  // For a fetch on another device than the tensor's: false while it has not left there.
  bool BringAway(TensorRow& tensor);
  void StartCopyOut(ClientArena& arena, TensorRow& tensor, Move::Source source);
  // The books of any copy off a device, whether the tensor leaves with it or not.
  void BeginCopyOut(TensorRow& tensor);
  // Proposes the copy between the tensor's two places.
  void ProposeMove(const TensorRow& tensor, Way way, Move::Source source, bool demand);
  void EndCopyOut(const TensorRow& tensor);
  // How much slabs may cost that are relocated in place of a run's leaving.
  SlabCostLimit RelocationCostLimit(const ClientArena& arena,
                                    const std::vector<uint32_t>& run) const;
  void StartCopyIn(TensorRow& tensor, bool demand);

  // Ahead of need (scheduler_ahead.cc).
  // What the arena's client needs next of what lies in one of the pools; null: nothing is known.
  TensorRow* NextDue(const ClientArena& arena, const PoolSet& pools);
  void Prefetch(ClientArena& arena);
  bool PrefetchNext(ClientArena& arena, const TensorRow& next);
  static bool KnowsAhead(const Holding& holding);
  bool MayOutgrow(const ClientArena& arena) const;
  void Preclean(ClientArena& arena);
  // Copies out what leaves next and is dirty; false: no more for now.
  bool CleanNextRun(ClientArena& arena);
  bool CleanAhead(ClientArena& arena, TensorRow& tensor);

  // Growth (scheduler_growth.cc).
  // What the arena may hold as limits are now, in whole granules as slabs are.
  Bytes MostOf(const ClientArena& arena) const;
  // Of the arena's next slab: not so small that they become many.
  Bytes SlabSize(const ClientArena& arena) const;
  // Nobody else holds slabs of it.
  bool HasDeviceAlone(const ClientArena& arena) const {
    return quota_.Of(arena.pool()).held == UsageOf(arena).held;
  }
  // Where the arena is to grow by `room`, the slab that is made next; those that follow come one
  // after the other.
  Bytes FirstSlabOf(const ClientArena& arena, Bytes room) const;
  void GrowAhead(ClientArena& arena);
  bool GrowForLargest(ClientArena& arena);
  // The last that the arena's budget allows.
  void AddLastSlab(ClientArena& arena, Bytes size);
  // Whether what lies lowest in the arena, from `begin` on, is needed later than what lies highest.
  bool LowestIsNeededLater(const ClientArena& arena, Bytes begin) const;
  bool AddSlabBehind(ClientArena& arena, Bytes size);
  bool AddSlabFor(ClientArena& arena, Bytes need);
  void AddSlabAt(ClientArena& arena, Bytes offset, Bytes size);
  // Neither the slabs nor the budget's rest take the request, but both together do: evicts what
  // lies before the range without memory and adds the rest as a slab behind it.
  bool AddSlabAndEvictFor(ClientArena& arena, Bytes need);

  // Slabs that go (scheduler_slabs.cc).
  Limit BindingFor(const ClientArena& arena, Bytes missing) const {
    return quota_.Binding(arena.client, arena.pool(), missing);
  }
  // What is being emptied or given back, and helps with that.
  Bytes ReclaimingOf(const ClientArena& arena, Limit binding) const {
    return quota_.Against(arena.client, arena.pool(), binding).reclaiming;
  }
  // What keeps a slab for `need` bytes from being added where the least is missing: `bytes` are not
  // there even once all that is being reclaimed is gone.
  struct Lack {
    PoolSpace::SlabPlace place;
    Limit binding;
    Bytes bytes;
  };
  std::optional<Lack> LackFor(const ClientArena& arena, Bytes need) const;
  // An eviction is needed: notes which limit binds, so that others give back empty slabs.
  void NotePressure(ClientArena& arena, Bytes need);
  // Another client fills the device and has just had to evict, and this one has not: empty slabs go
  // back before they are asked for, since a slab takes as long to go as to come.
  bool OthersWantSlabs(const ClientArena& arena) const;
  // The other arenas that the same limit binds; those of them whose slabs would help.
  std::vector<ClientArena*> SharersWith(const ClientArena& arena, Limit binding) const;
  std::vector<ClientArena*> GiversTo(const ClientArena& arena, Limit binding) const;
  // Memory that others hold and miss less, or that lies elsewhere in the arena: slabs are given
  // back, and come again where the request needs them. Not if that costs more than `cost_limit`.
  // kOthers: not from the arena itself. kOtherTenants: from those alone. kSome: nor all that it
  // needs, if there is less.
  enum class Take : uint8_t { kEnough, kOthers, kOtherTenants, kSome };
  bool TakeSlabsFor(ClientArena& arena, Bytes need, const SlabCostLimit& cost_limit = {},
                    Take take = Take::kEnough);
  // What the arena could grow by if others gave all that they can.
  Bytes RoomWithOthers(const ClientArena& arena, Bytes need);
  // The last resort: all that can leaves, and slabs come again side by side.
  bool EmptySlabsFor(ClientArena& arena, Bytes need);
  using Emptyings = Reclaimer::Emptyings;
  Reclaimer::Arena Reclaimable(const ClientArena& arena) const;
  Reclaimer::Asker AskerFor(const ClientArena& arena, Bytes need, QuotaTree::Claim claim) const;
  // Takes those out whose copies the link would not begin with yet, so that memory that comes free
  // meanwhile spares them; not all, unless `some_go` already. True if there are any.
  bool LeaveToLater(const ClientArena& arena, bool some_go, Emptyings* slabs) const;
  // Begins to empty the cheapest that hold `wanted` bytes, or half as many, or a fourth ..., but of
  // no more tensors than one event should move; true if it is all.
  bool DrainSome(DeviceId device, Emptyings slabs, Bytes wanted);
  // Begins to empty slabs, so that they can be given back; those of one arena stand together.
  bool Drain(DeviceId device, Emptyings chosen);
  bool Drain(ClientArena& arena, const std::vector<Range>& slabs, std::vector<uint32_t> rows);
  // Gives the slabs back that were being emptied and are empty.
  void EndDraining(ClientArena& arena);
  // Whether its client takes unusually long to let go of a slab.
  bool IsLate(const ClientArena& arena) const;
  // Whether the first request waits for slabs of such clients, and may ask others beside them.
  bool WaitsForLate(ClientArena& arena, Limit binding);
  // Begins to empty slabs of several others.
  void AskMore(ClientArena& arena, const Lack& lack, Reclaimer::Which which,
               const SlabCostLimit& cost_limit);
  // Finds those that the arena's client, stopped or worse, does not let go of.
  void NoteOverdue(ClientArena& arena);
  bool GiveBackFreeSlab(ClientArena& arena);
  bool GiveBack(ClientArena& arena, Range slab);
  Bytes ExcessOf(const ClientArena& arena) const {
    return quota_.Excess(arena.client, arena.pool());
  }
  void Shrink(ClientArena& arena);

  // Waiting for others (scheduler_waits.cc).
  // Another client frees memory so fast that waiting for its slabs takes less than copies would.
  bool WaitsForFrees(ClientArena& arena, const Request& request);
  // What copying out what must leave takes, and bringing it back.
  double SecondsToEvict(const ClientArena& arena, Bytes need) const;
  // How long until others have freed `missing` bytes, at their present rate.
  double SecondsUntilFreed(const ClientArena& arena, Bytes missing, Limit binding) const;
  // An iteration would begin with the request, and its peak coincide with another client's: to let
  // that pass takes less than copies would.
  bool WaitsForPeak(ClientArena& arena, const Request& request);
  bool MayWaitForPeak(const ClientArena& arena, const Request& request) const;
  // How long until those are past theirs who share the tenant's budget, or the device; zero, if the
  // arena's client should not wait for that.
  Duration UntilPeaks(const ClientArena& arena, Limit binding) const;

  // Room in other pools (scheduler_away.cc).
  // A place in another pool for what leaves or is copied ahead. From then on its copy counts as
  // under way, so that what is placed next looks for another link.
  bool PlaceCopyOut(TensorRow& tensor, RedundantCopies redundant, Leaving leaving);
  bool AllocateAway(TensorRow& tensor, RedundantCopies redundant, Leaving leaving);
  bool TryAllocateAway(TensorRow& tensor, PoolId pool, RedundantCopies redundant);
  // A place in the pool, within the budgets.
  std::optional<ExtentMap::Block> TakeAwayPlace(const TensorRow& tensor, PoolId pool,
                                                RedundantCopies redundant);
  // The pool where the tensor's copy lies failed.
  void LoseCopy(TensorRow& tensor);
  // Its bytes are nowhere any more; a fetch that waits for it is told so.
  void Lose(TensorRow& tensor);
  // Drops redundant copies until the client's tenant may take so much more of the host pool; false
  // where that does not suffice.
  bool MakeHostShare(Client& client, Bytes more, RedundantCopies redundant);
  // Room in the pool for `tensor`; the budgets allow it.
  std::optional<ExtentMap::Block> TakeAwayRoom(Client& client, PoolId pool, const TensorRow& tensor,
                                               RedundantCopies redundant);
  void EnsureHostAhead(Bytes need);

  void On(const PoolRate& event);

  // Pools that come and go by chunks (scheduler_chunks.cc).
  void On(const PoolLimit& event);
  void On(const ChunkRecalled& event);
  void On(const ChunkKept& event);
  void On(const ChunkLost& event);
  void TakeChunk(PoolId pool, Bytes offset, AwayPools::Taken how);
  // Closes chunks that were taken, as far as they are there.
  static void CloseTaken(AwayPools::Member& pool);
  // What the pool may hold; of a device's memory, beside the slabs of that device's own clients.
  Bytes MostIn(PoolId pool) const;
  // By a chunk, where no hole takes `need`; 0: a chunk ahead of need.
  void GrowChunks(PoolId pool, Bytes need);
  // Closes chunks, the cheapest to empty first, until the pool holds no more than it may, or opens
  // again those that may stay.
  void BalanceChunks(PoolId pool);
  // The chunks of so many bytes that are the cheapest to empty for their size: of what lies there
  // alone the bytes have to be copied, and copies to them and from them have to end. O(tensors).
  std::vector<Range> CheapestChunks(const AwayPool& pool, Bytes bytes) const;
  // Of what lies in the chunk, be it in part.
  std::vector<uint32_t> RowsIn(const AwayPool& pool, const Range& chunk) const;
  // What lies in closed chunks leaves as far as nothing is under way with it; of what is lost
  // nothing is there any more.
  void EmptyChunks(PoolId pool);
  void DropLost(AwayPools::Member& pool);
  void LetGoOfEmptied(PoolId pool);
  // Copies the tensor to the host pool: to the place that is kept for it there, or to one that it
  // takes now; false where there is none.
  bool MoveOn(TensorRow& tensor);
  void LookLater(AwayPools::Member& pool) const;
  void EndMoveOn(TensorRow& tensor, const Moved& event);
  // Chunks that other nodes lend and that stay empty go back.
  static void NoteUse(AwayPools::Member& pool, ExtentMap::Block block);
  void ReturnIdleChunks(AwayPools::Member& pool);
  // After each event: what can leave does, and emptied chunks go.
  void ServeChunks();

  // Of a device's memory (scheduler_harvest.cc).
  // What the pool holds, or is to, leaves slabs no room until it is gone.
  void CountHarvest(PoolId pool);
  // Its device's own clients or jobs take some of it: for a while more is given back than that, as
  // much as they took lately, so that the next to ask finds it there.
  void TakeAhead(PoolId pool);
  // Keeps a place in the host pool for what lies in another pool, or is to.
  bool TakeCover(const TensorRow& tensor, RedundantCopies redundant);
  // The device is full, of harvested memory too: some of that makes way for a slab of so much.
  bool TakeHarvest(ClientArena& arena, Bytes need);

  // Of the host pool, for blocks of pinned memory (scheduler_pinned.cc).
  void ShrinkHostFor(Bytes slab);
  void ReclaimPinnedFor(const TensorRow& tensor);

  // Gives everything of the tensor back and forgets it.
  void Finish(TensorRow& tensor);
  // After a copy's answer: true when the tensor was freed, or its client ended, meanwhile; it is
  // forgotten now.
  bool FinishIfGone(TensorRow& tensor);
  void BackOff(ClientArena& arena);

  // The client that waits for the room of a tensor that leaves.
  ClientId Behalf(const Holding& holding) const { return served_.value_or(holding.client); }

  // Of clients that are gone, some at a time; the others do not wait for one that had many.
  void ForgetTensors();
  void ForgetSome();
  void Fail(const Request& request, ErrorCode code, const std::string& message);
  // Its time is over, or it would not wait.
  void FailForRoom(const Request& request);
  void WakeAt(Tick when) { next_poll_ = std::min(next_poll_, when); }

  Reclaimer reclaimer_{&catalog_};
  Tick pinned_wanted_until_{};  // a slab of it was wanted: the pool is not pinned ahead before
  Tick pinned_asked_until_{};   // idle slabs of it were asked for: not again before
  Tick slabs_come_until_{};     // a slab was asked for so lately that the next may follow
  Tick host_backoff_until_{};   // growing it failed: do not try again before
  bool irrevocable_ = false;    // what is taken now leaves at once, beyond its client's rescue
  bool demand_held_ = false;    // a fetch waits for the copies of others to end
  bool taking_held_ = false;    // slabs are to be emptied once fewer copies are under way
  std::set<ClientArena*, InOrder> active_arenas_;  // with something that time may move
  std::optional<ClientId> served_;                 // during Serve
  Tick next_poll_ = kNever;                        // when all active arenas are looked at again
  Timers<ArenaId> wakes_;                          // when one is
  // When slabs that are being given back will be late, and overdue, if they still are.
  using SlabId = std::pair<ArenaId, Bytes>;  // and its offset
  Timers<SlabId> late_;
  Timers<SlabId> overdue_;
  Plan* plan_ = nullptr;  // during Apply
};

}  // namespace ravenstore::core
