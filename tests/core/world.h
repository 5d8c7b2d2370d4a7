// A small world for the planner: clients, streams, memory and an executor, all in simulated time.
//
// The clients' side changes modelled lease words as the client library does; the executor's side
// mirrors daemon/loop.cc and daemon/loop_actions.cc, down to what it believes when. Memory is
// modelled by a stamp per extent unit: a use writes a stamp of its own, copies move stamps in two
// halves, and every use checks that it finds the last one written. So a planner that loses, mixes
// or tears bytes is found by the bytes themselves.
//
// Every broken promise of the planner ends the process through RAVEN_CHECK.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/events.h"
#include "core/planner.h"
#include "core/types.h"
#include "proto/layout.h"

namespace ravenstore::core {

// A tensor as its client names it.
struct Handle {
  ClientId client{};
  SlotId slot{};
  auto operator<=>(const Handle&) const = default;
};

class World {
 public:
  struct Options {
    PlannerOptions planner;
    // Of each of a client's log lanes; beyond it entries are dropped, as in the control segment.
    size_t lane_entries = 1024;
    // CheckInvariants costs O(tensors) after each event.
    bool check_invariants = true;
    std::function<void(const std::string&)> trace;
  };
  // kOn: from one pool that is no device's to another.
  enum class CopyKind { kOut, kClean, kIn, kOn };
  struct Copy {
    CopyKind kind;
    Handle handle;
    TensorId tensor;
    DeviceId device;
    Bytes on_device;
    Place away;
    Bytes size;
    uint64_t word = 0;           // the lease word that it needs to find again
    bool held = false;           // the client waits in a fetch: no lease swing
    bool irrevocable = false;    // the lease is Away already
    bool half_released = false;  // and the room of its first half was given away
    bool promised = false;
    Place on{};  // kOn: where `away` is copied to
  };
  enum class Answer { kNone, kWaiting, kGranted, kRefused, kReplied, kDenied };

  explicit World(Options options);

  // ---- Administration.
  void SetTenant(TenantId tenant, Budgets budgets);
  void SetClient(ClientId client, Budgets budgets);
  void SetDevice(DeviceId device, Bytes capacity);
  // Of a pool that comes and goes by chunks.
  void SetPool(PoolId pool, Bytes most);
  // Whoever lends the chunk there wants it back.
  void RecallChunk(PoolId pool, Bytes offset);
  // And lets it be after all.
  void KeepChunk(PoolId pool, Bytes offset);
  // What is in the chunk is gone: from now on no copy out of it ends well.
  void LoseChunk(PoolId pool, Bytes offset);
  void SetPoolRate(PoolId pool, double bytes_per_second);
  // From now on every copy to the pool and from it fails, also those under way.
  void FailPool(PoolId pool);
  void Trim(ClientId client);
  ClientId Attach(TenantId tenant, Budgets budgets);
  void Kill(ClientId client);

  // ---- What clients do. The daemon learns of it by Poll.
  Handle Create(ClientId client, Bytes size, DeviceId device, Duration timeout,
                bool fail_fast = false, bool fail_stuck = false, bool long_lived = false);
  // Takes the tensor in use, or asks for it; false when its state allows neither.
  bool Get(Handle handle, DeviceId device, Duration timeout);
  // REQUIRES: in use.
  void Write(Handle handle);
  void Put(Handle handle, NextUse next_use, Duration recompute = Duration{0},
           Priority priority = Priority::kNormal);
  // Its next iteration begins, behind what it has asked for so far.
  void Step(ClientId client);
  // False when its state does not allow it.
  bool Free(Handle handle);
  // What the stream was given runs, and tickets rise; nothing while the tensor still arrives.
  void RunStream(Handle handle);

  // ---- What the daemon looks at.
  void PollLog(ClientId client, size_t entries = ~size_t{0});
  void PollRequests(ClientId client, size_t requests = ~size_t{0});
  void PollTickets();
  void PollAll();

  // ---- What the machine does.
  const std::vector<Copy>& copies() const { return copies_; }
  // One that leaves at once gives up the room of its first half, and goes on to the next call.
  void FinishCopy(size_t index, bool ok);
  struct SlabJob {
    enum class Kind { kAdd, kRemove, kPoolGrows, kPoolShrinks } kind;
    ClientId client{};
    DeviceId device{};
    Bytes offset;
    Bytes size;
    PoolId pool{};

    bool is_of_pool() const { return kind == Kind::kPoolGrows || kind == Kind::kPoolShrinks; }
  };
  const std::vector<SlabJob>& slab_jobs() const { return slab_jobs_; }
  void FinishSlab(size_t index, bool ok);
  // What happens beside this world's clients: blocks of pinned memory.
  void Tell(const Event& event);
  // A slab of pinned memory for the client's tenant, if it may be; none: all that the tenant has
  // goes back.
  void Pin(ClientId client, Bytes bytes);
  void UnpinAll();
  // What of it the planner asked back, and whose; each is told once.
  std::optional<ReclaimPinned> TakeReclaim() { return std::exchange(reclaim_, std::nullopt); }
  // Time passes, with TimePassed whenever the planner asked for it.
  void Advance(Duration duration);

  // ---- Looking at it.
  Planner& planner() { return *planner_; }
  const Planner& planner() const { return *planner_; }
  Tick now() const { return now_; }
  std::vector<ClientId> Clients() const;
  std::vector<Handle> Handles(ClientId client) const;
  proto::LeaseState StateOf(Handle handle) const { return RowOf(handle).state; }
  Answer AnswerOf(Handle handle) const { return RowOf(handle).answer; }
  const Error& ErrorOf(Handle handle) const { return RowOf(handle).error; }
  DeviceId DeviceOf(Handle handle) const { return RowOf(handle).device; }
  TensorId IdOf(Handle handle) const { return RowOf(handle).tensor; }
  Bytes PlaceOf(Handle handle) const { return RowOf(handle).place; }
  // The plans since the last call, as text.
  std::string TakeTranscript();
  // How often a tenant lost to others what it is guaranteed; none with `check_invariants`.
  size_t robbed() const { return robbed_; }
  // How many tensors moved on to the host, and how many lay alone in chunks that were lost.
  size_t moved_on() const { return moved_on_; }
  size_t lost_with_chunks() const { return lost_with_chunks_; }
  // Everything of the client's arena on the device that is not free of charge.
  Bytes HeldBy(ClientId client, DeviceId device) const;

 private:
  static constexpr uint64_t kUnit = kExtentAlignment.count();
  static constexpr int kLanes = 2;

  struct StreamOp {
    bool write;
    uint64_t stamp;
  };
  struct Row {
    proto::LeaseState state = proto::LeaseState::kFree;
    uint64_t word = 0;
    DeviceId device{};
    Bytes place;
    Bytes size;
    uint32_t writes = 0;
    bool modified = false;
    NextUse hint;
    Duration recompute{0};  // of the last put
    Priority priority = Priority::kNormal;
    uint64_t ticket = 0;
    // The stream's side.
    std::deque<StreamOp> ops;
    uint64_t ticket_reached = 0;
    bool arriving = false;
    uint64_t stamp = 0;  // what the last use wrote; 0 before the first
    bool may_be_lost = false;
    Place away{};  // where it was last copied to beside its device
    // The executor's side.
    TensorId tensor = kNoTensor;
    bool pending = false;
    uint64_t complete_word = 0;
    // The answer to the last request.
    Answer answer = Answer::kNone;
    Error error{};
    Tick deadline{};
  };
  struct Access {
    SlotId slot;
    bool put;
  };
  struct Request {
    enum class Op { kCreate, kFetch, kFree, kStep } op;
    SlotId slot;
    TensorId tensor;
    DeviceId device;
    Bytes size;
    Tick deadline;
    bool fail_fast;
    uint64_t ticket;
    bool fail_stuck = false;
    bool long_lived = false;
  };
  struct Ticket {
    uint64_t value;
    TensorId tensor;
    SlotId slot;
    uint64_t idle_word;  // 0: a free
  };
  enum class Unit : uint8_t { kAbsent, kAdding, kPresent, kRemoving };
  struct Memory {
    std::vector<uint64_t> stamps;
    std::vector<Unit> units;
    std::vector<TensorId> owners;
  };
  struct Session {
    ClientId id{};
    TenantId tenant{};
    Budgets budgets;
    bool gone = false;
    size_t copies = 0;
    std::deque<Row> rows;
    std::vector<std::deque<Access>> lanes;
    bool log_dropped = false;
    bool rescan = false;
    std::deque<Request> requests;
    std::deque<Ticket> tickets;
    std::vector<Memory> memory;
    size_t next_lane = 0;
  };

  Session& SessionOf(ClientId client) { return *sessions_.at(client); }
  Session* FindSession(ClientId client);
  Row& RowOf(Handle handle) { return sessions_.at(handle.client)->rows.at(ToInt(handle.slot)); }
  const Row& RowOf(Handle handle) const {
    return sessions_.at(handle.client)->rows.at(ToInt(handle.slot));
  }
  Row* Locate(const TensorOfClient& tensor, Session** session, SlotId* slot);
  static void MoveLease(Row& row, proto::LeaseState state);
  void Append(Session& session, SlotId slot, bool put);
  void Trace(const std::string& text) const;

  void ApplyEvent(const Event& event);
  void Execute();
  void CheckBudgets();
  // Of what the planner proposed last, from `first` on: the tenants of which something leaves a
  // device on behalf of others that is guaranteed to them. Those of which their own clients may
  // take something in the same moment are passed over.
  size_t CountRobbed(size_t first) const;
  void Do(const AddSlab& action);
  void Do(const RemoveSlab& action);
  void Do(const GrowPool& action);
  void Do(const ShrinkPool& action);
  void Do(const ReclaimPinned& action);
  void Do(const AllocReply& action);
  void Do(const AllocError& action);
  void Do(const FetchReply& action);
  void Do(const FetchError& action);
  void Do(const Release& action);
  void Do(const Drop& action);
  void Do(const Move& action);
  void Do(const Prioritize& action);
  void Do(const DeferDestroy&) {}
  void StartCopyOut(const Move& action);
  void StartCopyIn(const Move& action);
  void StartCopyOn(const Move& action);
  void LeaveIrrevocably(Copy& copy);
  bool ReleaseHalf(Copy& copy);
  void FinishOut(const Copy& copy, bool ok);
  void FinishIn(const Copy& copy, bool ok);
  void ReleaseIfGone(Session& session);
  void HandlePut(Session& session, SlotId slot);
  void AwaitStreamComplete(Session& session, SlotId slot);
  void HandleRequest(Session& session, const Request& request);
  void CommitPut(Session& session, const Request& request);
  void ClearOwnersOfDropped();

  // Memory.
  void SetOwner(Memory& memory, Bytes offset, Bytes size, TensorId tensor);
  void ClearOwner(Session& session, const Row& row);
  static bool OwnsBytes(const Memory& memory, TensorId tensor);
  static size_t UnitsOf(Bytes size) { return size.RoundUp(kExtentAlignment).count() / kUnit; }
  void MoveStamps(const Copy& copy, bool second_half);
  void MoveStampsOn(const Copy& copy, size_t begin, size_t end);
  // Pinned memory and the pool together are what the store may pin.
  void CheckPinned() const;
  // Slabs and what is harvested together are what the device may hold.
  void CheckDevice(DeviceId device) const;
  // Whether a copy of so much from there, or to there, touches what was lost.
  bool IsLost(const Place& place, Bytes size) const;
  void CheckAwayRoom(TensorId tensor, const Place& to, Bytes size) const;

  Options options_;
  std::unique_ptr<Planner> planner_;
  Plan plan_;
  std::optional<ReclaimPinned> reclaim_;
  std::map<TenantId, Bytes> pinned_;
  Tick now_{std::chrono::seconds(1)};
  std::map<ClientId, std::unique_ptr<Session>> sessions_;
  std::map<TenantId, Budgets> tenants_;
  std::map<ClientId, Bytes> host_used_;  // at the last look, to see growth beyond a budget
  std::map<std::tuple<ClientId, DeviceId, Bytes>, Bytes> slab_sizes_;
  uint32_t last_client_ = 0;
  std::map<PoolId, Memory> away_;  // all pools but the devices'
  Memory& host_ = away_[kHostPool];
  std::set<PoolId> failed_;
  std::map<std::pair<PoolId, Bytes>, Bytes> lost_;  // chunks, and their sizes
  std::vector<Copy> copies_;
  std::vector<SlabJob> slab_jobs_;
  uint64_t last_stamp_ = 0;
  size_t robbed_ = 0;
  size_t moved_on_ = 0;
  size_t lost_with_chunks_ = 0;
  size_t events_at_once_ = 0;      // since time last passed
  size_t passes_of_the_gone_ = 0;  // left to forget clients in
  std::string transcript_;
};

// An action, for people and for comparing plans.
std::string Describe(const Action& action);

}  // namespace ravenstore::core
