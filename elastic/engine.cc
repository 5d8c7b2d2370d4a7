#include "elastic/engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/check.h"
#include "ipc/clock.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::CallResult;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using core::plan::Unit;
using core::plan::UnitSpan;

namespace {

// Addresses are plenty.
constexpr Bytes kAddressesLeast = core::GiB(64);
constexpr uint64_t kAddressesShare = 8;  // times what may be held
// With no other room an allocation waits so long for the work behind which memory was freed.
constexpr core::Duration kFreedPatience = std::chrono::seconds(10);
constexpr std::chrono::microseconds kLookAgain{100};

// Host parts beyond those that hold data: they back moves of both directions that are under way.
constexpr uint64_t kPartsAhead = 8;

// At most 1/kAheadShare of the pinnable host memory is pinned before a page has to leave. A pause,
// and the first steps that do not fit, then need not pin. Lower: jobs that start one after another
// leave no host memory to the last one. Higher: more of a pause is pinned while it runs.
constexpr uint64_t kAheadShare = 2;

// So far ahead of the GPU the job names its calls while not all fits.
constexpr std::chrono::milliseconds kAhead{5};

// Ranges that may be created before the scheduler has seen the end of any.
constexpr uint32_t kRangesAhead = 256;

// Calls that the log has while the engine's thread sleeps. More: the scheduler learns late what a
// job does that has all its memory.
constexpr size_t kLogMost = 256;

// Calls whose times are remembered.
constexpr size_t kCallsMost = size_t{1} << 20;
constexpr size_t kKinds = size_t{1} << 16;

}  // namespace

Engine::Engine(EngineOptions options, const Driver& driver)
    : options_(std::move(options)),
      driver_(driver),
      streams_(&driver_),
      times_(kCallsMost),
      twins_(kKinds),
      tables_(&driver_),
      pace_(&driver_),
      ranges_(1),
      segments_(options_.part, &streams_),
      maps_away_(options_.maps_away),
      all_mapped_(options_.maps_away),
      broken_(!options_.moves) {
  if (options_.maps_away) tables_.Expect();
}

Result<std::unique_ptr<Engine>> Engine::Create(EngineOptions options, const Driver& driver) {
  std::unique_ptr<Engine> engine(new Engine(std::move(options), driver));
  RAVEN_RETURN_IF_ERROR(engine->Init());
  return engine;
}

Status Engine::Init() {
  CUresult result = driver_.ctx_get_current(&context_);
  if (result != CUDA_SUCCESS) return DriverError("cuCtxGetCurrent", result);
  if (context_ == nullptr) return Error{ErrorCode::kWrongState, "no context is current"};
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, options_.device};
  size_t granule = 0;
  result = driver_.granularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) return DriverError("cuMemGetAllocationGranularity", result);
  granule_ = Bytes(granule);
  if (options_.part.RoundDown(granule_) != options_.part || options_.part == Bytes{0}) {
    return Error{ErrorCode::kInvalidArgument, "a part of " + std::to_string(options_.part.count()) +
                                                  " bytes is no multiple of the driver's " +
                                                  std::to_string(granule)};
  }
  const Bytes held = options_.on_device.most + options_.on_host.most;
  const Bytes reach = std::max(kAddressesLeast, (held * kAddressesShare).RoundUp(options_.part));
  CUdeviceptr begin = 0;
  result = driver_.address_reserve(&begin, reach.count(), options_.part.count(), 0, 0);
  if (result != CUDA_SUCCESS) return DriverError("cuMemAddressReserve", result);
  addresses_ = std::make_unique<Addresses>(begin, reach, granule_);
  const Bytes room = Bytes(reach.count() / 2).RoundUp(options_.part);
  parts_ = std::make_unique<Parts>(&driver_, options_.device, options_.node, options_.on_device,
                                   options_.on_host);
  memory_ = std::make_unique<JobMemory>(
      JobMemory::Options{.begin = *addresses_->Take(room, Addresses::kNobody),
                         .addresses = room,
                         .page = options_.part,
                         .device = options_.on_device.most,
                         .host = options_.on_host.most,
                         .ended =
                             [this] {
                               const std::lock_guard lock(locks_.calls());
                               changed_.notify_all();
                               wake_.notify_one();
                             },
                         .plan_due = [this] { plan_due_.notify_one(); },
                         .removed = [this](uint32_t number) { removed_ranges_.push_back(number); }},
      parts_.get(), &streams_);
  open_ = &memory_->open();
  if (maps_away_) memory_->pages().mode().maps_away = true;
  if (broken_) memory_->Stop();
  return StartThreads();
}

// --- Ranges

Bytes Engine::AwayOf(uint32_t number) const {
  const Range& range = ranges_[number];
  return IsSegment(range) ? segments_.AwayOf(range.pages) : memory_->AwayOf(number);
}

core::Bytes Engine::LiveBytes() const {
  return options_.part * open_->live_pages() + segments_.live();
}

void Engine::PinFor(Bytes at_once) {
  const Bytes most = parts_->limit(Place::kDevice);
  pinner_->Want(std::min(at_once, Bytes(parts_->limit(Place::kHost).count() / kAheadShare)));
  if (at_once > most) pinner_->Need(at_once - most + options_.part * kPartsAhead);
}

uint32_t Engine::NewRange(const Request& request) {
  if (unused_ranges_.empty()) {
    const auto end = static_cast<uint32_t>(ranges_.size() + kRangesAhead);
    memory_->Grow(end);
    ranges_.resize(end);
    for (uint32_t number = end; number-- > end - kRangesAhead;) unused_ranges_.push_back(number);
  }
  const uint32_t number = unused_ranges_.back();
  unused_ranges_.pop_back();
  ranges_[number] = {};
  ranges_[number].size = request.size;
  ranges_[number].asked = request.asked;
  ranges_[number].created_on = request.on;
  return number;
}

void Engine::ShowRange(uint32_t number) {
  Range& range = ranges_[number];
  range.live = true;
  range.used = range.allocated = ipc::Now();
  if (!IsSegment(range)) {
    open_->Begin(number);
    range.begin = open_->AddressOf(number);
    addresses_->SetOwner(range.begin, range.size, number);
  }
  stats_.live += range.size;
  stats_.peak = std::max(stats_.peak, stats_.live);
  if (LiveBytes() > stats_.enough) {
    stats_.enough = LiveBytes();
    PinFor(stats_.enough);
  }
  if (options_.recorder) options_.recorder->Allocated(RangeId{number}, range.asked);
}

void Engine::EndRange(uint32_t number) {
  Range& range = ranges_[number];
  if (!IsSegment(range)) open_->End(number);
  if (range.pinned) stats_.pinned -= range.size;
  stats_.live -= range.size;
  range.live = false;
  if (options_.recorder) options_.recorder->Freed(RangeId{number});
  changed_.notify_all();
}

// --- Allocating

uint32_t Engine::AllocateAtOnce(const Request& request) {
  if (unused_ranges_.empty()) return Addresses::kNobody;
  const uint32_t number = NewRange(request);
  Range& range = ranges_[number];
  range.is_placed = open_->Place(number, range.size, range.created_on);
  if (range.is_placed && open_->TryCreate(number, at(), calls_)) ShowRange(number);
  return number;
}

Result<CUdeviceptr> Engine::Allocate(Bytes asked, CUstream stream, bool ordered) {
  const Bytes size = std::max(asked, Bytes{1}).RoundUp(granule_);
  Request request{.asked = asked, .size = size};
  uint32_t number = Addresses::kNobody;
  {
    const std::lock_guard lock(locks_.calls());
    request.on = ordered ? streams_.Now(stream).stream : 0;
    number = AllocateAtOnce(request);
    if (number != Addresses::kNobody && ranges_[number].live) return ranges_[number].begin;
  }
  Lock lock(locks_);
  // The first look records what the second finds passed.
  for (int look = 0; look < 2; ++look) {
    SeeCalls();
    if (!memory_->calls().HasEnds()) break;
    streams_.Look();
  }
  if (number == Addresses::kNobody) number = NewRange(request);
  Status status = HoldCreated(number, lock);
  if (!status.ok()) {
    unused_ranges_.push_back(number);
    return status.error();
  }
  status = ReachCreated(number, lock);
  if (!status.ok()) {
    open_->Hold(number);
    ranges_[number].is_freed = true;
    Unhold(number);
    return status.error();
  }
  memory_->EndCreate(number, at(), calls_);
  ShowRange(number);
  return ranges_[number].begin;
}

Status Engine::HoldCreated(uint32_t number, Lock& lock) {
  Range& range = ranges_[number];
  const core::Tick began = ipc::Now();
  Patience patience(options_.patience);
  bool in_place = false;
  while (true) {
    Advance();
    if (!range.is_placed) range.is_placed = open_->Place(number, range.size, range.created_on);
    if (!range.is_placed) return Error{ErrorCode::kOutOfMemory, "no addresses are left"};
    open_->TakeLog(&seen_);
    memory_->calls().See(&seen_);
    const CallResult result = memory_->Create(number, range.size, at(), range.created_on, in_place);
    const bool is_made = result == CallResult::kHeld || (result == CallResult::kWaits && !in_place);
    if (is_made && AwaitCreated(number, &patience, lock)) return core::Ok();
    open_->ForgetPlace(number);
    range.is_placed = false;
    if (!is_made) {
      // Freed memory is in use until its streams have passed.
      const bool comes_free =
          open_->logged() > 0 || memory_->calls().HasEnds() || !memory_->IsQuiet();
      if (!comes_free || ipc::Now() - began >= kFreedPatience)
        return Error{ErrorCode::kOutOfMemory,
                     "the budget of " + std::to_string(parts_->limit(Place::kDevice).count()) +
                         " bytes of the device and of " +
                         std::to_string(parts_->limit(Place::kHost).count()) +
                         " bytes of pinned host memory is used up"};
      AwaitChange(kLookAgain, lock);
      streams_.Look();
    }
    in_place = is_made || !in_place;
  }
}

// In place it needs parts of the host, which copies of resident pages and freed ranges may have.
Status Engine::ReachCreated(uint32_t number, Lock& lock) {
  const core::Tick began = ipc::Now();
  while (true) {
    const Status reached = ReachRange(number, lock);
    if (reached.ok() || reached.error().code != ErrorCode::kOutOfMemory) return reached;
    const bool is_redundant = memory_->books().copies().pools().redundant(0) > Bytes{0};
    if (is_redundant) memory_->DropCopies(options_.part);
    const bool comes_free =
        is_redundant || open_->logged() > 0 || memory_->calls().HasEnds() || !memory_->IsQuiet();
    if (!comes_free || ipc::Now() - began >= kFreedPatience) return reached;
    AwaitChange(kLookAgain, lock);
    streams_.Look();
    Advance();
  }
}

// Returns false if it is refused: its memory does not come in time.
bool Engine::AwaitCreated(uint32_t number, Patience* patience, Lock& lock) {
  std::optional<core::Tick> began;
  while (memory_->HoldOf(number) == JobMemory::Hold::kWaits) {
    streams_.Look();
    Advance();
    if (memory_->HoldOf(number) != JobMemory::Hold::kWaits) break;
    const core::Tick now = ipc::Now();
    const bool is_coming = core::IsOnItsWay(memory_->books(), memory_->RowOf(number).units);
    // Pages that are being mapped have their room.
    if (!began && !is_coming) began = now;
    // Waiting costs the job nothing as long as the GPU has work.
    if (now < patience->latest && !streams_.Idle()) patience->until = now + options_.patience;
    const bool is_in_vain = (broken_ || IsFrozen()) && memory_->IsQuiet();
    const bool is_late = now >= patience->until && !is_coming;
    if (is_late || is_in_vain) {
      memory_->Refuse(number);
    } else {
      pinner_->Delay();
      AwaitChange(kLookAgain, lock);
    }
  }
  if (began) NoteRoomWait(*began);
  return memory_->HoldOf(number) == JobMemory::Hold::kHeld;
}

void Engine::NoteRoomWait(core::Tick began) {
  const core::Tick now = ipc::Now();
  ++stats_.room_waits;
  stats_.room_waited += now - began;
  if (options_.shown) {
    options_.shown->Note(Shown::kAllocations, {"allocations", nullptr}, {.waited = now - began},
                         now);
  }
}

bool Engine::Free(CUdeviceptr address, CUstream stream, bool ordered) {
  const std::lock_guard lock(locks_.calls());
  const uint32_t number = addresses_->At(address);
  if (number == Addresses::kNobody || ranges_[number].begin != address) return false;
  Range& range = ranges_[number];
  if (IsSegment(range)) return false;
  // Calls without it as an argument may touch it. A free in order is behind them, also by what its
  // stream waits for: so it is a point of its own. Any other is behind all streams.
  std::vector<Point> points;
  if (ordered) {
    points = {streams_.Enqueued(stream)};
  } else {
    points = streams_.EnqueuedOnAll();
  }
  addresses_->SetOwner(range.begin, range.size, Addresses::kNobody);
  EndRange(number);
  if (range.holders == 0) open_->Hold(number);
  if (range.pinned) --range.holders;
  range.is_freed = true;
  range.free_stream = ordered ? points.front().stream : 0;
  for (const Point& point : points) NoteLast(&range.uses, point);
  if (range.holders == 0) Unhold(number);
  return true;
}

void Engine::Unhold(uint32_t number) {
  Range& range = ranges_[number];
  if (range.is_freed) {
    open_->Free(number, at(), range.free_stream, &range.uses);
  } else {
    open_->Put(number, at(), &range.uses);
  }
}

std::optional<Engine::Allocation> Engine::Find(CUdeviceptr address) const {
  const std::lock_guard lock(locks_.calls());
  const uint32_t number = addresses_->At(address);
  if (number == Addresses::kNobody) return std::nullopt;
  return Allocation{ranges_[number].begin, ranges_[number].asked};
}

// --- Using

core::Duration Engine::at() const {
  if (calls_ == 0) return {};
  return times_.Begin(static_cast<uint64_t>(calls_ - 1)) - core::Tick{};
}

bool Engine::MustWait() const {
  if (!is_short_ || broken_) return false;
  const auto under_way = pace_.under_way();
  return under_way && under_way != slow_ && times_.Since(*under_way) > kAhead;
}

// Where not all fits, the job makes its calls only so far ahead of the GPU: what it has freed is in
// use until they have passed, and where a call finds its ranges is decided when it is made.
void Engine::KeepPace(Lock& lock) {
  if (!MustWait()) return;
  const core::Tick began = ipc::Now();
  ++stats_.paces;
  ++pacing_;
  while (MustWait()) {
    if (ipc::Now() - began >= options_.patience) slow_ = pace_.under_way();
    wake_.notify_one();
    changed_.wait_for(lock, options_.patience);
  }
  --pacing_;
}

void Engine::Name(const Use& use, Submission* submission) {
  ++stamp_;
  for (const CUdeviceptr address : use.addresses) {
    const uint32_t number = addresses_->At(address);
    if (number == Addresses::kNobody) continue;
    Range& range = ranges_[number];
    if (std::exchange(range.stamp, stamp_) == stamp_) continue;
    submission->ranges.push_back(RangeId{number});
    if (range.holders++ == 0 && !IsSegment(range)) open_->Hold(number);
    for (uint32_t page = range.pages.first; page < range.pages.second; ++page) {
      submission->pages.push_back(PageId{page});
      Page& of = segments_.At(PageId{page});
      of.stamp = stamp_;
      ++of.busy;
    }
    Reservation* with = segments_.ReservationOf(range.pages);
    if (with == nullptr || std::exchange(with->stamp, stamp_) == stamp_) continue;
    submission->reservations.push_back(with);
    ++with->busy;
  }
  if (use.unknown) ++unknowns_;
}

void Engine::Hold(const Submission& submission, Lock& lock) {
  std::optional<core::Tick> deadline;
  bool any_in_place = false;
  for (const RangeId id : submission.ranges) {
    const uint32_t number = core::ToInt(id);
    if (IsSegment(ranges_[number])) continue;
    const bool is_there =
        memory_->HoldOf(number) == JobMemory::Hold::kHeld || memory_->executor().IsResident(number);
    if (!is_there && !deadline) deadline = ipc::Now() + options_.patience;
    // Pages that the call itself uses in place do not come before it ends.
    HoldRange(number, any_in_place ? core::Tick{} : deadline.value_or(core::Tick{}), lock);
    any_in_place |= memory_->RowOf(number).in_place;
  }
}

void Engine::HoldRange(uint32_t number, core::Tick deadline, Lock& lock) {
  while (true) {
    const JobMemory::Hold hold = memory_->HoldOf(number);
    if (hold == JobMemory::Hold::kHeld) return;
    if (hold == JobMemory::Hold::kNone && memory_->executor().IsResident(number)) {
      memory_->Use(number, at());
      return;
    }
    const bool all_fits = !memory_->IsShort();
    const bool waits =
        ipc::Now() < deadline && !broken_ && !IsFrozen() && (all_fits || memory_->HasPlan());
    const bool is_in_use = hold == JobMemory::Hold::kNone && waits && all_fits &&
                           core::IsUsedInPlace(memory_->books(), memory_->RowOf(number).units);
    if (is_in_use) {
      // It comes when kernels do not use it in place any more.
      AwaitChange(kLookAgain, lock);
    } else if (hold == JobMemory::Hold::kNone && waits) {
      memory_->Get(number, at());
    } else if (hold == JobMemory::Hold::kNone) {
      if (memory_->Use(number, at())) return;
      AwaitChange(kLookAgain, lock);
    } else if (waits) {
      AwaitChange(kLookAgain, lock);
    } else {
      memory_->Refuse(number);
    }
    streams_.Look();
    Advance();
  }
}

bool Engine::IsMoving(const Submission& submission) const {
  return (submission.unknown && (segments_.moving() > 0 || !memory_->IsQuiet())) ||
         std::any_of(submission.reservations.begin(), submission.reservations.end(),
                     [](const Reservation* with) { return with->moving > 0; });
}

void Engine::AwaitMoves(const Submission& submission, Lock& lock) {
  while (IsMoving(submission)) {
    Advance();
    if (IsMoving(submission)) AwaitChange(kLookAgain, lock);
  }
  // It may write to any page.
  if (submission.unknown) memory_->ModifyAll();
}

Status Engine::ReachUnit(Unit unit, Lock& lock) {
  JobPages& pages = memory_->pages();
  while (pages.IsChanging(unit)) {
    if (!memory_->pages().Report()) AwaitChange(kLookAgain, lock);
  }
  if (pages.CanReach(unit)) return core::Ok();
  JobPages::Reach reach = pages.BeginReach(unit);
  lock.unlock();
  Status status = core::Ok();
  {
    const Mover::Pause pause(mover_.get());
    const RelaxedCapture relaxed(driver_);
    status = pages.FinishReach(&reach);
  }
  lock.lock();
  JobPages::EndReach(reach);
  changed_.notify_all();
  return status;
}

Status Engine::ReachRange(uint32_t number, Lock& lock) {
  const UnitSpan units = memory_->RowOf(number).units;
  for (uint32_t i = 0; i < units.count; ++i) RAVEN_RETURN_IF_ERROR(ReachUnit(units[i], lock));
  return core::Ok();
}

// A segment's, which could not be mapped when it was moved.
void Engine::ReachPage(PageId id, Lock& lock) {
  Page& page = segments_.At(id);
  if (page.reservation == nullptr || page.part == nullptr || page.is_mapped || page.moving) return;
  segments_.BeginMoving(&page);
  const Part& part = *page.part;
  lock.unlock();
  Status mapped = core::Ok();
  {
    const Mover::Pause pause(mover_.get());
    const RelaxedCapture relaxed(driver_);
    mapped = parts_->Map(page.begin, part);
  }
  lock.lock();
  segments_.EndMoving(&page);
  page.is_mapped = mapped.ok();
  if (!mapped.ok()) Fail("memory on the host cannot be reached", mapped.error());
  changed_.notify_all();
}

bool Engine::ReachLive(Lock& lock) {
  bool has_waited = false;
  ++reaching_;
  for (Unit unit = 0; unit < memory_->books().view().units.size(); unit += 2) {
    if (memory_->StateOf(unit).live == 0 || memory_->pages().CanReach(unit)) continue;
    has_waited = true;
    const Status reached = ReachUnit(unit, lock);
    if (!reached.ok()) Fail("memory on the host cannot be reached", reached.error());
  }
  --reaching_;
  return has_waited;
}

core::Duration Engine::Reach(const Submission& submission, Lock& lock) {
  const core::Tick began = ipc::Now();
  bool has_waited = false;
  if (submission.unknown && maps_away_ && (!all_mapped_ || broken_)) {
    all_mapped_ = all_mapped_ && !broken_;
    has_waited = MapAllInPlace(lock);
  } else if (submission.unknown && !all_mapped_) {
    has_waited = ReachLive(lock);
  }
  for (const RangeId id : submission.ranges) {
    const uint32_t number = core::ToInt(id);
    if (IsSegment(ranges_[number])) continue;
    const UnitSpan units = memory_->RowOf(number).units;
    for (uint32_t i = 0; i < units.count; ++i) {
      if (memory_->pages().CanReach(units[i])) continue;
      has_waited = true;
      const Status reached = ReachUnit(units[i], lock);
      if (!reached.ok()) Fail("memory on the host cannot be reached", reached.error());
    }
  }
  for (const PageId id : submission.pages) {
    if (!segments_.At(id).is_mapped) ReachPage(id, lock);
  }
  return has_waited ? ipc::Now() - began : core::Duration{};
}

void Engine::SetMapsAway() {
  if (std::exchange(maps_away_, true)) return;
  memory_->pages().mode().maps_away = true;
}

bool Engine::MapAllInPlace(Lock& lock) {
  SetMapsAway();
  if (all_mapped_) return false;
  const bool has_waited = ReachLive(lock);
  all_mapped_ = true;
  if (!std::exchange(all_mapped_told_, true) && options_.log)
    options_.log("the job reaches memory that it does not name: what is away stays mapped");
  return has_waited;
}

void Engine::ReachAll() {
  Lock lock(locks_);
  MapAllInPlace(lock);
}

TableFinder::Search* Engine::BeginSearch(const Use& use) {
  TableFinder::Search* search = tables_.Begin(use.kind);
  if (search == nullptr) return nullptr;
  for (const CUdeviceptr address : use.addresses) {
    const uint32_t number = addresses_->At(address);
    if (number == Addresses::kNobody || search->named.size() == TableFinder::kAddresses) continue;
    const Range& range = ranges_[number];
    search->named.push_back({address, range.begin + range.size.count() - address});
  }
  for (const CUdeviceptr address : use.others) {
    if (search->named.size() == TableFinder::kAddresses) break;
    search->named.push_back({address, 0});
  }
  return search;
}

void Engine::PollSearches() {
  const bool found = tables_.Poll([this](uint64_t word) {
    const uint32_t number = addresses_->At(word);
    return number != Addresses::kNobody && !ranges_[number].pinned;
  });
  if (!found) return;
  SetMapsAway();
  if (options_.log) {
    options_.log(
        "a kernel reads or writes a table of addresses in device memory: from now on each kernel "
        "may touch all memory, and nothing moves while one runs");
  }
}

Engine::Submission* Engine::NewSubmission(const Use& use) {
  if (unused_submissions_.empty()) {
    submissions_.push_back(std::make_unique<Submission>());
    unused_submissions_.push_back(submissions_.back().get());
  }
  Submission* submission = unused_submissions_.back();
  unused_submissions_.pop_back();
  submission->ranges.clear();
  submission->pages.clear();
  submission->reservations.clear();
  submission->stream = use.stream;
  submission->unknown = use.unknown;
  return submission;
}

Engine::Submission* Engine::BeginAtOnce(const Use& use) {
  if (use.unknown || MustWait() || tables_.MayFollow(use.kind)) return nullptr;
  const auto is_there = [&](CUdeviceptr address) {
    const uint32_t number = addresses_->At(address);
    return number == Addresses::kNobody || (!IsSegment(ranges_[number]) && open_->IsOpen(number));
  };
  if (!std::all_of(use.addresses.begin(), use.addresses.end(), is_there)) return nullptr;
  Submission* const submission = NewSubmission(use);
  ++stamp_;
  for (const CUdeviceptr address : use.addresses) {
    const uint32_t number = addresses_->At(address);
    if (number == Addresses::kNobody) continue;
    Range& range = ranges_[number];
    if (std::exchange(range.stamp, stamp_) == stamp_) continue;
    if (range.holders == 0 && !open_->TryUse(number, at(), calls_)) {
      LeaveRanges(submission, {});
      unused_submissions_.push_back(submission);
      return nullptr;
    }
    ++range.holders;
    submission->ranges.push_back(RangeId{number});
  }
  NoteBegun(use, submission, {.at = ipc::Now()});
  const bool is_due = !is_all_there_ || open_->logged() >= kLogMost;
  if (asleep_ && is_due) wake_.notify_one();
  return submission;
}

Engine::Submission* Engine::Begin(const Use& named) {
  {
    const std::lock_guard lock(locks_.calls());
    if (Submission* const submission = BeginAtOnce(named)) return submission;
  }
  Lock lock(locks_);
  if (named.unknown) SetMapsAway();
  KeepPace(lock);
  Use use = named;
  use.unknown = named.unknown || tables_.MayFollow(named.kind);
  Submission* const submission = NewSubmission(use);
  Name(use, submission);
  // What others have done with its ranges: from now on these have a holder.
  SeeCalls();
  Begun begun{.at = ipc::Now()};
  const auto is_there = [this](RangeId id) {
    const uint32_t number = core::ToInt(id);
    return IsSegment(ranges_[number]) || memory_->executor().IsResident(number);
  };
  const bool are_there =
      std::all_of(submission->ranges.begin(), submission->ranges.end(), is_there) &&
      !IsMoving(*submission);
  Hold(*submission, lock);
  AwaitMoves(*submission, lock);
  begun.waited = are_there ? core::Duration{} : ipc::Now() - begun.at;
  begun.waited += Reach(*submission, lock);
  for (const RangeId id : submission->ranges) {
    const uint32_t number = core::ToInt(id);
    begun.in_place += AwayOf(number);
    if (IsSegment(ranges_[number])) continue;
    memory_->calls().NoteUse(number, calls_);
    memory_->Open(number);
  }
  begun.is_unknown = named.unknown || (use.unknown && tables_.found());
  NoteBegun(named, submission, begun);
  if (asleep_ && HasWork()) wake_.notify_one();
  return submission;
}

void Engine::NoteBegun(const Use& use, Submission* submission, const Begun& begun) {
  uint64_t kind = Twins::Mix(use.identity, submission->ranges.size());
  for (const RangeId id : submission->ranges) {
    Range& range = ranges_[core::ToInt(id)];
    ++range.calls;
    range.used = begun.at;
    kind = Twins::Mix(kind, range.size.count());
  }
  const bool is_away = begun.in_place > Bytes{0};
  const bool has_waited = begun.waited > core::Duration{0};
  if (options_.shown && (has_waited || is_away || begun.is_unknown))
    options_.shown->Note(use.identity, use.caller, {begun.waited, begun.in_place, begun.is_unknown},
                         ipc::Now());
  ++stats_.uses;
  stats_.uses_in_place += is_away ? 1 : 0;
  stats_.bytes_in_place += begun.in_place;
  stats_.waits += has_waited ? 1 : 0;
  stats_.waited += begun.waited;
  submission->call = calls_;
  const auto call = static_cast<uint64_t>(calls_);
  auto twin = twins_.Next(kind, call);
  if (twin && call - *twin >= kCallsMost) twin.reset();
  times_.Add(twin, begun.at + begun.waited);
  ++calls_;
  submission->ends_stretch = times_.EndsStretch();
  submission->search = BeginSearch(use);
  if (options_.recorder)
    options_.recorder->Used(use.identity, use.caller, submission->ranges, use.unknown,
                            begun.at + begun.waited);
}

void Engine::LeaveRanges(Submission* submission, const std::optional<Point>& point) {
  for (const RangeId id : submission->ranges) {
    const uint32_t number = core::ToInt(id);
    Range& range = ranges_[number];
    --range.holders;
    if (IsSegment(range)) continue;
    if (point) NoteLast(&range.uses, *point);
    if (range.holders == 0) Unhold(number);
  }
}

void Engine::End(Submission* submission, bool enqueued) {
  TableFinder::Search* search = std::exchange(submission->search, nullptr);
  const bool searches =
      search != nullptr && enqueued && tables_.Enqueue(search, submission->stream);
  const std::lock_guard lock(locks_.calls());
  if (search != nullptr) tables_.End(search, searches);
  if (searches && asleep_) wake_.notify_one();
  const Point point =
      enqueued ? streams_.Enqueued(submission->stream) : streams_.Now(submission->stream);
  LeaveRanges(submission, enqueued ? std::optional(point) : std::nullopt);
  for (const PageId id : submission->pages) {
    Page& page = segments_.At(id);
    --page.busy;
    if (enqueued) NoteLast(&page.uses, point);
  }
  for (Reservation* with : submission->reservations) {
    --with->busy;
    if (enqueued) NoteLast(&with->uses, point);
  }
  if (submission->unknown) {
    --unknowns_;
    if (enqueued) NoteLast(&unknown_uses_, point);
  }
  if (enqueued && submission->ends_stretch) pace_.Ends(submission->stream, submission->call);
  if (options_.recorder && enqueued) options_.recorder->Enqueued(submission->stream, ipc::Now());
  unused_submissions_.push_back(submission);
}

void Engine::Pin(CUdeviceptr address, bool is_followed) {
  Lock lock(locks_);
  const uint32_t number = addresses_->At(address);
  if (number == Addresses::kNobody) return;
  Range& range = ranges_[number];
  PinRange(number);
  Reservation* with = segments_.ReservationOf(range.pages);
  if (with != nullptr && !std::exchange(with->pinned, true)) {
    for (uint32_t other = 1; other < ranges_.size(); ++other) {
      if (ranges_[other].live && segments_.ReservationOf(ranges_[other].pages) == with)
        PinRange(other);
    }
  }
  // The code that gets the range's address after this call may use it immediately.
  changed_.wait(lock, [&] { return with == nullptr || with->moving == 0; });
  if (IsSegment(range)) {
    for (uint32_t page = range.pages.first; page < range.pages.second; ++page)
      ReachPage(PageId{page}, lock);
  } else {
    SeeCalls();
    HoldRange(number, core::Tick{}, lock);
    const Status reached = ReachRange(number, lock);
    if (!reached.ok()) Fail("memory on the host cannot be reached", reached.error());
  }
  if (is_followed) MapAllInPlace(lock);
}

void Engine::PinRange(uint32_t number) {
  Range& range = ranges_[number];
  if (std::exchange(range.pinned, true)) return;
  stats_.pinned += range.size;
  if (!IsSegment(range) && range.holders++ == 0) open_->Hold(number);
  segments_.Pin(range.pages);
}

void Engine::StreamGone(CUstream stream) {
  const std::lock_guard lock(locks_.calls());
  streams_.Gone(stream);
}

void Engine::SetDeviceLimit(Bytes most) {
  parts_->SetLimit(Place::kDevice, most);
  const Lock lock(locks_);
  SetPages();
  PinFor(LiveBytes());
  wake_.notify_one();
}

EngineStats Engine::stats() const {
  const Lock lock(locks_);
  EngineStats stats = stats_;
  const JobPages::Stats& moved = memory_->pages().stats();
  stats.away = memory_->Away() + segments_.away();
  stats.moved_in += moved.moved_in;
  stats.moved_out += moved.moved_out;
  stats.dropped += moved.dropped;
  return stats;
}

}  // namespace ravenstore::elastic
