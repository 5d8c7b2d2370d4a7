// One client of a device: its executor, its foresight, its waiting calls and its share.
//
// PageScheduler asks it and decides between clients. Calls that wait for room are admitted in
// order, so that a large one is not passed by small ones without end.
//
// Owns: the executor and the foresight. The backend outlives it. Units: pages, bytes; the client's
// virtual time. Threads: one at a time. Errors: none; the owner passes only calls that the tensor's
// state allows. Cost: a call as PageExecutor and ClientForesight.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/decide/page_shares.h"
#include "core/execution/page_backend.h"
#include "core/execution/page_executor.h"
#include "core/schedule/client_foresight.h"
#include "core/schedule/plan_work.h"
#include "core/schedule/recent_peak.h"
#include "core/types.h"

namespace ravenstore::core {

// A put or a free that the client has made and its stream has not reached.
struct CallEnd {
  TensorNumber tensor = 0;
  bool frees = false;
  bool unpins = false;    // the tensor was in use
  bool dies = false;      // its bytes are not used any more
  bool modifies = false;  // they are newer than any copy
  bool in_place = false;  // its copies were used where they are (InPlaceUse)
  // Its place is free already: the stream's own order gives it to the stream's later work.
  StreamId place_of = kNoStream;
};

class ScheduledClient {
 public:
  struct Options {
    ClientId id{};
    PageBackend* backend = nullptr;
    PageBooks::Options books;                    // .limits.pages: made for it already
    std::unique_ptr<ClientForesight> foresight;  // not null
    // A call is done for the plan when the stream has executed it, since the client then makes the
    // next one. Else it is done when it holds its pages.
    bool waits_for_stream = false;
    TenantId tenant{};
    uint32_t most = UINT32_MAX;  // pages that it may hold
  };

  explicit ScheduledClient(Options options);

  ClientId id() const { return options_.id; }
  TenantId tenant() const { return options_.tenant; }
  PageExecutor& executor() { return executor_; }
  const PageExecutor& executor() const { return executor_; }
  const ClientForesight& foresight() const { return *options_.foresight; }

  // ---- Calls.
  // Shows a call to the foresight. `fits`: as its SetFits. Returns true if plans are to be made
  // again: its calls ahead have become others, or there are none any more.
  bool See(const ClientCall& call, bool fits);
  // Returns true if the client has addresses for the tensor of a create, of at most `most` pages if
  // it can.
  bool CanPlace(Bytes size, uint32_t most, StreamId stream) const {
    return foresight().CanPlace({size, most, &in_use_, stream});
  }
  // The tensor of a create has its place, of at most `most` pages if it can.
  void Place(const ClientCall& call, uint32_t most);
  // A create or a get holds its pages if no other call waits and `may_hold` pages suffice, or uses
  // them in place. Else it waits. Returns false if it waits. Without `may_hold` it uses them in
  // place, or returns false and does not wait.
  bool Hold(const ClientCall& call, std::optional<uint32_t> may_hold);
  // The first call that waits holds its pages now. nullopt: none waits, or it does not fit.
  std::optional<TensorNumber> HoldWaiting(uint32_t may_hold);
  // A get that the client has made without asking.
  void Use(const ClientCall& call);
  // A put or a free, for the CPU.
  CallEnd End(const ClientCall& call);
  void Step() { options_.foresight->Step(); }
  // The stream has come to the create or the get. REQUIRES: the tensor is resident or used in
  // place.
  void BeginUse(TensorNumber tensor);
  // The stream has come to the put or the free.
  void EndUse(const CallEnd& end);
  // Its bytes will not be used any more; its row stays.
  void EndBytes(TensorNumber tensor);
  // A call fails that waits for room or for its units. Returns false if none does.
  bool Refuse(TensorNumber tensor);
  // The executor has refused a call that held its units.
  void Refused(TensorNumber tensor);
  // The tensor of a create that failed is no more. REQUIRES: no call holds it.
  void Forget(TensorNumber tensor);

  // ---- Its plan.
  // The values that a plan follows from. It is made apart, and then set if it is current.
  // REQUIRES: its foresight has one.
  PlanWork::Part BeginPlan();
  // No other plan has begun since, and its calls have not jumped.
  bool IsCurrent(const PlanWork::Part& part) const { return part.version == foresight().version(); }
  // `pages`: the share that it was made for. `is_shared`: it is a part of the plan of all clients.
  void SetPlan(plan::ResidencyPlan plan, uint32_t pages, bool is_shared = false);
  // Its part of the plan of all clients, which may use all `pages` of the device.
  void SetSharedPlan(plan::ResidencyPlan plan, uint32_t pages);
  void SetLeast(Duration least) { options_.foresight->SetLeast(least); }

  // ---- Its share of the device.
  decide::PageDemand Demand() const;
  uint32_t most() const { return most_; }
  // The most pages in which something lived lately, or that calls needed.
  uint32_t peak() const { return peak_.value(); }
  // `trims`: it keeps no page in which nothing lives, until its next create or call that waits.
  void SetMost(uint32_t pages, bool trims) {
    most_ = pages;
    trims_ |= trims;
  }
  // Returns true if it is another than before.
  bool SetShare(uint32_t pages);
  // It makes no call any more; its tensors live. Its plan is of calls that do not come.
  void EndCalls() {
    has_ended_ = true;
    executor_.books().SetPlan({});
  }
  bool has_ended() const { return has_ended_; }
  // It is gone: no tensor lives, no call waits, and its pages are released as they become free.
  void Retire();

  // ---- Work.
  // Something has happened that its executor may go on with. Returns false if that was known.
  bool Touch() { return !std::exchange(touched_, true); }
  // The executor begins what there is to do.
  void Start();
  // Wakes the client if the call that waits for room finds it. Returns whether it does.
  bool WakeIfFits(uint32_t may_hold);
  // A call may go on: a unit has come for which it waited, or there may be room.
  bool TakeWoken() { return std::exchange(woken_, false); }

 private:
  bool TryHold(const ClientCall& call, uint32_t may_hold);
  void Done(const ClientCall& call) { options_.foresight->After(call, &executor_.books()); }
  // Pages that its calls would hold with the first one that waits; 0: none does.
  uint32_t WaitsFor() const;

  const Options options_;
  PageExecutor executor_;
  std::deque<ClientCall> waiting_;  // for room
  std::optional<ClientCall> open_;  // of a client that waits for its stream: not executed yet
  std::vector<bool> dead_;          // by tensor: its bytes are not used any more
  std::vector<StreamId> streams_;   // by tensor: that its create named
  plan::PlacesInUse in_use_;        // of tensors whose frees their streams have not reached
  uint32_t planned_share_;
  uint32_t most_;
  RecentPeak peak_;
  bool trims_ = false;
  Duration at_{0};         // of the last call
  bool had_plan_ = false;  // when See() returned
  bool has_ended_ = false;
  bool touched_ = false;
  bool woken_ = false;
};

}  // namespace ravenstore::core
