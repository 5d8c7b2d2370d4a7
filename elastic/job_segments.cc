#include "elastic/job_segments.h"

#include <algorithm>
#include <string>
#include <thread>

#include "ipc/clock.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;

namespace {

constexpr core::Duration kPassPatience = std::chrono::seconds(10);
constexpr std::chrono::microseconds kLookAgain{50};
// Moves under way: one is copied, the next is there when that ends, and one is mapped.
constexpr size_t kMoves = 3;

Status UnmapAll(const std::vector<SegmentTable::Mapping>& mappings, Parts* parts, Mover* mover) {
  const Mover::Pause pause(mover);
  for (const SegmentTable::Mapping& mapping : mappings) {
    if (mapping.is_mapped) RAVEN_RETURN_IF_ERROR(parts->Unmap(mapping.at, *mapping.part));
  }
  return core::Ok();
}

Status MapAll(std::vector<SegmentTable::Mapping>* mappings, Parts* parts, Mover* mover) {
  const Mover::Pause pause(mover);
  for (SegmentTable::Mapping& mapping : *mappings) {
    RAVEN_RETURN_IF_ERROR(parts->Map(mapping.at, *mapping.part));
    mapping.is_mapped = true;
  }
  return core::Ok();
}

}  // namespace

JobSegments::JobSegments(const EngineOptions& options, Bytes granule, const Uses& uses)
    : options_(options),
      granule_(granule),
      driver_(*uses.driver),
      parts_(*uses.parts),
      addresses_(*uses.addresses),
      memory_(*uses.memory),
      segments_(*uses.segments),
      ranges_(*uses.ranges),
      residency_(*uses.residency),
      waits_(*uses.waits),
      streams_(*uses.streams),
      mover_(*uses.mover) {}

std::optional<CUdeviceptr> JobSegments::Reserve(Bytes size) {
  const Lock lock(residency_.locks());
  if (size == Bytes{0} || size.RoundDown(granule_) != size) return std::nullopt;
  const auto begin = addresses_.Take(size, Addresses::kNoOwner);
  if (begin) segments_.Reserve(*begin, size);
  return begin;
}

bool JobSegments::Unreserve(CUdeviceptr begin, Bytes size) {
  Lock lock(residency_.locks());
  const Reservation* reservation = segments_.ReservationAt(begin, size);
  if (reservation == nullptr || reservation->begin != begin || reservation->size != size ||
      reservation->segments > 0)
    return false;
  // Calls of other threads that named what was there.
  while (reservation->busy > 0) residency_.AwaitNotice(kLookAgain, lock);
  segments_.Unreserve(begin);
  addresses_.Give(begin, size);
  return true;
}

Result<RangeId> JobSegments::Create(Bytes size) {
  Lock lock(residency_.locks());
  if (size == Bytes{0} || size.RoundDown(granule_) != size)
    return Error{ErrorCode::kInvalidArgument, "not a multiple of the driver's granule"};
  const SegmentTable::Pages pages = segments_.Create(size);
  const uint32_t number = ranges_.New({.asked = size, .size = size});
  const RangeId id{number};
  ranges_[number].pages = pages;
  ranges_.Begin(number);
  RoomWaits::Limit limit = waits_.Begin();
  for (uint32_t page = pages.first; page < pages.second; ++page) {
    const Bytes bytes = segments_.At(PageId{page}).size;
    Part* part = TakeDevicePart(bytes, &limit, lock);
    if (part == nullptr) {
      auto any = TakeAnyPart(bytes, lock);
      if (!any.ok()) {
        End(id, lock);
        return any.error();
      }
      part = *any;
    }
    segments_.SetPart(PageId{page}, {part, false});
    residency_.SetPages();
  }
  return id;
}

Status JobSegments::Map(RangeId id, CUdeviceptr begin) {
  Lock lock(residency_.locks());
  Range& range = ranges_[core::ToInt(id)];
  const Bytes size = range.size;
  Reservation* reservation = segments_.ReservationAt(begin, size);
  bool is_free = range.begin == 0 && reservation != nullptr;
  for (Bytes at; is_free && at < size; at += granule_)
    is_free = addresses_.At(begin + at.count()) == Addresses::kNoOwner;
  if (!is_free || begin % granule_.count() != 0)
    return Error{ErrorCode::kInvalidArgument, "no free addresses of one reservation"};
  std::vector<SegmentTable::Mapping> mappings = segments_.MappingsOf(range.pages, begin);
  range.begin = begin;
  ++reservation->segments;
  lock.unlock();
  const Status status = MapAll(&mappings, &parts_, &mover_);
  if (!status.ok()) {
    [[maybe_unused]] const Status unmapped = UnmapAll(mappings, &parts_, &mover_);
  }
  lock.lock();
  if (!status.ok()) {
    range.begin = 0;
    --reservation->segments;
    return status;
  }
  segments_.Mapped(range.pages, begin, reservation);
  addresses_.SetOwner(begin, size, core::ToInt(id));
  if (reservation->pinned) ranges_.Pin(core::ToInt(id));
  return core::Ok();
}

void JobSegments::Hold(const Range& range, Lock& lock) {
  segments_.Hold(range.pages);
  residency_.Await(lock, [&] { return !segments_.IsMoving(range.pages); });
}

void JobSegments::LeaveAddresses(Range& range) {
  addresses_.SetOwner(range.begin, range.size, Addresses::kNoOwner);
  segments_.Unmapped(range.pages);
  range.begin = 0;
}

Status JobSegments::Unmap(RangeId id) {
  Lock lock(residency_.locks());
  Range& range = ranges_[core::ToInt(id)];
  if (segments_.ReservationOf(range.pages) == nullptr)
    return Error{ErrorCode::kWrongState, "it is not mapped"};
  Hold(range, lock);
  const std::vector<SegmentTable::Mapping> mappings =
      segments_.MappingsOf(range.pages, range.begin);
  lock.unlock();
  const Status status = UnmapAll(mappings, &parts_, &mover_);
  lock.lock();
  if (!status.ok()) {
    residency_.Fail("a segment could not be unmapped", status.error());
    return status;
  }
  LeaveAddresses(range);
  return core::Ok();
}

void JobSegments::Destroy(RangeId id) {
  Lock lock(residency_.locks());
  End(id, lock);
}

void JobSegments::End(RangeId id, Lock& lock) {
  const uint32_t number = core::ToInt(id);
  const SegmentTable::Pages pages = ranges_[number].pages;
  for (uint32_t number_in = pages.first; number_in < pages.second; ++number_in) {
    Page& page = segments_.At(PageId{number_in});
    // Calls of other threads that named it end, and the engine's thread may be about to find that
    // nothing can be done for it.
    while (page.busy > 1) residency_.AwaitNotice(kLookAgain, lock);
    Part* part = page.part;
    if (part == nullptr) continue;
    segments_.SetPart(PageId{number_in}, {});
    residency_.SetPages();
    parts_.Give(part);
  }
  segments_.End(pages, ranges_[number].size);
  ranges_.End(number);
  residency_.NotifyChanged();
  ranges_.Recycle(number);
}

Part* JobSegments::TakeDevicePart(Bytes size, RoomWaits::Limit* limit, Lock& lock) {
  segments_.Want(size);
  residency_.SetPages();
  Part* part = nullptr;
  std::optional<core::Tick> began;
  while (true) {
    streams_.Look();
    residency_.Advance();
    const auto taken = residency_.TakePart(Place::kDevice, size, lock);
    if (taken.ok()) {
      part = *taken;
      break;
    }
    const core::Tick now = ipc::Now();
    if (!began) began = now;
    const bool is_over = limit->IsOver(now);
    const bool comes_free = memory_.books().view().surplus > 0 || !memory_.IsQuiet();
    if (residency_.broken() || taken.error().code != ErrorCode::kOutOfMemory || !comes_free ||
        is_over)
      break;
    residency_.AwaitChange(kLookAgain, lock);
  }
  if (began) waits_.Note(*began);
  segments_.EndWant(size);
  residency_.SetPages();
  return part;
}

Result<Part*> JobSegments::TakeAnyPart(Bytes size, Lock& lock) {
  while (true) {
    auto taken = residency_.TakePart(Place::kHost, size, lock);
    if (taken.ok()) return taken;
    // A part that was on its way to the host has left room on the device.
    taken = residency_.TakePart(Place::kDevice, size, lock);
    if (taken.ok() || (memory_.IsQuiet() && segments_.moving() == 0)) return taken;
    residency_.Advance();
    residency_.AwaitChange(kLookAgain, lock);
  }
}

std::optional<PageId> JobSegments::Next() {
  const Bytes limit = parts_.limit(Place::kDevice);
  const bool over = segments_.parts_on_device() > limit;
  const Bytes in_use = options_.part * (memory_.books().memory().pages() -
                                        std::min(memory_.books().memory().pages(),
                                                 memory_.books().view().supply.total()));
  const Bytes room = core::Minus(limit, segments_.on_device() + in_use);
  if (residency_.broken() || segments_.live() == Bytes{0} || segments_.moving() >= kMoves)
    return std::nullopt;
  const auto next = segments_.Next(over, room);
  return next && !residency_.IsFrozen() ? next : std::nullopt;
}

bool JobSegments::Start(Lock& lock) {
  const auto id = Next();
  if (!id) return false;
  Page& page = segments_.At(*id);
  const bool leaves = !page.away();
  if (!leaves) segments_.Want(page.size);
  residency_.SetPages();
  ++page.busy;
  const auto part = residency_.TakePart(leaves ? Place::kHost : Place::kDevice, page.size, lock);
  --page.busy;
  const bool can_move =
      part.ok() && segments_.CanMove(&page) && !residency_.IsFrozen() && page.away() != leaves;
  if (can_move) {
    segments_.BeginMoving(&page);
    mover_.Begin({*id, page.begin, page.there(), *part, true, true});
    return true;
  }
  if (part.ok()) parts_.Give(*part);
  if (!leaves) segments_.EndWant(page.size);
  residency_.SetPages();
  return part.ok();
}

void JobSegments::EndMove(const Mover::Move& move, const Parts::Replaced& replaced) {
  const Lock lock(residency_.locks());
  Page& page = segments_.At(move.page);
  const bool came = page.away();
  segments_.EndMoving(&page);
  residency_.NotifyChanged();
  residency_.WakeEngine();
  if (came) segments_.EndWant(page.size);
  segments_.SetPart(move.page, replaced.there);
  residency_.SetPages();
  if (!replaced.status.ok())
    return residency_.Fail("a part could not be moved", replaced.status.error());
  (came ? stats_.moved_in : stats_.moved_out) += page.size;
}

Status JobSegments::AwaitPassed(Reservation* reservation, Lock& lock) {
  const core::Tick deadline = ipc::Now() + kPassPatience;
  // Includes calls whose touched memory is not known.
  std::vector<Point> calls = streams_.EnqueuedOnAll();
  const auto passed = [&] {
    streams_.Look();
    return streams_.HavePassed(&calls) &&
           (reservation == nullptr ||
            (reservation->busy == 0 && streams_.HavePassed(&reservation->uses))) &&
           !residency_.IsFrozen();
  };
  while (!passed()) {
    if (ipc::Now() >= deadline)
      return Error{ErrorCode::kTimedOut, "what may touch a segment does not end"};
    residency_.AwaitNotice(kLookAgain, lock);
  }
  return core::Ok();
}

Result<CUdeviceptr> JobSegments::HandOver(RangeId id, CUmemGenericAllocationHandle handle) {
  Lock lock(residency_.locks());
  Range& range = ranges_[core::ToInt(id)];
  Reservation* reservation = segments_.ReservationOf(range.pages);
  if (reservation != nullptr) Hold(range, lock);
  const auto unhold = [&] {
    if (reservation != nullptr) segments_.Unhold(range.pages);
  };
  const CUdeviceptr begin = range.begin;
  const std::vector<SegmentTable::Mapping> mappings = segments_.MappingsOf(range.pages, begin);
  Status status = AwaitPassed(reservation, lock);
  if (!status.ok()) {
    unhold();
    return status.error();
  }
  // From here on calls that name it wait.
  for (uint32_t page = range.pages.first; page < range.pages.second; ++page)
    segments_.BeginMoving(&segments_.At(PageId{page}));
  lock.unlock();
  const Part whole{Place::kDevice, range.size, handle, 0};
  status = CopyInto(mappings, whole);
  const bool copied = status.ok();
  if (begin != 0 && status.ok()) status = UnmapAll(mappings, &parts_, &mover_);
  if (begin != 0 && status.ok()) status = parts_.Map(begin, whole);
  lock.lock();
  for (uint32_t page = range.pages.first; page < range.pages.second; ++page)
    segments_.EndMoving(&segments_.At(PageId{page}));
  residency_.NotifyChanged();
  if (!status.ok()) {
    unhold();
    if (copied) residency_.Fail("a segment could not be handed over", status.error());
    return status.error();
  }
  if (begin != 0) LeaveAddresses(range);
  End(id, lock);
  return begin;
}

Status JobSegments::CopyInto(const std::vector<SegmentTable::Mapping>& mappings,
                             const Part& whole) {
  const RelaxedCapture relaxed(driver_);
  CUdeviceptr at = 0;
  const size_t size = whole.size.count();
  const CUstream stream = mover_.stream(Place::kDevice);
  CUresult result = driver_.address_reserve(&at, size, 0, 0, 0);
  Status status =
      result == CUDA_SUCCESS ? parts_.Map(at, whole) : DriverError("cuMemAddressReserve", result);
  if (status.ok()) {
    CUevent done = nullptr;
    result = driver_.event_create(&done, CU_EVENT_DISABLE_TIMING);
    for (size_t i = 0; i < mappings.size() && result == CUDA_SUCCESS; ++i) {
      const Part& part = *mappings[i].part;
      result = driver_.copy_async(at + (options_.part * i).count(), part.copy, part.size.count(),
                                  stream);
    }
    if (result == CUDA_SUCCESS) result = driver_.event_record(done, stream);
    while (result == CUDA_SUCCESS && (result = driver_.event_query(done)) == CUDA_ERROR_NOT_READY) {
      result = CUDA_SUCCESS;
      std::this_thread::sleep_for(kLookAgain);
    }
    if (done != nullptr) driver_.event_destroy(done);
    if (result != CUDA_SUCCESS) status = DriverError("cuMemcpyAsync", result);
    const Status unmapped = parts_.Unmap(at, whole);
    if (status.ok()) status = unmapped;
  }
  if (at != 0) driver_.address_free(at, size);
  return status;
}

}  // namespace ravenstore::elastic
