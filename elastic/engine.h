// Memory whose addresses stay while what lies under them moves between the device and the host.
//
// An allocation is a range: a piece of one run of addresses (arena.h). The run is cut into pages of
// fixed addresses, each backed by one part (parts.h) on the device or on the host, or by none while
// nothing lives on it. Small ranges share a page, a large one has several. Kernels may use a range
// by naming it, wherever its pages are. A thread of the engine's decides what moves as its plan
// says (plan.h), another makes the plan, and a mover (mover.h) moves: it copies a part by the
// addresses at which parts stay mapped. A part that comes to the device is then mapped in its
// place. A part that leaves is mapped there only when a call begins that uses it as an argument, on
// that call's thread. The host's parts are pinned ahead (pinner.h), and more of them as soon as
// more pages live than the device may hold.
//
// Who reaches what is away without naming it finds nothing there, which is a fault that ends the
// job's context. So as soon as the job shows that it reaches memory in other ways (a call that may
// touch anything, a table of addresses), all that is away is mapped, and stays so. Segments and
// what is pinned always are. Whether kernels read tables that other kernels made is searched for
// (table_finder.h): such a job's pages move only when no kernel runs.
//
// Where not all fits a job names its calls little ahead of the GPU: each waits until the GPU is
// near. A call that names what is away waits for it as long as the GPU has other work, since that
// costs nothing; then it is used in place.
//
// A page is moved only when nothing may touch it: no call that names a range on it is between Begin
// and End, and all that were enqueued have passed. From then on a call that names it waits in Begin
// until the move is over: a copy of one part and two calls of the driver.
//
// Memory that the job makes and maps by itself is a segment: pages of its own, at addresses that it
// reserved (engine_segments.cc). All that is mapped within one reservation is used together.
//
// What is freed keeps its part for the next allocation at its place. Where others need it, it is
// taken without a copy.
//
// Threads: any, at once; a lock is held for microseconds, and never while the GPU is waited for or
// memory is mapped. A page that is marked as moving is changed by nobody but who marked it. Locks
// are taken in this order: the engine's, a mover's or the pinner's, that of the parts.
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
#include "elastic/arena.h"
#include "elastic/call_names.h"
#include "elastic/driver.h"
#include "elastic/mover.h"
#include "elastic/pace.h"
#include "elastic/parts.h"
#include "elastic/pinner.h"
#include "elastic/plan.h"
#include "elastic/recorder.h"
#include "elastic/shown.h"
#include "elastic/streams.h"
#include "elastic/table_finder.h"

namespace ravenstore::elastic {

using PageId = RangeId;  // what the plan knows

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
  // Pages on the host are mapped at their address immediately, not only when they are an argument,
  // and each kernel may touch all memory.
  bool maps_away = false;
  std::function<void(const char*)> log;
  std::shared_ptr<Recorder> recorder;  // null: nothing is recorded
  std::shared_ptr<Shown> shown;        // null: nobody looks
};

struct EngineStats {
  core::Bytes live;
  core::Bytes away;  // live, on the host
  core::Bytes pinned;
  core::Bytes peak;
  // With so much of the device nothing would have had to wait or lie on the host, by what was seen:
  // the pages that lived at once and, where an allocation found no room, those that were freed and
  // still in use.
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
  // Addresses that the job reserved. What is mapped there is used together.
  struct Reservation {
    core::Bytes size;
    size_t segments = 0;  // that are mapped there
    uint32_t busy = 0;    // submissions that name any of them
    uint32_t moving = 0;  // pages of theirs
    bool pinned = false;
    std::vector<Point> uses;  // the last of each stream that may not have passed
    uint64_t stamp = 0;       // of the submission that named it last
  };
  // A call between Begin and End.
  struct Submission {
    std::vector<RangeId> ranges;
    std::vector<PageId> pages;
    std::vector<Reservation*> reservations;  // of the segments among these
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
  struct Page {
    CUdeviceptr begin = 0;
    core::Bytes size;
    Part* part = nullptr;        // not to be looked at: it may be gone before this is told
    Place place = Place::kHost;  // of the part
    bool is_mapped = false;      // the part, where the page is
    uint32_t ranges = 0;         // that live on it
    uint32_t pinned = 0;         // of these
    uint32_t busy = 0;           // submissions that name it, and threads that back it
    uint32_t awaited = 0;        // by calls that wait for what they name
    bool moving = false;
    bool backed = false;                 // a thread backs it just now
    bool being_mapped = false;           // by a thread that is no mover
    std::vector<Point> uses;             // the last of each stream that may not have passed
    uint64_t stamp = 0;                  // of the submission that named it last
    Reservation* reservation = nullptr;  // of a segment's that is mapped: used with the rest of it

    bool live() const { return ranges > 0; }
    bool away() const { return part == nullptr || place == Place::kHost; }
    Parts::There there() const { return {part, is_mapped}; }
  };
  struct Range {
    CUdeviceptr begin = 0;
    core::Bytes size;  // whole granules
    core::Bytes asked;
    std::pair<uint32_t, uint32_t> pages;  // on which it lies, from the first to before the last
    bool live = false;
    bool pinned = false;
    uint64_t stamp = 0;  // of the submission that named it last
    // For people.
    uint64_t calls = 0;
    core::Tick allocated{};
    core::Tick used{};
  };
  // Moves to one place.
  struct UnderWay {
    size_t count = 0;
    core::Bytes bytes;
  };
  struct Mapping {
    CUdeviceptr at;
    const Part* part;
    bool is_mapped;
  };
  // How long an allocation waits for room: longer while the GPU has work.
  struct Patience {
    core::Tick until;
    core::Tick latest;
  };
  Patience PatienceFromNow() const;
  using Lock = std::unique_lock<std::mutex>;

  Engine(EngineOptions options, const Driver& driver);
  core::Status Init();

  Page& At(PageId id) { return *pages_[core::ToInt(id)]; }
  const Page& At(PageId id) const { return *pages_[core::ToInt(id)]; }
  std::pair<uint32_t, uint32_t> PagesOf(CUdeviceptr begin, core::Bytes size) const;
  core::Bytes AwayOf(const Range& range) const;
  void SetPart(PageId id, Parts::There there);
  void CountAway(const Page& page, bool more);
  // So much needs room at once.
  void NoteNeed(core::Bytes at_once);
  // The host must hold the part that does not fit, or all of it if the job is to be paused.
  void PinFor(core::Bytes at_once);

  uint32_t AddRange(CUdeviceptr begin, core::Bytes asked, core::Bytes size);
  void RemoveRange(uint32_t number, CUstream stream, bool ordered);
  // A live range on these pages, which there are.
  uint32_t MakeRange(CUdeviceptr begin, core::Bytes asked, core::Bytes size,
                     std::pair<uint32_t, uint32_t> pages);
  void EndRange(uint32_t number);
  void Inhabit(PageId id);  // one more range lives on the page,
  void Leave(PageId id);    // or one less
  core::Status Back(std::pair<uint32_t, uint32_t> pages, Lock& lock);
  core::Status BackPage(PageId id, Patience* patience, Lock& lock);
  core::Status MapBeneath(PageId id, Part* part, Lock& lock);
  // Waits for who moves or maps it. Afterwards what has a part can be reached.
  void MapInPlace(PageId id, Lock& lock);
  void MapAllInPlace(Lock& lock);
  // Maps live pages that are off the device now, but not those that leave later.
  void MapLiveInPlace(Lock& lock);
  core::Status MapAt(CUdeviceptr at, const Part& part);
  core::Duration Reach(const Submission& submission, Lock& lock);
  // The search of the call's arguments for tables, after the launch; null: none is needed.
  TableFinder::Search* BeginSearch(const Use& use);
  void PollSearches();
  // What lies on the host is reached where the page is, not only by who names it.
  bool MapsAway(const Page& page) const { return maps_away_ || page.reservation != nullptr; }
  Part* TakeDevicePart(core::Bytes size, Patience* patience, Lock& lock);
  // An allocation waited since then.
  void NoteRoomWait(core::Tick began);
  // Some page is worth taking out for an allocation, once its uses have passed.
  bool AnyMayLeave();
  // As Parts::Take, without the lock.
  core::Result<Part*> TakePart(Place place, core::Bytes size, Lock& lock);
  // Of either place, the host first; waits for what is about to come free.
  core::Result<Part*> TakeAnyPart(core::Bytes size, Lock& lock);
  core::Result<Part*> TakeHostPart(core::Bytes size, Lock& lock);
  // Frees a part of that place from beneath a dead page; false: there is none that can be taken
  // now.
  bool DropDead(Place place, Lock& lock);
  void DropPart(PageId id, Lock& lock);

  bool IsSegment(const Range& range) const { return range.pages.first >= first_segment_page_; }
  std::pair<uint32_t, uint32_t> SegmentPages(core::Bytes size);
  Reservation* ReservationAt(CUdeviceptr begin, core::Bytes size);
  Reservation* ReservationOf(const Range& range) const {
    return pages_[range.pages.first]->reservation;
  }
  // Where a segment's parts are, or are to be, mapped.
  std::vector<Mapping> MappingsOf(const Range& range, CUdeviceptr begin) const;
  core::Status MapAll(std::vector<Mapping>& mappings);
  core::Status UnmapAll(const std::vector<Mapping>& mappings);
  void SetMapped(const Range& range, bool is_mapped);
  bool IsMoving(const Range& range) const;
  void Hold(const Range& range, Lock& lock);
  void Unhold(const Range& range);
  void LeaveAddresses(Range& range);
  void EndSegment(RangeId id, Lock& lock);
  core::Status AwaitPassed(Reservation* reservation, Lock& lock);
  // Copies what lies there to `whole`, without the lock.
  core::Status CopyInto(const std::vector<Mapping>& mappings, const Part& whole);
  void PinRange(Range& range);

  void KeepPace(Lock& lock);
  core::Duration Await(const Use& use, Lock& lock);
  // Holds what the call names; true: some of it is being moved.
  bool Name(const Use& use, Submission* submission);
  bool IsMoving(const Submission& submission) const;
  void BeginMoving(Page& page);
  void EndMoving(Page& page);
  // `uses`: the last of each stream that may not have passed.
  static void NoteUse(std::vector<Point>& uses, const Point& point);
  bool HavePassed(std::vector<Point>& uses);
  bool CanMove(Page& page);
  auto CannotCome() {
    return [this](PageId id) { return !CanMove(At(id)); };
  }
  auto CannotLeave() {
    return [this](PageId id) { return At(id).awaited > 0 || !CanMove(At(id)); };
  }

  core::Status StartThreads();
  void Run();
  void AskLimit(Lock& lock);
  void Measure();
  void Show(Lock& lock);
  bool StartMoves(Lock& lock);
  // Makes plans on a thread of its own, each without the lock.
  void MakePlans();
  bool StartIn(const Plan::Wanted& wanted, Lock& lock);
  bool StartOut(PageId id, Lock& lock);
  void StartMove(PageId id, Part* to);
  // On the mover's thread.
  void EndMove(const Mover::Move& move, const Parts::Replaced& replaced);
  bool HasWork();
  bool WantsAny();
  UnderWay& MovesTo(Place place) { return under_way_[Index(place)]; }
  bool AnyUnderWay() const { return under_way_[0].count + under_way_[1].count > 0; }
  void Fail(const char* what, const core::Error& error);
  void TellOfIllegalAddress();

  const EngineOptions options_;
  const Driver driver_;
  core::Bytes granule_;
  CUcontext context_ = nullptr;

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // a move ended, room came
  std::condition_variable wake_;     // for the engine's thread
  std::condition_variable plan_due_;
  // All below: guarded by mutex_.
  std::unique_ptr<Addresses> addresses_;
  std::unique_ptr<Parts> parts_;
  Plan plan_;
  Streams streams_;
  TableFinder tables_;
  Pace pace_;
  uint32_t pacing_ = 0;          // calls that wait for the GPU to come nearer
  std::optional<int64_t> slow_;  // under way for so long that nobody waits for it any more
  std::optional<Arena> arena_;
  std::deque<Range> ranges_;  // by number, which is their addresses' owner; 0 is nobody
  std::vector<uint32_t> unused_ranges_;
  // By number, which is that of its place in the arena, from 1 on; null: never used. Segments' come
  // behind the last of the arena's.
  std::vector<std::unique_ptr<Page>> pages_;
  uint32_t first_segment_page_ = 0;
  // Of segments that are no more, by size: each first one. They are held for good.
  std::map<core::Bytes, std::vector<uint32_t>> unused_segments_;
  std::map<CUdeviceptr, std::unique_ptr<Reservation>> reservations_;  // by begin
  core::Bytes live_pages_;
  // On which nothing lives, by the place of the part beneath them.
  std::set<PageId> dead_[2];
  UnderWay under_way_[2];     // by the place to which they go
  bool starting_ = false;     // the thread is about to begin one, and may have taken a part for it
  uint64_t moves_ended_ = 0;  // and attempts at one
  uint32_t waiting_ = 0;      // allocations, for the end of that
  size_t moving_ = 0;         // pages, those whose move is about to begin included
  core::Bytes wanted_;        // by allocations that wait
  uint32_t unknowns_ = 0;
  std::vector<Point> unknown_uses_;
  std::vector<std::unique_ptr<Submission>> submissions_;
  std::vector<Submission*> unused_submissions_;
  uint64_t stamp_ = 0;
  EngineStats stats_;
  core::Tick limit_asked_{};
  core::Tick shown_{};
  bool maps_away_ = false;   // what lies on the host is mapped when it comes there,
  bool all_mapped_ = false;  // and what came before is, too
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
