// What the planner knows of a tensor's future and of the ways to do without its bytes, and how it
// tells people.
#include <algorithm>

#include "core/planner_state.h"

namespace ravenstore::core {

Duration Planner::State::BothCopies(Bytes size) const {
  const auto bytes = static_cast<double>(size.count());
  return 2 * options_.link.latency +
         std::chrono::duration_cast<Duration>(
             std::chrono::duration<double>(bytes / options_.link.up_bytes_per_second +
                                           bytes / options_.link.down_bytes_per_second));
}

void Planner::State::Predict(Client& client, Tensor& tensor) {
  const Forecast::Told told = client.forecast.Put(&tensor.logical);
  if (tensor.never) return;
  if (tensor.use_kind != UseKind::kUnknown) {  // a hint knows better
    client.tells_times = tensor.use_kind == UseKind::kAt;
    return;
  }
  if (told.source == Forecast::Source::kNothing) return;
  tensor.dies = told.freed;
  // Beside hints by time the same, so that they can be compared.
  if (client.tells_times && told.source == Forecast::Source::kLearned) {
    tensor.predicted = true;
    tensor.use_kind = UseKind::kAt;
    tensor.use_key = OwnTime(client).time_since_epoch().count() +
                     static_cast<int64_t>(client.forecast.SecondsUntil(told.position) * 1e9);
    return;
  }
  tensor.use_kind = UseKind::kLearned;
  tensor.use_key = told.position;
}

Explanation Planner::State::Explain(const Tensor& tensor, Tick now) const {
  using Future = Explanation::Future;
  Explanation why;
  why.tensor = ViewOf(tensor);
  why.given_up = tensor.given_up;
  why.prefetched = tensor.prefetched;
  why.gets = tensor.logical.gets;
  if (tensor.recompute > 0) why.recompute = RecomputeTime(tensor);
  const auto link = [&](double bytes_per_second) {
    return options_.link.latency +
           std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
               static_cast<double>(tensor.size.count()) / bytes_per_second));
  };
  why.copy_back = link(options_.link.up_bytes_per_second);
  if (tensor.dirty() && !tensor.never) why.copy_out = link(options_.link.down_bytes_per_second);
  const auto found = clients_.find(tensor.client);
  if (found == clients_.end()) return why;
  const Client& client = *found->second;
  const Tick own_time = OwnTime(client) + (client.waits > 0 ? Duration{0} : now - now_);
  why.predictions_right = client.stats.predictions_right;
  why.predictions_wrong = client.stats.predictions_wrong;
  if (const Arena* arena = client.arenas[ToInt(tensor.device)].get();
      arena != nullptr && EvictionIndex::Contains(tensor))
    why.value = arena->index.Value(tensor, own_time, options_.link);
  if (tensor.never) return why.future = Future::kHintedNever, why;
  switch (tensor.use_kind) {
    case UseKind::kAt:
      why.future = !tensor.predicted ? Future::kHintedTime
                   : tensor.dies     ? Future::kLearnedFreed
                                     : Future::kLearned;
      why.needed_in = std::max(Duration{0}, Tick(Duration(tensor.use_key)) - own_time);
      break;
    case UseKind::kOrder: why.future = Future::kHintedOrder; break;
    case UseKind::kLearned:
      if (Forecast::IsAssumed(tensor.use_key)) return why.future = Future::kLastInFirstOut, why;
      why.future = tensor.dies ? Future::kLearnedFreed : Future::kLearned;
      why.needed_in = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
          static_cast<double>(std::max<int64_t>(0, tensor.use_key - client.forecast.position())) *
          client.forecast.seconds_per_position()));
      break;
    case UseKind::kUnknown:
      if (options_.policy == Policy::kValue)
        why.last_put_ago = own_time - Tick(Duration(-tensor.use_key));
      break;
  }
  return why;
}

void Planner::State::CountGet(Tensor& tensor) {
  if (tensor.logical.gets < UINT16_MAX) ++tensor.logical.gets;
  if (!options_.learn) return;
  Client& client = *FindClient(tensor.client);
  const auto told = client.forecast.Got(&tensor.logical, now_, OwnTime(client));
  if (!told) return;
  Count(tensor.client, *told ? &PlannerStats::predictions_right : &PlannerStats::predictions_wrong,
        1);
}

void Planner::State::GiveUp(Tensor& tensor) {
  SetInUse(tensor, false);
  Count(tensor.client, &PlannerStats::given_up, 1);
  FreeDevice(tensor);
  FreeHost(tensor);
  tensor.residency = Residency::kAway;
  tensor.giving_up = false;
  tensor.given_up = true;
}

// By a hint, or learned; what is only assumed does not count.
bool Planner::State::KnowsAhead(const Tensor& tensor) {
  if (tensor.use_kind != UseKind::kLearned) return tensor.use_kind != UseKind::kUnknown;
  return !Forecast::IsAssumed(tensor.use_key);
}

}  // namespace ravenstore::core
