#include "core/execution/page_moves.h"

#include <algorithm>
#include <utility>

#include "core/books/page_views.h"
#include "core/decide/page_retirement.h"

namespace ravenstore::core {

using plan::MapChoice;
using plan::MoveQueues;
using plan::PoolNumber;
using plan::Unit;
using Queue = MoveQueues::Queue;

PageMoves::PageMoves(PageBackend* backend, PageBooks* books, PageTensors* tensors,
                     TensorWords* words)
    : backend_(backend), books_(*books), tensors_(*tensors), words_(*words) {}

void PageMoves::Stats::Add(const Stats& other) {
  in += other.in;
  out += other.out;
  maps += other.maps;
  emergencies += other.emergencies;
  exchanges += other.exchanges;
  not_revoked += other.not_revoked;
  dropped_copies += other.dropped_copies;
  to_slots += other.to_slots;
  discarded += other.discarded;
}

void PageMoves::TakeLeft(std::vector<Unit>* pages) {
  for (const Unit page : left_) has_left_[page] = false;
  pages->insert(pages->end(), left_.begin(), left_.end());
  left_.clear();
}

void PageMoves::Mapped(Unit unit, bool ok) {
  --mapping_;
  ok ? books_.FinishMap(unit) : books_.FinishIn(unit, false);
}

void PageMoves::Unmapped(plan::PhysicalPage page) {
  --mapping_;
  books_.memory().FinishUnmap(page);
}

void PageMoves::CopiedIn(Unit unit, bool ok) {
  --under_way_;
  books_.FinishIn(unit, ok);
}

void PageMoves::CopiedOut(Unit unit, bool ok) {
  --under_way_;
  books_.FinishOut(unit, ok);
}

void PageMoves::End(TensorNumber tensor) {
  tensors_.End(tensor);
  const plan::UnitSpan& units = tensors_[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i)
    books_.RemoveTensor(units[i], tensors_.BytesIn(tensor, i));
  UpdatePriorities(units);
}

void PageMoves::UpdatePriorities(const plan::UnitSpan& units) {
  if (!tensors_.has_priorities()) return;
  for (uint32_t i = 0; i < units.count; ++i)
    books_.SetPriority(units[i], tensors_.PriorityIn(units[i]));
}

void PageMoves::HandleArrivals() {
  arrivals_.clear();
  books_.TakeArrivals(&arrivals_);
  for (const auto& arrival : arrivals_) arrived_ |= arrival.demanded;
  words_.Arrive(arrivals_);
}

bool PageMoves::Start(bool maps_ahead) {
  HandleArrivals();
  DropClean();
  uint64_t discarded = 0;
  do {
    // The memory of what was discarded is free, and nothing else will say so.
    discarded = stats_.discarded;
    ReleaseSurplus();
    StartOut();
  } while (stats_.discarded > discarded);
  StartMaps(maps_ahead);
  StartIn();
  HandleArrivals();
  words_.GrantWaitingEarly();
  FreeCopies();
  return std::exchange(arrived_, false);
}

bool PageMoves::Revoke(std::span<const Unit> units) {
  const auto in_use = words_.Revoke(units);
  if (!in_use) return true;
  ++stats_.not_revoked;
  books_.SetContested(*in_use, true);
  return false;
}

bool PageMoves::RevokePage(Unit page) {
  if (backend_->RevokePage(page)) return true;
  ++stats_.not_revoked;
  books_.SetContested(page, true);
  return false;
}

bool PageMoves::Drop(Unit unit) {
  const std::span<const Unit> units(&unit, 1);
  if (!Revoke(units)) return false;
  if (!plan::IsSlot(unit) && !RevokePage(unit)) {
    words_.Publish(units);
    return false;
  }
  books_.Drop(unit);
  if (plan::IsSlot(unit)) return true;
  if (unit >= has_left_.size()) has_left_.resize(unit + 1);
  if (!has_left_[unit]) left_.push_back(unit);
  has_left_[unit] = true;
  return true;
}

void PageMoves::DropClean() {
  while (const auto next = books_.view().queues.First(Queue::kDrops)) Drop(next->unit);
}

void PageMoves::FreeCopies() {
  for (const UnitCopies::Removed& copy : books_.TakeRemovedCopies())
    backend_->FreeCopy(copy.unit, copy.pool);
}

PageBackend::CopyOrder PageMoves::OrderFor(Unit unit) const {
  const plan::UnitState& state = books_[unit];
  // A tensor may have died since the unit was mapped; what is copied is never nothing.
  return {.unit = unit,
          .memory = PlaceOf(books_, unit),
          .bytes = std::max(state.bytes, kExtentAlignment),
          .pool = state.pool,
          .demanded = state.demanded};
}

bool PageMoves::MakeRoomForCopy(Bytes bytes, PoolNumber pool) {
  while (!books_.copies().pools().HasRoom(pool, bytes)) {
    const auto other = CopyToDrop(books_, pool);
    if (!other) return false;
    books_.MoveCopy(*other, plan::kNoPool);
    ++stats_.dropped_copies;
  }
  return true;
}

bool PageMoves::CanRecompute(Unit unit) const {
  const auto tensors = tensors_.In(unit);
  return std::all_of(tensors.begin(), tensors.end(),
                     [this](TensorNumber tensor) { return tensors_[tensor].recomputes; });
}

bool PageMoves::Discard(Unit unit) {
  const std::vector<TensorNumber> discarded = words_.RevokeRecomputed(unit);
  for (const TensorNumber tensor : discarded) End(tensor);
  stats_.discarded += discarded.size();
  return !discarded.empty();
}

void PageMoves::StartOut() {
  for (PoolNumber pool = 0; pool < books_.copies().pools().size(); ++pool) StartOut(pool);
}

void PageMoves::StartOut(PoolNumber pool) {
  while (backend_->CanCopyOut(pool)) {
    const auto unit = plan::NextOut(books_.view(), pool);
    if (!unit) return;
    // A unit that is copied ahead may stay after all. One that can be recomputed waits for its
    // leave.
    const bool leaves = books_.view().queues.Contains(Queue::kLeaves, *unit);
    if (!leaves && CanRecompute(*unit)) return;
    if (leaves && Discard(*unit)) continue;
    if (!MakeRoomForCopy(books_[*unit].bytes, pool)) return;
    books_.StartOut(*unit, pool);
    const auto order = OrderFor(*unit);
    stats_.out += order.bytes;
    ++under_way_;
    FreeCopies();
    backend_->CopyOut(order);
  }
}

void PageMoves::StartIn() {
  for (PoolNumber pool = 0; pool < books_.copies().pools().size(); ++pool) StartIn(pool);
}

void PageMoves::StartIn(PoolNumber pool) {
  while (const auto unit = plan::NextIn(books_.view(), pool)) {
    if (!backend_->CanCopyIn(pool, books_[*unit].demanded)) return;
    const auto order = OrderFor(*unit);
    books_.StartIn(*unit);
    stats_.in += order.bytes;
    ++under_way_;
    backend_->CopyIn(order);
  }
}

void PageMoves::StartMaps(bool ahead) {
  while (mapping_ == 0 || mapping_ < backend_->MapsMost()) {
    auto choice = plan::NextMap(books_.view());
    if (choice && !ahead && !books_[choice->unit].demanded) choice.reset();
    if (mapping_ > 0 && (!choice || !MayOverlap(*choice))) return;
    if (choice) {
      StartMap(*choice);
      continue;
    }
    const auto unit = ahead ? plan::NextExchange(books_.view()) : std::nullopt;
    if (unit) {
      ++stats_.exchanges;
      books_.Force(*unit);
      DropClean();
      StartOut();
      continue;
    }
    if (!owner_makes_room_ && LeaveInEmergency()) continue;
    if (!books_.view().supply.HasStale()) return;
    ++mapping_;
    backend_->Unmap(books_.memory().StartUnmap());
  }
}

// A slot may have room in a page that is not mapped yet.
bool PageMoves::MayOverlap(const MapChoice& choice) const {
  const uint32_t most = backend_->MapsMost();
  return mapping_ < (books_[choice.unit].demanded ? most : (most + 1) / 2) &&
         !plan::IsSlot(choice.unit) && choice.from != MapChoice::From::kSparse;
}

void PageMoves::StartMap(MapChoice choice) {
  if (choice.from == MapChoice::From::kSparse) {
    if (!Compact()) return;
    choice.from = MapChoice::From::kSupply;
    choice.source = *books_.view().supply.Find(plan::IsSlot(choice.unit));
  }
  if (choice.from == MapChoice::From::kDead && !RevokePage(choice.dead)) return;
  const auto mapping = books_.StartMap(choice);
  if (mapping.steps.map || mapping.steps.unmap) ++stats_.maps;
  if (backend_->Map({choice.unit, mapping.page, mapping.steps})) {
    books_.FinishMap(choice.unit);
  } else {
    ++mapping_;
  }
}

// Returns false if no page can be emptied, or if a slot of it was used by the client; the page is
// then not sparse any more.
bool PageMoves::Compact() {
  const auto view = books_.view();
  const auto slots =
      view.slot_pages.FindSparse([&](Unit slot) { return view.units[slot].IsIdle(); });
  if (slots.empty() || !Revoke(slots)) return false;
  for (const auto& move : books_.Compact(slots)) backend_->MoveSlot(move, books_[move.slot].bytes);
  words_.Publish(slots);
  return true;
}

bool PageMoves::LeaveInEmergency() {
  const auto view = books_.view();
  const auto waits = [&view](Queue queue) {
    const auto next = view.queues.First(queue);
    return next && next->need == MoveQueues::kWaitedFor;
  };
  if (!waits(Queue::kReturns) && !waits(Queue::kCreated)) return false;
  const uint64_t leaving = view.leaving + view.expected + plan::LeavingNow(view);
  if (leaving > 0 && !view.plan.empty()) return false;
  if (!Leave(Minus(books_.totals()[UnitTotals::Sum::kAwaited], view.limits.page * leaving)))
    return false;
  ++stats_.emergencies;
  StartOut();
  return true;
}

bool PageMoves::Leave(Bytes need) {
  bool any = false;
  while (need > Bytes{}) {
    const auto unit = plan::NextEmergency(books_.view());
    if (!unit) break;
    books_.Force(*unit);
    any = true;
    const bool leaves_now = books_[*unit].life == PageState::kClean;
    if (leaves_now && !Drop(*unit)) continue;
    need = Minus(need, WeightOf(books_, *unit));
  }
  return any;
}

bool PageMoves::ReleasePage() {
  while (!books_.view().supply.Find(false)) {
    const auto dead = books_.view().queues.First(Queue::kDead);
    if (!dead) return false;
    if (RevokePage(dead->unit)) break;
  }
  const auto page = books_.ReleasePage();
  if (page) backend_->Release(*page);
  return page.has_value();
}

void PageMoves::ReleaseSurplus() {
  using Step = decide::Retirement::Step;
  decide::HeldMemory held;
  bool any_left = true;
  while (true) {
    const auto view = books_.view();
    held.surplus = view.surplus;
    if (held.surplus == 0) return;
    held.has_free = view.supply.Find(false) || !view.queues.IsEmpty(Queue::kDead);
    held.spare = view.slot_pages.SparePages();
    held.leaving = view.leaving + view.queues.size(Queue::kLeaves);
    const decide::Retirement next = decide::NextRetirement(held);
    if (next.step == Step::kRelease) {
      ReleasePage();
    } else if (next.step == Step::kEmptySlots) {
      // A page that is not mapped yet may have room for the slots.
      if (mapping_ > 0) return;
      held.can_empty = Compact();
    } else if (next.step == Step::kLeave && any_left) {
      any_left = false;
      Leave(view.limits.page * next.pages);
    } else {
      return;
    }
  }
}

}  // namespace ravenstore::core
