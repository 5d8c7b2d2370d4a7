#include "core/plan/sequence_planner.h"

#include <algorithm>
#include <utility>

#include "core/tuned.h"

namespace ravenstore::core::plan {

SequencePlanner::Guidance SequencePlanner::Observe(const CallHistory::Call& call, Bytes size,
                                                   bool hinted, bool fits) {
  const Follower::Progress progress = follower_.Observe(call, size, !fits);
  Guidance guidance;
  guidance.jumped = progress.moved || progress.lost;
  const bool needless = fits || (hinted && !follower_.ExpectsCreates());
  if (progress.lost || needless) {
    guidance.discard = has_plan_;
    has_plan_ = false;
  }
  const auto horizon = static_cast<Position>(forecast_.calls.size());
  if (!Pins(call.kind)) {
    // Puts and frees pass one by one; the next call that pins says where the client is.
    if (has_plan_ && position_ < horizon &&
        !Pins(forecast_.calls[static_cast<size_t>(position_)].kind))
      ++position_;
    guidance.position = position_;
    return guidance;
  }
  remake_ |= progress.moved;
  guidance.position = position_;
  if (follower_.counterpart() == Follower::kNone || needless) return guidance;
  if (!has_plan_ && !follower_.trusted()) return guidance;
  if (has_plan_ && !remake_) remake_ = IsOutdated();
  guidance.remake = remake_ || !has_plan_;
  if (!guidance.remake && follower_.matched()) {
    const auto& history = follower_.history();
    position_ = *forecast_.PositionOf(history.CallOf(follower_.counterpart()));
    guidance.position = position_;
  }
  return guidance;
}

bool SequencePlanner::IsOutdated() const {
  const auto horizon = static_cast<Position>(forecast_.calls.size());
  if (elsewhere_ && position_ >= horizon / kPlanParts) return true;
  const CallNumber call = follower_.history().CallOf(follower_.counterpart());
  // Half of the calls that each forecast covers, without its last quarter of a period.
  return !forecast_.PositionOf(call) ||
         call - forecast_.base > std::max<CallNumber>(period_, MostAway()) / 2;
}

const CallForecast& SequencePlanner::Remake(const Places& places, const PlacedTensors& tensors,
                                            Duration least) {
  forecast_ = Forecaster(follower_, places, tensors).Make(least);
  period_ = follower_.Period();
  position_ = 0;
  has_plan_ = true;
  remake_ = false;
  elsewhere_ = false;
  ++stats_.plans;
  return forecast_;
}

void SequencePlanner::Done(const CallHistory::Call& call) {
  if (has_plan_ && Pins(call.kind) && follower_.matched()) ++position_;
}

std::optional<Place> SequencePlanner::ExpectedPlace() const {
  const auto at = static_cast<size_t>(position_);
  if (!has_plan_ || !follower_.matched() || at >= forecast_.calls.size()) return std::nullopt;
  if (forecast_.calls[at].kind != CallKind::kCreate) return std::nullopt;
  return forecast_.places[at];
}

void SequencePlanner::Placed(const Place& place) {
  if (!has_plan_ || !follower_.matched()) return;
  const bool elsewhere = ExpectedPlace() != place;
  ++stats_.creates;
  stats_.elsewhere += elsewhere ? 1 : 0;
  elsewhere_ |= elsewhere;
}

}  // namespace ravenstore::core::plan
