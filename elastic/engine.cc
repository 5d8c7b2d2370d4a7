#include "elastic/engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/check.h"
#include "ipc/clock.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;

namespace {

// Addresses are plenty.
constexpr Bytes kAddressesLeast = core::GiB(64);
constexpr uint64_t kAddressesShare = 8;  // times what may be held
// With no other room an allocation waits so long for the work behind which memory was freed.
constexpr core::Duration kFreedPatience = std::chrono::seconds(10);
constexpr std::chrono::microseconds kLookAgain{100};
// So many times its patience an allocation waits at most while the GPU has work.
constexpr int kBusyShare = 10;

// What the host has beyond what lies there: beneath moves of both directions that are under way.
constexpr uint64_t kPartsAhead = 8;

// At most 1/kAheadShare of the pinnable host memory is pinned before a page has to leave. A pause,
// and the first steps that do not fit, then need not pin. Lower: jobs that start one after another
// leave no host memory to the last one. Higher: more of a pause is pinned while it runs.
constexpr uint64_t kAheadShare = 2;

// So far ahead of the GPU the job names its calls while not all fits.
constexpr std::chrono::milliseconds kAhead{5};

}  // namespace

Engine::Engine(EngineOptions options, const Driver& driver)
    : options_(std::move(options)),
      driver_(driver),
      plan_({.device = options_.on_device.most, .part = options_.part}),
      streams_(&driver_),
      tables_(&driver_),
      pace_(&driver_),
      ranges_(1),
      pages_(1),
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
  first_segment_page_ = static_cast<uint32_t>(room.count() / options_.part.count() + 1);
  arena_.emplace(*addresses_->Take(room, Addresses::kNobody), room,
                 [this](const Point& point) { return streams_.Passed(point); });
  parts_ = std::make_unique<Parts>(&driver_, options_.device, options_.node, options_.on_device,
                                   options_.on_host);
  return StartThreads();
}

// --- Ranges and pages

std::pair<uint32_t, uint32_t> Engine::PagesOf(CUdeviceptr begin, Bytes size) const {
  const uint64_t part = options_.part.count();
  const uint64_t first = (begin - arena_->begin()) / part;
  const uint64_t last = (begin + size.count() - 1 - arena_->begin()) / part;
  return {static_cast<uint32_t>(first + 1), static_cast<uint32_t>(last + 2)};
}

// In place it would be used with so many bytes.
Bytes Engine::AwayOf(const Range& range) const {
  Bytes away;
  const auto [first, end] = range.pages;
  for (uint32_t number = first; number < end; ++number) {
    const Page& page = *pages_[number];
    if (!page.away()) continue;
    // A segment's hold nothing else, and may be mapped nowhere.
    away += IsSegment(range)
                ? page.size
                : Bytes(std::min(page.begin + page.size.count(), range.begin + range.size.count()) -
                        std::max(page.begin, range.begin));
  }
  return away;
}

void Engine::SetPart(PageId id, Parts::There there) {
  Page& page = At(id);
  Part* const part = there.part;
  page.is_mapped = there.is_mapped;
  if (part == page.part) return;
  if (!page.live() && page.part != nullptr) dead_[Index(page.place)].erase(id);
  if (!page.live() && part != nullptr) dead_[Index(part->place)].insert(id);
  if (page.live()) CountAway(page, false);
  page.part = part;
  if (part != nullptr) page.place = part->place;
  if (page.live()) CountAway(page, true);
  plan_.SetResident(id, !page.away());
}

void Engine::CountAway(const Page& page, bool more) {
  if (!page.away()) return;
  stats_.away = more ? stats_.away + page.size : stats_.away - page.size;
}

void Engine::Inhabit(PageId id) {
  Page& page = At(id);
  if (page.ranges++ > 0) return;
  if (page.part != nullptr) dead_[Index(page.place)].erase(id);
  CountAway(page, true);
  live_pages_ += page.size;
  NoteNeed(live_pages_);
  plan_.Allocated(id, page.size);
}

void Engine::NoteNeed(Bytes at_once) {
  stats_.enough = std::max(stats_.enough, at_once);
  PinFor(at_once);
}

void Engine::PinFor(Bytes at_once) {
  const Bytes most = parts_->limit(Place::kDevice);
  pinner_->Want(std::min(at_once, Bytes(parts_->limit(Place::kHost).count() / kAheadShare)));
  if (at_once > most) pinner_->Need(at_once - most + options_.part * kPartsAhead);
}

void Engine::Leave(PageId id) {
  Page& page = At(id);
  if (page.ranges == 1) CountAway(page, false);
  if (--page.ranges > 0) return;
  live_pages_ -= page.size;
  if (page.part != nullptr) dead_[Index(page.place)].insert(id);
  plan_.Freed(id);
}

uint32_t Engine::MakeRange(CUdeviceptr begin, Bytes asked, Bytes size,
                           std::pair<uint32_t, uint32_t> pages) {
  if (unused_ranges_.empty()) {
    unused_ranges_.push_back(static_cast<uint32_t>(ranges_.size()));
    ranges_.emplace_back();
  }
  const uint32_t number = unused_ranges_.back();
  unused_ranges_.pop_back();
  Range& range = ranges_[number];
  range = {begin, size, asked, pages, true};
  range.used = range.allocated = ipc::Now();
  for (uint32_t page = pages.first; page < pages.second; ++page) Inhabit(PageId{page});
  stats_.live += size;
  stats_.peak = std::max(stats_.peak, stats_.live);
  if (options_.recorder) options_.recorder->Allocated(RangeId{number}, asked);
  return number;
}

uint32_t Engine::AddRange(CUdeviceptr begin, Bytes asked, Bytes size) {
  const auto [first, end] = PagesOf(begin, size);
  if (pages_.size() < end) pages_.resize(end);
  for (uint32_t page = first; page < end; ++page) {
    if (pages_[page] == nullptr) {
      pages_[page] = std::make_unique<Page>();
      pages_[page]->begin = arena_->begin() + (options_.part * (page - 1)).count();
      pages_[page]->size = options_.part;
    }
  }
  const uint32_t number = MakeRange(begin, asked, size, {first, end});
  addresses_->SetOwner(begin, size, number);
  return number;
}

void Engine::RemoveRange(uint32_t number, CUstream stream, bool ordered) {
  Range& range = ranges_[number];
  // Calls that did not name it may touch it. A free in order is behind them, also by what its
  // stream waits for: so it is a point of its own. Any other is behind all streams.
  std::vector<Point> points;
  if (ordered) {
    points = {streams_.Enqueued(stream)};
  } else {
    points = streams_.EnqueuedOnAll();
  }
  for (uint32_t page = range.pages.first; page < range.pages.second; ++page) {
    for (const Point& point : points) NoteUse(pages_[page]->uses, point);
  }
  addresses_->SetOwner(range.begin, range.size, Addresses::kNobody);
  arena_->Give(range.begin, range.size, std::move(points));
  EndRange(number);
}

void Engine::EndRange(uint32_t number) {
  Range& range = ranges_[number];
  for (uint32_t page = range.pages.first; page < range.pages.second; ++page) {
    if (range.pinned) --pages_[page]->pinned;
    Leave(PageId{page});
  }
  if (range.pinned) stats_.pinned -= range.size;
  stats_.live -= range.size;
  range.live = false;
  unused_ranges_.push_back(number);
  if (options_.recorder) options_.recorder->Freed(RangeId{number});
  changed_.notify_all();
}

// --- Allocating

Result<CUdeviceptr> Engine::Allocate(Bytes asked, CUstream stream, bool ordered) {
  const Bytes size = std::max(asked, Bytes{1}).RoundUp(granule_);
  Lock lock(mutex_);
  streams_.Look();
  const auto begin = arena_->Take(size, ordered ? streams_.Now(stream).stream : 0);
  if (!begin) return Error{ErrorCode::kOutOfMemory, "no addresses are left"};
  const uint32_t number = AddRange(*begin, asked, size);
  const Status backed = Back(ranges_[number].pages, lock);
  if (backed.ok()) return *begin;
  RemoveRange(number, stream, ordered);
  return backed.error();
}

Engine::Patience Engine::PatienceFromNow() const {
  const core::Tick now = ipc::Now();
  return {now + options_.patience, now + options_.patience * kBusyShare};
}

Status Engine::Back(std::pair<uint32_t, uint32_t> pages, Lock& lock) {
  Patience patience = PatienceFromNow();
  const auto [first, end] = pages;
  for (uint32_t page = first; page < end; ++page) ++pages_[page]->busy;
  Status status = core::Ok();
  for (uint32_t page = first; page < end && status.ok(); ++page)
    status = BackPage(PageId{page}, &patience, lock);
  for (uint32_t page = first; page < end; ++page) --pages_[page]->busy;
  return status;
}

Status Engine::BackPage(PageId id, Patience* patience, Lock& lock) {
  Page& page = At(id);
  if (page.moving || page.backed) {
    const core::Tick began = ipc::Now();
    changed_.wait(lock, [&] { return !page.moving && !page.backed; });
    NoteRoomWait(began);
  }
  if (!page.away()) return core::Ok();
  Part* const before = page.part;
  // Where others live, or their calls may still touch it, the part stays, and is used in place.
  if (before != nullptr && (page.ranges > 1 || !HavePassed(page.uses))) return core::Ok();
  page.backed = true;
  Part* part = TakeDevicePart(page.size, patience, lock);
  Status status = core::Ok();
  if (part == nullptr && before == nullptr) {
    auto any = TakeAnyPart(page.size, lock);
    if (any.ok()) {
      part = *any;
    } else {
      status = any.error();
    }
  }
  if (part != nullptr) status = MapBeneath(id, part, lock);
  page.backed = false;
  changed_.notify_all();
  return status;
}

// In the place of what is there, if need be mapped; the part goes back if that fails.
Status Engine::MapBeneath(PageId id, Part* part, Lock& lock) {
  Page& page = At(id);
  changed_.wait(lock, [&] { return !page.being_mapped; });
  page.being_mapped = true;
  const Parts::There before = page.there();
  const bool maps = part->place == Place::kDevice || MapsAway(page);
  lock.unlock();
  Parts::Replaced replaced;
  {
    const Mover::Pause pause(mover_.get());
    replaced = parts_->Replace(page.begin, before, part, maps);
  }
  lock.lock();
  page.being_mapped = false;
  changed_.notify_all();
  SetPart(id, replaced.there);
  return replaced.status;
}

void Engine::MapInPlace(PageId id, Lock& lock) {
  Page& page = At(id);
  ++page.busy;
  changed_.wait(lock, [&] { return !page.moving && !page.being_mapped; });
  const bool has_place = core::ToInt(id) < first_segment_page_ || page.reservation != nullptr;
  if (has_place && page.part != nullptr && !page.is_mapped) {
    page.being_mapped = true;
    const Part& part = *page.part;
    const CUdeviceptr at = page.begin;
    lock.unlock();
    const Status mapped = MapAt(at, part);
    lock.lock();
    page.being_mapped = false;
    page.is_mapped = mapped.ok();
    if (!mapped.ok()) Fail("what lies on the host cannot be reached", mapped.error());
    changed_.notify_all();
  }
  --page.busy;
}

Status Engine::MapAt(CUdeviceptr at, const Part& part) {
  const Mover::Pause pause(mover_.get());
  const RelaxedCapture relaxed(driver_);
  return parts_->Map(at, part);
}

void Engine::MapLiveInPlace(Lock& lock) {
  for (uint32_t page = 1; page < pages_.size() && stats_.away > Bytes{0}; ++page) {
    if (pages_[page] != nullptr && pages_[page]->live()) MapInPlace(PageId{page}, lock);
  }
}

void Engine::MapAllInPlace(Lock& lock) {
  maps_away_ = true;
  if (all_mapped_) return;
  for (uint32_t page = 1; page < pages_.size(); ++page) {
    if (pages_[page] != nullptr) MapInPlace(PageId{page}, lock);
  }
  if (!std::exchange(all_mapped_, true) && options_.log)
    options_.log("the job reaches memory that it does not name: what is away stays mapped");
}

Part* Engine::TakeDevicePart(Bytes size, Patience* patience, Lock& lock) {
  wanted_ += size;
  Part* part = nullptr;
  std::optional<core::Tick> began;
  while (true) {
    streams_.Look();
    const auto taken = TakePart(Place::kDevice, size, lock);
    if (taken.ok()) {
      part = *taken;
      break;
    }
    if (DropDead(Place::kDevice, lock)) continue;
    const Bytes dead = options_.part * dead_[Index(Place::kDevice)].size();
    NoteNeed(live_pages_ + dead);
    const core::Tick now = ipc::Now();
    // Waiting costs the job nothing as long as the GPU has work.
    const bool is_free = now < patience->latest && !streams_.Idle();
    if (is_free) patience->until = now + options_.patience;
    if (broken_ || taken.error().code != ErrorCode::kOutOfMemory || now >= patience->until) break;
    const bool comes_free = dead > Bytes{0} && unknowns_ == 0;
    if (!AnyUnderWay() && !AnyMayLeave() && !comes_free && !is_free) break;
    if (!began) began = now;
    wake_.notify_one();
    // Nobody says when work has passed.
    const bool looks = comes_free || is_free;
    const core::Duration left = patience->until - now;
    changed_.wait_for(lock, looks ? std::min<core::Duration>(left, kLookAgain) : left);
  }
  if (began) {
    NoteRoomWait(*began);
    // Others of its pages wait as long again.
    const core::Tick now = ipc::Now();
    if (part != nullptr && now < patience->latest) patience->until = now + options_.patience;
  }
  wanted_ -= size;
  return part;
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

Result<Part*> Engine::TakeAnyPart(Bytes size, Lock& lock) {
  const core::Tick deadline = ipc::Now() + kFreedPatience;
  while (true) {
    streams_.Look();
    const uint64_t before = moves_ended_;
    auto taken = TakeHostPart(size, lock);
    // What was on its way to the host has left room on the device.
    if (!taken.ok()) taken = TakePart(Place::kDevice, size, lock);
    if (taken.ok()) return taken;
    if (AnyUnderWay() || starting_) {
      ++waiting_;
      changed_.wait(lock);
      --waiting_;
    } else if (moves_ended_ == before) {
      // Else the one part that is free may have changed its place between the two looks.
      const bool freed = !dead_[0].empty() || !dead_[1].empty();
      if (!freed || ipc::Now() >= deadline) return taken;
      changed_.wait_for(lock, kLookAgain);
    }
  }
}

Result<Part*> Engine::TakePart(Place place, Bytes size, Lock& lock) {
  lock.unlock();
  auto taken = parts_->Take(place, size);
  lock.lock();
  return taken;
}

Result<Part*> Engine::TakeHostPart(Bytes size, Lock& lock) {
  while (true) {
    if (Part* part = parts_->TakeFree(Place::kHost, size)) return part;
    // What is dead is sooner had than memory is pinned.
    if (size == options_.part && DropDead(Place::kHost, lock)) continue;
    auto taken = TakePart(Place::kHost, size, lock);
    if (taken.ok() || taken.error().code != ErrorCode::kOutOfMemory) return taken;
    if (!DropDead(Place::kHost, lock)) return taken;
  }
}

bool Engine::AnyMayLeave() {
  return plan_.Victim([this](PageId id) { return At(id).busy > 0 || At(id).pinned > 0; })
      .has_value();
}

bool Engine::DropDead(Place place, Lock& lock) {
  const std::set<PageId>& dead = dead_[Index(place)];
  if (dead.empty()) return false;
  std::optional<PageId> dropped;
  if (place == Place::kDevice) {
    dropped = plan_.Dead(CannotCome());
  }
  if (!dropped) {
    const auto any =
        std::find_if(dead.begin(), dead.end(), [this](PageId id) { return CanMove(At(id)); });
    if (any == dead.end()) return false;
    dropped = *any;
  }
  DropPart(*dropped, lock);
  return true;
}

// REQUIRES: CanMove; the page is dead and has a part.
void Engine::DropPart(PageId id, Lock& lock) {
  Page& page = At(id);
  const auto [part, is_mapped] = page.there();
  if (page.place == Place::kDevice) stats_.dropped += page.size;
  BeginMoving(page);
  lock.unlock();
  Status unmapped = core::Ok();
  if (is_mapped) {
    const Mover::Pause pause(mover_.get());
    unmapped = parts_->Unmap(page.begin, *part);
  }
  if (unmapped.ok()) parts_->Give(part);
  lock.lock();
  EndMoving(page);
  if (unmapped.ok()) {
    SetPart(id, {});
  } else {
    Fail("a freed part could not be taken", unmapped.error());
  }
  changed_.notify_all();
}

bool Engine::Free(CUdeviceptr address, CUstream stream, bool ordered) {
  const Lock lock(mutex_);
  const uint32_t number = addresses_->At(address);
  if (number == Addresses::kNobody || ranges_[number].begin != address) return false;
  if (IsSegment(ranges_[number])) return false;
  RemoveRange(number, stream, ordered);
  return true;
}

std::optional<Engine::Allocation> Engine::Find(CUdeviceptr address) const {
  const Lock lock(mutex_);
  const uint32_t number = addresses_->At(address);
  if (number == Addresses::kNobody) return std::nullopt;
  return Allocation{ranges_[number].begin, ranges_[number].asked};
}

// --- Using

void Engine::BeginMoving(Page& page) {
  page.moving = true;
  if (page.reservation != nullptr) ++page.reservation->moving;
  ++moving_;
}

void Engine::EndMoving(Page& page) {
  page.moving = false;
  if (page.reservation != nullptr) --page.reservation->moving;
  --moving_;
  ++moves_ended_;
}

void Engine::NoteUse(std::vector<Point>& uses, const Point& point) {
  for (Point& use : uses) {
    if (use.stream != point.stream) continue;
    use.call = std::max(use.call, point.call);
    return;
  }
  uses.push_back(point);
}

bool Engine::HavePassed(std::vector<Point>& uses) {
  std::erase_if(uses, [this](const Point& use) { return streams_.Passed(use); });
  return uses.empty();
}

bool Engine::CanMove(Page& page) {
  Reservation* with = page.reservation;
  if (with != nullptr && (with->busy > 0 || !HavePassed(with->uses))) return false;
  return page.pinned == 0 && page.busy == 0 && !page.moving && HavePassed(page.uses) &&
         unknowns_ == 0 && HavePassed(unknown_uses_);
}

// Where not all fits, the job names its calls only so far ahead of the GPU: what it has freed is in
// use until they have passed, and where a call finds what it names is decided when it is named.
void Engine::KeepPace(Lock& lock) {
  const core::Tick began = ipc::Now();
  const auto must_wait = [&] {
    const auto under_way = pace_.under_way();
    return under_way && under_way != slow_ && plan_.times().Since(*under_way) > kAhead &&
           !broken_ && plan_.IsShort();
  };
  if (!must_wait()) return;
  ++stats_.paces;
  ++pacing_;
  while (must_wait()) {
    if (ipc::Now() - began >= options_.patience) slow_ = pace_.under_way();
    wake_.notify_one();
    changed_.wait_for(lock, options_.patience);
  }
  --pacing_;
}

// As long as the GPU has work the job loses nothing when a call waits until what it names is there;
// meanwhile nothing of it leaves. How long it waited.
core::Duration Engine::Await(const Use& use, Lock& lock) {
  const auto is_there = [this](PageId id) { return !At(id).away() && !At(id).moving; };
  const auto for_each = [&](const auto& visit) {
    for (const CUdeviceptr address : use.addresses) {
      const uint32_t number = addresses_->At(address);
      if (number == Addresses::kNobody) continue;
      // Of what is used together nothing can come before all of it rests.
      if (IsSegment(ranges_[number])) continue;
      const auto [first, end] = ranges_[number].pages;
      for (uint32_t page = first; page < end; ++page) {
        if (pages_[page]->pinned == 0) visit(PageId{page});
      }
    }
  };
  bool are_there = true;
  for_each([&](PageId id) { are_there = are_there && is_there(id); });
  if (are_there || broken_) return {};
  const core::Tick began = ipc::Now();
  std::vector<PageId> named;
  for_each([&](PageId id) { named.push_back(id); });
  const auto count = [&](int more) {
    for (const PageId id : named) {
      At(id).awaited += static_cast<uint32_t>(more);
      plan_.SetAwaited(id, At(id).awaited > 0);
    }
  };
  count(1);
  while (!std::all_of(named.begin(), named.end(), is_there)) {
    streams_.Look();
    if (streams_.Idle() || ipc::Now() - began >= options_.patience) break;
    wake_.notify_one();
    changed_.wait_for(lock, kLookAgain);
  }
  count(-1);
  return ipc::Now() - began;
}

bool Engine::Name(const Use& use, Submission* submission) {
  submission->ranges.clear();
  submission->pages.clear();
  submission->reservations.clear();
  submission->stream = use.stream;
  submission->unknown = use.unknown;
  ++stamp_;
  bool moving = false;
  for (const CUdeviceptr address : use.addresses) {
    const uint32_t number = addresses_->At(address);
    if (number == Addresses::kNobody) continue;
    Range& range = ranges_[number];
    if (std::exchange(range.stamp, stamp_) == stamp_) continue;
    submission->ranges.push_back(RangeId{number});
    const auto [first, end] = range.pages;
    for (uint32_t id = first; id < end; ++id) {
      Page& page = *pages_[id];
      if (std::exchange(page.stamp, stamp_) == stamp_) continue;
      submission->pages.push_back(PageId{id});
      ++page.busy;
      moving |= page.moving;
    }
    Reservation* with = ReservationOf(range);
    if (with == nullptr || std::exchange(with->stamp, stamp_) == stamp_) continue;
    submission->reservations.push_back(with);
    ++with->busy;
    moving |= with->moving > 0;
  }
  if (use.unknown) {
    ++unknowns_;
    moving |= moving_ > 0;
  }
  return moving;
}

bool Engine::IsMoving(const Submission& submission) const {
  return (submission.unknown && moving_ > 0) ||
         std::any_of(submission.pages.begin(), submission.pages.end(),
                     [this](PageId id) { return At(id).moving; }) ||
         std::any_of(submission.reservations.begin(), submission.reservations.end(),
                     [](const Reservation* with) { return with->moving > 0; });
}

// What the call may touch is mapped where it lies. How long that took.
core::Duration Engine::Reach(const Submission& submission, Lock& lock) {
  const bool can_reach_all = all_mapped_ || (!maps_away_ && stats_.away == Bytes{0});
  const bool can_reach =
      (!submission.unknown || can_reach_all) &&
      std::all_of(submission.pages.begin(), submission.pages.end(),
                  [this](PageId id) { return At(id).is_mapped && !At(id).being_mapped; });
  if (can_reach) return {};
  const core::Tick began = ipc::Now();
  if (submission.unknown && maps_away_) {
    MapAllInPlace(lock);
  } else if (submission.unknown) {
    MapLiveInPlace(lock);
  }
  for (const PageId id : submission.pages) MapInPlace(id, lock);
  return ipc::Now() - began;
}

void Engine::ReachAll() {
  Lock lock(mutex_);
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
  maps_away_ = true;
  if (options_.log) {
    options_.log(
        "a kernel reads or writes a table of addresses in device memory: from now on each kernel "
        "may touch all memory, and nothing moves while one runs");
  }
}

Engine::Submission* Engine::Begin(const Use& named) {
  Lock lock(mutex_);
  maps_away_ = maps_away_ || named.unknown;
  KeepPace(lock);
  core::Duration waited = Await(named, lock);
  Use use = named;
  use.unknown = named.unknown || tables_.MayFollow(named.kind);
  if (unused_submissions_.empty()) {
    submissions_.push_back(std::make_unique<Submission>());
    unused_submissions_.push_back(submissions_.back().get());
  }
  Submission* submission = unused_submissions_.back();
  unused_submissions_.pop_back();
  if (Name(use, submission)) {
    const core::Tick began = ipc::Now();
    changed_.wait(lock, [&] { return !IsMoving(*submission); });
    waited += ipc::Now() - began;
  }
  waited += Reach(*submission, lock);
  stats_.waits += waited > core::Duration{0} ? 1 : 0;
  stats_.waited += waited;
  const core::Tick now = ipc::Now();
  const bool any_away = std::any_of(submission->pages.begin(), submission->pages.end(),
                                    [this](PageId id) { return At(id).away(); });
  Bytes in_place;
  for (const RangeId id : submission->ranges) {
    Range& range = ranges_[core::ToInt(id)];
    if (any_away) in_place += AwayOf(range);
    ++range.calls;
    range.used = now;
  }
  const bool is_unknown = named.unknown || (use.unknown && tables_.found());
  const bool tells = waited > core::Duration{0} || in_place > Bytes{0} || is_unknown;
  if (options_.shown && tells)
    options_.shown->Note(use.identity, use.caller, {waited, in_place, is_unknown}, now);
  ++stats_.uses;
  stats_.uses_in_place += in_place > Bytes{0} ? 1 : 0;
  stats_.bytes_in_place += in_place;
  submission->call = plan_.position();
  plan_.Used(use.identity, submission->pages, now);
  submission->ends_stretch = plan_.times().EndsStretch();
  submission->search = BeginSearch(named);
  if (options_.recorder)
    options_.recorder->Used(use.identity, use.caller, submission->ranges, named.unknown, now);
  if (plan_.NeedsPlan() && !broken_) plan_due_.notify_one();
  if (asleep_ && WantsAny()) wake_.notify_one();  // the rest wakes it by itself
  return submission;
}

void Engine::End(Submission* submission, bool enqueued) {
  TableFinder::Search* search = std::exchange(submission->search, nullptr);
  const bool searches =
      search != nullptr && enqueued && tables_.Enqueue(search, submission->stream);
  const Lock lock(mutex_);
  if (search != nullptr) tables_.End(search, searches);
  if (searches && asleep_) wake_.notify_one();
  const Point point =
      enqueued ? streams_.Enqueued(submission->stream) : streams_.Now(submission->stream);
  for (const PageId id : submission->pages) {
    Page& page = At(id);
    --page.busy;
    if (enqueued) NoteUse(page.uses, point);
  }
  for (Reservation* with : submission->reservations) {
    --with->busy;
    if (enqueued) NoteUse(with->uses, point);
  }
  if (submission->unknown) {
    --unknowns_;
    if (enqueued) NoteUse(unknown_uses_, point);
  }
  if (enqueued && submission->ends_stretch) pace_.Ends(submission->stream, submission->call);
  if (options_.recorder && enqueued) options_.recorder->Enqueued(submission->stream, ipc::Now());
  unused_submissions_.push_back(submission);
}

void Engine::Pin(CUdeviceptr address, bool is_followed) {
  Lock lock(mutex_);
  const uint32_t number = addresses_->At(address);
  if (number == Addresses::kNobody) return;
  Range& range = ranges_[number];
  PinRange(range);
  Reservation* with = ReservationOf(range);
  if (with != nullptr && !std::exchange(with->pinned, true)) {
    for (Range& other : ranges_) {
      if (other.live && ReservationOf(other) == with) PinRange(other);
    }
  }
  // Who is told its address next may use it at once.
  const auto [first, end] = range.pages;
  changed_.wait(lock, [&] { return with == nullptr || with->moving == 0; });
  for (uint32_t page = first; page < end; ++page) MapInPlace(PageId{page}, lock);
  if (is_followed) MapAllInPlace(lock);
}

void Engine::PinRange(Range& range) {
  if (std::exchange(range.pinned, true)) return;
  stats_.pinned += range.size;
  for (uint32_t page = range.pages.first; page < range.pages.second; ++page) ++pages_[page]->pinned;
}

bool Engine::IsMoving(const Range& range) const {
  return std::any_of(pages_.begin() + range.pages.first, pages_.begin() + range.pages.second,
                     [](const auto& page) { return page->moving || page->being_mapped; });
}

void Engine::StreamGone(CUstream stream) {
  const Lock lock(mutex_);
  streams_.Gone(stream);
}

void Engine::SetDeviceLimit(Bytes most) {
  parts_->SetLimit(Place::kDevice, most);
  const Lock lock(mutex_);
  plan_.SetDevice(most);
  PinFor(live_pages_);
  wake_.notify_one();
}

EngineStats Engine::stats() const {
  const Lock lock(mutex_);
  return stats_;
}

}  // namespace ravenstore::elastic
