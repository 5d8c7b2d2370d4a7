// What the planner knows of a tensor's future and of the ways to do without its bytes, and how it
// tells people.
#include <algorithm>
#include <utility>

#include "core/planner_state.h"

namespace ravenstore::core {

namespace {
constexpr int kExpiriesPerGet = 8;
constexpr size_t kMostExpiries = 1 << 18;
}  // namespace

Duration Planner::State::BothCopies(Bytes size) const {
  const auto bytes = static_cast<double>(size.count());
  return 2 * options_.link.latency + FromSeconds(bytes / options_.link.up_bytes_per_second +
                                                 bytes / options_.link.down_bytes_per_second);
}

void Planner::State::Predict(Client& client, TensorRow& tensor) {
  const Forecast::Prediction prediction = client.forecast.Put(&tensor.logical);
  if (tensor.never) return;
  if (tensor.use_kind != UseKind::kUnknown) {  // a hint knows better
    const bool learned = prediction.source == Forecast::Source::kLearned && !prediction.freed;
    client.hints.Add(tensor.use_kind, tensor.use_key,
                     learned ? std::optional(prediction.logical_time) : std::nullopt);
    return;
  }
  if (prediction.source == Forecast::Source::kLearned) {
    tensor.dies = prediction.freed;
    SetPrediction(client, tensor, prediction.logical_time);
    if (client.expiries.size() < kMostExpiries)
      client.expiries.push({Forecast::LatestFor(tensor.logical, prediction.logical_time), tensor.id,
                            tensor.logical.put_at});
    return;
  }
  Correlation::Step* step =
      Uses(Heuristic::kCorrelation) ? client.correlation.Find(tensor.logical.logical) : nullptr;
  if (step != nullptr && !step->predicted && step->tensor == tensor.id) {
    step->predicted = true;
    step->kind_before = static_cast<uint8_t>(tensor.use_kind);
    step->key_before = tensor.use_key;
    tensor.correlated = true;
    return SetPrediction(client, tensor, step->logical_time);
  }
  if (prediction.source == Forecast::Source::kNothing) return;
  if (!Uses(Heuristic::kLastInFirstOut)) return;
  tensor.use_kind = UseKind::kLearned;
  tensor.use_key = prediction.logical_time;
}

void Planner::State::SetPrediction(const Client& client, TensorRow& tensor, int64_t logical_time) {
  // Beside hints the same as they are, so that they can be compared.
  const auto key = client.hints.KeyAt(logical_time, client.forecast, VirtualTime(client));
  tensor.predicted = key.has_value();
  tensor.use_kind = key ? client.hints.kind() : UseKind::kLearned;
  tensor.use_key = key.value_or(logical_time);
}

void Planner::State::CorrelateWhatWasMade(Client& client) {
  if (!Uses(Heuristic::kCorrelation)) return;
  for (size_t slot = 0; slot < std::min(client.slots.size(), Correlation::kMostStates); ++slot) {
    if (client.slots[slot] == kNoRow) continue;
    const TensorRow& tensor = catalog_[client.slots[slot]];
    client.correlation.Used(tensor.logical.logical, tensor.id, client.forecast.logical_time(),
                            &missed_);
  }
}

void Planner::State::Correlate(Client& client, TensorRow& tensor) {
  if (!Uses(Heuristic::kCorrelation)) return;
  tensor.correlated = false;
  missed_.clear();
  client.correlation.Used(tensor.logical.logical, tensor.id, client.forecast.logical_time(),
                          &missed_);
  for (const Correlation::Step& step : missed_) {
    TensorRow* other = step.predicted ? catalog_.Find(step.tensor) : nullptr;
    if (other == nullptr || !other->correlated) continue;
    Rekey(*other, [&] {
      other->correlated = false;
      other->predicted = false;
      other->use_kind = static_cast<UseKind>(step.kind_before);
      other->use_key = step.key_before;
    });
  }
  std::vector<Correlation::Step>& ahead = client.correlation.Ahead();
  for (auto step = ahead.rbegin(); step != ahead.rend() && !step->seen; ++step) {
    step->seen = true;
    TensorRow* other = catalog_.Find(step->tensor);
    if (other == nullptr || other->in_use || other->freed || other->waiting || other->never ||
        other->correlated)
      continue;
    // What the client said, and what it did each time before, is known better.
    const bool refuted = other->use_kind == UseKind::kLearned &&
                         (Forecast::IsAssumed(other->use_key) ||
                          client.forecast.Refutes(other->logical, other->use_key));
    if (other->use_kind != UseKind::kUnknown && !refuted) continue;
    step->predicted = true;
    step->kind_before = static_cast<uint8_t>(other->use_kind);
    step->key_before = other->use_key;
    Rekey(*other, [&] {
      other->correlated = true;
      SetPrediction(client, *other, step->logical_time);
    });
  }
}

template <typename Change>
void Planner::State::Rekey(TensorRow& tensor, const Change& change) {
  ClientArena& arena = *ArenaOf(tensor);
  const bool was_in = EvictionIndex::Contains(tensor);
  arena.index.Erase(tensor);
  Unlist(tensor);
  change();
  if (was_in) arena.index.Insert(tensor);
  if (tensor.residency == Residency::kAway) List(tensor);
}

void Planner::State::ExplainPrediction(const Client& client, const TensorRow& tensor,
                                       Explanation* why) {
  using Future = Explanation::Future;
  if (tensor.correlated) {
    why->future = Future::kCorrelated;
    why->confidence = client.correlation.ConfidenceOf(tensor.logical.logical);
    return;
  }
  why->future = tensor.dies ? Future::kLearnedFreed : Future::kLearned;
  why->confidence = client.forecast.ConfidenceIn(tensor.logical);
}

Explanation Planner::State::Explain(const TensorRow& tensor, Tick now) const {
  using Future = Explanation::Future;
  Explanation why;
  why.tensor = ViewOf(tensor);
  why.discarded = tensor.discarded;
  why.prefetched = tensor.prefetched;
  why.gets = tensor.logical.gets;
  why.priority = tensor.priority;
  if (tensor.recompute > 0) why.recompute = RecomputeTime(tensor);
  const auto link = [&](double bytes_per_second) {
    return options_.link.latency +
           FromSeconds(static_cast<double>(tensor.size.count()) / bytes_per_second);
  };
  why.copy_back = link(options_.link.up_bytes_per_second);
  if (tensor.needs_copy()) why.copy_out = link(options_.link.down_bytes_per_second);
  const auto found = clients_.find(tensor.client);
  if (found == clients_.end()) return why;
  const Client& client = *found->second;
  const Tick virtual_time = VirtualTime(client) + (client.waits > 0 ? Duration{0} : now - now_);
  why.predictions_right = client.stats.predictions_right;
  why.predictions_wrong = client.stats.predictions_wrong;
  if (const ClientArena* arena = client.arenas[ToInt(tensor.device)].get();
      arena != nullptr && EvictionIndex::Contains(tensor))
    why.value = arena->index.Value(tensor, virtual_time, options_.link);
  if (tensor.never) return why.future = Future::kHintedNever, why;
  switch (tensor.use_kind) {
    case UseKind::kAt:
      why.future = Future::kHintedTime;
      if (tensor.predicted) ExplainPrediction(client, tensor, &why);
      why.needed_in = std::max(Duration{0}, Tick(Duration(tensor.use_key)) - virtual_time);
      break;
    case UseKind::kOrder:
      why.future = Future::kHintedOrder;
      if (tensor.predicted) ExplainPrediction(client, tensor, &why);
      break;
    case UseKind::kLearned:
      if (Forecast::IsAssumed(tensor.use_key)) return why.future = Future::kLastInFirstOut, why;
      ExplainPrediction(client, tensor, &why);
      why.needed_in = FromSeconds(static_cast<double>(std::max<int64_t>(
                                      0, tensor.use_key - client.forecast.logical_time())) *
                                  client.forecast.seconds_per_access());
      break;
    case UseKind::kUnknown:
      if (options_.policy == Policy::kValue)
        why.last_put_ago = virtual_time - Tick(Duration(-tensor.use_key));
      break;
  }
  return why;
}

void Planner::State::ExpireSomePredictions(Client& client) {
  if (!Uses(Heuristic::kExpiry)) return;
  const int64_t now = client.forecast.logical_time();
  for (int i = 0; i < kExpiriesPerGet && !client.expiries.empty(); ++i) {
    const Client::Expiry expiry = client.expiries.top();
    if (expiry.latest >= now) return;
    client.expiries.pop();
    TensorRow* tensor = catalog_.Find(expiry.tensor);
    if (tensor == nullptr || tensor->in_use || tensor->logical.put_at != expiry.put_at) continue;
    const bool learned = tensor->predicted || tensor->use_kind == UseKind::kLearned;
    if (!learned || tensor->correlated) continue;
    const auto idle = static_cast<uint32_t>(now) - expiry.put_at;
    Rekey(*tensor, [&] {
      tensor->use_kind = UseKind::kUnknown;
      tensor->predicted = false;
      tensor->dies = false;
      tensor->use_key = -(VirtualTime(client).time_since_epoch().count() -
                          static_cast<int64_t>(idle * client.forecast.seconds_per_access() * 1e9));
    });
  }
}

void Planner::State::EndPrefetch(TensorRow& tensor, bool used) {
  if (!tensor.prefetched) return;
  tensor.prefetched = false;
  if (!used) Count(tensor.client, &PlannerStats::prefetches_unused, 1);
}

void Planner::State::CountGet(TensorRow& tensor) {
  if (tensor.logical.gets < UINT16_MAX) ++tensor.logical.gets;
  if (!options_.learn) return;
  Client& client = *FindClient(tensor.client);
  const auto prediction = client.forecast.Got(&tensor.logical, VirtualTime(client));
  if (!std::exchange(client.gets, true) && client.tensors <= kFewTensors)
    CorrelateWhatWasMade(client);
  Correlate(client, tensor);
  ExpireSomePredictions(client);
  if (!prediction) return;
  Count(tensor.client,
        *prediction ? &PlannerStats::predictions_right : &PlannerStats::predictions_wrong, 1);
}

void Planner::State::DiscardBytes(TensorRow& tensor) {
  SetInUse(tensor, false);
  Count(tensor.client, &PlannerStats::discarded, 1);
  FreeDevice(tensor);
  FreeHost(tensor);
  tensor.residency = Residency::kAway;
  tensor.discarding = false;
  tensor.discarded = true;
}

}  // namespace ravenstore::core
