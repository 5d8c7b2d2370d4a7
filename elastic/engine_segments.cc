// Segments: physical memory that the job makes and maps by itself, at addresses that it reserved.
//
// A pointer into mapped memory does not show how far a kernel goes from there. The memory next to
// it may be another segment, and one tensor may span several. So all that is mapped within one
// reservation is used together: a call that names any of it holds all of it.
#include <algorithm>
#include <string>
#include <thread>

#include "elastic/engine.h"
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

std::optional<CUdeviceptr> Engine::Reserve(Bytes size) {
  const Lock lock(locks_);
  if (size == Bytes{0} || size.RoundDown(granule_) != size) return std::nullopt;
  const auto begin = addresses_->Take(size, Addresses::kNobody);
  if (begin) segments_.Reserve(*begin, size);
  return begin;
}

bool Engine::Unreserve(CUdeviceptr begin, Bytes size) {
  Lock lock(locks_);
  const Reservation* reservation = segments_.ReservationAt(begin, size);
  if (reservation == nullptr || reservation->begin != begin || reservation->size != size ||
      reservation->segments > 0)
    return false;
  // Calls of other threads that named what was there.
  while (reservation->busy > 0) changed_.wait_for(lock, kLookAgain);
  segments_.Unreserve(begin);
  addresses_->Give(begin, size);
  return true;
}

Result<RangeId> Engine::CreateSegment(Bytes size) {
  Lock lock(locks_);
  if (size == Bytes{0} || size.RoundDown(granule_) != size)
    return Error{ErrorCode::kInvalidArgument, "not a multiple of the driver's granule"};
  const SegmentTable::Pages pages = segments_.Create(size);
  const uint32_t number = NewRange({.asked = size, .size = size});
  const RangeId id{number};
  ranges_[number].pages = pages;
  ShowRange(number);
  Patience patience(options_.patience);
  for (uint32_t page = pages.first; page < pages.second; ++page) {
    const Bytes bytes = segments_.At(PageId{page}).size;
    Part* part = TakeDevicePart(bytes, &patience, lock);
    if (part == nullptr) {
      auto any = TakeAnyPart(bytes, lock);
      if (!any.ok()) {
        EndSegment(id, lock);
        return any.error();
      }
      part = *any;
    }
    segments_.SetPart(PageId{page}, {part, false});
    SetPages();
  }
  return id;
}

Status Engine::MapSegment(RangeId id, CUdeviceptr begin) {
  Lock lock(locks_);
  Range& range = ranges_[core::ToInt(id)];
  const Bytes size = range.size;
  Reservation* reservation = segments_.ReservationAt(begin, size);
  bool is_free = range.begin == 0 && reservation != nullptr;
  for (Bytes at; is_free && at < size; at += granule_)
    is_free = addresses_->At(begin + at.count()) == Addresses::kNobody;
  if (!is_free || begin % granule_.count() != 0)
    return Error{ErrorCode::kInvalidArgument, "no free addresses of one reservation"};
  std::vector<SegmentTable::Mapping> mappings = segments_.MappingsOf(range.pages, begin);
  range.begin = begin;
  ++reservation->segments;
  lock.unlock();
  const Status status = MapAll(&mappings, parts_.get(), mover_.get());
  if (!status.ok()) {
    [[maybe_unused]] const Status unmapped = UnmapAll(mappings, parts_.get(), mover_.get());
  }
  lock.lock();
  if (!status.ok()) {
    range.begin = 0;
    --reservation->segments;
    return status;
  }
  segments_.Mapped(range.pages, begin, reservation);
  addresses_->SetOwner(begin, size, core::ToInt(id));
  if (reservation->pinned) PinRange(core::ToInt(id));
  return core::Ok();
}

// Nothing of it moves from here on. What is mapped nowhere is held already.
void Engine::Hold(const Range& range, Lock& lock) {
  segments_.Hold(range.pages);
  changed_.wait(lock, [&] { return !segments_.IsMoving(range.pages); });
}

void Engine::LeaveAddresses(Range& range) {
  addresses_->SetOwner(range.begin, range.size, Addresses::kNobody);
  segments_.Unmapped(range.pages);
  range.begin = 0;
}

Status Engine::UnmapSegment(RangeId id) {
  Lock lock(locks_);
  Range& range = ranges_[core::ToInt(id)];
  if (segments_.ReservationOf(range.pages) == nullptr)
    return Error{ErrorCode::kWrongState, "it is not mapped"};
  Hold(range, lock);
  const std::vector<SegmentTable::Mapping> mappings =
      segments_.MappingsOf(range.pages, range.begin);
  lock.unlock();
  const Status status = UnmapAll(mappings, parts_.get(), mover_.get());
  lock.lock();
  if (!status.ok()) {
    Fail("a segment could not be unmapped", status.error());
    return status;
  }
  LeaveAddresses(range);
  return core::Ok();
}

void Engine::DestroySegment(RangeId id) {
  Lock lock(locks_);
  EndSegment(id, lock);
}

// REQUIRES: it is mapped nowhere.
void Engine::EndSegment(RangeId id, Lock& lock) {
  const uint32_t number = core::ToInt(id);
  const SegmentTable::Pages pages = ranges_[number].pages;
  for (uint32_t number_in = pages.first; number_in < pages.second; ++number_in) {
    Page& page = segments_.At(PageId{number_in});
    // Calls of other threads that named it end, and the engine's thread may be about to find that
    // nothing can be done for it.
    while (page.busy > 1) changed_.wait_for(lock, kLookAgain);
    Part* part = page.part;
    if (part == nullptr) continue;
    segments_.SetPart(PageId{number_in}, {});
    SetPages();
    parts_->Give(part);
  }
  segments_.End(pages, ranges_[number].size);
  EndRange(number);
  unused_ranges_.push_back(number);
}

Result<Part*> Engine::TakePart(Place place, Bytes size, Lock& lock) {
  lock.unlock();
  auto taken = parts_->Take(place, size);
  lock.lock();
  return taken;
}

Part* Engine::TakeDevicePart(Bytes size, Patience* patience, Lock& lock) {
  segments_.Want(size);
  SetPages();
  Part* part = nullptr;
  std::optional<core::Tick> began;
  while (true) {
    streams_.Look();
    Advance();
    const auto taken = TakePart(Place::kDevice, size, lock);
    if (taken.ok()) {
      part = *taken;
      break;
    }
    const core::Tick now = ipc::Now();
    if (!began) began = now;
    // Waiting costs the job nothing as long as the GPU has work.
    if (now < patience->latest && !streams_.Idle()) patience->until = now + options_.patience;
    const bool comes_free = memory_->books().view().surplus > 0 || !memory_->IsQuiet();
    if (broken_ || taken.error().code != ErrorCode::kOutOfMemory || !comes_free ||
        now >= patience->until)
      break;
    AwaitChange(kLookAgain, lock);
  }
  if (began) NoteRoomWait(*began);
  segments_.EndWant(size);
  SetPages();
  return part;
}

Result<Part*> Engine::TakeAnyPart(Bytes size, Lock& lock) {
  while (true) {
    auto taken = TakePart(Place::kHost, size, lock);
    if (taken.ok()) return taken;
    // A part that was on its way to the host has left room on the device.
    taken = TakePart(Place::kDevice, size, lock);
    if (taken.ok() || (memory_->IsQuiet() && segments_.moving() == 0)) return taken;
    Advance();
    AwaitChange(kLookAgain, lock);
  }
}

// Segments move by recency, and only over the limit or where there is room.
std::optional<PageId> Engine::NextSegment() {
  const Bytes limit = parts_->limit(Place::kDevice);
  const bool over = segments_.parts_on_device() > limit;
  const Bytes in_use = options_.part * (memory_->books().memory().pages() -
                                        std::min(memory_->books().memory().pages(),
                                                 memory_->books().view().supply.total()));
  const Bytes room = core::Minus(limit, segments_.on_device() + in_use);
  if (broken_ || segments_.live() == Bytes{0} || segments_.moving() >= kMoves) return std::nullopt;
  const auto next = segments_.Next(over, room);
  return next && !IsFrozen() ? next : std::nullopt;
}

bool Engine::StartSegment(Lock& lock) {
  const auto id = NextSegment();
  if (!id) return false;
  Page& page = segments_.At(*id);
  const bool leaves = !page.away();
  if (!leaves) segments_.Want(page.size);
  SetPages();
  ++page.busy;
  const auto part = TakePart(leaves ? Place::kHost : Place::kDevice, page.size, lock);
  --page.busy;
  const bool can_move =
      part.ok() && segments_.CanMove(&page) && !IsFrozen() && page.away() != leaves;
  if (can_move) {
    segments_.BeginMoving(&page);
    mover_->Begin({*id, page.begin, page.there(), *part, true, true});
    return true;
  }
  if (part.ok()) parts_->Give(*part);
  if (!leaves) segments_.EndWant(page.size);
  SetPages();
  return part.ok();
}

void Engine::EndMove(const Mover::Move& move, const Parts::Replaced& replaced) {
  const Lock lock(locks_);
  Page& page = segments_.At(move.page);
  const bool came = page.away();
  segments_.EndMoving(&page);
  changed_.notify_all();
  wake_.notify_one();
  if (came) segments_.EndWant(page.size);
  segments_.SetPart(move.page, replaced.there);
  SetPages();
  if (!replaced.status.ok()) return Fail("a part could not be moved", replaced.status.error());
  (came ? stats_.moved_in : stats_.moved_out) += page.size;
}

Status Engine::AwaitPassed(Reservation* reservation, Lock& lock) {
  const core::Tick deadline = ipc::Now() + kPassPatience;
  // Includes calls whose touched memory is not known.
  std::vector<Point> calls = streams_.EnqueuedOnAll();
  const auto passed = [&] {
    streams_.Look();
    return streams_.HavePassed(&calls) &&
           (reservation == nullptr ||
            (reservation->busy == 0 && streams_.HavePassed(&reservation->uses))) &&
           unknowns_ == 0 && streams_.HavePassed(&unknown_uses_);
  };
  while (!passed()) {
    if (ipc::Now() >= deadline)
      return Error{ErrorCode::kTimedOut, "what may touch a segment does not end"};
    changed_.wait_for(lock, kLookAgain);
  }
  return core::Ok();
}

Result<CUdeviceptr> Engine::HandOver(RangeId id, CUmemGenericAllocationHandle handle) {
  Lock lock(locks_);
  Range& range = ranges_[core::ToInt(id)];
  Reservation* reservation = segments_.ReservationOf(range.pages);
  if (reservation != nullptr) Hold(range, lock);
  const auto let_go = [&] {
    if (reservation != nullptr) segments_.Unhold(range.pages);
  };
  const CUdeviceptr begin = range.begin;
  const std::vector<SegmentTable::Mapping> mappings = segments_.MappingsOf(range.pages, begin);
  Status status = AwaitPassed(reservation, lock);
  if (!status.ok()) {
    let_go();
    return status.error();
  }
  // From here on calls that name it wait.
  for (uint32_t page = range.pages.first; page < range.pages.second; ++page)
    segments_.BeginMoving(&segments_.At(PageId{page}));
  lock.unlock();
  const Part whole{Place::kDevice, range.size, handle, 0};
  status = CopyInto(mappings, whole);
  const bool copied = status.ok();
  if (begin != 0 && status.ok()) status = UnmapAll(mappings, parts_.get(), mover_.get());
  if (begin != 0 && status.ok()) status = parts_->Map(begin, whole);
  lock.lock();
  for (uint32_t page = range.pages.first; page < range.pages.second; ++page)
    segments_.EndMoving(&segments_.At(PageId{page}));
  changed_.notify_all();
  if (!status.ok()) {
    let_go();
    if (copied) Fail("a segment could not be handed over", status.error());
    return status.error();
  }
  if (begin != 0) LeaveAddresses(range);
  EndSegment(id, lock);
  return begin;
}

Status Engine::CopyInto(const std::vector<SegmentTable::Mapping>& mappings, const Part& whole) {
  const RelaxedCapture relaxed(driver_);
  CUdeviceptr at = 0;
  const size_t size = whole.size.count();
  const CUstream stream = mover_->stream(Place::kDevice);
  CUresult result = driver_.address_reserve(&at, size, 0, 0, 0);
  Status status =
      result == CUDA_SUCCESS ? parts_->Map(at, whole) : DriverError("cuMemAddressReserve", result);
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
    const Status unmapped = parts_->Unmap(at, whole);
    if (status.ok()) status = unmapped;
  }
  if (at != 0) driver_.address_free(at, size);
  return status;
}

}  // namespace ravenstore::elastic
