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
// A page that is away is mapped only when a call begins that uses it as an argument, on that call's
// thread. A kernel that reaches it otherwise faults, which ends the job's context. So as soon as
// the job shows that it reaches memory in other ways (a call that may touch anything, a table of
// addresses), all that is away is mapped, and stays so. Segments and pinned ranges always are.
// Whether kernels read tables that other kernels made is searched for (table_finder.h): such a
// job's pages move only when no kernel runs.
//
// Where not all fits a job passes its calls little ahead of the GPU: each waits until the GPU is
// near. A call whose range is away waits for it for a while if the plan expects the call. Else the
// range is used in place. A page whose copy has begun is waited for.
//
// A call that may touch anything freezes all moves until it has passed.
//
// Memory that the job makes and maps by itself is a segment: pages of its own, at addresses that it
// reserved (engine_segments.cc). All that is mapped within one reservation is used together.
// Segments move by recency, and only over the limit or where there is room.
//
// Threads: any, concurrently. A call whose ranges are all resident takes only the lock of calls,
// and is logged (call_log.h). All other work needs the scheduler: it takes the scheduler's lock
// and, inside it, that of calls. The scheduler works without the latter, and has seen the log
// first. The locks are held for microseconds, and never while the GPU is waited for or memory is
// mapped. The order: the scheduler's, that of calls, a mover's or the pinner's, that of the parts.
// Contexts: every caller has the context current that Create() had.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "elastic/addresses.h"
#include "elastic/both_locks.h"
#include "elastic/call_names.h"
#include "elastic/call_times.h"
#include "elastic/driver.h"
#include "elastic/job_memory.h"
#include "elastic/job_share.h"
#include "elastic/mover.h"
#include "elastic/open_ranges.h"
#include "elastic/pace.h"
#include "elastic/parts.h"
#include "elastic/pinner.h"
#include "elastic/range_id.h"
#include "elastic/recorder.h"
#include "elastic/segment_table.h"
#include "elastic/shown.h"
#include "elastic/streams.h"
#include "elastic/table_finder.h"
#include "elastic/twins.h"
#include "ipc/clock.h"

namespace ravenstore::elastic {

struct EngineOptions {
  CUdevice device = 0;
  int node = 0;  // whose memory the host's parts are
  core::Bytes part = core::MiB(32);
  PlaceLimits on_device;
  PlaceLimits on_host;
  // False: what finds no room on the device stays on the host, and is used there.
  bool moves = true;
  // How long an allocation waits for room on the device, with nothing for the GPU to do, before it
  // takes room on the host.
  core::Duration patience = std::chrono::milliseconds(100);
  // What of the device may be held now, asked by the engine's thread; empty: SetDeviceLimit alone
  // changes it.
  std::function<core::Bytes()> limit;
  // Publishes this engine's demand to the user's other engines, and returns the demands of all.
  // nullopt: no other engine shares the device. The engine's thread calls it. Empty: none ever
  // does.
  std::function<std::optional<JobShare::Device>(const JobShare::Demand&)> share;
  // Pages on the host are mapped at their address immediately, not only when they are an argument,
  // and each kernel may touch all memory.
  bool maps_away = false;
  std::function<void(const char*)> log;
  std::shared_ptr<Recorder> recorder;  // null: nothing is recorded
  std::shared_ptr<Shown> shown;        // null: nothing is shown
};

struct EngineStats {
  core::Bytes live;
  core::Bytes away;  // live, on the host
  core::Bytes pinned;
  core::Bytes peak;
  // The device memory with which, as observed, no call would have waited and no data would have
  // been on the host. It counts the pages that lived at the same time and, where an allocation
  // found no room, those that were freed and still in use.
  core::Bytes enough;
  core::Bytes moved_in;
  core::Bytes moved_out;
  core::Bytes dropped;
  uint64_t uses = 0;
  uint64_t uses_in_place = 0;
  core::Bytes bytes_in_place;
  uint64_t waits = 0;  // of calls, for what they name to move
  core::Duration waited{};
  uint64_t paces = 0;       // calls that waited for the GPU to come nearer, which costs nothing
  uint64_t room_waits = 0;  // of allocations, for room on the device
  core::Duration room_waited{};
};

class Engine {
 public:
  // What one call touches.
  struct Use {
    uint64_t identity;
    CUstream stream;
    std::span<const CUdeviceptr> addresses;
    bool unknown;  // it may touch any range
    Caller caller = {};
    TableFinder::Kind kind = {};               // what it runs
    std::span<const CUdeviceptr> others = {};  // words that may be addresses of other memory
  };
  // A call between Begin and End.
  struct Submission {
    std::vector<RangeId> ranges;
    std::vector<PageId> pages;                             // of the segments among these
    std::vector<SegmentTable::Reservation*> reservations;  // of these segments
    CUstream stream = nullptr;
    bool unknown = false;
    int64_t call = 0;  // its number, for the plan
    bool ends_stretch = false;
    TableFinder::Search* search = nullptr;
  };

  // REQUIRES: a current context.
  static core::Result<std::unique_ptr<Engine>> Create(EngineOptions options, const Driver& driver);
  // Nothing is used any more.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Errors: kOutOfMemory: neither place has room within its limit.
  core::Result<CUdeviceptr> Allocate(core::Bytes size, CUstream stream, bool ordered);
  // False: nothing begins there.
  bool Free(CUdeviceptr address, CUstream stream, bool ordered);
  struct Allocation {
    CUdeviceptr begin;
    core::Bytes size;  // as asked for
  };
  std::optional<Allocation> Find(CUdeviceptr address) const;
  const Addresses& addresses() const { return *addresses_; }

  // The submission is the caller's until End.
  Submission* Begin(const Use& use);
  void End(Submission* submission, bool enqueued);

  // Addresses for segments; nothing: there are none, or no whole granules.
  std::optional<CUdeviceptr> Reserve(core::Bytes size);
  // False: that is no reservation, or something is mapped there.
  bool Unreserve(CUdeviceptr begin, core::Bytes size);
  // A segment that is mapped nowhere. Errors: kOutOfMemory, kInvalidArgument.
  core::Result<RangeId> CreateSegment(core::Bytes size);
  // Maps all of it, readable and writable by the device. Errors: kInvalidArgument: it is mapped
  // already, or these are no free addresses of one reservation; kDevice.
  core::Status MapSegment(RangeId id, CUdeviceptr begin);
  // It keeps its bytes. REQUIRES: nothing that was enqueued touches it.
  core::Status UnmapSegment(RangeId id);
  // REQUIRES: it is mapped nowhere.
  void DestroySegment(RangeId id);
  // Its bytes go to `handle`, which is mapped in its place where it was mapped: at the result, or
  // nowhere (0). Then the segment is no more. Waits for all that may touch it.
  // Errors: kTimedOut, and nothing has changed; kDevice.
  core::Result<CUdeviceptr> HandOver(RangeId id, CUmemGenericAllocationHandle handle);

  // `is_followed`: the address stood in memory that kernels read.
  void Pin(CUdeviceptr address, bool is_followed = false);
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
  using Page = SegmentTable::Page;
  using Reservation = SegmentTable::Reservation;
  struct Range {
    CUdeviceptr begin = 0;
    core::Bytes size;  // whole granules
    core::Bytes asked;
    SegmentTable::Pages pages;  // none but of a segment
    bool live = false;
    bool pinned = false;
    uint32_t holders = 0;     // submissions between Begin and End, and a pin
    std::vector<Point> uses;  // the last of each stream, since no submission held it
    // It is freed when no submission holds it: on the stream, behind the points.
    bool is_freed = false;
    uint32_t free_stream = 0;
    uint32_t created_on = 0;  // as Request
    bool is_placed = false;
    uint64_t stamp = 0;  // of the submission that used it last
    // For people.
    uint64_t calls = 0;
    core::Tick allocated{};
    core::Tick used{};
  };
  // How long an allocation waits for room: longer while the GPU has work.
  struct Patience {
    static constexpr int kBusyShare = 10;  // times as long, while the GPU has work
    explicit Patience(core::Duration patience)
        : until(ipc::Now() + patience), latest(ipc::Now() + patience * kBusyShare) {}
    core::Tick until;
    core::Tick latest;
  };
  using Lock = std::unique_lock<BothLocks>;

  Engine(EngineOptions options, const Driver& driver);
  core::Status Init();
  core::Status StartThreads();

  // ---- Ranges.
  struct Request {
    core::Bytes asked;
    core::Bytes size;
    uint32_t on = 0;  // the stream for whose work it is; 0: for any
  };
  uint32_t NewRange(const Request& request);
  // The range lives on return if all its pages are resident. Else it does not live yet, or there
  // is none: kNobody. Needs only the lock of calls.
  uint32_t AllocateAtOnce(const Request& request);
  void ShowRange(uint32_t number);  // it lives
  void EndRange(uint32_t number);
  // Its pages are held, on the device or the host. Errors: kOutOfMemory.
  core::Status HoldCreated(uint32_t number, Lock& lock);
  core::Status ReachCreated(uint32_t number, Lock& lock);
  bool AwaitCreated(uint32_t number, Patience* patience, Lock& lock);
  bool IsSegment(const Range& range) const { return range.pages.second > 0; }
  core::Bytes AwayOf(uint32_t number) const;
  core::Bytes LiveBytes() const;
  // The host must hold the bytes that do not fit, or all of them if the job is to be paused.
  void PinFor(core::Bytes at_once);
  void NoteRoomWait(core::Tick began);

  // ---- Calls.
  // A call whose ranges are all there; null: it may have to wait. With the lock of calls alone.
  Submission* BeginAtOnce(const Use& use);
  struct Begun {
    core::Tick at;  // before what it waited for
    core::Duration waited{};
    core::Bytes in_place{};
    bool is_unknown = false;
  };
  // The call is about to be enqueued. With the lock of calls alone, as the next one.
  void NoteBegun(const Use& use, Submission* submission, const Begun& begun);
  // The call does not hold its ranges any more; it used them up to the point.
  void LeaveRanges(Submission* submission, const std::optional<Point>& point);
  Submission* NewSubmission(const Use& use);
  bool MustWait() const;
  void KeepPace(Lock& lock);
  // Counts the call as a holder of all that it uses.
  void Name(const Use& use, Submission* submission);
  // Each range of the call is held: its pages stay where they are.
  void Hold(const Submission& submission, Lock& lock);
  void HoldRange(uint32_t number, core::Tick deadline, Lock& lock);
  // Waits until no segment of the call moves, and for an unknown one until nothing does.
  void AwaitMoves(const Submission& submission, Lock& lock);
  bool IsMoving(const Submission& submission) const;
  // No submission holds it any more. With the lock of calls alone.
  void Unhold(uint32_t number);
  // All that the call may touch is mapped where it is. Returns how long that took.
  core::Duration Reach(const Submission& submission, Lock& lock);
  core::Status ReachUnit(core::plan::Unit unit, Lock& lock);
  core::Status ReachRange(uint32_t number, Lock& lock);
  void ReachPage(PageId id, Lock& lock);
  // Maps live pages that are off the device now, but not those that leave later. Returns whether
  // there were any.
  bool ReachLive(Lock& lock);
  void SetMapsAway();
  bool MapAllInPlace(Lock& lock);
  void PinRange(uint32_t number);
  // The search of the call's arguments for tables, after the launch; null: none is needed.
  TableFinder::Search* BeginSearch(const Use& use);
  void PollSearches();
  // A call that may touch anything has not passed: nothing moves.
  bool IsFrozen() { return unknowns_ > 0 || !streams_.HavePassed(&unknown_uses_); }
  // The job's virtual time: when its last call began, by the least times of earlier steps.
  core::Duration at() const;

  // ---- Segments.
  Part* TakeDevicePart(core::Bytes size, Patience* patience, Lock& lock);
  // As Parts::Take, without the lock.
  core::Result<Part*> TakePart(Place place, core::Bytes size, Lock& lock);
  // Of either place, the host first.
  core::Result<Part*> TakeAnyPart(core::Bytes size, Lock& lock);
  void Hold(const Range& range, Lock& lock);
  void LeaveAddresses(Range& range);
  void EndSegment(RangeId id, Lock& lock);
  core::Status AwaitPassed(Reservation* reservation, Lock& lock);
  // Copies the mapped bytes to `whole`, without the lock.
  core::Status CopyInto(const std::vector<SegmentTable::Mapping>& mappings, const Part& whole);
  // The segment that leaves, or comes, next.
  std::optional<PageId> NextSegment();
  bool StartSegment(Lock& lock);
  // On the mover's thread.
  void EndMove(const Mover::Move& move, const Parts::Replaced& replaced);

  // ---- Work.
  void Run();
  // Begins what there is to do, unless moves are frozen. Releases the lock of calls meanwhile.
  void Advance();
  // The scheduler sees what calls have done, and which ones streams have passed. As Advance().
  // Returns true if any have passed.
  bool SeeCalls();
  // Waits for an end of a move, or for that long.
  void AwaitChange(core::Duration most, Lock& lock);
  bool TakeHostPart(Lock& lock);
  // What the device may hold, less the segments' parts, is the ranges'.
  void SetPages();
  void AskLimit(Lock& lock);
  // Finds out how far the GPU is, if that is due.
  void Look();
  void Show(Lock& lock);
  void MakePlans();
  bool HasWork();
  void Fail(const char* what, const core::Error& error);
  void TellOfIllegalAddress();

  const EngineOptions options_;
  const Driver driver_;
  core::Bytes granule_;
  CUcontext context_ = nullptr;

  mutable BothLocks locks_;
  std::condition_variable_any changed_;  // a move ended, room came
  std::condition_variable_any wake_;     // for the engine's thread
  std::condition_variable_any plan_due_;
  std::unique_ptr<Parts> parts_;
  // Guarded by the scheduler's lock.
  std::unique_ptr<JobMemory> memory_;
  std::vector<LoggedCall> seen_;          // kept for its memory
  std::vector<uint32_t> removed_ranges_;  // their numbers may be used again
  // All below: guarded by the lock of calls.
  std::vector<uint32_t> unused_ranges_;
  OpenRanges* open_ = nullptr;  // of memory_
  bool is_short_ = false;       // as memory_ was the last time that it was looked at:
  bool is_all_there_ = true;    // nothing is away, and all fits
  std::unique_ptr<Addresses> addresses_;
  Streams streams_;
  CallTimes times_;
  Twins twins_;
  TableFinder tables_;
  Pace pace_;
  uint32_t pacing_ = 0;          // calls that wait for the GPU to come nearer
  std::optional<int64_t> slow_;  // under way for so long that no call waits for it any more
  std::deque<Range> ranges_;     // by number, which is their addresses' owner; 0: no owner
  SegmentTable segments_;
  uint32_t reaching_ = 0;     // threads that map pages that no call of theirs holds
  core::Tick short_until_{};  // the device has no more parts than are held
  uint32_t unknowns_ = 0;
  std::vector<Point> unknown_uses_;
  std::vector<std::unique_ptr<Submission>> submissions_;
  std::vector<Submission*> unused_submissions_;
  uint64_t stamp_ = 0;
  int64_t calls_ = 0;
  EngineStats stats_;
  core::Tick limit_asked_{};
  JobShare job_share_{options_.part};  // of the engine's thread
  core::Tick looked_{};
  core::Tick shown_{};
  bool maps_away_ = false;   // a page is mapped when it comes to the host,
  bool all_mapped_ = false;  // and the pages that came before are mapped, too
  bool all_mapped_told_ = false;
  bool asleep_ = false;
  bool illegal_told_ = false;
  bool broken_;  // nothing moves any more, because a copy or a mapping failed, or nothing was to
  bool stopping_ = false;
  std::unique_ptr<Mover> mover_;
  std::unique_ptr<Pinner> pinner_;
  std::thread thread_;
  std::thread plan_thread_;
};

}  // namespace ravenstore::elastic
