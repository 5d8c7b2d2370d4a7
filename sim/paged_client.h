// One client of the replay on pages: its CPU, its stream and what plans for it.
//
// See sim/paged_replay.h for the rules. SetTime() advances the client's time. Run() continues it at
// the time of NextOwn().
//
// Owns: its trace and its plan source. Executor and host outlive it. Units: simulated time, pages,
// bytes. Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "core/decide/page_shares.h"
#include "core/execution/page_executor.h"
#include "core/plan/residency_plan.h"
#include "core/types.h"
#include "sim/paged_foresight.h"
#include "sim/paged_replay.h"
#include "sim/simulator.h"
#include "sim/trace.h"

namespace ravenstore::sim {

class PagedClient;

// The part of the replay that clients share.
class PagedHost {
 public:
  virtual ~PagedHost() = default;
  // The client's calls ahead have become others, or there are none any more.
  virtual void PlansChanged(PagedClient* client) = 0;
  // How many pages the client's calls may hold.
  virtual uint32_t MayHold(const PagedClient& client) const = 0;
};

class PagedClient {
 public:
  // `trace`: of this client alone. `is_alone`: the device has no other client.
  PagedClient(Trace trace, const PagedSetup& setup, core::PageExecutor* executor, PagedHost* host,
              bool is_alone);

  // ---- Its plan.
  bool has_plan() const { return plans_->has_plan(); }
  // The calls that are ahead: the plan that is set next is of these. REQUIRES: has_plan().
  std::vector<core::plan::PlannedCall> BeginPlan();
  void SetPlan(core::plan::ResidencyPlan plan);
  // A plan for this client alone, within its share. REQUIRES: has_plan().
  void MakeOwnPlan();
  // How long the calls that are ahead take, and how long they should be known.
  core::Duration pass() const { return plans_->pass(); }
  void SetLeast(core::Duration least) { plans_->SetLeast(least); }

  // ---- Time.
  // When the CPU or the stream goes on by itself.
  std::optional<core::Duration> NextOwn() const;
  void SetTime(core::Duration now);
  // The executor begins what there is to do.
  void Start() { wakes_ |= executor_.Start(); }
  // Until both the CPU and the stream compute, wait or have ended.
  void Run();
  bool done() const { return done_; }
  // The call that the CPU makes next.
  size_t next() const { return next_; }

  // ---- Its share of the device.
  // A call waits until other clients release pages.
  bool waits_for_room() const { return waits_for_room_ > 0; }
  // Wakes the client if the host has room for that call.
  void WakeIfFits() { wakes_ |= waits_for_room() && waits_for_room_ <= host_->MayHold(*this); }
  core::decide::PageDemand Demand() const;
  void SetShare(uint32_t pages);

  core::PageExecutor& executor() { return executor_; }
  const core::PageExecutor& executor() const { return executor_; }
  PagedStats stats() const;
  // Adds this client's times and bytes to the outcome of all clients.
  void AddTo(Outcome* outcome) const;

 private:
  struct ClientTensor {
    bool in_use = false;  // for the CPU
    bool dead = false;    // its bytes are not used any more
  };
  // A call or a computation that the CPU has made and the stream has not executed.
  struct Enqueued {
    const Op* op;
    bool unpins = false;
    bool dies = false;
  };

  bool RunCpu();
  bool Make(const Op& op);
  bool MakeUse(const Op& op);
  void MakeEnd(const Op& op);
  // Shows the call to the plan source, which may change the plan.
  void See(const Op& op);
  void PlaceTensor(const Op& op);
  bool IsSlot(uint32_t tensor) const { return executor_.tensors()[tensor].units.is_slot(); }
  bool RunStream();
  void CountStall(const Op& op);
  void Yield(const Enqueued& ends);

  PagedHost* const host_;
  const Trace trace_;
  const bool runs_ahead_;
  const bool creates_block_;
  const bool asks_for_room_;
  core::PageExecutor& executor_;
  const std::unique_ptr<PlanSource> plans_;
  std::vector<ClientTensor> tensors_;
  core::Duration now_{0};
  bool wakes_ = true;  // it may go on now
  // The CPU is in the program, or the stream computes, until then. A time that has passed: since
  // then it has waited.
  core::Duration cpu_until_{0};
  core::Duration stream_until_{0};
  std::deque<Enqueued> stream_;
  size_t next_ = 0;  // of the CPU
  size_t iteration_ = 0;
  core::Duration computed_{0};   // of all that the CPU has enqueued
  bool has_computed_ = false;    // the CPU has come to the next call
  bool made_ = false;            // the next call is seen, and its tensor has a place
  bool held_ = false;            // its units are pinned
  uint32_t waits_for_room_ = 0;  // pages that its calls would hold with one that does not fit
  uint32_t planned_share_ = 0;
  bool done_ = false;
  Outcome outcome_;
};

}  // namespace ravenstore::sim
