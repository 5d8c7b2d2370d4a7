// Segments: physical memory that the job makes and maps by itself, at addresses that it reserved.
//
// A pointer into mapped memory says nothing of how far a kernel goes from there: what lies beside
// it may be another segment, and one tensor may lie in several. So all that is mapped within one
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

Status UnmapAll(const std::vector<SegmentMapping>& mappings, Parts* parts, Mover* mover) {
  const Mover::Pause pause(mover);
  for (const SegmentMapping& mapping : mappings) {
    if (mapping.is_mapped) RAVEN_RETURN_IF_ERROR(parts->Unmap(mapping.at, *mapping.part));
  }
  return core::Ok();
}

Status MapAll(std::vector<SegmentMapping>* mappings, Parts* parts, Mover* mover) {
  const Mover::Pause pause(mover);
  for (SegmentMapping& mapping : *mappings) {
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
  if (begin) {
    auto reservation = std::make_unique<Reservation>();
    reservation->size = size;
    reservations_.emplace(*begin, std::move(reservation));
  }
  return begin;
}

bool Engine::Unreserve(CUdeviceptr begin, Bytes size) {
  Lock lock(locks_);
  const auto found = reservations_.find(begin);
  if (found == reservations_.end()) return false;
  Reservation& reservation = *found->second;
  if (reservation.size != size || reservation.segments > 0) return false;
  // Calls of other threads that named what was there.
  while (reservation.busy > 0) changed_.wait_for(lock, kLookAgain);
  reservations_.erase(found);
  addresses_->Give(begin, size);
  return true;
}

Engine::Reservation* Engine::ReservationAt(CUdeviceptr begin, Bytes size) {
  auto found = reservations_.upper_bound(begin);
  if (found == reservations_.begin()) return nullptr;
  --found;
  const bool within = begin + size.count() <= found->first + found->second->size.count();
  return within ? found->second.get() : nullptr;
}

// One behind the other.
std::pair<uint32_t, uint32_t> Engine::SegmentPages(Bytes size) {
  const auto count =
      static_cast<uint32_t>(size.RoundUp(options_.part).count() / options_.part.count());
  auto& unused = unused_segments_[size];
  if (!unused.empty()) {
    const uint32_t first = unused.back();
    unused.pop_back();
    return {first, first + count};
  }
  const auto first = static_cast<uint32_t>(pages_.size());
  for (Bytes at; at < size; at += options_.part) {
    pages_.push_back(std::make_unique<Page>());
    pages_.back()->size = std::min(options_.part, size - at);
    pages_.back()->busy = 1;  // until it is mapped
  }
  return {first, first + count};
}

Result<RangeId> Engine::CreateSegment(Bytes size) {
  Lock lock(locks_);
  if (size == Bytes{0} || size.RoundDown(granule_) != size)
    return Error{ErrorCode::kInvalidArgument, "not a multiple of the driver's granule"};
  const auto [first, end] = SegmentPages(size);
  const uint32_t number = NewRange({.asked = size, .size = size});
  const RangeId id{number};
  ranges_[number].pages = {first, end};
  segments_ += size;
  ShowRange(number);
  Patience patience(options_.patience);
  for (uint32_t page = first; page < end; ++page) {
    const Bytes bytes = pages_[page]->size;
    Part* part = TakeDevicePart(bytes, &patience, lock);
    if (part == nullptr) {
      auto any = TakeAnyPart(bytes, lock);
      if (!any.ok()) {
        EndSegment(id, lock);
        return any.error();
      }
      part = *any;
    }
    SetPart(PageId{page}, {part, false});
  }
  return id;
}

std::vector<SegmentMapping> Engine::MappingsOf(const Range& range, CUdeviceptr begin) const {
  std::vector<SegmentMapping> mappings;
  for (uint32_t page = range.pages.first; page < range.pages.second; ++page) {
    const Bytes at = options_.part * (page - range.pages.first);
    mappings.push_back({begin + at.count(), pages_[page]->part, pages_[page]->is_mapped});
  }
  return mappings;
}

void Engine::SetMapped(const Range& range, bool is_mapped) {
  for (uint32_t page = range.pages.first; page < range.pages.second; ++page)
    pages_[page]->is_mapped = is_mapped;
}

Status Engine::MapSegment(RangeId id, CUdeviceptr begin) {
  Lock lock(locks_);
  Range& range = ranges_[core::ToInt(id)];
  const Bytes size = range.size;
  Reservation* reservation = ReservationAt(begin, size);
  bool is_free = range.begin == 0 && reservation != nullptr;
  for (Bytes at; is_free && at < size; at += granule_)
    is_free = addresses_->At(begin + at.count()) == Addresses::kNobody;
  if (!is_free || begin % granule_.count() != 0)
    return Error{ErrorCode::kInvalidArgument, "no free addresses of one reservation"};
  std::vector<SegmentMapping> mappings = MappingsOf(range, begin);
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
  for (uint32_t page = range.pages.first; page < range.pages.second; ++page) {
    pages_[page]->begin = mappings[page - range.pages.first].at;
    pages_[page]->reservation = reservation;
  }
  SetMapped(range, true);
  addresses_->SetOwner(begin, size, core::ToInt(id));
  if (reservation->pinned) PinRange(core::ToInt(id));
  Unhold(range);
  return core::Ok();
}

// Nothing of it moves from here on. What is mapped nowhere is held already.
void Engine::Hold(const Range& range, Lock& lock) {
  for (uint32_t page = range.pages.first; page < range.pages.second; ++page) ++pages_[page]->busy;
  changed_.wait(lock, [&] { return !IsMoving(range); });
}

void Engine::Unhold(const Range& range) {
  for (uint32_t page = range.pages.first; page < range.pages.second; ++page) --pages_[page]->busy;
}

void Engine::LeaveAddresses(Range& range) {
  addresses_->SetOwner(range.begin, range.size, Addresses::kNobody);
  --ReservationOf(range)->segments;
  range.begin = 0;
  SetMapped(range, false);
  for (uint32_t page = range.pages.first; page < range.pages.second; ++page)
    pages_[page]->reservation = nullptr;
}

Status Engine::UnmapSegment(RangeId id) {
  Lock lock(locks_);
  Range& range = ranges_[core::ToInt(id)];
  if (ReservationOf(range) == nullptr) return Error{ErrorCode::kWrongState, "it is not mapped"};
  Hold(range, lock);
  const std::vector<SegmentMapping> mappings = MappingsOf(range, range.begin);
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
  const auto [first, end] = ranges_[number].pages;
  for (uint32_t page = first; page < end; ++page) {
    // Calls of other threads that named it end, and the engine's thread may be about to find that
    // nothing can be done for it.
    while (pages_[page]->busy > 1) changed_.wait_for(lock, kLookAgain);
    Part* part = pages_[page]->part;
    if (part == nullptr) continue;
    SetPart(PageId{page}, {});
    parts_->Give(part);
  }
  for (uint32_t page = first; page < end; ++page) pages_[page]->pinned = false;
  unused_segments_[ranges_[number].size].push_back(first);
  segments_ -= ranges_[number].size;
  EndRange(number);
  unused_ranges_.push_back(number);
}

// Segments move by recency, and only over the limit or where there is room.
void Engine::SetPart(PageId id, Parts::There there) {
  Page& page = At(id);
  page.is_mapped = there.is_mapped;
  if (there.part == page.part) return;
  const auto sum = [&]() -> Bytes& {
    return page.place == Place::kDevice ? segments_device_ : segments_away_;
  };
  if (page.part != nullptr) sum() -= page.size;
  page.part = there.part;
  if (page.part != nullptr) page.place = page.part->place;
  if (page.part != nullptr) sum() += page.size;
  SetPages();
}

Result<Part*> Engine::TakePart(Place place, Bytes size, Lock& lock) {
  lock.unlock();
  auto taken = parts_->Take(place, size);
  lock.lock();
  return taken;
}

Part* Engine::TakeDevicePart(Bytes size, Patience* patience, Lock& lock) {
  segments_wanted_ += size;
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
  segments_wanted_ -= size;
  SetPages();
  return part;
}

Result<Part*> Engine::TakeAnyPart(Bytes size, Lock& lock) {
  while (true) {
    auto taken = TakePart(Place::kHost, size, lock);
    if (taken.ok()) return taken;
    // A part that was on its way to the host has left room on the device.
    taken = TakePart(Place::kDevice, size, lock);
    if (taken.ok() || (memory_->IsQuiet() && moving_ == 0)) return taken;
    Advance();
    AwaitChange(kLookAgain, lock);
  }
}

void Engine::BeginMoving(Page& page) {
  page.moving = true;
  if (page.reservation != nullptr) ++page.reservation->moving;
  ++moving_;
}

void Engine::EndMoving(Page& page) {
  page.moving = false;
  if (page.reservation != nullptr) --page.reservation->moving;
  --moving_;
}

bool Engine::CanMove(Page& page) {
  Reservation* with = page.reservation;
  if (with != nullptr && (with->busy > 0 || !streams_.HavePassed(&with->uses))) return false;
  return page.part != nullptr && !page.pinned && page.busy == 0 && !page.moving &&
         streams_.HavePassed(&page.uses) && !IsFrozen();
}

std::optional<PageId> Engine::NextSegment() {
  const Bytes limit = parts_->limit(Place::kDevice);
  const bool over = segments_device_ > limit;
  const Bytes in_use = options_.part * (memory_->books().memory().pages() -
                                        std::min(memory_->books().memory().pages(),
                                                 memory_->books().view().supply.total()));
  const Bytes room = core::Minus(limit, segments_device_ + segments_wanted_ + in_use);
  if (broken_ || segments_ == Bytes{0} || moving_ >= kMoves) return std::nullopt;
  std::optional<PageId> next;
  for (uint32_t number = 0; number < pages_.size(); ++number) {
    Page& page = *pages_[number];
    if (page.part == nullptr || page.away() == over || (!over && page.size > room)) continue;
    if (!CanMove(page)) continue;
    if (next && (page.stamp < At(*next).stamp) != over) continue;
    next = PageId{number};
  }
  return next;
}

bool Engine::StartSegment(Lock& lock) {
  const auto id = NextSegment();
  if (!id) return false;
  Page& page = At(*id);
  const bool leaves = !page.away();
  if (!leaves) segments_wanted_ += page.size;
  SetPages();
  ++page.busy;
  const auto part = TakePart(leaves ? Place::kHost : Place::kDevice, page.size, lock);
  --page.busy;
  const bool can_move = part.ok() && CanMove(page) && page.away() != leaves;
  if (can_move) {
    BeginMoving(page);
    mover_->Begin({*id, page.begin, page.there(), *part, true, true});
    return true;
  }
  if (part.ok()) parts_->Give(*part);
  if (!leaves) segments_wanted_ -= page.size;
  SetPages();
  return part.ok();
}

void Engine::EndMove(const Mover::Move& move, const Parts::Replaced& replaced) {
  const Lock lock(locks_);
  Page& page = At(move.page);
  const bool came = page.away();
  EndMoving(page);
  changed_.notify_all();
  wake_.notify_one();
  if (came) segments_wanted_ -= page.size;
  SetPart(move.page, replaced.there);
  SetPages();
  if (!replaced.status.ok()) return Fail("a part could not be moved", replaced.status.error());
  (came ? stats_.moved_in : stats_.moved_out) += page.size;
}

bool Engine::IsMoving(const Range& range) const {
  return std::any_of(pages_.begin() + range.pages.first, pages_.begin() + range.pages.second,
                     [](const auto& page) { return page->moving; });
}

Status Engine::AwaitPassed(Reservation* reservation, Lock& lock) {
  const core::Tick deadline = ipc::Now() + kPassPatience;
  // Also those of which nobody knows what they touch.
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
  Reservation* reservation = ReservationOf(range);
  if (reservation != nullptr) Hold(range, lock);
  const auto let_go = [&] {
    if (reservation != nullptr) Unhold(range);
  };
  const CUdeviceptr begin = range.begin;
  const std::vector<SegmentMapping> mappings = MappingsOf(range, begin);
  Status status = AwaitPassed(reservation, lock);
  if (!status.ok()) {
    let_go();
    return status.error();
  }
  // From here on calls that name it wait.
  for (uint32_t page = range.pages.first; page < range.pages.second; ++page)
    BeginMoving(*pages_[page]);
  lock.unlock();
  const Part whole{Place::kDevice, range.size, handle, 0};
  status = CopyInto(mappings, whole);
  const bool copied = status.ok();
  if (begin != 0 && status.ok()) status = UnmapAll(mappings, parts_.get(), mover_.get());
  if (begin != 0 && status.ok()) status = parts_->Map(begin, whole);
  lock.lock();
  for (uint32_t page = range.pages.first; page < range.pages.second; ++page)
    EndMoving(*pages_[page]);
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

Status Engine::CopyInto(const std::vector<SegmentMapping>& mappings, const Part& whole) {
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
