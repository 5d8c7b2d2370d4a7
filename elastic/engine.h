// Memory whose addresses stay while the parts beneath them move between the device and the host.
//
// An allocation is a range: a part of one run of addresses. The run is cut into pages of fixed
// addresses, each backed by one part (parts.h) on the device or on the host. Small ranges share a
// page, a large one has several. Kernels may use a range by an argument, wherever its pages are.
// The ranges are tensors of core's scheduler (job_memory.h), which learns the job's calls and
// decides which pages leave and come. A thread of the engine's begins what it decides, another
// makes its plans, and a mover (mover.h) copies and maps. The host's parts are pinned ahead
// (pinner.h), and more of them as soon as more pages live than the device may hold.
//
// Of its workers each knows only those before it: the table of ranges (range_table.h), what is
// where (residency.h), what is mapped (reachability.h), allocations (range_allocator.h), the job's
// own virtual memory (job_segments.h) and calls (submissions.h).
//
// Whether kernels read tables that other kernels made is searched for (table_finder.h): such a
// job's pages move only when no kernel runs.
//
// Threads: any, concurrently. A call whose ranges are all resident takes only the lock of calls.
// All other work needs the scheduler: it takes the scheduler's lock and, inside it, that of calls.
// The scheduler works without the latter, and has seen the log first. The locks are held for
// microseconds, and never while the GPU is waited for or memory is mapped.
// Contexts: every caller has the context current that Create() had.
#pragma once

#include <cuda.h>

#include <condition_variable>
#include <memory>
#include <optional>
#include <thread>

#include "core/result.h"
#include "core/types.h"
#include "elastic/addresses.h"
#include "elastic/call_clock.h"
#include "elastic/driver.h"
#include "elastic/engine_options.h"
#include "elastic/job_memory.h"
#include "elastic/job_segments.h"
#include "elastic/job_share.h"
#include "elastic/mover.h"
#include "elastic/parts.h"
#include "elastic/pinner.h"
#include "elastic/range_allocator.h"
#include "elastic/range_table.h"
#include "elastic/reachability.h"
#include "elastic/recorder.h"
#include "elastic/residency.h"
#include "elastic/room_waits.h"
#include "elastic/segment_table.h"
#include "elastic/streams.h"
#include "elastic/submissions.h"

namespace ravenstore::elastic {

class Engine {
 public:
  using Use = Submissions::Use;
  using Submission = Submissions::Submission;

  // REQUIRES: a current context.
  static core::Result<std::unique_ptr<Engine>> Create(EngineOptions options, const Driver& driver);
  // Nothing is used any more.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // ---- Allocations. As RangeAllocator's.
  core::Result<CUdeviceptr> Allocate(core::Bytes size, CUstream stream, bool ordered) {
    return allocator_->Allocate(size, stream, ordered);
  }
  bool Free(CUdeviceptr address, CUstream stream, bool ordered) {
    return allocator_->Free(address, stream, ordered);
  }
  struct Allocation {
    CUdeviceptr begin;
    core::Bytes size;  // as asked for
  };
  std::optional<Allocation> Find(CUdeviceptr address) const;
  const Addresses& addresses() const { return *addresses_; }

  // ---- Calls. As Submissions'.
  Submission* Begin(const Use& use) { return submissions_->Begin(use); }
  void End(Submission* submission, bool enqueued) { submissions_->End(submission, enqueued); }
  void Pin(CUdeviceptr address, bool is_followed = false) {
    submissions_->Pin(address, is_followed);
  }

  // ---- Memory that the job makes and maps by itself.
  JobSegments& segments() { return *job_segments_; }

  // From now on everything can be reached all the time: the job has ways to memory that name none.
  void ReachAll();
  // A call of the driver's found that an address was illegal.
  void NoteIllegalAddress();
  void StreamGone(CUstream stream);
  void SetDeviceLimit(core::Bytes most);
  EngineStats stats() const;
  const Parts& parts() const { return *parts_; }
  Recorder* recorder() const { return options_.recorder.get(); }

 private:
  using Lock = Residency::Lock;

  Engine(EngineOptions options, const Driver& driver);
  core::Status Init();
  // The classes that work on the memory, the lower ones first.
  core::Status MakeWorkers();

  // ---- The engine's thread.
  void Run();
  bool HasWork();
  bool TakeHostPart(Lock& lock);
  void AskLimit(Lock& lock);
  // Finds out how far the GPU is, if that is due.
  void Look();
  void Show(Lock& lock);
  // With both locks.
  EngineStats Stats() const;
  void LogIllegalAddress();
  // ---- The thread of plans.
  void MakePlans();

  const EngineOptions options_;
  const Driver driver_;
  core::Bytes granule_;
  CUcontext context_ = nullptr;

  std::unique_ptr<Parts> parts_;
  std::unique_ptr<Addresses> addresses_;
  Streams streams_;
  CallClock clock_;
  SegmentTable segments_;
  std::unique_ptr<JobMemory> memory_;
  std::unique_ptr<RangeTable> ranges_;
  std::unique_ptr<Residency> residency_;
  std::unique_ptr<Mover> mover_;
  std::unique_ptr<Pinner> pinner_;
  std::unique_ptr<Reachability> reachability_;
  RoomWaits waits_;
  std::unique_ptr<RangeAllocator> allocator_;
  std::unique_ptr<JobSegments> job_segments_;
  std::unique_ptr<Submissions> submissions_;

  std::condition_variable_any plan_due_;
  // All below: guarded by the lock of calls.
  core::Tick limit_asked_{};
  JobShare job_share_{options_.part};  // of the engine's thread
  core::Tick looked_{};
  core::Tick shown_{};
  bool illegal_logged_ = false;
  bool stopping_ = false;
  std::thread thread_;
  std::thread plan_thread_;
};

}  // namespace ravenstore::elastic
