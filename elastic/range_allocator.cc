#include "elastic/range_allocator.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "ipc/clock.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::CallResult;
using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;

namespace {

// With no other room an allocation waits so long for the work behind which memory was freed.
constexpr core::Duration kFreedPatience = std::chrono::seconds(10);

}  // namespace

RangeAllocator::RangeAllocator(const EngineOptions& options, Bytes granule, const Uses& uses)
    : options_(options),
      granule_(granule),
      parts_(*uses.parts),
      memory_(*uses.memory),
      open_(uses.memory->open()),
      ranges_(*uses.ranges),
      residency_(*uses.residency),
      reachability_(*uses.reachability),
      waits_(*uses.waits),
      streams_(*uses.streams),
      pinner_(*uses.pinner),
      clock_(*uses.clock) {}

uint32_t RangeAllocator::CreateIfResident(const RangeTable::Request& request) {
  if (!ranges_.HasUnused()) return Addresses::kNoOwner;
  const uint32_t number = ranges_.New(request);
  RangeTable::Range& range = ranges_[number];
  range.is_placed = open_.Place(number, range.size, range.created_on);
  if (range.is_placed && open_.TryCreate(number, clock_.at(), clock_.next())) ranges_.Begin(number);
  return number;
}

Result<CUdeviceptr> RangeAllocator::Allocate(Bytes asked, CUstream stream, bool ordered) {
  const Bytes size = std::max(asked, Bytes{1}).RoundUp(granule_);
  RangeTable::Request request{.asked = asked, .size = size};
  uint32_t number = Addresses::kNoOwner;
  {
    const std::lock_guard lock(residency_.locks().calls());
    request.on = ordered ? streams_.Now(stream).stream : 0;
    number = CreateIfResident(request);
    if (number != Addresses::kNoOwner && ranges_[number].live) return ranges_[number].begin;
  }
  Lock lock(residency_.locks());
  // The first look records what the second finds passed.
  for (int look = 0; look < 2; ++look) {
    residency_.SeeCalls();
    if (!memory_.calls().HasEnds()) break;
    streams_.Look();
  }
  if (number == Addresses::kNoOwner) number = ranges_.New(request);
  Status status = HoldCreated(number, lock);
  if (!status.ok()) {
    ranges_.Recycle(number);
    return status.error();
  }
  status = ReachCreated(number, lock);
  if (!status.ok()) {
    open_.Hold(number);
    ranges_[number].is_freed = true;
    ranges_.EndHold(number);
    return status.error();
  }
  memory_.EndCreate(number, clock_.at(), clock_.next());
  ranges_.Begin(number);
  return ranges_[number].begin;
}

// Freed memory is in use until its streams have passed.
bool RangeAllocator::ComesFree() const {
  return open_.logged() > 0 || memory_.calls().HasEnds() || !memory_.IsQuiet();
}

Status RangeAllocator::HoldCreated(uint32_t number, Lock& lock) {
  RangeTable::Range& range = ranges_[number];
  const core::Tick began = ipc::Now();
  RoomWaits::Limit limit = waits_.Begin();
  bool in_place = false;
  while (true) {
    residency_.Advance();
    if (!range.is_placed) range.is_placed = open_.Place(number, range.size, range.created_on);
    if (!range.is_placed) return Error{ErrorCode::kOutOfMemory, "no addresses are left"};
    residency_.SeeLog();
    const CallResult result =
        memory_.Create(number, range.size, clock_.at(), range.created_on, in_place);
    const bool is_made = result == CallResult::kHeld || (result == CallResult::kWaits && !in_place);
    if (is_made && AwaitCreated(number, &limit, lock)) return core::Ok();
    open_.ForgetPlace(number);
    range.is_placed = false;
    if (!is_made) {
      if (!ComesFree() || ipc::Now() - began >= kFreedPatience)
        return Error{ErrorCode::kOutOfMemory,
                     "the budget of " + std::to_string(parts_.limit(Place::kDevice).count()) +
                         " bytes of the device and of " +
                         std::to_string(parts_.limit(Place::kHost).count()) +
                         " bytes of pinned host memory is used up"};
      residency_.AwaitChange(Residency::kLookAgain, lock);
      streams_.Look();
    }
    in_place = is_made || !in_place;
  }
}

// In place it needs parts of the host, which copies of resident pages and freed ranges may have.
Status RangeAllocator::ReachCreated(uint32_t number, Lock& lock) {
  const core::Tick began = ipc::Now();
  while (true) {
    const Status reached = reachability_.ReachRange(number, lock);
    if (reached.ok() || reached.error().code != ErrorCode::kOutOfMemory) return reached;
    const bool is_redundant = memory_.books().copies().pools().redundant(0) > Bytes{0};
    if (is_redundant) memory_.DropCopies(options_.part);
    const bool comes_free = is_redundant || ComesFree();
    if (!comes_free || ipc::Now() - began >= kFreedPatience) return reached;
    residency_.AwaitChange(Residency::kLookAgain, lock);
    streams_.Look();
    residency_.Advance();
  }
}

bool RangeAllocator::AwaitCreated(uint32_t number, RoomWaits::Limit* limit, Lock& lock) {
  std::optional<core::Tick> began;
  while (memory_.HoldOf(number) == JobMemory::Hold::kWaits) {
    streams_.Look();
    residency_.Advance();
    if (memory_.HoldOf(number) != JobMemory::Hold::kWaits) break;
    const core::Tick now = ipc::Now();
    const bool is_coming = core::IsOnItsWay(memory_.books(), memory_.RowOf(number).units);
    // Pages that are being mapped have their room.
    if (!began && !is_coming) began = now;
    const bool is_late = limit->IsOver(now) && !is_coming;
    const bool cannot_come = (residency_.broken() || residency_.IsFrozen()) && memory_.IsQuiet();
    if (is_late || cannot_come) {
      memory_.Refuse(number);
    } else {
      pinner_.Delay();
      residency_.AwaitChange(Residency::kLookAgain, lock);
    }
  }
  if (began) waits_.Note(*began);
  return memory_.HoldOf(number) == JobMemory::Hold::kHeld;
}

bool RangeAllocator::Free(CUdeviceptr address, CUstream stream, bool ordered) {
  const std::lock_guard lock(residency_.locks().calls());
  const uint32_t number = ranges_.At(address);
  if (number == Addresses::kNoOwner || ranges_[number].begin != address) return false;
  RangeTable::Range& range = ranges_[number];
  if (range.is_segment()) return false;
  // Calls without it as an argument may touch it. A free in order is behind them, also by what its
  // stream waits for: so it is a point of its own. Any other is behind all streams.
  std::vector<Point> points;
  if (ordered) {
    points = {streams_.Enqueued(stream)};
  } else {
    points = streams_.EnqueuedOnAll();
  }
  ranges_.End(number);
  residency_.NotifyChanged();
  if (range.holders == 0) open_.Hold(number);
  if (range.pinned) --range.holders;
  range.is_freed = true;
  range.free_stream = ordered ? points.front().stream : 0;
  for (const Point& point : points) NoteLast(&range.uses, point);
  if (range.holders == 0) ranges_.EndHold(number);
  return true;
}

}  // namespace ravenstore::elastic
