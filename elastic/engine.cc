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

// Addresses are plenty: each size that was ever allocated keeps its own.
constexpr Bytes kAddressesLeast = core::GiB(64);
constexpr uint64_t kAddressesShare = 8;  // times what may be held
// Freed ranges of one size that are looked at for an allocation, the last freed first.
constexpr size_t kDeadTried = 16;
// Freed ranges that keep their addresses.
constexpr size_t kDeadMost = 1 << 16;
// With no other room an allocation waits so long for the work behind which memory was freed.
constexpr core::Duration kFreedPatience = std::chrono::seconds(10);
constexpr std::chrono::milliseconds kLookAgain{1};

size_t Index(Place place) {
  return static_cast<size_t>(place);
}

uint32_t Raw(RangeId id) {
  return static_cast<uint32_t>(id);
}

}  // namespace

Engine::Engine(EngineOptions options, const Driver& driver)
    : options_(std::move(options)),
      driver_(driver),
      plan_({.device = options_.on_device.most, .part = options_.part}),
      streams_(&driver_),
      ranges_(1) {}  // 0 is nobody

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
  for (CUstream* stream : {&out_, &in_}) {
    result = driver_.stream_create(stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS) return DriverError("cuStreamCreate", result);
  }
  const Bytes held = options_.on_device.most + options_.on_host.most;
  const Bytes reach = std::max(kAddressesLeast, (held * kAddressesShare).RoundUp(options_.part));
  CUdeviceptr begin = 0;
  result = driver_.address_reserve(&begin, reach.count(), options_.part.count(), 0, 0);
  if (result != CUDA_SUCCESS) return DriverError("cuMemAddressReserve", result);
  addresses_ = std::make_unique<Addresses>(begin, reach, granule_);
  parts_ = std::make_unique<Parts>(&driver_, options_.device, options_.node, options_.on_device,
                                   options_.on_host);
  thread_ = std::thread([this] { Run(); });
  return core::Ok();
}

// --- Ranges

RangeId Engine::IdOf(CUdeviceptr address) const {
  return RangeId{addresses_->At(address)};
}

Bytes Engine::SlotSize(const Range& range, size_t slot) const {
  return std::min(options_.part, range.size - options_.part * slot);
}

CUdeviceptr Engine::SlotAddress(const Range& range, size_t slot) const {
  return range.begin + (options_.part * slot).count();
}

void Engine::SetPart(RangeId id, size_t slot, Part* part) {
  Range& range = At(id);
  Slot& of = range.slots[slot];
  const Bytes size = SlotSize(range, slot);
  if (!range.live) {
    if (of.part != nullptr) dead_bytes_[Index(of.place)] -= size;
    if (part != nullptr) dead_bytes_[Index(part->place)] += size;
  }
  const bool was_away = of.away();
  of.part = part;
  if (part != nullptr) of.place = part->place;
  if (was_away == of.away()) return;
  if (was_away) {
    range.away -= size;
    if (range.live) stats_.away -= size;
  } else {
    range.away += size;
    if (range.live) stats_.away += size;
  }
  plan_.SetAway(id, range.away);
}

void Engine::SetLive(Range& range, bool live) {
  for (size_t slot = 0; slot < range.slots.size(); ++slot) {
    if (range.slots[slot].part == nullptr) continue;
    Bytes& dead = dead_bytes_[Index(range.slots[slot].place)];
    dead = live ? dead - SlotSize(range, slot) : dead + SlotSize(range, slot);
  }
  range.live = live;
  if (live) {
    stats_.away += range.away;
    stats_.live += range.size;
    stats_.peak = std::max(stats_.peak, stats_.live);
  } else {
    stats_.away -= range.away;
    stats_.live -= range.size;
  }
}

// The one that had this place in the step before, else the last that was freed.
std::optional<RangeId> Engine::TakeDead(Bytes size, CUstream stream, bool ordered) {
  const auto dead = dead_.find(size);
  if (dead == dead_.end()) return std::nullopt;
  auto& ids = dead->second;
  const auto serves = [&](RangeId id) {
    Range& range = At(id);
    const bool in_order =
        ordered && range.freed.stream != 0 && range.freed.stream == streams_.Now(stream).stream;
    return in_order || HavePassed(range.uses);
  };
  const auto take = [&](std::vector<RangeId>::iterator place) {
    const RangeId id = *place;
    ids.erase(place);
    if (ids.empty()) dead_.erase(dead);
    --dead_count_;
    return id;
  };
  if (const auto planned = plan_.Place(size)) {
    const auto place = std::find(ids.begin(), ids.end(), *planned);
    if (place != ids.end() && serves(*planned)) return take(place);
  }
  for (size_t i = 0; i < std::min(ids.size(), kDeadTried); ++i) {
    const auto place = ids.end() - 1 - static_cast<ptrdiff_t>(i);
    if (serves(*place)) return take(place);
  }
  return std::nullopt;
}

std::optional<RangeId> Engine::MakeRange(Bytes size) {
  if (dead_count_ >= kDeadMost) Recycle();
  const uint32_t raw =
      unused_ids_.empty() ? static_cast<uint32_t>(ranges_.size()) : Raw(unused_ids_.back());
  auto begin = addresses_->Take(size, raw);
  if (!begin) {
    Recycle();
    begin = addresses_->Take(size, raw);
  }
  if (!begin) return std::nullopt;
  if (raw == ranges_.size()) {
    ranges_.push_back(std::make_unique<Range>());
  } else {
    unused_ids_.pop_back();
    *ranges_[raw] = Range{};
  }
  Range& range = *ranges_[raw];
  range.begin = *begin;
  range.size = size;
  range.away = size;
  range.slots.resize((size.count() + options_.part.count() - 1) / options_.part.count());
  return RangeId{raw};
}

// Gives back the addresses of freed ranges without parts.
void Engine::Recycle() {
  for (auto& [size, ids] : dead_) {
    std::erase_if(ids, [&](RangeId id) {
      Range& range = At(id);
      const bool bare = std::all_of(range.slots.begin(), range.slots.end(), [](const Slot& slot) {
        return slot.part == nullptr && !slot.moving;
      });
      if (!bare || range.busy > 0 || !HavePassed(range.uses)) return false;
      addresses_->Give(range.begin, range.size);
      unused_ids_.push_back(id);
      --dead_count_;
      return true;
    });
  }
  std::erase_if(dead_, [](const auto& of_size) { return of_size.second.empty(); });
}

// --- Allocating

Result<CUdeviceptr> Engine::Allocate(Bytes asked, CUstream stream, bool ordered) {
  const Bytes size = std::max(asked, Bytes{1}).RoundUp(granule_);
  Lock lock(mutex_);
  auto id = TakeDead(size, stream, ordered);
  if (!id) id = MakeRange(size);
  if (!id) return Error{ErrorCode::kOutOfMemory, "no addresses are left"};
  Range& range = At(*id);
  range.asked = asked;
  range.calls = 0;
  range.used = range.allocated = ipc::Now();
  ++range.busy;
  changed_.wait(lock, [&] { return range.moving == 0; });
  SetLive(range, true);
  plan_.Allocated(*id, range.size);
  if (options_.recorder) options_.recorder->Allocated(*id, asked);
  const Status backed = Back(*id, lock);
  --range.busy;
  if (backed.ok()) return range.begin;
  const CUdeviceptr begin = range.begin;
  lock.unlock();
  Free(begin, stream, ordered);
  return backed.error();
}

Status Engine::Back(RangeId id, Lock& lock) {
  const core::Tick deadline = ipc::Now() + options_.patience;
  for (size_t slot = 0; slot < At(id).slots.size(); ++slot)
    RAVEN_RETURN_IF_ERROR(BackSlot(id, slot, deadline, lock));
  return core::Ok();
}

Status Engine::BackSlot(RangeId id, size_t slot, core::Tick deadline, Lock& lock) {
  Range& range = At(id);
  if (!range.slots[slot].away()) return core::Ok();
  Part* before = range.slots[slot].part;
  // What its last owner enqueued may still touch the part: it stays, and is used in place.
  if (before != nullptr && !HavePassed(range.uses)) return core::Ok();
  const Bytes size = SlotSize(range, slot);
  Part* part = TakeDevicePart(size, deadline, lock);
  if (part == nullptr && before != nullptr) return core::Ok();  // used where it is
  if (part == nullptr) {
    RAVEN_ASSIGN_OR_RETURN(part, TakeAnyPart(size, lock));
  }
  lock.unlock();
  Status status = core::Ok();
  const CUdeviceptr address = SlotAddress(range, slot);
  if (before != nullptr) status = parts_->Unmap(address, *before);
  const bool unmapped = status.ok();
  if (status.ok()) status = parts_->Map(address, *part);
  if (!status.ok()) parts_->Give(part);
  if (unmapped && before != nullptr) parts_->Give(before);
  lock.lock();
  if (unmapped) SetPart(id, slot, status.ok() ? part : nullptr);
  return status;
}

Part* Engine::TakeDevicePart(Bytes size, core::Tick deadline, Lock& lock) {
  wanted_ += size;
  Part* part = nullptr;
  std::optional<core::Tick> began;
  while (true) {
    const auto taken = TakePart(Place::kDevice, size, lock);
    if (taken.ok()) {
      part = *taken;
      break;
    }
    if (DropDead(Place::kDevice, lock)) continue;
    stats_.enough = std::max(stats_.enough, stats_.live + dead_bytes_[Index(Place::kDevice)]);
    if (broken_ || taken.error().code != ErrorCode::kOutOfMemory || ipc::Now() >= deadline) break;
    if (moves_.empty() && !AnyMayLeave()) break;
    if (!began) began = ipc::Now();
    wake_.notify_one();
    changed_.wait_for(lock, deadline - ipc::Now());
  }
  if (began) {
    const core::Tick now = ipc::Now();
    ++stats_.room_waits;
    stats_.room_waited += now - *began;
    if (options_.shown) {
      options_.shown->Note(Shown::kAllocations, {"allocations", nullptr}, {.waited = now - *began},
                           now);
    }
  }
  wanted_ -= size;
  return part;
}

Result<Part*> Engine::TakeAnyPart(Bytes size, Lock& lock) {
  const core::Tick deadline = ipc::Now() + kFreedPatience;
  while (true) {
    const uint64_t before = moves_ended_;
    auto taken = TakeHostPart(size, lock);
    // What was on its way to the host has left room on the device.
    if (!taken.ok()) taken = TakePart(Place::kDevice, size, lock);
    if (taken.ok()) return taken;
    if (!moves_.empty() || starting_) {
      ++waiting_;
      changed_.wait(lock);
      --waiting_;
    } else if (moves_ended_ == before) {
      // Else the one part that is free may have changed its place between the two looks.
      const bool freed = dead_bytes_[0] + dead_bytes_[1] > Bytes{0};
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
    auto taken = TakePart(Place::kHost, size, lock);
    if (taken.ok() || taken.error().code != ErrorCode::kOutOfMemory) return taken;
    if (!DropDead(Place::kHost, lock)) return taken;
  }
}

bool Engine::AnyMayLeave() {
  return plan_.Victim(std::nullopt, [this](RangeId id) { return At(id).busy > 0 || At(id).pinned; })
      .has_value();
}

bool Engine::DropDead(Place place, Lock& lock) {
  if (dead_bytes_[Index(place)] == Bytes{0}) return false;
  const auto drop_from = [&](RangeId id) {
    Range& range = At(id);
    for (size_t slot = 0; slot < range.slots.size(); ++slot) {
      if (range.slots[slot].part == nullptr || range.slots[slot].place != place) continue;
      if (!CanMove(range)) return false;
      DropSlot(id, slot, lock);
      return true;
    }
    return false;
  };
  if (place == Place::kDevice) {
    const auto last =
        plan_.Victim(std::nullopt, [this](RangeId id) { return At(id).live || !CanMove(At(id)); });
    if (last && drop_from(*last)) return true;
  }
  for (const auto& [size, ids] : dead_) {
    for (const RangeId id : ids) {
      if (drop_from(id)) return true;
    }
  }
  return false;
}

// REQUIRES: CanMove; the range is dead.
void Engine::DropSlot(RangeId id, size_t slot, Lock& lock) {
  Range& range = At(id);
  Part* part = range.slots[slot].part;
  BeginMoving(range, slot);
  lock.unlock();
  const Status unmapped = parts_->Unmap(SlotAddress(range, slot), *part);
  if (unmapped.ok()) parts_->Give(part);
  lock.lock();
  EndMoving(range, slot);
  if (unmapped.ok()) {
    if (!range.slots[slot].away()) stats_.dropped += SlotSize(range, slot);
    SetPart(id, slot, nullptr);
  } else {
    Fail("a freed part could not be taken", unmapped.error());
  }
  changed_.notify_all();
}

bool Engine::Free(CUdeviceptr address, CUstream stream, bool ordered) {
  const Lock lock(mutex_);
  const RangeId id = IdOf(address);
  if (Raw(id) == Addresses::kNobody) return false;
  Range& range = At(id);
  if (!range.live || range.begin != address) return false;
  SetLive(range, false);
  // Calls that did not name it may touch it. A free in order is behind them, also by what its
  // stream waits for: so it is a point of its own. Any other is behind all streams.
  range.freed = ordered ? streams_.Enqueued(stream) : Point{};
  if (ordered) {
    NoteUse(range.uses, range.freed);
  } else {
    for (const Point& point : streams_.EnqueuedOnAll()) NoteUse(range.uses, point);
  }
  if (std::exchange(range.pinned, false)) stats_.pinned -= range.size;
  dead_[range.size].push_back(id);
  ++dead_count_;
  plan_.Freed(id);
  if (options_.recorder) options_.recorder->Freed(id);
  if (wanted_ > Bytes{0}) changed_.notify_all();
  return true;
}

std::optional<Engine::Allocation> Engine::Find(CUdeviceptr address) const {
  const Lock lock(mutex_);
  const uint32_t raw = addresses_->At(address);
  if (raw == Addresses::kNobody || !ranges_[raw]->live) return std::nullopt;
  return Allocation{ranges_[raw]->begin, ranges_[raw]->asked};
}

// --- Using

void Engine::BeginMoving(Range& range, size_t slot) {
  range.slots[slot].moving = true;
  ++range.moving;
  ++moving_;
}

void Engine::EndMoving(Range& range, size_t slot) {
  range.slots[slot].moving = false;
  --range.moving;
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

bool Engine::CanMove(Range& range) {
  return !range.pinned && range.busy == 0 && range.moving == 0 && HavePassed(range.uses) &&
         unknowns_ == 0 && HavePassed(unknown_uses_);
}

Engine::Submission* Engine::Begin(const Use& use) {
  Lock lock(mutex_);
  if (unused_submissions_.empty()) {
    submissions_.push_back(std::make_unique<Submission>());
    unused_submissions_.push_back(submissions_.back().get());
  }
  Submission* submission = unused_submissions_.back();
  unused_submissions_.pop_back();
  submission->ranges.clear();
  submission->stream = use.stream;
  submission->unknown = use.unknown;
  ++stamp_;
  bool moving = false;
  Bytes in_place;
  for (const CUdeviceptr address : use.addresses) {
    const RangeId id = IdOf(address);
    if (Raw(id) == Addresses::kNobody) continue;
    Range& range = At(id);
    if (!range.live || std::exchange(range.stamp, stamp_) == stamp_) continue;
    submission->ranges.push_back(id);
    ++range.busy;
    moving |= range.moving > 0;
  }
  if (use.unknown) {
    ++unknowns_;
    moving |= moving_ > 0;
  }
  core::Duration waited{};
  if (moving) {
    const core::Tick began = ipc::Now();
    changed_.wait(lock, [&] {
      return (!use.unknown || moving_ == 0) &&
             std::all_of(submission->ranges.begin(), submission->ranges.end(),
                         [this](RangeId id) { return At(id).moving == 0; });
    });
    ++stats_.waits;
    waited = ipc::Now() - began;
    stats_.waited += waited;
  }
  const core::Tick now = ipc::Now();
  for (const RangeId id : submission->ranges) {
    Range& range = At(id);
    in_place += range.away;
    ++range.calls;
    range.used = now;
  }
  const bool tells = waited > core::Duration{0} || in_place > Bytes{0} || use.unknown;
  if (options_.shown && tells)
    options_.shown->Note(use.identity, use.caller, {waited, in_place, use.unknown}, now);
  ++stats_.uses;
  stats_.uses_in_place += in_place > Bytes{0} ? 1 : 0;
  stats_.bytes_in_place += in_place;
  plan_.Used(use.identity, submission->ranges, now);
  if (options_.recorder)
    options_.recorder->Used(use.identity, use.caller, submission->ranges, use.unknown, now);
  if (asleep_ && WantsAny()) wake_.notify_one();  // the rest wakes it by itself
  return submission;
}

void Engine::End(Submission* submission, bool enqueued) {
  const Lock lock(mutex_);
  const Point point =
      enqueued ? streams_.Enqueued(submission->stream) : streams_.Now(submission->stream);
  for (const RangeId id : submission->ranges) {
    Range& range = At(id);
    --range.busy;
    if (enqueued) NoteUse(range.uses, point);
  }
  if (submission->unknown) {
    --unknowns_;
    if (enqueued) NoteUse(unknown_uses_, point);
  }
  if (options_.recorder && enqueued) options_.recorder->Enqueued(submission->stream, ipc::Now());
  unused_submissions_.push_back(submission);
}

void Engine::Pin(CUdeviceptr address) {
  Lock lock(mutex_);
  const RangeId id = IdOf(address);
  if (Raw(id) == Addresses::kNobody) return;
  Range& range = At(id);
  if (!range.live) return;
  if (!std::exchange(range.pinned, true)) stats_.pinned += range.size;
  // Who is told its address next may use it at once.
  changed_.wait(lock, [&] { return range.moving == 0; });
}

void Engine::StreamGone(CUstream stream) {
  const Lock lock(mutex_);
  streams_.Gone(stream);
}

void Engine::SetDeviceLimit(Bytes most) {
  parts_->SetLimit(Place::kDevice, most);
  const Lock lock(mutex_);
  plan_.SetDevice(most);
  wake_.notify_one();
}

EngineStats Engine::stats() const {
  const Lock lock(mutex_);
  EngineStats stats = stats_;
  stats.enough = std::max(stats.enough, stats.peak);
  return stats;
}

}  // namespace ravenstore::elastic
