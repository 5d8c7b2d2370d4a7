#include "elastic/recent_uses.h"

#include <algorithm>

#include "core/tuned.h"

namespace ravenstore::elastic {

using core::PageBooks;
using core::plan::kNoPosition;
using core::plan::Unit;
using Queue = core::plan::MoveQueues::Queue;

namespace {
constexpr size_t kRecentCandidates = 8;
}  // namespace

void RecentUses::Created(Unit unit, int64_t call) {
  if (unit >= uses_.size()) uses_.resize(unit + 1);
  uses_[unit] = {.last = call, .gap = 0};
}

void RecentUses::Used(Unit unit, int64_t call, bool in_place) {
  if (unit >= uses_.size()) uses_.resize(unit + 1);
  Uses& uses = uses_[unit];
  uses.gap = std::max<int64_t>(1, call - uses.last);
  uses.last = call;
  if (!in_place || std::find(recent_.begin(), recent_.end(), unit) != recent_.end()) return;
  if (recent_.size() == kRecentCandidates) recent_.erase(recent_.begin());
  recent_.push_back(unit);
}

int64_t RecentUses::RestOf(Unit unit, int64_t call) const {
  if (unit >= uses_.size()) return call;
  return std::max({uses_[unit].gap, call - uses_[unit].last, int64_t{1}});
}

// Of the pages that no call of the plan needs, the one that is used most often.
std::optional<Unit> RecentUses::Next(const PageBooks& books, int64_t call) {
  std::erase_if(recent_, [&books](Unit unit) {
    return books[unit].live == 0 || books[unit].life != core::PageState::kAway ||
           books.view().plan.NextNeed(unit) != kNoPosition;
  });
  std::optional<Unit> best;
  for (const Unit unit : recent_) {
    if (books[unit].in_place > 0 || books[unit].demanded) continue;
    if (!best || RestOf(unit, call) < RestOf(*best, call)) best = unit;
  }
  return best;
}

bool RecentUses::Move(PageBooks* books, int64_t call) {
  const auto next = Next(*books, call);
  if (!next) return false;
  const auto view = books->view();
  const size_t free = view.supply.total() + view.queues.size(Queue::kDead);
  if (free > view.surplus) {
    books->Demand(*next);
    return true;
  }
  if (view.surplus > 0 || view.leaving + view.queues.size(Queue::kLeaves) >= core::kForcedMost)
    return false;
  auto least = view.queues.First(Queue::kIdleClean);
  if (!least) {
    least = view.queues.First(Queue::kIdleDirty, core::plan::kNoPool, [&view](Unit unit) {
      return view.copies.CanCopyOut(0, view.units[unit].bytes);
    });
  }
  if (!least || view.plan.NextNeed(least->unit) != kNoPosition) return false;
  if (RestOf(least->unit, call) <= 2 * RestOf(*next, call)) return false;
  books->Force(least->unit);
  return true;
}

}  // namespace ravenstore::elastic
