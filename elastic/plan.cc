#include "elastic/plan.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/tuned.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::PageState;
using core::ToInt;
using core::plan::kNoPool;
using core::plan::kNoPosition;
using core::plan::MapChoice;
using core::plan::Position;

namespace {

// Records of events for each call that is remembered.
constexpr size_t kRecordsPerCall = 2;
constexpr size_t kFewestCalls = 256;
// A twin that moves ahead by more calls is a jump.
constexpr uint64_t kFewCalls = 64;
// Pages that are looked at before the answer is that there is none.
constexpr int kCandidates = 64;
constexpr size_t kRecentCandidates = 8;

uint64_t Mix(uint64_t hash, uint64_t more) {
  // The finalizer of MurmurHash3 (Appleby).
  hash = (hash ^ more) * 0xff51afd7ed558ccd;
  return (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53;
}

core::plan::PlanLimits LimitsOf(const PlanOptions& options) {
  return {.page = options.part,
          .pages = static_cast<uint32_t>(options.device.count() / options.part.count()),
          .pools = {{.in_rate = options.bytes_per_second, .out_rate = options.bytes_per_second}}};
}

}  // namespace

Plan::Plan(const PlanOptions& options)
    : follower_(options.most_calls),
      times_(options.most_calls),
      mask_(std::bit_ceil(std::max(options.most_calls, kFewestCalls) * kRecordsPerCall) - 1),
      records_(std::make_unique_for_overwrite<PageRecord[]>(mask_ + 1)),
      end_mask_(std::bit_ceil(std::max(options.most_calls, kFewestCalls)) - 1),
      ends_(std::make_unique_for_overwrite<uint64_t[]>(end_mask_ + 1)),
      device_(options.device),
      limits_(LimitsOf(options)),
      copies_(limits_.pools, limits_.page) {}

Plan::Unit Plan::UnitOf(RangeId id) {
  if (ToInt(id) >= units_.size()) units_.resize(ToInt(id) + 1);
  std::optional<Unit>& unit = units_[ToInt(id)];
  if (unit) return *unit;
  unit = static_cast<Unit>(2 * pages_.size());
  pages_.emplace_back().id = id;
  states_.resize(*unit + 1);
  return *unit;
}

// ---- What happened

// Between calls.
void Plan::Happened(PageRecord::Kind kind, Unit unit) {
  const bool is_expected =
      next_ && *next_ < end_ && At(*next_).kind == kind && At(*next_).page == unit;
  Append(kind, unit);
  Update(unit);
  if (!is_expected || !next_) return;
  ++*next_;
  Passed();
}

void Plan::Append(PageRecord::Kind kind, Unit unit) {
  // Nothing that is expected is overwritten.
  if (next_ && end_ - *next_ >= mask_) Forget();
  At(end_++) = {unit, static_cast<uint32_t>(follower_.calls()), kind};
}

void Plan::Allocated(RangeId id, Bytes size) {
  const Unit unit = UnitOf(id);
  Page& page = PageOf(unit);
  if (states_[unit].life != PageState::kAway) held_ = held_ - page.size + size;
  page.size = size;
  page.live = true;
  ++live_;
  live_bytes_ += size;
  away_ += page.resident ? 0 : 1;
  page.last_use = position();
  page.gap = 0;
  allocated_ = unit;
  Happened(PageRecord::Kind::kAllocate, unit);
}

void Plan::Freed(RangeId id) {
  const Unit unit = UnitOf(id);
  Page& page = PageOf(unit);
  page.live = false;
  --live_;
  live_bytes_ = live_bytes_ - page.size;
  away_ -= page.resident ? 0 : 1;
  Happened(PageRecord::Kind::kFree, unit);
}

void Plan::Used(uint64_t identity, std::span<const RangeId> pages, core::Tick now) {
  const uint64_t kind = Mix(identity, pages.size());
  uint64_t place = kind;
  for (const RangeId page : pages) place = Mix(place, ToInt(page));
  const auto twin_before = follower_.twin();
  const uint64_t call = follower_.calls();
  follower_.Add(kind, place);
  Follow(pages, twin_before);
  for (const RangeId id : pages) {
    const Unit unit = UnitOf(id);
    Page& page = PageOf(unit);
    page.gap = std::max<int64_t>(1, static_cast<int64_t>(call) - page.last_use);
    page.last_use = static_cast<int64_t>(call);
    Append(PageRecord::Kind::kUse, unit);
    At(end_ - 1).call = static_cast<uint32_t>(call);
    if (page.live && !page.resident &&
        std::find(recent_.begin(), recent_.end(), unit) == recent_.end()) {
      if (recent_.size() == kRecentCandidates) recent_.erase(recent_.begin());
      recent_.push_back(unit);
    }
    states_[unit].last_use = call + 1;
    if (plan_.empty()) Update(unit);
  }
  EndOf(call) = end_;
  times_.Add(follower_.Matches() ? follower_.twin() : std::nullopt, now);
}

void Plan::Follow(std::span<const RangeId> pages, std::optional<uint64_t> twin_before) {
  const auto twin = follower_.twin();
  if (!twin) return Forget();
  const bool goes_on =
      next_ && twin_before && *twin >= *twin_before && *twin - *twin_before <= kFewCalls;
  if (goes_on) {
    outdated_ |= *twin != *twin_before + 1;
    if (!follower_.Matches()) return;
    follower_.Confirm(Advance(*twin, pages));
    if (!follower_.twin()) return Forget();
    return Passed();
  }
  Forget();
  if (end_ - EndOf(*twin) > mask_ / 2) return;
  next_ = EndOf(*twin);
  remake_ = true;
}

bool Plan::Advance(uint64_t call, std::span<const RangeId> pages) {
  bool right = true;
  size_t use = 0;
  for (; *next_ < end_; ++*next_) {
    const PageRecord& record = At(*next_);
    if (static_cast<int32_t>(record.call - static_cast<uint32_t>(call)) > 0) break;
    const bool is_this =
        record.kind == PageRecord::Kind::kUse && record.call == static_cast<uint32_t>(call);
    if (is_this && use < pages.size()) right = right && IdOf(record.page) == pages[use++];
  }
  return right;
}

void Plan::Forget() {
  if (!next_) return;
  next_.reset();
  remake_ = false;
  ++version_;
  if (plan_.empty()) return;
  KernelForecast none;
  none.version = version_;
  Set(&none);
}

void Plan::Passed() {
  if (plan_.empty()) return;
  behind_ = true;
  const bool is_needed = IsShort() || away_ > 0 || FreeBytes() < limits_.page;
  const bool is_half_over = *next_ - base_ >= positions_.size() / 2;
  if (is_needed && (is_half_over || outdated_)) remake_ = true;
}

void Plan::Move() {
  if (!std::exchange(behind_, false) || plan_.empty()) return;
  const uint64_t at = *next_ - base_;
  passed_.clear();
  plan_.MoveTo(at < positions_.size() ? positions_[at] : plan_.horizon(), &passed_);
  for (const Unit unit : passed_) {
    if (!PageOf(unit).resident && PageOf(unit).moving == Moving::kNo) Release(unit);
    Update(unit);
  }
}

// ---- The plan

KernelForecast Plan::Copy() {
  remake_ = outdated_ = false;
  limits_.pages = PagesIn(device_);
  KernelForecast copy;
  copy.version = version_;
  copy.first = *next_;
  copy.limits = limits_;
  copy.records.reserve(end_ - *next_);
  for (uint64_t number = *next_; number < end_; ++number) copy.records.push_back(At(number));
  const uint64_t last = follower_.calls() - 1;
  const uint64_t twin = *follower_.twin();
  const core::Tick begun = times_.Begin(twin);
  // What happened since the last call comes before the next one.
  const auto back = static_cast<int32_t>(static_cast<uint32_t>(last) - copy.records.front().call);
  const uint64_t first = last - static_cast<uint64_t>(int64_t{back});
  for (uint64_t call = first; call <= last; ++call)
    copy.times.push_back(times_.Begin(call) - begun);
  copy.step = times_.Begin(last) - begun;
  copy.times.push_back(copy.step);
  for (const Page& page : pages_) {
    const bool held = page.resident || page.moving != Moving::kNo;
    const bool stays = page.resident && page.live;
    copy.units.push_back({.live = page.live ? 1u : 0u, .held = held, .dirty = stays, .pool = 0});
    copy.units.emplace_back();
  }
  return copy;
}

void Plan::Set(KernelForecast* made) {
  if (made->version != version_) return;
  std::swap(plan_, made->plan);
  std::swap(positions_, made->positions);
  std::swap(deadlines_, made->deadlines);
  base_ = made->first;
  hidden_.clear();
  for (const Page& page : pages_) Update(*units_[ToInt(page.id)]);
  behind_ = true;
}

// ---- What is where

uint32_t Plan::PagesIn(Bytes bytes) const {
  const uint64_t mean = live_ > 0 ? live_bytes_.count() / live_ : limits_.page.count();
  return static_cast<uint32_t>(bytes.count() / std::max<uint64_t>(mean, 1));
}

void Plan::Update(Unit unit) {
  const Page& page = PageOf(unit);
  core::plan::UnitState& state = states_[unit];
  const bool was_held = state.life != PageState::kAway;
  const bool was_leaving = state.life == PageState::kLeaving;
  if (page.moving == Moving::kOut) {
    state.life = PageState::kLeaving;
  } else if (page.moving == Moving::kIn) {
    state.life = PageState::kMapping;
  } else if (page.resident) {
    state.life = page.live ? PageState::kDirty : PageState::kClean;
  } else {
    state.life = PageState::kAway;
  }
  const bool is_held = state.life != PageState::kAway;
  if (is_held && !was_held) held_ += page.size;
  if (was_held && !is_held) held_ = held_ - page.size;
  leaving_ += (state.life == PageState::kLeaving ? 1 : 0) - (was_leaving ? 1 : 0);
  state.live = page.live ? 1 : 0;
  state.bytes = page.live ? limits_.page : Bytes{};
  state.pool = state.life == PageState::kAway && page.live ? 0 : kNoPool;
  queues_.Update(unit, state, plan_);
  if (queues_.Contains(Queue::kComes, unit)) {
    deadlines_.Set(unit, state.demanded ? kNoPosition : plan_.NextNeed(unit), 0,
                   limits_.pools[0].InOf(limits_.page));
  } else {
    deadlines_.Clear(unit);
  }
}

void Plan::Release(Unit unit) {
  const Position leaves = plan_.LeavesAt(unit);
  plan_.Release(limits_.page, leaves != kNoPosition ? leaves : plan_.PlannedNeed(unit));
  plan_.ClearLeave(unit);
}

void Plan::BeginMove(RangeId id) {
  Move();
  const Unit unit = UnitOf(id);
  Page& page = PageOf(unit);
  page.moving = page.resident ? Moving::kOut : Moving::kIn;
  if (!page.resident && page.live) plan_.Take(limits_.page, plan_.PlannedNeed(unit));
  Update(unit);
}

void Plan::SetResident(RangeId id, bool resident) {
  Move();
  const Unit unit = UnitOf(id);
  Page& page = PageOf(unit);
  const bool leaves = page.resident || page.moving == Moving::kIn;
  if (page.live) away_ += (resident ? 0 : 1) - (page.resident ? 0 : 1);
  page.resident = resident;
  page.moving = Moving::kNo;
  if (!resident && leaves && page.live) Release(unit);
  Update(unit);
}

void Plan::SetAwaited(RangeId page, bool awaited) {
  const Unit unit = UnitOf(page);
  states_[unit].demanded = awaited;
  Update(unit);
}

void Plan::SetDevice(Bytes device) {
  Move();
  device_ = device;
  const uint32_t pages = PagesIn(device);
  remake_ |= next_ && pages != limits_.pages;
  plan_.SetPages(pages, &limits_);
}

core::plan::MoveView Plan::View() {
  const uint32_t free = PagesIn(FreeBytes());
  while (supply_.total() < free) supply_.AddUnmapped(0);
  while (supply_.total() > free) supply_.Release();
  return {.units = states_,
          .queues = queues_,
          .plan = plan_,
          .deadlines = deadlines_,
          .supply = supply_,
          .slot_pages = slot_pages_,
          .limits = limits_,
          .copies = copies_,
          .coming_most = limits_.page,
          .leaving = leaving_,
          .ready = {},
          .growth = {}};
}

// ---- What should be done

void Plan::Hide(Unit unit) {
  core::plan::UnitState hidden = states_[unit];
  hidden.life = PageState::kMapping;
  queues_.Update(unit, hidden, plan_);
  hidden_.push_back(unit);
}

void Plan::Unhide() {
  Move();
  for (const Unit unit : hidden_) queues_.Update(unit, states_[unit], plan_);
  hidden_.clear();
}

std::optional<RangeId> Plan::First(const std::function<std::optional<Unit>()>& ask,
                                   const Skip& skip) {
  for (int tried = 0; tried < kCandidates; ++tried) {
    const auto unit = ask();
    if (!unit) return std::nullopt;
    if (!skip(IdOf(*unit))) return IdOf(*unit);
    Hide(*unit);
  }
  return std::nullopt;
}

std::optional<Plan::Wanted> Plan::NextIn(const Skip& skip) {
  Unhide();
  for (int tried = 0; tried < kCandidates; ++tried) {
    const auto choice = core::plan::NextMap(View());
    if (!choice) break;
    const bool takes_dead = choice->from == MapChoice::From::kDead;
    const bool is_live = PageOf(choice->unit).live;
    if (skip(IdOf(choice->unit))) {
      Hide(choice->unit);
    } else if (takes_dead && skip(IdOf(choice->dead))) {
      // A page that will be allocated waits for the dead page that is needed last. It would take
      // one that is needed sooner otherwise, which would then take the next, and so on.
      Hide(is_live ? choice->dead : choice->unit);
    } else {
      return Wanted{IdOf(choice->unit), is_live,
                    takes_dead ? std::optional(IdOf(choice->dead)) : std::nullopt};
    }
  }
  return NextRecent(skip);
}

// Of the pages that were used last where they were, and that no call of the plan needs, the one
// that is used most often.
std::optional<Plan::Unit> Plan::Recent(const Skip& skip) {
  std::erase_if(recent_, [&](Unit unit) {
    const Page& page = PageOf(unit);
    return !page.live || page.resident || plan_.NextNeed(unit) != kNoPosition;
  });
  std::optional<Unit> best;
  for (const Unit unit : recent_) {
    if (!skip(IdOf(unit)) && (!best || RestOf(unit) < RestOf(*best))) best = unit;
  }
  return best;
}

std::optional<Plan::Wanted> Plan::NextRecent(const Skip& skip) {
  const auto recent = Recent(skip);
  if (!recent) return std::nullopt;
  if (View().supply.total() > 0) return Wanted{IdOf(*recent), true, std::nullopt};
  const auto dead = First([this] { return FirstOf(Queue::kDead); }, skip);
  return dead ? std::optional(Wanted{IdOf(*recent), true, dead}) : std::nullopt;
}

// A page that no call of the plan needs, and whose rest is more than two times the recent page's.
// So a cycle or chance moves few pages, and no two pages are exchanged again and again.
std::optional<Plan::Unit> Plan::RecentExchange(const Skip& skip) {
  if (leaving_ >= std::min<size_t>(core::kForcedMost, recent_.size()) || View().supply.total() > 0)
    return std::nullopt;
  const auto recent = Recent(skip);
  const auto least = FirstOf(Queue::kIdleDirty);
  if (!recent || !least || plan_.NextNeed(*least) != kNoPosition) return std::nullopt;
  return position() - PageOf(*least).last_use > 2 * RestOf(*recent) ? least : std::nullopt;
}

std::optional<RangeId> Plan::NextOut(const Skip& skip) {
  Unhide();
  if (const auto leaves = First([this] { return core::plan::NextOut(View(), 0); }, skip))
    return leaves;
  if (const auto leaves = First([this] { return core::plan::NextExchange(View()); }, skip))
    return leaves;
  const auto comes = queues_.First(Queue::kComes);
  if (comes && comes->need == core::plan::MoveQueues::kWaitedFor && leaving_ == 0 &&
      View().supply.total() == 0)
    return First([this] { return core::plan::NextEmergency(View()); }, skip);
  return First([&] { return RecentExchange(skip); }, skip);
}

std::optional<Plan::Unit> Plan::FirstOf(Queue queue) const {
  const auto next = queues_.First(queue);
  return next ? std::optional(next->unit) : std::nullopt;
}

std::optional<RangeId> Plan::Dead(const Skip& skip) {
  Unhide();
  return First([this] { return FirstOf(Queue::kDead); }, skip);
}

std::optional<RangeId> Plan::Surplus(const Skip& skip) {
  if (const auto dead = Dead(skip)) return dead;
  if (const auto leaves = First([this] { return FirstOf(Queue::kLeaves); }, skip)) return leaves;
  return First([this] { return core::plan::NextEmergency(View()); }, skip);
}

std::optional<RangeId> Plan::Victim(const Skip& skip) {
  if (const auto dead = Dead(skip)) return dead;
  return PaysToWait() ? Surplus(skip) : std::nullopt;
}

// An allocation that waits takes longer by a move; one that does not, by all of its uses in place.
bool Plan::PaysToWait() const {
  if (!allocated_ || plan_.empty()) return false;
  int uses = 0;
  bool is_born = false;
  for (const auto& gap : plan_.GapsOf(*allocated_)) {
    if (gap.need < plan_.position() || gap.need == kNoPosition) continue;
    if (plan_.call(gap.need).kind == core::plan::CallKind::kCreate) {
      if (is_born || uses > 0) return false;
      is_born = true;
    } else if (++uses > 1) {
      return true;
    }
  }
  return false;
}

}  // namespace ravenstore::elastic
