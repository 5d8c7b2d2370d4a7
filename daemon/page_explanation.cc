#include "daemon/page_explanation.h"

#include <algorithm>

namespace ravenstore::daemon {

using core::Bytes;
using core::Duration;
using core::Explanation;
using core::NextUse;

namespace {

Explanation::Future FutureOf(NextUse::Kind kind) {
  switch (kind) {
    case NextUse::Kind::kIn: return Explanation::Future::kHintedTime;
    case NextUse::Kind::kOrder: return Explanation::Future::kHintedOrder;
    case NextUse::Kind::kNever: return Explanation::Future::kHintedNever;
    case NextUse::Kind::kUnknown: break;
  }
  return Explanation::Future::kUnknown;
}

}  // namespace

void ExplainOnPages(const core::ScheduledClient& client, core::TensorNumber tensor,
                    const TensorPast& past, Duration now, Explanation* why) {
  const core::PageBooks& books = client.executor().books();
  const core::plan::MoveView view = books.view();
  const core::plan::UnitSpan& units = client.executor().tensors()[tensor].units;
  core::plan::Position need = core::plan::kNoPosition;
  Bytes bytes;
  bool is_idle = true;
  for (uint32_t i = 0; i < units.count; ++i) {
    const core::plan::UnitState& unit = books[units[i]];
    const core::plan::CopyPool& pool =
        view.limits.pools[unit.pool == core::plan::kNoPool ? 0 : unit.pool];
    why->copy_back += pool.InOf(unit.bytes);
    if (unit.IsDirty()) why->copy_out += pool.OutOf(unit.bytes);
    bytes += unit.bytes;
    is_idle &= unit.IsIdle();
    need = std::min(need, view.plan.PlannedNeed(units[i]));
  }
  if (is_idle)
    why->value = static_cast<double>(bytes.count()) / core::Seconds(why->copy_out + why->copy_back);
  why->priority = past.priority;
  why->prefetched = past.prefetched;
  why->gets = past.gets;
  const core::ForesightStats known = client.foresight().stats();
  why->predictions_right = known.found;
  why->predictions_wrong = known.compared - known.found;
  if (need != core::plan::kNoPosition) {
    why->future = Explanation::Future::kLearned;
    why->needed_in = std::max(Duration{0}, view.plan.TimeFromNow(need));
    if (known.compared > 0)
      why->confidence = static_cast<double>(known.found) / static_cast<double>(known.compared);
    return;
  }
  why->future = FutureOf(past.next_use.kind);
  if (past.next_use.kind == NextUse::Kind::kIn) {
    why->needed_in = std::max(Duration{0}, past.put_at + past.next_use.in - now);
  } else if (past.next_use.kind == NextUse::Kind::kUnknown) {
    why->last_put_ago = now - past.put_at;
  }
}

}  // namespace ravenstore::daemon
