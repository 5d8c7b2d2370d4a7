#include "core/plan/call_forecast.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/tuned.h"

namespace ravenstore::core::plan {

namespace {
// The longest, for a client whose passes are shorter than those of others.
constexpr CallNumber kPassesMost = 16;
}  // namespace

std::optional<Position> CallForecast::PositionOf(CallNumber call) const {
  if (call < base || call - base >= positions.size()) return std::nullopt;
  return positions[call - base];
}

Forecaster::Forecaster(const Follower& follower, const Places& places, const PlacedTensors& tensors)
    : follower_(follower),
      history_(follower.history()),
      tensors_(tensors),
      places_(places),
      numbers_(follower.history().roles()) {
  RAVEN_CHECK(follower.counterpart() != Follower::kNone);
}

CallForecast Forecaster::Make(Duration least) {
  const CallNumber last = history_.size() - 1;
  const CallNumber period = follower_.Period();
  const CallNumber from = history_.CallOf(follower_.counterpart()) + (follower_.matched() ? 0 : 1);
  const CallNumber calls = std::max<CallNumber>(MostAway(), period / 4 * kPassQuarters);
  forecast_.base = from;
  forecast_.calls.reserve(calls);
  forecast_.places.reserve(calls);
  forecast_.positions.reserve(calls);
  const CallNumber most = std::max(calls, period * kPassesMost);
  for (CallNumber k = 0; k < calls || (k < most && at_ < least); ++k) {
    if (k == calls) forecast_.pass = at_;
    CallNumber past = from + k;
    if (past >= last) past -= ((past - last) / period + 1) * period;
    if (k > 0 && past > history_.first())
      at_ += std::max(Duration{0}, history_[past].at - history_[past - 1].at);
    Add(history_[past]);
  }
  if (forecast_.pass == Duration{0}) forecast_.pass = at_;
  return std::move(forecast_);
}

PlacedTensor& Forecaster::TensorOf(RoleNumber role) {
  uint32_t& number = numbers_[role];
  if (number > 0) return expected_[number - 1];
  const TensorIndex holder = history_.HolderOf(role);
  const bool lives = holder < tensors_.size() && tensors_[holder].lives;
  expected_.push_back(lives ? tensors_[holder] : PlacedTensor{});
  number = static_cast<uint32_t>(expected_.size());
  return expected_.back();
}

void Forecaster::Add(const CallHistory::Call& past) {
  PlacedTensor& tensor = TensorOf(history_.tensor(past.tensor).role);
  if (past.kind == CallKind::kCreate) return AddCreate(past, &tensor);
  forecast_.positions.push_back(static_cast<Position>(forecast_.calls.size()));
  const bool gets = past.kind == CallKind::kGet;
  const bool is_possible =
      tensor.lives && !(gets && tensor.in_use) && !(past.kind == CallKind::kPut && !tensor.in_use);
  PlannedCall call{.kind = past.kind, .modifies = past.modifies, .at = at_};
  if (!is_possible) {
    forecast_.calls.push_back(call);
    forecast_.places.emplace_back();
    return;
  }
  call.unpins = !gets && tensor.in_use;
  call.dies = past.kind == CallKind::kFree && !tensor.unneeded;
  tensor.in_use = gets;
  tensor.lives = past.kind != CallKind::kFree;
  Append(call, tensor);
}

void Forecaster::AddCreate(const CallHistory::Call& past, PlacedTensor* tensor) {
  if (tensor->lives) {
    Append(
        {.kind = CallKind::kFree, .unpins = tensor->in_use, .dies = !tensor->unneeded, .at = at_},
        *tensor);
  }
  forecast_.positions.push_back(static_cast<Position>(forecast_.calls.size()));
  const Place& before = tensors_[past.tensor].place;
  const Bytes size = history_.tensor(past.tensor).size;
  *tensor = {.place = before, .size = size, .lives = true, .in_use = true};
  // The names of slots follow the pass before, so that a slot is known by its name.
  if (!places_.AllocateAt(before, size)) tensor->place = places_.Allocate(size);
  Append({.kind = CallKind::kCreate, .at = at_}, *tensor);
}

void Forecaster::Append(PlannedCall call, const PlacedTensor& tensor) {
  call.units = places_.UnitsOf(tensor.place, tensor.size);
  forecast_.calls.push_back(call);
  forecast_.places.push_back(tensor.place);
  if (call.kind == CallKind::kFree) places_.Free(tensor.place, tensor.size);
}

}  // namespace ravenstore::core::plan
