#include "core/execution/page_executor.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/decide/page_retirement.h"
#include "core/plan/move_chooser.h"

namespace ravenstore::core {

using plan::MapChoice;
using plan::MoveQueues;
using plan::PoolNumber;
using plan::Unit;
using plan::UnitSpan;
using Queue = MoveQueues::Queue;

PageExecutor::PageExecutor(const PageBooks::Options& options, PageBackend* backend)
    : backend_(backend),
      books_(options),
      tensors_(options.limits.page),
      words_(backend, books_, &tensors_) {}

void PageExecutor::Stats::Add(const Stats& other) {
  in += other.in;
  out += other.out;
  maps += other.maps;
  emergencies += other.emergencies;
  exchanges += other.exchanges;
  not_revoked += other.not_revoked;
  dropped_copies += other.dropped_copies;
  to_slots += other.to_slots;
}

// ---- The client's calls.

void PageExecutor::Place(TensorNumber tensor, const UnitSpan& units, Bytes first, Bytes size) {
  tensors_.Place(tensor, units, first, size);
  books_.Ensure(units);
}

void PageExecutor::TakeLeft(std::vector<Unit>* pages) {
  for (const Unit page : left_) has_left_[page] = false;
  pages->insert(pages->end(), left_.begin(), left_.end());
  left_.clear();
}

bool PageExecutor::MoveToSlot(TensorNumber tensor, const UnitSpan& slot, Bytes offset) {
  const PageTensors::Row row = tensors_[tensor];
  RAVEN_CHECK(slot.is_slot());
  if (!row.lives() || row.pinned || row.units.is_slot()) return false;
  if (!books_.CanMoveCopy(row.units, slot, row.size)) return false;
  const PoolNumber pool = books_[row.units.first].pool;
  Bytes moved;
  for (uint32_t i = 0; i < row.units.count; ++i) {
    const Bytes bytes = tensors_.BytesIn(tensor, i);
    if (!backend_->MoveCopy({row.units[i], offset, slot.first, moved, bytes, pool})) return false;
    moved += bytes;
    offset = Bytes{};
  }
  books_.Ensure(slot);
  books_.AddAwayTensor(slot.first, pool, row.size);
  for (uint32_t i = 0; i < row.units.count; ++i)
    books_.RemoveTensor(row.units[i], tensors_.BytesIn(tensor, i));
  tensors_.Move(tensor, slot);
  ++stats_.to_slots;
  return true;
}

bool PageExecutor::Pin(TensorNumber tensor) {
  tensors_.Hold(tensor);
  const PageTensors::Row& row = tensors_[tensor];
  for (uint32_t i = 0; i < row.units.count; ++i) books_.Pin(row.units[i]);
  if (IsResident(tensor)) return true;
  words_.Wait(tensor);
  return false;
}

void PageExecutor::Begin(TensorNumber tensor) {
  tensors_.Begin(tensor);
  const UnitSpan& units = tensors_[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i)
    books_.AddTensor(units[i], tensors_.BytesIn(tensor, i));
}

void PageExecutor::Unpin(TensorNumber tensor) {
  PageTensors::Row& row = tensors_[tensor];
  RAVEN_CHECK(std::exchange(row.pinned, false));
  for (uint32_t i = 0; i < row.units.count; ++i) books_.Unpin(row.units[i]);
}

void PageExecutor::Reach(TensorNumber tensor) {
  const UnitSpan& units = tensors_[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) books_.Reach(units[i]);
}

void PageExecutor::Modify(TensorNumber tensor) {
  const UnitSpan& units = tensors_[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) books_.Modify(units[i]);
}

void PageExecutor::End(TensorNumber tensor) {
  tensors_.End(tensor);
  const UnitSpan& units = tensors_[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i)
    books_.RemoveTensor(units[i], tensors_.BytesIn(tensor, i));
}

void PageExecutor::Remove(TensorNumber tensor) {
  RAVEN_CHECK(!tensors_[tensor].lives());
  RAVEN_CHECK(!tensors_[tensor].pinned);
  tensors_.Remove(tensor);
}

std::vector<plan::UnitSnapshot> PageExecutor::Snapshot() const {
  std::vector<plan::UnitSnapshot> snapshot = books_.Snapshot();
  for (TensorNumber tensor = 0; tensor < tensors_.size(); ++tensor) {
    const PageTensors::Row& row = tensors_[tensor];
    if (row.life != PageTensors::Life::kBegins) continue;
    for (uint32_t i = 0; i < row.units.count; ++i) {
      ++snapshot[row.units[i]].live;
      snapshot[row.units[i]].dirty = true;
    }
  }
  return snapshot;
}

void PageExecutor::KeepInPlace(const UnitSpan& units) {
  for (uint32_t i = 0; i < units.count; ++i) {
    RAVEN_CHECK(books_[units[i]].IsResident());
    books_.Pin(units[i]);
  }
}

void PageExecutor::EndKeepInPlace(const UnitSpan& units) {
  for (uint32_t i = 0; i < units.count; ++i) {
    books_.Unpin(units[i]);
    books_.Reach(units[i]);
  }
}

void PageExecutor::Retire() {
  words_.TakeWaiting();
  books_.SetPlan({});
  books_.EndUses();
  for (TensorNumber tensor = 0; tensor < tensors_.size(); ++tensor) {
    if (tensors_[tensor].lives()) End(tensor);
    tensors_.Remove(tensor);
  }
}

// ---- The backend's reports.

void PageExecutor::Mapped(Unit unit) {
  mapping_ = false;
  books_.FinishMap(unit);
}

void PageExecutor::Unmapped(plan::PhysicalPage page) {
  mapping_ = false;
  books_.FinishUnmap(page);
}

void PageExecutor::CopiedIn(Unit unit, bool ok) {
  --under_way_;
  books_.FinishIn(unit, ok);
  if (books_[unit].IsResident()) return;
  for (const TensorNumber tensor : words_.TakeWaiting(unit)) Refuse(tensor);
}

void PageExecutor::CopiedOut(Unit unit, bool ok) {
  --under_way_;
  books_.FinishOut(unit, ok);
  // Not tried again in this gap: a copy that always fails would be repeated without end.
  if (!ok) books_.Keep(unit);
}

void PageExecutor::Refuse(TensorNumber tensor) {
  Unpin(tensor);
  Reach(tensor);
  --tensors_[tensor].uses;  // the client's word does not count this one
  backend_->Refuse(tensor);
}

size_t PageExecutor::RefuseWaiting() {
  const std::vector<TensorNumber> waiting = words_.TakeWaiting();
  for (const TensorNumber tensor : waiting) Refuse(tensor);
  return waiting.size();
}

void PageExecutor::HandleArrivals() {
  arrivals_.clear();
  books_.TakeArrivals(&arrivals_);
  for (const auto& arrival : arrivals_) arrived_ |= arrival.demanded;
  words_.Arrive(arrivals_);
}

// ---- The engines.

bool PageExecutor::Start() {
  HandleArrivals();
  DropClean();
  ReleaseSurplus();
  StartOut();
  StartMaps();
  StartIn();
  HandleArrivals();
  return std::exchange(arrived_, false);
}

bool PageExecutor::Revoke(std::span<const Unit> units) {
  const auto in_use = words_.Revoke(units);
  if (!in_use) return true;
  ++stats_.not_revoked;
  books_.Contest(*in_use);
  return false;
}

bool PageExecutor::Drop(Unit unit) {
  if (!Revoke(std::span(&unit, 1))) return false;
  books_.Drop(unit);
  if (plan::IsSlot(unit)) return true;
  if (unit >= has_left_.size()) has_left_.resize(unit + 1);
  if (!has_left_[unit]) left_.push_back(unit);
  has_left_[unit] = true;
  return true;
}

void PageExecutor::DropClean() {
  while (const auto next = books_.view().queues.First(Queue::kDrops)) Drop(next->unit);
}

PageBackend::CopyOrder PageExecutor::OrderFor(Unit unit) const {
  const plan::UnitState& state = books_[unit];
  // A tensor may have died since the unit was mapped; what is copied is never nothing.
  return {.unit = unit,
          .memory = books_.MemoryOf(unit),
          .bytes = std::max(state.bytes, kExtentAlignment),
          .pool = state.pool,
          .demanded = state.demanded};
}

bool PageExecutor::MakeRoomForCopy(Unit unit, PoolNumber pool) {
  while (!books_.HasRoomForCopy(unit, pool)) {
    const auto other = books_.FindCopyToDrop(pool);
    if (!other) return false;
    books_.DropCopy(*other);
    ++stats_.dropped_copies;
  }
  return true;
}

void PageExecutor::StartOut() {
  for (PoolNumber pool = 0; pool < books_.copies().size(); ++pool) StartOut(pool);
}

void PageExecutor::StartOut(PoolNumber pool) {
  while (backend_->CanCopyOut(pool)) {
    const auto unit = plan::NextOut(books_.view(), pool);
    if (!unit || !MakeRoomForCopy(*unit, pool)) return;
    books_.StartOut(*unit, pool);
    const auto order = OrderFor(*unit);
    stats_.out += order.bytes;
    ++under_way_;
    backend_->CopyOut(order);
  }
}

void PageExecutor::StartIn() {
  for (PoolNumber pool = 0; pool < books_.copies().size(); ++pool) StartIn(pool);
}

void PageExecutor::StartIn(PoolNumber pool) {
  while (const auto unit = plan::NextIn(books_.view(), pool)) {
    if (!backend_->CanCopyIn(pool, books_[*unit].demanded)) return;
    const auto order = OrderFor(*unit);
    books_.StartIn(*unit);
    stats_.in += order.bytes;
    ++under_way_;
    backend_->CopyIn(order);
  }
}

void PageExecutor::StartMaps() {
  while (!mapping_) {
    if (StartMap()) continue;
    if (const auto unit = plan::NextExchange(books_.view())) {
      ++stats_.exchanges;
      books_.Force(*unit);
      DropClean();
      StartOut();
      continue;
    }
    if (!others_make_room_ && LeaveInEmergency()) continue;
    if (!books_.view().supply.HasStale()) return;
    mapping_ = true;
    backend_->Unmap(books_.StartUnmap());
  }
}

bool PageExecutor::StartMap() {
  auto choice = plan::NextMap(books_.view());
  if (choice && choice->from == MapChoice::From::kSparse) {
    if (!Compact()) return true;
    choice->from = MapChoice::From::kSupply;
    choice->source = *books_.view().supply.Find(plan::IsSlot(choice->unit));
  }
  if (!choice) return false;
  const auto mapping = books_.StartMap(*choice);
  if (mapping.steps.map || mapping.steps.unmap) ++stats_.maps;
  if (backend_->Map({choice->unit, mapping.page, mapping.steps})) {
    books_.FinishMap(choice->unit);
  } else {
    mapping_ = true;
  }
  return true;
}

// Returns false if no page can be emptied, or if a slot of it was used by the client; the page is
// then not sparse any more.
bool PageExecutor::Compact() {
  const auto view = books_.view();
  const auto slots =
      view.slot_pages.FindSparse([&](Unit slot) { return view.units[slot].IsIdle(); });
  if (slots.empty() || !Revoke(slots)) return false;
  for (const auto& move : books_.Compact(slots)) backend_->MoveSlot(move, books_[move.slot].bytes);
  words_.Publish(slots);
  return true;
}

bool PageExecutor::LeaveInEmergency() {
  const auto view = books_.view();
  const auto waits = [&view](Queue queue) {
    const auto next = view.queues.First(queue);
    return next && next->need == MoveQueues::kWaitedFor;
  };
  if (!waits(Queue::kComes) && !waits(Queue::kBorn)) return false;
  const uint64_t leaving = view.leaving + view.expected +
                           (view.copies.CanCopyOut() ? view.queues.size(Queue::kLeaves) : 0);
  if (leaving > 0 && !view.plan.empty()) return false;
  if (!Leave(Minus(books_.awaited(), view.limits.page * leaving))) return false;
  ++stats_.emergencies;
  StartOut();
  return true;
}

bool PageExecutor::Leave(Bytes need) {
  bool any = false;
  while (need > Bytes{}) {
    const auto unit = plan::NextEmergency(books_.view());
    if (!unit) break;
    books_.Force(*unit);
    any = true;
    const bool leaves_now = books_[*unit].life == PageState::kClean;
    if (leaves_now && !Drop(*unit)) continue;
    need = Minus(need, books_.WeightOf(*unit));
  }
  return any;
}

bool PageExecutor::ReleasePage() {
  const auto page = books_.ReleasePage();
  if (page) backend_->Release(*page);
  return page.has_value();
}

void PageExecutor::ReleaseSurplus() {
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
