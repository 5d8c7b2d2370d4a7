// What the planner knows of a tensor's future and of the ways to do without its bytes, and how it
// tells people.
#include <algorithm>
#include <utility>

#include "core/planner_state.h"

namespace ravenstore::core {

namespace {
Explanation::Future FutureOf(const TensorRow& tensor) {
  using Future = Explanation::Future;
  if (tensor.never) return Future::kHintedNever;
  if (tensor.use_kind == UseKind::kUnknown) return Future::kUnknown;
  if (tensor.IsPredicted()) {
    if (tensor.correlated) return Future::kCorrelated;
    return tensor.dies ? Future::kLearnedFreed : Future::kLearned;
  }
  if (tensor.use_kind == UseKind::kLearned) return Future::kLastInFirstOut;
  return tensor.use_kind == UseKind::kAt ? Future::kHintedTime : Future::kHintedOrder;
}
}  // namespace

Duration Planner::State::BothCopies(const LinkModel& link, Bytes size) {
  const auto bytes = static_cast<double>(size.count());
  return 2 * link.latency +
         FromSeconds(bytes / link.up_bytes_per_second + bytes / link.down_bytes_per_second);
}

ExpectedUse Planner::State::ExpectedAfter(const PutSeen& event, TensorRow& tensor) {
  Predictor& predictor = FindClient(tensor.client)->predictor;
  if (options_.policy == Policy::kValue)
    return predictor.Put(tensor.id, &tensor.logical, event.next_use, now_);
  const Tick virtual_time = predictor.VirtualTime(now_);
  if (event.next_use.kind == NextUse::Kind::kNever)
    return {.key = -virtual_time.time_since_epoch().count(), .never = true};
  return {.key = ArenaOf(tensor)->index->KeyAtPut(tensor, virtual_time, LinksOf(tensor.device()))};
}

void Planner::State::WriteChanges() {
  for (const auto& [id, use] : changes_) {
    TensorRow& tensor = *catalog_.Find(id);
    EvictionIndex& index = *ArenaOf(tensor)->index;
    const bool was_in = EvictionIndex::Contains(tensor);
    index.Erase(tensor);
    Unlist(tensor);
    tensor.Expect(use);
    if (was_in) index.Insert(tensor);
    List(tensor);
  }
  changes_.clear();
}

Explanation Planner::State::Explain(const TensorRow& tensor, Tick now) const {
  Explanation why;
  why.tensor = ViewOf(tensor);
  why.discarded = tensor.state() == TensorState::kDiscarded;
  why.prefetched = tensor.prefetched;
  why.gets = tensor.logical.gets;
  why.priority = tensor.priority;
  if (tensor.recompute > 0) why.recompute = RecomputeTime(tensor);
  const AwayLinks links = LinksOf(tensor.device());
  const LinkModel& link = links.Of(tensor);
  const auto copied_at = [&](double bytes_per_second) {
    return link.latency + FromSeconds(static_cast<double>(tensor.size.count()) / bytes_per_second);
  };
  why.copy_back = copied_at(link.up_bytes_per_second);
  if (tensor.needs_copy()) why.copy_out = copied_at(link.down_bytes_per_second);
  const auto found = clients_.find(tensor.client);
  if (found == clients_.end()) return why;
  const Client& client = *found->second;
  const Tick virtual_time = client.predictor.VirtualTime(now);
  why.predictions_right = client.stats.predictions_right;
  why.predictions_wrong = client.stats.predictions_wrong;
  if (const ClientArena* arena = client.arenas[ToInt(tensor.device())].get();
      arena != nullptr && EvictionIndex::Contains(tensor))
    why.value = arena->index->Value(tensor, virtual_time, links);
  why.future = FutureOf(tensor);
  why.confidence = client.predictor.ConfidenceIn(tensor);
  why.needed_in = client.predictor.UntilUse(tensor, now);
  if (why.future == Explanation::Future::kUnknown && options_.policy == Policy::kValue)
    why.last_put_ago = virtual_time - Tick(Duration(-tensor.use_key));
  return why;
}

void Planner::State::EndPrefetch(TensorRow& tensor, bool used) {
  if (!tensor.prefetched) return;
  tensor.prefetched = false;
  if (!used) Count(tensor.client, &PlannerStats::prefetches_unused, 1);
}

void Planner::State::CountGet(TensorRow& tensor) {
  Client& client = *FindClient(tensor.client);
  const auto came_true = client.predictor.Got(&tensor.logical, now_);
  tensor.correlated = false;
  client.predictor.FollowGet(tensor, client.slots, now_, &changes_);
  WriteChanges();
  if (!came_true) return;
  Count(tensor.client,
        *came_true ? &PlannerStats::predictions_right : &PlannerStats::predictions_wrong, 1);
}

void Planner::State::DiscardBytes(TensorRow& tensor) {
  SetInUse(tensor, false);
  Count(tensor.client, &PlannerStats::discarded, 1);
  FreeDevice(tensor);
  FreeAway(tensor);
  Catalog::Commit(tensor, TensorState::kDiscarded);
}

}  // namespace ravenstore::core
