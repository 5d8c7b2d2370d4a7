#include "elastic/submissions.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/schedule/page_scheduler.h"
#include "elastic/twins.h"
#include "ipc/clock.h"

namespace ravenstore::elastic {

using core::Bytes;

namespace {

// So far ahead of the GPU the job names its calls while not all fits.
constexpr std::chrono::milliseconds kAhead{5};

// Calls that the log has while the engine's thread sleeps. More: the scheduler learns late what a
// job does that has all its memory.
constexpr size_t kLogMost = 256;

}  // namespace

Submissions::Submissions(const EngineOptions& options, const Uses& uses)
    : options_(options),
      has_work_(uses.has_work),
      memory_(*uses.memory),
      open_(uses.memory->open()),
      segments_(*uses.segments),
      ranges_(*uses.ranges),
      residency_(*uses.residency),
      reachability_(*uses.reachability),
      streams_(*uses.streams),
      clock_(*uses.clock),
      tables_(uses.driver),
      pace_(uses.driver) {
  if (options_.maps_away) tables_.Expect();
}

bool Submissions::MustWait() const {
  if (!residency_.is_short() || residency_.broken()) return false;
  const auto under_way = pace_.under_way();
  return under_way && under_way != slow_ && clock_.Since(*under_way) > kAhead;
}

// Where not all fits, the job makes its calls only so far ahead of the GPU: what it has freed is in
// use until they have passed, and where a call finds its ranges is decided when it is made.
void Submissions::KeepPace(Lock& lock) {
  if (!MustWait()) return;
  const core::Tick began = ipc::Now();
  ++stats_.paces;
  ++pacing_;
  while (MustWait()) {
    if (ipc::Now() - began >= options_.patience) slow_ = pace_.under_way();
    residency_.WakeEngine();
    residency_.AwaitNotice(options_.patience, lock);
  }
  --pacing_;
}

void Submissions::AddUses(const Use& use, Submission* submission) {
  VisitRanges(use.addresses, [&](uint32_t number, Range& range) {
    submission->ranges.push_back(RangeId{number});
    ranges_.Hold(number);
    for (uint32_t page = range.pages.first; page < range.pages.second; ++page) {
      submission->pages.push_back(PageId{page});
      SegmentTable::Page& of = segments_.At(PageId{page});
      of.stamp = stamp_;
      ++of.busy;
    }
    SegmentTable::Reservation* with = segments_.ReservationOf(range.pages);
    if (with == nullptr || std::exchange(with->stamp, stamp_) == stamp_) return true;
    submission->reservations.push_back(with);
    ++with->busy;
    return true;
  });
  if (use.unknown) residency_.BeginUnknown();
}

void Submissions::Hold(const Submission& submission, Lock& lock) {
  std::optional<core::Tick> deadline;
  bool any_in_place = false;
  for (const RangeId id : submission.ranges) {
    const uint32_t number = core::ToInt(id);
    if (ranges_[number].is_segment()) continue;
    const bool is_there =
        memory_.HoldOf(number) == JobMemory::Hold::kHeld || memory_.executor().IsResident(number);
    if (!is_there && !deadline) deadline = ipc::Now() + options_.patience;
    // Pages that the call itself uses in place do not come before it ends.
    HoldRange(number, any_in_place ? core::Tick{} : deadline.value_or(core::Tick{}), lock);
    any_in_place |= memory_.RowOf(number).in_place;
  }
}

void Submissions::HoldRange(uint32_t number, core::Tick deadline, Lock& lock) {
  while (true) {
    const JobMemory::Hold hold = memory_.HoldOf(number);
    if (hold == JobMemory::Hold::kHeld) return;
    if (hold == JobMemory::Hold::kNone && memory_.executor().IsResident(number)) {
      memory_.Use(number, clock_.at());
      return;
    }
    const bool all_fits = !memory_.IsShort();
    const bool waits = ipc::Now() < deadline && !residency_.broken() && !residency_.IsFrozen() &&
                       (all_fits || memory_.HasPlan());
    const bool is_in_use = hold == JobMemory::Hold::kNone && waits && all_fits &&
                           core::IsUsedInPlace(memory_.books(), memory_.RowOf(number).units);
    if (is_in_use) {
      // It comes when kernels do not use it in place any more.
      residency_.AwaitChange(Residency::kLookAgain, lock);
    } else if (hold == JobMemory::Hold::kNone && waits) {
      memory_.Get(number, clock_.at());
    } else if (hold == JobMemory::Hold::kNone) {
      if (memory_.Use(number, clock_.at())) return;
      residency_.AwaitChange(Residency::kLookAgain, lock);
    } else if (waits) {
      residency_.AwaitChange(Residency::kLookAgain, lock);
    } else {
      memory_.Refuse(number);
    }
    streams_.Look();
    residency_.Advance();
  }
}

bool Submissions::IsMoving(const Submission& submission) const {
  return (submission.unknown && (segments_.moving() > 0 || !memory_.IsQuiet())) ||
         std::any_of(submission.reservations.begin(), submission.reservations.end(),
                     [](const SegmentTable::Reservation* with) { return with->moving > 0; });
}

void Submissions::AwaitMoves(const Submission& submission, Lock& lock) {
  while (IsMoving(submission)) {
    residency_.Advance();
    if (IsMoving(submission)) residency_.AwaitChange(Residency::kLookAgain, lock);
  }
  // It may write to any page.
  if (submission.unknown) memory_.ModifyAll();
}

TableFinder::Search* Submissions::BeginSearch(const Use& use) {
  TableFinder::Search* search = tables_.Begin(use.kind);
  if (search == nullptr) return nullptr;
  for (const CUdeviceptr address : use.addresses) {
    const uint32_t number = ranges_.At(address);
    if (number == Addresses::kNoOwner || search->named.size() == TableFinder::kAddresses) continue;
    const Range& range = ranges_[number];
    search->named.push_back({address, range.begin + range.size.count() - address});
  }
  for (const CUdeviceptr address : use.others) {
    if (search->named.size() == TableFinder::kAddresses) break;
    search->named.push_back({address, 0});
  }
  return search;
}

void Submissions::PollSearches() {
  const bool found = tables_.Poll([this](uint64_t word) {
    const uint32_t number = ranges_.At(word);
    return number != Addresses::kNoOwner && !ranges_[number].pinned;
  });
  if (!found) return;
  reachability_.SetMapsAway();
  if (options_.log) {
    options_.log(
        "a kernel reads or writes a table of addresses in device memory: from now on each kernel "
        "may touch all memory, and nothing moves while one runs");
  }
}

Submissions::Submission* Submissions::New(const Use& use) {
  if (unused_.empty()) {
    all_.push_back(std::make_unique<Submission>());
    unused_.push_back(all_.back().get());
  }
  Submission* submission = unused_.back();
  unused_.pop_back();
  submission->ranges.clear();
  submission->pages.clear();
  submission->reservations.clear();
  submission->stream = use.stream;
  submission->unknown = use.unknown;
  return submission;
}

Submissions::Submission* Submissions::BeginIfReady(const Use& use) {
  if (use.unknown || MustWait() || tables_.MayFollow(use.kind)) return nullptr;
  const auto is_there = [&](CUdeviceptr address) {
    const uint32_t number = ranges_.At(address);
    return number == Addresses::kNoOwner || (!ranges_[number].is_segment() && open_.IsOpen(number));
  };
  if (!std::all_of(use.addresses.begin(), use.addresses.end(), is_there)) return nullptr;
  Submission* const submission = New(use);
  const bool are_held = VisitRanges(use.addresses, [&](uint32_t number, Range& range) {
    if (range.holders == 0 && !open_.TryUse(number, clock_.at(), clock_.next())) return false;
    ++range.holders;
    submission->ranges.push_back(RangeId{number});
    return true;
  });
  if (!are_held) {
    LeaveRanges(submission, {});
    unused_.push_back(submission);
    return nullptr;
  }
  NoteBegun(use, submission, {.at = ipc::Now()});
  const bool is_due = !residency_.is_all_there() || open_.logged() >= kLogMost;
  if (residency_.IsEngineAsleep() && is_due) residency_.WakeEngine();
  return submission;
}

Submissions::Submission* Submissions::Begin(const Use& named) {
  {
    const std::lock_guard lock(residency_.locks().calls());
    if (Submission* const submission = BeginIfReady(named)) return submission;
  }
  Lock lock(residency_.locks());
  if (named.unknown) reachability_.SetMapsAway();
  KeepPace(lock);
  Use use = named;
  use.unknown = named.unknown || tables_.MayFollow(named.kind);
  Submission* const submission = New(use);
  AddUses(use, submission);
  // What others have done with its ranges: from now on these have a holder.
  residency_.SeeCalls();
  Begun begun{.at = ipc::Now()};
  const auto is_there = [this](RangeId id) {
    const uint32_t number = core::ToInt(id);
    return ranges_[number].is_segment() || memory_.executor().IsResident(number);
  };
  const bool are_there =
      std::all_of(submission->ranges.begin(), submission->ranges.end(), is_there) &&
      !IsMoving(*submission);
  Hold(*submission, lock);
  AwaitMoves(*submission, lock);
  begun.waited = are_there ? core::Duration{} : ipc::Now() - begun.at;
  begun.waited +=
      reachability_.ReachCall(submission->ranges, submission->pages, submission->unknown, lock);
  for (const RangeId id : submission->ranges) {
    const uint32_t number = core::ToInt(id);
    begun.in_place += ranges_.AwayOf(number);
    if (ranges_[number].is_segment()) continue;
    memory_.calls().NoteUse(number, clock_.next());
    memory_.Open(number);
  }
  begun.is_unknown = named.unknown || (use.unknown && tables_.found());
  NoteBegun(named, submission, begun);
  if (residency_.IsEngineAsleep() && has_work_()) residency_.WakeEngine();
  return submission;
}

void Submissions::NoteBegun(const Use& use, Submission* submission, const Begun& begun) {
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
  const CallClock::Begun call = clock_.Begin(kind, begun.at + begun.waited);
  submission->call = call.call;
  submission->ends_stretch = call.ends_stretch;
  submission->search = BeginSearch(use);
  if (options_.recorder)
    options_.recorder->Used(use.identity, use.caller, submission->ranges, use.unknown,
                            begun.at + begun.waited);
}

void Submissions::LeaveRanges(Submission* submission, const std::optional<Point>& point) {
  for (const RangeId id : submission->ranges) {
    const uint32_t number = core::ToInt(id);
    Range& range = ranges_[number];
    --range.holders;
    if (range.is_segment()) continue;
    if (point) NoteLast(&range.uses, *point);
    if (range.holders == 0) ranges_.EndHold(number);
  }
}

void Submissions::End(Submission* submission, bool enqueued) {
  TableFinder::Search* search = std::exchange(submission->search, nullptr);
  const bool searches =
      search != nullptr && enqueued && tables_.Enqueue(search, submission->stream);
  const std::lock_guard lock(residency_.locks().calls());
  if (search != nullptr) tables_.End(search, searches);
  if (searches && residency_.IsEngineAsleep()) residency_.WakeEngine();
  const Point point =
      enqueued ? streams_.Enqueued(submission->stream) : streams_.Now(submission->stream);
  LeaveRanges(submission, enqueued ? std::optional(point) : std::nullopt);
  for (const PageId id : submission->pages) {
    SegmentTable::Page& page = segments_.At(id);
    --page.busy;
    if (enqueued) NoteLast(&page.uses, point);
  }
  for (SegmentTable::Reservation* with : submission->reservations) {
    --with->busy;
    if (enqueued) NoteLast(&with->uses, point);
  }
  if (submission->unknown) residency_.EndUnknown(enqueued ? &point : nullptr);
  if (enqueued && submission->ends_stretch) pace_.Ends(submission->stream, submission->call);
  if (options_.recorder && enqueued) options_.recorder->Enqueued(submission->stream, ipc::Now());
  unused_.push_back(submission);
}

void Submissions::Pin(CUdeviceptr address, bool is_followed) {
  Lock lock(residency_.locks());
  const uint32_t number = ranges_.At(address);
  if (number == Addresses::kNoOwner) return;
  Range& range = ranges_[number];
  ranges_.Pin(number);
  SegmentTable::Reservation* with = segments_.ReservationOf(range.pages);
  if (with != nullptr && !std::exchange(with->pinned, true)) {
    for (uint32_t other = 1; other < ranges_.size(); ++other) {
      if (ranges_[other].live && segments_.ReservationOf(ranges_[other].pages) == with)
        ranges_.Pin(other);
    }
  }
  // The code that gets the range's address after this call may use it immediately.
  residency_.Await(lock, [&] { return with == nullptr || with->moving == 0; });
  if (range.is_segment()) {
    for (uint32_t page = range.pages.first; page < range.pages.second; ++page)
      reachability_.ReachPage(PageId{page}, lock);
  } else {
    residency_.SeeCalls();
    HoldRange(number, core::Tick{}, lock);
    reachability_.Check(reachability_.ReachRange(number, lock));
  }
  if (is_followed) reachability_.MapAll(lock);
}

void Submissions::Poll() {
  streams_.Look();
  while (const auto stretch = pace_.Next()) {
    clock_.Took(stretch->from, stretch->to, stretch->took);
    if (pacing_ > 0) residency_.NotifyChanged();
  }
  PollSearches();
}

}  // namespace ravenstore::elastic
