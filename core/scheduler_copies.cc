// What the end of a copy, or of a drop, does.
#include <utility>

#include "core/check.h"
#include "core/scheduler.h"

namespace ravenstore::core {

void Scheduler::On(const Dropped& event) {
  TensorRow* tensor = catalog_.Find(event.tensor);
  RAVEN_CHECK(tensor != nullptr);
  away_[tensor->away.pool].look = true;
  ClientArena* arena = ArenaOf(*tensor);
  EndLeaving(*arena, *tensor);
  Touch(arena);
  if (FinishIfGone(*tensor)) return;
  if (!event.taken) {
    if (tensor->has_copy()) NoteRedundantCopy(*tensor);
    // Else the log has shown the get meanwhile, or the get is one on another device.
    if (tensor->state() != TensorState::kRescued && !tensor->waiting) {
      SetInUse(*tensor, true);
      SetStreamComplete(*tensor, false);
    }
    Catalog::Commit(*tensor, TensorState::kResident);
    Reindex(*tensor);
    AnswerIfHere(*tensor);
    TouchFetch(*tensor);
    return;
  }
  if (tensor->state() == TensorState::kDiscarding) return DiscardBytes(*tensor);
  if (tensor->needs_copy()) {
    // A use that wrote, seen after the drop was proposed: the bytes are on the device alone and
    // must stay. The lease says Away, so the next get asks for it and finds it here.
    Catalog::Commit(*tensor, TensorState::kResident);
    SetInUse(*tensor, true);
    SetStreamComplete(*tensor, false);
    return;
  }
  SetInUse(*tensor, false);
  Count(tensor->client, &PlannerStats::drops_clean, 1);
  FreeDevice(*tensor);
  if (tensor->dirty()) {
    FreeAway(*tensor);
    Catalog::Commit(*tensor, TensorState::kLost);  // it was not needed any more
  } else {
    Catalog::Commit(*tensor, TensorState::kAway);
    List(*tensor);
  }
}

void Scheduler::On(const Moved& event) {
  TensorRow* tensor = catalog_.Find(event.tensor);
  if (tensor == nullptr) return;
  away_[tensor->away.pool].look = true;
  if (tensor->state() == TensorState::kMovingOn) return EndMoveOn(*tensor, event);
  if (tensor->state() == TensorState::kArriving) return EndArrival(*tensor, event);
  if (tensor->is_being_cleaned()) return EndClean(*tensor, event);
  EndLeave(*tensor, event);
}

void Scheduler::On(const MoveProgressed& event) {
  TensorRow* tensor = FindTensor(event.tensor);
  if (tensor == nullptr || tensor->freed) return;
  ClientArena& arena = *ArenaOf(*tensor);
  if (tensor->state() != TensorState::kLeavingIrrevocably) {
    if (tensor->is_being_cleaned()) arena.index->EndCleaning(*tensor);
    Catalog::Commit(*tensor, TensorState::kLeavingIrrevocably);
  }
  const Bytes room = tensor->size.RoundUp(kExtentAlignment);
  const Bytes left = arena.space.SizeOf(tensor->home.block);
  const Bytes more = Minus(event.bytes.RoundDown(kExtentAlignment), room - left);
  if (more == Bytes{0} || more >= left) return;
  tensor->home.block = arena.space.FreeFront(tensor->home.block, more);
  Touch(&arena);
}

void Scheduler::EndLeave(TensorRow& tensor, const Moved& event) {
  EndCopyOut(tensor);
  ClientArena* arena = ArenaOf(tensor);
  if (arena != nullptr) {
    EndLeaving(*arena, tensor);
    --arena->copying_out;
    Touch(arena);
  }
  if (FinishIfGone(tensor)) return;
  using Outcome = Moved::Outcome;
  if (event.outcome == Outcome::kDone) {
    tensor.away.state = Replica::State::kCurrent;
    SetInUse(tensor, false);  // whatever an old log entry may have said
    FreeDevice(tensor);
    Catalog::Commit(tensor, TensorState::kAway);
    List(tensor);
    return;
  }
  FreeAway(tensor);
  if (tensor.state() == TensorState::kLeavingIrrevocably)
    return IrrevocableCopyFailed(*arena, tensor);
  if (event.outcome == Outcome::kRescued) Count(tensor.client, &PlannerStats::rescues, 1);
  const bool was_used = tensor.state() == TensorState::kRescued;
  Catalog::Commit(tensor, TensorState::kResident);
  if (!was_used && event.outcome != Outcome::kFailed && !tensor.waiting) {
    // A get has it; its log entry or the next put's will follow.
    SetInUse(tensor, true);
    SetStreamComplete(tensor, false);
  }
  if (event.outcome == Outcome::kFailed) BackOff(*arena);
  Reindex(tensor);
  AnswerIfHere(tensor);
}

void Scheduler::AnswerIfHere(TensorRow& tensor) {
  if (!tensor.waiting || tensor.is_under_way() ||
      requests_.FetchOf(tensor.id).device != tensor.device())
    return;
  Dequeue(requests_.FetchOf(tensor.id));
  tensor.waiting = false;
  ReplyInPlace(tensor, false);
}

void Scheduler::ReplyInPlace(TensorRow& tensor, bool arriving) {
  SetInUse(tensor, true);
  SetStreamComplete(tensor, false);
  EndPrefetch(tensor, true);
  Reindex(tensor);
  plan_->push_back(FetchReply{NameOf(tensor), tensor.device(), HomeOf(tensor).offset, arriving});
}

void Scheduler::IrrevocableCopyFailed(ClientArena& arena, TensorRow& tensor) {
  BackOff(arena);
  if (arena.space.SizeOf(tensor.home.block) == tensor.size.RoundUp(kExtentAlignment)) {
    // The lease says Away: the next get asks for it and finds it here.
    Catalog::Commit(tensor, TensorState::kResident);
    SetInUse(tensor, true);
    SetStreamComplete(tensor, false);
    return AnswerIfHere(tensor);
  }
  FreeDevice(tensor);
  SetInUse(tensor, false);
  Lose(tensor);
}

void Scheduler::EndClean(TensorRow& tensor, const Moved& event) {
  EndCopyOut(tensor);
  ClientArena* arena = ArenaOf(tensor);
  const bool whole = event.outcome == Moved::Outcome::kDone;
  const bool leaves = tensor.state() == TensorState::kCleaningToLeave;
  if (arena != nullptr) arena->index->EndCleaning(tensor);
  const bool drains = tensor.drains;
  if (arena != nullptr) {
    Touch(arena);
    if (leaves) {
      EndLeaving(*arena, tensor);
      --arena->copying_out;
    }
  }
  if (FinishIfGone(tensor)) return;
  Catalog::Commit(tensor, TensorState::kResident);
  if (whole) {
    tensor.away.state = Replica::State::kCurrent;
    Count(tensor.client, &PlannerStats::precleaned, tensor.size);
    NoteRedundantCopy(tensor);
  }
  if (!whole || tensor.dirty()) FreeAway(tensor);
  if (event.outcome == Moved::Outcome::kFailed) {
    if (arena != nullptr) BackOff(*arena);
  } else if (!whole && !tensor.put_seen && !tensor.waiting) {
    // A get that no log entry has shown yet; its put's entry will follow.
    SetInUse(tensor, true);
    SetStreamComplete(tensor, false);
  }
  Reindex(tensor);
  // Unless it was used meanwhile; then the request that wanted its room searches again.
  if (!leaves || !EvictionIndex::Contains(tensor) || tensor.dirty()) return;
  EvictAll(*arena, {Catalog::RowOf(tensor.id)}, RedundantCopies::kKeep);
  if (drains) LeaveSlab(*arena, tensor);
}

void Scheduler::EndArrival(TensorRow& tensor, const Moved& event) {
  copies_.End(LaneOf(tensor), Way::kIn, tensor.size);
  if (!tensor.prefetched) EndWait(tensor.client);
  AwayRoomCame();
  if (std::exchange(demand_held_, false)) TouchWaiting();
  TouchFetch(tensor);
  ClientArena* arena = ArenaOf(tensor);
  if (arena != nullptr) Touch(arena);
  if (FinishIfGone(tensor)) return;
  if (event.outcome == Moved::Outcome::kDone) {
    Catalog::Commit(tensor, TensorState::kResident);
    // A promised one may have been put already; then quiet says whether its stream is done.
    if (tensor.prefetched) SetStreamComplete(tensor, true);
    NoteRedundantCopy(tensor);
    if (tensor.has_copy() && tensor.dirty()) FreeAway(tensor);
    Reindex(tensor);
    return;
  }
  const bool unasked = tensor.prefetched;
  FreeDevice(tensor);
  // The copy that it was brought from is whole.
  if (unasked && !away_[tensor.away.pool].failed)
    return Catalog::Commit(tensor, TensorState::kAway);
  FreeAway(tensor);
  SetInUse(tensor, false);
  Lose(tensor);  // also for a get on another device, which waited until it could be taken from here
}

}  // namespace ravenstore::core
