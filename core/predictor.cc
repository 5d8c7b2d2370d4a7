#include "core/predictor.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/tuned.h"

namespace ravenstore::core {

namespace {
constexpr uint64_t kFewTensors = 512;
constexpr int kExpiriesPerGet = 8;
constexpr size_t kMostExpiries = 1 << 18;

int64_t Nanoseconds(Tick tick) {
  return tick.time_since_epoch().count();
}
}  // namespace

void Predictor::BeginWait(Tick now) {
  if (waits_++ == 0) waiting_since_ = now;
}

void Predictor::EndWait(Tick now) {
  RAVEN_CHECK(waits_ > 0);
  if (--waits_ == 0) stalled_ += now - waiting_since_;
}

void Predictor::Created(NameId name, Bytes size, LogicalUse* logical, Tick now) {
  if (options_.learn) forecast_.Created(name, size, logical, VirtualTime(now));
}

std::optional<bool> Predictor::Got(LogicalUse* logical, Tick now) {
  if (logical->gets < UINT16_MAX) ++logical->gets;
  return options_.learn ? forecast_.Got(logical, VirtualTime(now)) : std::nullopt;
}

void Predictor::Freed(NameId name, Bytes size, LogicalUse* logical) {
  if (options_.learn) forecast_.Freed(name, size, logical);
}

ExpectedUse Predictor::HintedUse(const NextUse& hint, Tick now) const {
  const Tick virtual_time = VirtualTime(now);
  switch (hint.kind) {
    case NextUse::Kind::kAt:
      return {.kind = UseKind::kAt, .key = Nanoseconds(hint.at - (now - virtual_time))};
    case NextUse::Kind::kOrder: return {.kind = UseKind::kOrder, .key = hint.order};
    case NextUse::Kind::kUnknown:
    case NextUse::Kind::kNever: break;
  }
  return {.key = -Nanoseconds(virtual_time), .never = hint.kind == NextUse::Kind::kNever};
}

ExpectedUse Predictor::Put(TensorId tensor, LogicalUse* logical, const NextUse& hint, Tick now) {
  ExpectedUse use = HintedUse(hint, now);
  if (!options_.learn) return use;
  const Forecast::Prediction prediction = forecast_.Put(logical);
  const bool learned = prediction.source == Forecast::Source::kLearned;
  if (use.never) return use;
  if (use.kind != UseKind::kUnknown) {  // a hint knows better
    hints_.Add(
        use.kind, use.key,
        learned && !prediction.freed ? std::optional(prediction.logical_time) : std::nullopt);
    return use;
  }
  if (learned) {
    use.dies = prediction.freed;
    SetPrediction(prediction.logical_time, now, &use);
    if (expiries_.size() < kMostExpiries)
      expiries_.push(
          {Forecast::LatestFor(*logical, prediction.logical_time), tensor, logical->put_at});
    return use;
  }
  Correlation::Step* step =
      Uses(Heuristic::kCorrelation) ? correlation_.Find(logical->logical) : nullptr;
  if (step != nullptr && !step->predicted && step->tensor == tensor) {
    step->predicted = true;
    step->kind_before = static_cast<uint8_t>(use.kind);
    step->key_before = use.key;
    use.correlated = true;
    SetPrediction(step->logical_time, now, &use);
    return use;
  }
  const bool assumed = prediction.source == Forecast::Source::kLastInFirstOut;
  if (!assumed || !Uses(Heuristic::kLastInFirstOut)) return use;
  return {.kind = UseKind::kLearned, .key = prediction.logical_time};
}

void Predictor::SetPrediction(int64_t logical_time, Tick now, ExpectedUse* use) const {
  const auto key = hints_.KeyAt(logical_time, forecast_, VirtualTime(now));
  use->predicted = key.has_value();
  use->kind = key ? hints_.kind() : UseKind::kLearned;
  use->key = key.value_or(logical_time);
}

void Predictor::FollowCreate(const TensorRow& tensor, const TensorSlots& slots, Tick now,
                             std::vector<Change>* changes) {
  if (options_.learn && has_got_ && slots.tensors() <= kFewTensors) Correlate(tensor, now, changes);
}

void Predictor::FollowGet(const TensorRow& tensor, const TensorSlots& slots, Tick now,
                          std::vector<Change>* changes) {
  if (!options_.learn) return;
  if (!std::exchange(has_got_, true) && slots.tensors() <= kFewTensors) LearnWhatWasMade(slots);
  Correlate(tensor, now, changes);
  ExpireSome(now, changes);
}

void Predictor::LearnWhatWasMade(const TensorSlots& slots) {
  if (!Uses(Heuristic::kCorrelation)) return;
  for (size_t slot = 0; slot < std::min(slots.size(), Correlation::kMostStates); ++slot) {
    const uint32_t row = slots[slot];
    if (row == TensorSlots::kNoRow) continue;
    const TensorRow& tensor = catalog_[row];
    correlation_.Used(tensor.logical.logical, tensor.id, forecast_.logical_time(), &missed_);
  }
}

ExpectedUse Predictor::UseOf(const TensorRow& tensor, const std::vector<Change>& changes) {
  const auto last = std::find_if(changes.rbegin(), changes.rend(),
                                 [&](const Change& one) { return one.tensor == tensor.id; });
  return last == changes.rend() ? tensor.expected() : last->use;
}

void Predictor::Correlate(const TensorRow& tensor, Tick now, std::vector<Change>* changes) {
  if (!Uses(Heuristic::kCorrelation)) return;
  missed_.clear();
  correlation_.Used(tensor.logical.logical, tensor.id, forecast_.logical_time(), &missed_);
  for (const Correlation::Step& step : missed_) {
    const TensorRow* other = step.predicted ? catalog_.Find(step.tensor) : nullptr;
    if (other == nullptr) continue;
    ExpectedUse use = UseOf(*other, *changes);
    if (!use.correlated) continue;
    use.correlated = false;
    use.predicted = false;
    use.kind = static_cast<UseKind>(step.kind_before);
    use.key = step.key_before;
    changes->push_back({other->id, use});
  }
  std::vector<Correlation::Step>& ahead = correlation_.Ahead();
  for (auto step = ahead.rbegin(); step != ahead.rend() && !step->seen; ++step) {
    step->seen = true;
    const TensorRow* other = catalog_.Find(step->tensor);
    if (other == nullptr || other->in_use || other->freed || other->waiting) continue;
    ExpectedUse use = UseOf(*other, *changes);
    if (use.never || use.correlated) continue;
    // What the client said, and what it did each time before, is known better.
    const bool refuted =
        use.kind == UseKind::kLearned &&
        (Forecast::IsAssumed(use.key) || forecast_.Refutes(other->logical, use.key));
    if (use.kind != UseKind::kUnknown && !refuted) continue;
    step->predicted = true;
    step->kind_before = static_cast<uint8_t>(use.kind);
    step->key_before = use.key;
    use.correlated = true;
    SetPrediction(step->logical_time, now, &use);
    changes->push_back({other->id, use});
  }
}

void Predictor::ExpireSome(Tick now, std::vector<Change>* changes) {
  if (!Uses(Heuristic::kExpiry)) return;
  const int64_t logical_time = forecast_.logical_time();
  for (int i = 0; i < kExpiriesPerGet && !expiries_.empty(); ++i) {
    const Expiry expiry = expiries_.top();
    if (expiry.latest >= logical_time) return;
    expiries_.pop();
    const TensorRow* tensor = catalog_.Find(expiry.tensor);
    if (tensor == nullptr || tensor->in_use || tensor->logical.put_at != expiry.put_at) continue;
    ExpectedUse use = UseOf(*tensor, *changes);
    const bool learned = use.predicted || use.kind == UseKind::kLearned;
    if (!learned || use.correlated) continue;
    const auto idle = static_cast<uint32_t>(logical_time) - expiry.put_at;
    const auto idle_ns = static_cast<int64_t>(idle * forecast_.seconds_per_access() * 1e9);
    use.kind = UseKind::kUnknown;
    use.predicted = false;
    use.dies = false;
    use.key = -(Nanoseconds(VirtualTime(now)) - idle_ns);
    changes->push_back({tensor->id, use});
  }
}

double Predictor::ConfidenceIn(const Holding& holding) const {
  if (!holding.IsPredicted()) return 0;
  return holding.correlated ? correlation_.ConfidenceOf(holding.logical.logical)
                            : forecast_.ConfidenceIn(holding.logical);
}

Duration Predictor::UntilUse(const Holding& holding, Tick now) const {
  if (holding.use_kind == UseKind::kAt)
    return std::max(Duration{0}, Tick(Duration(holding.use_key)) - VirtualTime(now));
  if (holding.use_kind != UseKind::kLearned || !holding.IsPredicted()) return Duration{0};
  const int64_t distance = std::max<int64_t>(0, holding.use_key - forecast_.logical_time());
  return FromSeconds(static_cast<double>(distance) * forecast_.seconds_per_access());
}

}  // namespace ravenstore::core
