// The planner's inside: see planner.h for what it promises and docs/ARCHITECTURE.md for the
// picture.
//
// Every handler (On...) changes the books for one event and touches the arenas that it may have
// helped; Apply then serves each touched arena: requests first, then prefetch, then pre-cleaning.
#pragma once

#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/arena.h"
#include "core/catalog.h"
#include "core/chunked.h"
#include "core/correlation.h"
#include "core/events.h"
#include "core/extents.h"
#include "core/hint_scale.h"
#include "core/planner.h"
#include "core/prefetch_window.h"

namespace ravenstore::core {

// How much harm slabs may do that move for a request. What other clients hold counts as much as the
// priorities, on average, of what would leave instead: each says them of its own tensors.
struct SlabHarm {
  double at_most = std::numeric_limits<double>::infinity();
  double weight = 1;
};
inline constexpr SlabHarm kOnlyEmpty{.at_most = 0};

class Planner::State {
 public:
  explicit State(PlannerOptions options);

  void Apply(const Event& event, Tick now, Plan* plan);
  Tick NextWake() const;

  // That the client has ever used. REQUIRES: it is attached.
  uint32_t SlotsOf(ClientId client) const;
  TensorId Find(ClientId client, SlotId slot) const;
  // Null, too, when its client is gone.
  const Tensor* Find(TensorId id) const;
  TensorView ViewOf(const Tensor& tensor) const;
  ClientView ViewOf(ClientId client) const;
  Explanation Explain(const Tensor& tensor, Tick now) const;
  std::vector<ClientId> Clients() const;
  TierView DeviceTier(DeviceId device) const;
  Bytes Guaranteed(DeviceId device) const;
  TierView HostTier() const;
  const PlannerStats& stats() const { return stats_; }
  const PlannerStats& StatsOf(ClientId client) const { return clients_.at(client)->stats; }
  void CheckInvariants() const;

 private:
  struct Client {
    ClientId id{};
    TenantId tenant{};
    Budgets budgets;
    Bytes host_used;
    Bytes in_use;
    uint64_t tensors = 0;
    Forecast forecast;
    Correlation correlation;
    bool gets = false;  // it has got a tensor back
    PrefetchWindow window;
    // Until when what was learned of a tensor at a put is believed; some no longer hold.
    struct Doubt {
      int64_t latest;
      TensorId tensor;
      uint32_t put_at;
      auto operator<=>(const Doubt&) const = default;
    };
    using Doubts = std::priority_queue<Doubt, std::deque<Doubt>, std::greater<>>;
    Doubts doubts;
    HintScale hints;
    Doubts beside_doubts;  // the same of what is expected beside hints, by their keys
    std::vector<std::unique_ptr<Arena>> arenas;  // by device; null until used
    Chunked<uint32_t, 256> slots;                // the rows of its tensors; kNoRow: free
    // Requests that wait, and promised copies that have not arrived.
    uint32_t waits = 0;
    Tick waiting_since{};  // if waits > 0
    Duration stood{0};     // how long it has waited in all, before that
    // Of tensors that are on their device, about oldest first: host room that can be had. Ids that
    // are no longer such stay in until they are come across.
    std::deque<TensorId> host_copies;
    PlannerStats stats;
  };
  static constexpr uint64_t kFewTensors = 512;
  static constexpr uint32_t kNoRow = ~uint32_t{0};
  struct Tenant {
    Budgets budgets;
    uint32_t clients = 0;
    std::vector<Bytes> device_guarantee;  // by device, before it is scaled (GuaranteeOf)
    std::vector<Bytes> device_held;
    std::vector<Bytes> device_pinned;     // tensors in use or not quiet
    std::vector<InFlight> device_flight;  // copies of its tensors
    // Of what is held, slabs that are being emptied or given back.
    std::vector<Bytes> device_going;
    std::vector<Tick> device_full_until;  // one of its clients had to evict lately for its budget
    Bytes host_used;
    // Of what is kept of the pool, taken for others' tensors that made way for its guarantee.
    Bytes host_for_guarantee;
  };
  // kMayDrop: for a tensor that has to leave, spare copies of others may be given up. A copy that
  // is only made ahead is not worth one: the two would replace each other for ever.
  enum class SpareCopies { kKeep, kMayDrop };
  struct InOrder {
    bool operator()(const Arena* a, const Arena* b) const {
      return std::pair(a->client, a->device) < std::pair(b->client, b->device);
    }
  };
  struct Device : InFlight {  // copies of anybody's tensors
    Bytes limit;              // of what the store may hold; at most options_.device_capacity
    Bytes held;
    Bytes going;           // of that, slabs that are being emptied or given back
    Bytes guaranteed;      // to tenants with clients
    uint32_t growing = 0;  // arenas that are
    Tick full_until{};     // somebody had to evict lately because it is
  };

  // What CheckInvariants adds up over the rows.
  struct Sums {
    std::map<ClientId, Bytes> in_use;
    std::map<ClientId, Bytes> host_used;
    std::map<ClientId, uint64_t> tensors;
    std::map<ClientId, uint32_t> waits;
    std::map<std::pair<ClientId, DeviceId>, Bytes> live;
    std::map<std::pair<ClientId, DeviceId>, Bytes> pinned;
    std::map<std::pair<ClientId, DeviceId>, size_t> indexed;
    std::map<std::pair<ClientId, DeviceId>, size_t> listed;
    Bytes host;
  };
  void CheckRow(uint32_t row, Sums* sums) const;
  bool IsToBeForgotten(const Tensor& tensor) const;
  void CheckTenants() const;

  // What happened (planner_events.cc).
  void On(const TenantLimits& event);
  void On(const ClientAttached& event);
  void On(const ClientLimits& event);
  void On(const DeviceLimit& event);
  void On(const Trimmed& event);
  void On(const ClientGone& event);
  void On(const SlabAdded& event);
  void On(const SlabFailed& event);
  void On(const SlabRemoved& event);
  void On(const HostGrown& event);
  void On(const HostGrowFailed& event);
  void On(const CreateRequested& event);
  void On(const FetchRequested& event);
  void On(const Freed& event);
  void On(const PutSeen& event);
  void On(const Quiet& event);
  void On(const GetSeen& event);
  void On(const StepMarked& event);
  void On(const TimePassed& event);

  // Copies and drops that ended (planner_copies.cc).
  void On(const Dropped& event);
  void On(const CopiedPart& event);
  void On(const CopiedOut& event);
  void On(const Cleaned& event);
  void On(const CopiedIn& event);
  // The copy of one that nobody could rescue failed: it is lost if some of its room was given away.
  void GoingFailed(Arena& arena, Tensor& tensor);
  // A fetch that came while the tensor was to leave finds it where it wants it after all.
  void AnswerIfHere(Tensor& tensor);
  // Answers a fetch of what is on its device, or on its way there.
  void PromiseInPlace(Tensor& tensor, bool arriving);

  // Serving (planner_serve.cc).
  void Touch(Arena* arena);
  void TouchWaiting();
  // The one where a fetch of the tensor waits, if one does.
  void TouchFetch(const Tensor& tensor);
  void LimitsChanged(Arena& arena);
  // Room on the host came free: whoever could not let a tensor leave for want of it tries again.
  void HostRoomCame();
  // What one client frees may help another, of which nobody tells the other: so it looks again, the
  // less often the more there are.
  Duration RetryAfter() const;
  // Everything that decides whether victims can be found.
  uint64_t ChangesFor(const Arena& arena) const;
  void ServeTouched();
  void Serve(Arena& arena);
  bool TryServe(Arena& arena, const Request& request);
  bool TryCreate(Arena& arena, const Request& request);
  // Gives the create its room, if there is a hole; the request may be one that never waited.
  bool Grants(Arena& arena, const Request& request);
  // Where a new tensor goes.
  std::optional<ExtentMap::Block> PlaceFor(Arena& arena, Bytes size) const;
  bool BeginsAnew(const Arena& arena, Bytes size) const;
  // Its client had to evict lately, and now it holds next to nothing.
  bool IsEmptyAgain(const Arena& arena) const;
  bool MayDemand(const Arena& arena) const;
  bool TryFetch(Arena& arena, const Request& request);
  // False when nothing that the planner can do helps: only a put, a free or a limit does.
  bool MakeRoom(Arena& arena, const Request& request);
  void EvictAhead(Arena& arena, const Request& request);
  Bytes GrowthOf(const Arena& arena, Bytes need) const;
  // Among many small blocks a search in vain is dear, and each event may ask for one: it is
  // followed by a rest that bounds its share of the time.
  bool MaySearch(Arena& arena);
  void Rest(Arena& arena, uint64_t looked_before);
  // Blocks looked at so far, by the arena's index and for slabs to empty.
  uint64_t LookedFor(const Arena& arena) const { return arena.index.looked() + slabs_looked_; }
  // Begins to evict what makes `need` contiguous bytes.
  bool FindVictims(Arena& arena, Bytes need);
  bool EvictRun(Arena& arena, Bytes need, const EvictionIndex::Limits& limits, SpareCopies spare);
  // All of the rows, or none: half a run is harm without use.
  bool EvictAll(Arena& arena, const std::vector<uint32_t>& rows, SpareCopies spare);
  void Evict(Arena& arena, Tensor& tensor);
  // Of a tensor that leaves: it does so that its slab can be given back.
  static void LeaveSlab(Arena& arena, Tensor& tensor);
  // Whether it leaves beyond rescue, so that its room comes free part by part: where it is large
  // and a request waits that a part of it may serve.
  bool LeavesAtOnce(const Arena& arena, const Tensor& tensor) const;
  static void EndLeaving(Arena& arena, Tensor& tensor);
  // For a fetch on another device than the tensor's: false while it has not left there.
  bool BringAway(Tensor& tensor);
  void StartCopyOut(Arena& arena, Tensor& tensor, bool held);
  // The books of any copy to the host, whether the tensor leaves with it or not.
  void BeginCopyOut(Tensor& tensor);
  void EndCopyOut(const Tensor& tensor);
  // How much harm slabs may do that move in place of a run's leaving.
  SlabHarm WorthRenewing(const Arena& arena, const std::vector<uint32_t>& run) const;
  void StartCopyIn(Arena& arena, Tensor& tensor, bool demand);
  void SetGrowing(Arena& arena, bool growing);
  // Its client takes a tensor back: new ones are over for now.
  void TakeBack(Arena& arena);
  // Whether what is under way helps the first request of the arena at once, not after a copy.
  bool HelpIsNear(const Arena& arena) const;
  void FailImpatient(Arena& arena);

  // Ahead of need (planner_ahead.cc).
  // Something had to wait for a dirty tensor's copy: for so long more are copied out ahead.
  static constexpr Duration kShortFor = std::chrono::milliseconds(5);
  static const std::set<std::pair<int64_t, TensorId>>& DueIn(const Arena& arena);
  void Prefetch(Arena& arena);
  bool PrefetchNext(Arena& arena, const Tensor& next);
  static bool KnowsAhead(const Tensor& tensor);
  bool MayOutgrow(const Arena& arena) const;
  void Preclean(Arena& arena);
  // Copies out what leaves next and is dirty; false: no more for now.
  bool CleanNextRun(Arena& arena);
  bool CleanAhead(Arena& arena, Tensor& tensor);

  // Growth (planner_growth.cc).
  // Where a slab would serve a request: how much of it is missing there, how much room there is,
  // and what would then be free in one piece.
  struct SlabPlace {
    Bytes offset;
    Bytes missing;
    Bytes room;
    Range reach;
  };
  // The place where the least is missing.
  std::optional<SlabPlace> PlaceForSlab(const Arena& arena, Bytes need) const;
  // What budgets and the device leave for more slabs of the arena, and what older requests have not
  // claimed; as it is, or as if those that are being emptied or given back were gone.
  enum class Going : uint8_t { kIsHeld, kIsThere };
  Bytes SlabBudgetLeft(const Arena& arena, Going going = Going::kIsHeld) const;
  // Slabs are given back so that the arena's first request gets so much.
  void Claim(Arena& arena, Bytes size);
  void EndClaim(Arena& arena);
  // What the arena may hold as limits are now, in whole granules as slabs are.
  Bytes MostOf(const Arena& arena) const;
  // Of the arena's next slab: not so small that they become many.
  Bytes SlabSize(const Arena& arena) const;
  // No slab is larger, or a tensor in use would keep too much from the others.
  Bytes LargestSlab(const Arena& arena) const;
  void GrowAhead(Arena& arena);
  bool GrowForLargest(Arena& arena);
  // Of what lay apart and was given back, a slab that comes again.
  bool AddJoined(Arena& arena);
  // The last that the arena's budget allows.
  void AddLastSlab(Arena& arena, Bytes size);
  // Whether what lies lowest in the arena, from `begin` on, is needed later than what lies highest.
  bool LowestIsNeededLater(const Arena& arena, Bytes begin) const;
  bool AddSlabBehind(Arena& arena, Bytes size);
  void TakeAhead(Arena& arena, Bytes slab);
  bool AddSlabFor(Arena& arena, Bytes need);
  void AddSlabAt(Arena& arena, Bytes offset, Bytes size);
  // Neither the slabs nor the budget's rest take the request, but both together do: evicts what
  // lies before the range without memory and adds the rest as a slab behind it.
  bool AddSlabAndEvictFor(Arena& arena, Bytes need);

  // Slabs that go (planner_slabs.cc).
  // What keeps an arena from growing: its client's budget, its tenant's, or what the store may hold
  // of the device.
  enum class Binding : uint8_t { kClient, kTenant, kDevice };
  Binding BindingFor(const Arena& arena, Bytes missing) const;
  // What is being emptied or given back, and helps with that.
  Bytes GoingOf(const Arena& arena, Binding binding) const;
  // What keeps a slab for `need` bytes from being added where the least is missing: so many bytes
  // are not there even once what is going is gone.
  struct Lack {
    SlabPlace place;
    Binding binding;
    Bytes bytes;
  };
  std::optional<Lack> LackFor(const Arena& arena, Bytes need) const;
  // An eviction is needed: who else's slabs would have helped?
  void NotePressure(Arena& arena, Bytes need);
  // Somebody fills the device and has just had to evict, and this client does not: what lies empty
  // here goes back before he asks, since a slab takes as long to go as to come.
  bool OthersWantSlabs(const Arena& arena) const;
  // The other arenas that the same limit binds; those of them whose slabs would help.
  std::vector<Arena*> SharersWith(const Arena& arena, Binding binding) const;
  std::vector<Arena*> GiversTo(const Arena& arena, Binding binding) const;
  // Memory that others hold and miss less, or that lies elsewhere in the arena: slabs are given
  // back, and come again where the request needs them. Not if that does more harm than `harm`.
  // kOthers: not from the arena itself. kOtherTenants: from those alone. kSome: nor all that it
  // needs, if there is not so much.
  enum class Take : uint8_t { kEnough, kOthers, kOtherTenants, kSome };
  bool TakeSlabsFor(Arena& arena, Bytes need, const SlabHarm& harm = {}, Take take = Take::kEnough);
  // The last resort: all that can leaves, and slabs come again in one piece.
  bool EmptySlabsFor(Arena& arena, Bytes need);
  // A slab that can be emptied, what lives there, and the harm of its leaving.
  struct Emptying {
    Arena* arena;
    Range piece;
    std::vector<uint32_t> rows = {};
    double harm = 0;
    // Of it, that of what lies in the slab before as well, and in the one after.
    double harm_before = 0;
    double harm_after = 0;
    double density() const { return harm / static_cast<double>(piece.second.count()); }
  };
  // Those that overlap `spared` are left out.
  enum class Which : uint8_t { kAll, kEmpty };  // that can be emptied, or that are
  // `weight` stands for the priorities of tensors that are not the asking client's.
  void FindEmptyable(Arena& arena, const Range& spared, Which which, std::vector<Emptying>* found,
                     std::optional<double> weight = {});
  // Of these, those of the least harm that hold `wanted` bytes, or all.
  static std::vector<Emptying> Cheapest(std::vector<Emptying> slabs, Bytes wanted);
  // What the tenant is guaranteed of the device: a share, where all of them are more than there is.
  Bytes GuaranteeOf(const Tenant& tenant, DeviceId device) const;
  // The tenant's guarantees count, or count no more, as it has clients.
  void CountGuarantees(const Tenant& tenant, bool present);
  // What the guarantees of the others leave the tenant of the device.
  Bytes ShareOf(const Tenant& tenant, DeviceId device) const;
  // With `more` bytes the arena's tenant would have more in use than its share. What is in use
  // cannot leave, so that would keep from others what they are guaranteed.
  bool ExceedsShare(const Arena& arena, Bytes more) const;
  // With `need` more the arena's tenant would hold no more than it is guaranteed, and only the
  // device's limit is in its way.
  bool IsWithinGuarantee(const Arena& arena, Bytes need) const;
  // Takes those out that would leave another tenant less than it is guaranteed.
  void KeepGuarantees(const Arena& asking, std::vector<Emptying>* slabs) const;
  // Takes those out whose copies the link would not begin with yet, so that memory that comes free
  // meanwhile spares them; not all, unless `some_go` already. True if there are any.
  bool LeaveToLater(DeviceId device, bool some_go, std::vector<Emptying>* slabs) const;
  // Begins to empty the cheapest that hold `wanted` bytes, or half as many, or a fourth ..., but of
  // no more tensors than one event should move; true if it is all.
  bool VacateSome(std::vector<Emptying> slabs, Bytes wanted);
  // Begins to empty slabs, so that they can be given back; those of one arena stand together.
  bool Vacate(const std::vector<Emptying>& chosen);
  bool Vacate(Arena& arena, const std::vector<Range>& pieces, std::vector<uint32_t> rows);
  // Gives the slabs back that were being emptied and are empty.
  void EndVacating(Arena& arena);
  // Finds those that the arena's client, stopped or worse, does not let go of.
  void NoteOverdue(Arena& arena);
  bool GiveBackFreePiece(Arena& arena);
  bool GiveBack(Arena& arena, Range piece);
  // Slabs of the arena are being emptied or given back; that is over.
  void BeginGoing(const Arena& arena, Bytes size);
  void EndGoing(const Arena& arena, Bytes size);
  // What the arena holds beyond its budgets, and of what its tenant or everybody does its share.
  Bytes ExcessOf(const Arena& arena) const;
  void Shrink(Arena& arena);
  void JoinSlabs(Arena& arena);

  // Waiting for others (planner_waits.cc).
  // Another client frees memory so fast that waiting for its slabs takes less than copies would.
  bool WaitsForFrees(Arena& arena, const Request& request);
  // What copying out what must leave takes, and bringing it back.
  double SecondsToEvict(const Arena& arena, Bytes need) const;
  // How long until others have freed so much, if they go on as now.
  double SecondsUntilFreed(const Arena& arena, Bytes missing, Binding binding) const;
  // An iteration would begin with the request, and its peak coincide with another client's: to let
  // that pass takes less than copies would.
  bool WaitsForPeak(Arena& arena, const Request& request);
  bool MayWaitForPeak(const Arena& arena, const Request& request) const;
  // How long until those are past theirs who share the tenant's budget, or the device; zero, if the
  // arena's client should not wait for that.
  Duration UntilPeaks(const Arena& arena, Binding binding) const;

  // The future, and doing without the bytes (planner_future.cc).
  // Without a hint: what the client did before says when.
  void Predict(Client& client, Tensor& tensor);
  static void ExplainPrediction(const Client& client, const Tensor& tensor, Explanation* why);
  // Its next use is the client's use number `position`.
  void Foretell(const Client& client, Tensor& tensor, int64_t position);
  // The client uses the tensor: which ones follow it?
  void Correlate(Client& client, Tensor& tensor);
  // What a client made in a row it often gets back in a row; and it mostly made it in the order of
  // its slots. Of many tensors that is not worth the memory, nor of any before the first get.
  void CorrelateWhatWasMade(Client& client);
  // Changes what is known of the tensor's next use.
  template <typename Change>
  void Rekey(Tensor& tensor, const Change& change);
  void BeginPrefetch(Tensor& tensor);
  // The client uses it, or it goes unused. Nothing if it was not prefetched.
  void EndPrefetch(Tensor& tensor, bool used);
  // A get of it: what is known of it and of its client grows.
  void CountGet(Tensor& tensor);
  // Looks at a few of the client's tensors; of what has turned out wrong nothing is known any more.
  void DisbelieveSome(Client& client);
  template <typename Believed>
  void Disbelieve(Client& client, Client::Doubts* doubts, int64_t now, const Believed& believed);
  // Its bytes are gone; the client makes them anew when it wants them.
  void GiveUp(Tensor& tensor);
  // What taking so much out and bringing it back costs.
  Duration BothCopies(Bytes size) const;

  // Room in the host pool (planner_host.cc).
  bool AllocateHost(Tensor& tensor, SpareCopies spare = SpareCopies::kMayDrop);
  bool TryAllocateHost(Tensor& tensor, SpareCopies spare);
  void FreeHost(Tensor& tensor);
  // The tensor is on its device and on the host: its copy there can be given up.
  void NoteSpareCopy(Tensor& tensor);
  void DropSpareCopies(Client& client, Bytes need);
  // Whether others' spare copies may make room for `asking`: of another tenant only what it holds
  // beyond its part of the pool.
  bool MayDropCopiesOf(const Client& other, const Client& asking) const;
  // Whether the tenant may take so much more of the pool: all of them together all but the last
  // part, and of that each only little.
  bool IsWithinHostShare(const Tenant& tenant, Bytes more) const;
  // Drops spare copies until it is; false where that does not suffice.
  bool MakeHostShare(Client& client, Bytes more, SpareCopies spare);
  // What leaves for a tenant's guarantee may take that tenant's part of what is kept: else a user
  // who fills the pool would keep the device, too.
  bool TakeKeptForGuarantee(Bytes more);
  // Room in the pool for `tensor`; the budgets allow it.
  std::optional<ExtentMap::Block> TakeHostRoom(Client& client, const Tensor& tensor,
                                               SpareCopies spare);
  void EnsureHostAhead(Bytes need);
  // The pool has so much room that none is pinned in its place.
  bool HostHasSpare(Bytes size) const {
    return host_.LargestHole() >= size && host_.used() + options_.host_ahead + size <= host_.held();
  }

  // Books (planner_books.cc).
  Client* FindClient(ClientId client);
  // Null, too, when its client is gone.
  Tensor* FindTensor(TensorId id);
  Arena* ArenaOf(ClientId client, DeviceId device);
  Arena* ArenaOf(const Tensor& tensor) { return ArenaOf(tensor.client, tensor.device); }
  void SetInUse(Tensor& tensor, bool in_use);
  void SetQuiet(Tensor& tensor, bool quiet);
  // Counts the tensor among those that cannot leave their device, or no more, as it now is.
  void Repin(Tensor& tensor);
  void SetNextUse(Tensor& tensor, const NextUse& next_use);
  // A client's own time stands while it waits for the store: what it said will happen in 5 ms
  // happens 5 ms of its own later. Next uses by time are kept in it.
  Tick OwnTime(const Client& client) const;
  Tick OwnTime(const Arena& arena) const { return OwnTime(*clients_.at(arena.client)); }
  void BeginWait(ClientId client);
  void EndWait(ClientId client);
  std::set<std::pair<int64_t, TensorId>>& DueList(Arena& arena, UseKind kind);
  bool Evictable(const Tensor& tensor) const;
  // Puts the tensor into its arena's index, or takes it out, as it now is.
  void Reindex(Tensor& tensor);
  void List(Tensor& tensor);  // among the prefetch candidates
  void Unlist(Tensor& tensor);
  void FreeDevice(Tensor& tensor);
  // Gives everything of the tensor back and forgets it.
  void Finish(Tensor& tensor);
  // After a copy's answer: true when the tensor was freed, or its client ended, meanwhile; it is
  // forgotten now.
  bool FinishIfGone(Tensor& tensor);
  bool UnderCopyLimit(Bytes bytes, uint32_t copies, Bytes more) const;
  // Whether the arena may begin a copy that nobody waits for.
  bool MayCopyAhead(const Arena& arena, const Direction& direction, Bytes more) const;
  // However much others copy: its tenant has so few copies under way that it may begin another.
  // `bytes` and `copies` are what all tenants together may have.
  bool HasCopiesLeft(const Arena& arena, const Direction& direction, Bytes more, Bytes bytes,
                     uint32_t copies) const;
  void BeginCopy(Tensor& tensor, const Direction& direction);
  void EndCopy(const Tensor& tensor, const Direction& direction);
  // So much of what may be in flight is chosen ahead of need.
  Bytes AheadMost() const { return Bytes(options_.in_flight.count() / 2); }
  void BackOff(Arena& arena);
  void Charge(Arena& arena, Bytes size);
  void Refund(Arena& arena, Bytes size);

  // Without a copy: it is not needed, is on the host as it is, or is made anew more cheaply.
  static bool CanDrop(const Tensor& tensor) { return !tensor.needs_copy() || tensor.recompute > 0; }
  // The client itself said when it is needed, or in which order.
  static bool IsHinted(const Tensor& tensor) {
    return (tensor.use_kind == UseKind::kAt && !tensor.predicted) || IsOrdered(tensor);
  }
  static bool IsOrdered(const Tensor& tensor) {
    return tensor.use_kind == UseKind::kOrder && !tensor.predicted;
  }

  // Who waits for what the tensor's leaving brings.
  ClientId Behalf(const Tensor& tensor) const { return served_.value_or(tensor.client); }

  // Requests.
  void Enqueue(Request request);
  // The arena's first request is out: what was prepared for it alone ends.
  void EndFirst(Arena& arena);
  // Takes the request out of the books; the caller answered it.
  void Dequeue(const Request& request);
  void Forget(const Request& request);
  // Of clients that are gone, some at a time; of one that had many, nobody else waits for them all.
  void ForgetRequests();
  void ForgetTensors();
  void ForgetSome();
  // REQUIRES: tensor.waiting.
  const Request& FetchOf(const Tensor& tensor) const;
  void Fail(const Request& request, ErrorCode code, const std::string& message);
  // Its time is over, or it would not wait.
  void FailForRoom(const Request& request);
  std::string WhoHolds(const Request& request) const;
  std::string Holders(const Client& asker, size_t device) const;
  std::string HostHolder() const;
  void WakeAt(Tick when) { next_poll_ = std::min(next_poll_, when); }
  // The same for one arena, unless it is to be woken before.
  void WakeAt(Arena& arena, Tick when) {
    if (when >= arena.wake) return;
    wakes_.erase({arena.wake, arena.client, arena.device});
    wakes_.emplace(arena.wake = when, arena.client, arena.device);
  }
  template <typename Counter, typename Amount>
  void Count(ClientId client, Counter counter, Amount amount);

  PlannerOptions options_;
  Catalog catalog_;
  ExtentMap host_;
  Bytes host_end_;      // the pool is, or is being, pinned up to here
  Bytes host_budgets_;  // of all tenants, each at most the pool
  bool host_growing_ = false;
  Tick slabs_come_until_{};    // a slab was asked for so lately that the next may follow
  Tick host_backoff_until_{};  // growing it failed: do not try again before
  // Tensors that had to leave needed spare copies' room lately: none are made ahead before.
  Tick host_short_until_{};
  bool irrevocable_ = false;  // what is taken now leaves at once, beyond its client's rescue
  bool demand_held_ = false;  // a fetch waits for the copies of others to end
  bool taking_held_ = false;  // slabs are to be emptied once fewer copies are under way
  bool host_wanted_ = false;  // a tensor could not leave for want of host room
  uint64_t spare_copies_noted_ = 0;
  uint64_t slabs_looked_ = 0;  // blocks of slabs that might be emptied
  // Ordered, as everything that is walked: the same events give the same plans.
  std::map<ClientId, std::shared_ptr<Client>> clients_;
  Client* last_found_ = nullptr;  // by FindClient
  std::map<TenantId, Tenant> tenants_;
  std::vector<Device> devices_;
  // In trees: a table of a million would be moved at once as it grows.
  std::map<uint64_t, Request> requests_;
  std::map<TensorId, uint64_t> fetches_;          // those of them for a tensor that exists
  std::deque<std::set<uint64_t>> gone_requests_;  // those of clients that are gone, and more
  // They themselves. Of their tensors those in `slots` are still to be forgotten, and what is being
  // copied once that is done.
  std::deque<std::shared_ptr<Client>> gone_;
  size_t answered_ = 0;  // requests, during Apply
  std::set<std::pair<Tick, uint64_t>> deadlines_;
  uint64_t last_request_ = 0;
  std::set<Arena*, InOrder> waiting_arenas_;  // with requests
  std::vector<Arena*> claimants_;             // those of them with a claim
  std::set<Arena*, InOrder> active_arenas_;   // with something that time may move
  std::deque<Arena*> touched_;
  PlannerStats stats_;
  std::optional<ClientId> served_;  // during Serve
  Tick now_{};
  Tick next_poll_ = kNever;  // when all active arenas are looked at again
  std::set<std::tuple<Tick, ClientId, DeviceId>> wakes_;  // when one is
  std::vector<Correlation::Step> missed_;                 // during Correlate
  // When slabs that are being given back will be overdue, if they still are.
  std::deque<std::tuple<Tick, ClientId, DeviceId>> removals_;
  Plan* plan_ = nullptr;  // during Apply
};

}  // namespace ravenstore::core
