// What is known of the calls that a client will make on one device, and where its tensors are
// placed.
//
// It sees each call before and after the client makes it. It says which calls are ahead, and moves
// the position in the plan that its owner makes of them. LearnedForesight predicts the calls; the
// simulator has heirs that know them from a trace.
//
// Owns: the places and the calls ahead. The books that are passed in are the client's. Units:
// bytes, positions; the client's virtual time. Threads: one at a time. Errors: none; the owner
// passes only calls that the tensor's state allows. Cost: a call as the heir's; a plan O(calls).
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/books/page_books.h"
#include "core/books/page_tensors.h"
#include "core/events.h"
#include "core/execution/page_executor.h"
#include "core/plan/calls.h"
#include "core/plan/neighbour_use.h"
#include "core/plan/places.h"
#include "core/plan/residency_plan.h"
#include "core/types.h"

namespace ravenstore::core {

// A call of a client.
struct ClientCall {
  plan::CallKind kind = plan::CallKind::kGet;
  TensorNumber tensor = 0;  // its row, which another tensor may have after the free
  Bytes size;
  bool modifies = false;                  // put: the tensor's bytes are newer than any copy
  NextUse next_use{};                     // put
  Priority priority = Priority::kNormal;  // put
  Duration at{0};  // the client's virtual time, without its waits for the store
  // create: the client has placed it there, in its range; nullopt: PlaceFor() does
  std::optional<plan::Place> place = std::nullopt;
  // create: as CreateRequested::stream; free: the stream behind whose work it is
  StreamId stream = kNoStream;
};

struct ForesightStats {
  uint64_t plans = 0;
  uint64_t shared_plans = 0;  // of these, for all clients of the device
  uint64_t over_budget = 0;   // calls of plans that need more than the budget
  uint64_t creates = 0;       // under a plan; of these, placed elsewhere than it expected
  uint64_t elsewhere = 0;
  uint64_t compared = 0;  // calls that were followed; of these, found where they were expected
  uint64_t found = 0;
  Bytes range_end;  // of the client's addresses

  void Add(const ForesightStats& other);
};

class ClientForesight {
 public:
  // `limits`: the client's first share of the device, of at least one page. `has_slots`: small
  // tensors may have slots, which change a tensor's address. Else all tensors have whole pages.
  explicit ClientForesight(const plan::PlanLimits& limits, bool has_slots = true);
  virtual ~ClientForesight() = default;
  ClientForesight(const ClientForesight&) = delete;
  ClientForesight& operator=(const ClientForesight&) = delete;

  // ---- Calls. For each: Before(); PlaceFor() of a create; After() when it holds its pages.
  // The client makes the call.
  virtual void Before(const ClientCall& call, PageBooks* books) = 0;
  // The call is done. Of a call that failed there is none.
  virtual void After(const ClientCall& call, PageBooks* books) = 0;
  // The place of the created tensor, which is none of the others'.
  virtual plan::Place PlaceFor(const ClientCall& call, const plan::PlacesInUse& others) = 0;
  // The place of the tensor is free, and so is its row. Follows After() of the free.
  virtual void FreePlace(TensorNumber tensor) = 0;
  // The get or create that was done has failed afterwards: the tensor is not in use.
  virtual void Refused(TensorNumber /*tensor*/) {}
  // Returns true for a put, between Before() and After(), after which no call uses the tensor's
  // bytes.
  virtual bool IsLastPut(const ClientCall& /*call*/) const { return false; }
  // An iteration of the program begins.
  virtual void Step() {}
  // Before a call: the tensors of pages that are away move to slots, if small tensors are to have
  // slots.
  virtual void MoveToSlots(PageExecutor* /*executor*/) {}

  // ---- The plan.
  // Calls are ahead. Else what the puts announce says which units leave and come.
  virtual bool has_plan() const = 0;
  // Since the last time, the calls ahead have become others, or the share of the device: a plan is
  // to be made.
  bool TakeRemake() { return std::exchange(remake_, false); }
  // The client's share of the device is another: the next call makes a plan.
  virtual void ShareChanged() = 0;
  // Whether all that lives on the device is expected to fit. An heir may then have no plan.
  void SetFits(bool fits) { fits_ = fits; }
  // A plan begins with the first of the calls that are ahead; `made`: the client has made that one
  // already, and it waits: the plan begins after it. Times are from the last call. The plan that
  // has begun before will not be set.
  std::vector<plan::PlannedCall> BeginPlan(bool made);
  // Changes when a plan begins, and when the plan that has begun is of calls that do not come.
  uint64_t version() const { return version_; }
  // The plan that has begun is made, and is set next: it moves to where the client is by now.
  // `is_shared`: it is a part of the plan of all clients.
  void SetPlan(plan::ResidencyPlan* plan, bool is_shared);
  // How long the calls ahead of one pass take, and how long all that are known should.
  Duration pass() const { return pass_; }
  void SetLeast(Duration least) { least_ = least; }

  // ---- Places.
  // Tensors that are placed from now on span at most that many pages if they can.
  void SetMost(uint32_t pages) { places_.SetMost(pages); }
  // The range of addresses is that long. Tensors are placed only where CanPlace() returns true.
  void SetAddresses(Bytes addresses) { addresses_ = addresses; }
  bool CanPlace(const plan::AddressRange::Request& request) const {
    return places_.CanAllocate(request, addresses_);
  }
  plan::UnitSpan UnitsOf(const plan::Place& place, Bytes size) const {
    return places_.UnitsOf(place, size);
  }
  // Where the tensor begins in its first unit.
  Bytes OffsetOf(const plan::Place& place) const { return places_.OffsetOf(place); }
  ForesightStats stats() const;

 protected:
  // The plan that has begun is of calls that do not come.
  void DropPlan() { ++version_; }
  // The calls that are ahead are these, from the first one on. The plans that have begun, and that
  // are set, begin before it.
  void SetCalls(std::vector<plan::PlannedCall> calls);
  // The client has come to this one of them.
  void MoveTo(plan::Position position, PageBooks* books);
  // Decides from the call whether small tensors that are created from now on have slots. Without
  // slots it does nothing.
  void WatchUse(plan::CallKind kind, plan::TensorIndex tensor, Bytes size);

  plan::Places places_;
  ForesightStats stats_;
  bool remake_ = false;
  bool fits_ = false;
  Duration pass_{0};
  Duration least_{0};

 private:
  const bool has_slots_;
  plan::NeighbourUse neighbours_;
  Bytes addresses_{UINT64_MAX};
  std::vector<plan::PlannedCall> calls_;
  plan::Position position_ = 0;  // in these
  // Where plans begin: the one that is set, and the one that has begun.
  plan::Position set_begin_ = 0;
  plan::Position next_begin_ = 0;
  uint64_t version_ = 0;
};

}  // namespace ravenstore::core
