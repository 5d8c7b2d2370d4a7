// One client of the replay on pages: its CPU and its stream.
//
// See sim/paged_replay.h for the rules. The scheduler (core/schedule/page_scheduler.h) decides.
// SetTime() advances the client's time. Run() continues it at the time of NextOwn().
//
// Owns: its trace. The scheduler outlives it. Units: simulated time, pages, bytes. Threads: one at
// a time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "core/plan/residency_plan.h"
#include "core/schedule/page_scheduler.h"
#include "core/types.h"
#include "sim/outcome.h"
#include "sim/paged_device.h"
#include "sim/setup.h"
#include "sim/trace.h"

namespace ravenstore::sim {

class PagedClient {
 public:
  // `trace`: of this client alone. Joins the device and the scheduler. `limits`: its first share.
  PagedClient(Trace trace, const ReplaySetup& setup, core::ClientId id, PagedDevice* device,
              const core::plan::PlanLimits& limits, core::PageScheduler* scheduler);

  core::ClientId id() const { return id_; }
  // When the CPU or the stream goes on by itself.
  std::optional<core::Duration> NextOwn() const;
  void SetTime(core::Duration now);
  // The client goes on if the scheduler has woken it, or its kernel's bytes on the host were used.
  void TakeWoken() {
    wakes_ |= scheduler_.TakeWoken(id_);
    wakes_ |= is_in_place_ && !device_.UsesInPlace(id_);
  }
  // Until both the CPU and the stream compute, wait or have ended.
  void Run();
  bool done() const { return done_; }
  // The call that the CPU makes next.
  size_t next() const { return next_; }
  PagedStats stats() const;
  // Adds this client's times and bytes to the outcome of all clients.
  void AddTo(Outcome* outcome) const;

 private:
  // A call or a computation that the CPU has made and the stream has not executed.
  struct Enqueued {
    const Op* op;
    core::CallEnd end;      // of a put or a free
    bool in_place = false;  // of a create or a get
  };
  // Of the tensors that kernels use now: their bytes on the host, as the link has them.
  struct InPlace {
    core::Bytes in;
    core::Bytes out;
  };
  // How far the CPU has come with its next call.
  enum class Progress : uint8_t { kNone, kWaits, kHeld };

  const core::PageExecutor& executor() const { return scheduler_.client(id_).executor(); }
  bool RunCpu();
  bool Make(const Op& op);
  bool MakeUse(const Op& op);
  core::CallResult Call(const Op& op);
  bool RunStream();
  // Returns false while the kernel uses bytes on the host.
  bool UseInPlace();
  InPlace InPlaceOf(const Op& op) const;
  void CountStall(const Op& op);

  const core::ClientId id_;
  core::PageScheduler& scheduler_;
  PagedDevice& device_;
  const Trace trace_;
  const bool runs_ahead_;
  const bool creates_block_;
  const bool timeline_;
  // Bytes that the link could copy in the time in which a kernel uses one in place.
  const double in_slowdown_;
  const double out_slowdown_;
  core::Duration now_{0};
  bool wakes_ = true;  // it may go on now
  // The CPU is in the program, or the stream computes, until then. A time that has passed: since
  // then it has waited.
  core::Duration cpu_until_{0};
  core::Duration stream_until_{0};
  std::deque<Enqueued> stream_;
  std::map<uint32_t, InPlace> in_place_;  // by tensor
  bool is_in_place_ = false;              // the kernel that the stream has come to uses them
  size_t next_ = 0;                       // of the CPU
  size_t iteration_ = 0;
  core::Duration computed_{0};  // of all that the CPU has enqueued
  bool has_computed_ = false;   // the CPU has come to the next call
  Progress progress_ = Progress::kNone;
  bool done_ = false;
  Outcome outcome_;
};

}  // namespace ravenstore::sim
