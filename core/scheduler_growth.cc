// How arenas grow: how large a slab is, where it comes, and when.
#include <algorithm>

#include "core/scheduler.h"
#include "core/tuned.h"

namespace ravenstore::core {

namespace {
// Bounds the work of a request much larger than the tensors that make way for it.
constexpr size_t kMostEvictedAtOnce = 4096;
// Blocks at an end of the arena that are looked at for a tensor.
constexpr int kBlocksTried = 64;
}  // namespace

Bytes Scheduler::MostOf(const ClientArena& arena) const {
  return std::min(BudgetOf(arena), arena.space.range()).RoundDown(options_.granularity);
}

Bytes Scheduler::SlabSize(const ClientArena& arena) const {
  const Bytes most = std::max(UsageOf(arena).held, arena.lived.most());
  const Bytes grown = Bytes(most.count() / kGrowthShare).RoundUp(options_.granularity);
  return std::min(std::max(options_.slab, grown), LargestSlab(arena));
}

Bytes Scheduler::FirstSlabOf(const ClientArena& arena, Bytes room) const {
  if (!HasDeviceAlone(arena)) return room;
  const Bytes small(BudgetOf(arena).count() / (kLeastSlabs * kSlabsOfPart));
  return std::min(room, std::max(options_.granularity, small.RoundUp(options_.granularity)));
}

// Room is made while the client computes rather than while it waits.
void Scheduler::GrowAhead(ClientArena& arena) {
  if (arena.space.awaited() > Bytes{0} || arena.trimming || now_ < arena.backoff_until) return;
  if (!arena.allocation_phase || !Uses(Heuristic::kGrowAhead)) return;
  const QuotaTree::Usage& usage = UsageOf(arena);
  if (usage.reclaiming > Bytes{0}) return;
  if (usage.held < options_.slab * kSlabsBeforeAhead) return;
  const Bytes slab = SlabSize(arena);
  if (LacksCover(arena, slab)) return;
  if (clients_.size() > 1 && Uses(Heuristic::kGrowForLargest) && GrowForLargest(arena)) return;
  if (arena.space.LargestHole() >= slab) return;
  const Bytes left = RoomFor(arena).RoundDown(options_.granularity);
  const Bytes last = slab * kLastSlabs;
  const bool alone = clients_.size() == 1 || BindingFor(arena, last) == Limit::kClient;
  if (alone && left > Bytes{0} && left < last)
    return AddLastSlab(arena, std::min(left, arena.space.most()));
  if (left >= slab) AddSlabBehind(arena, FirstSlabOf(arena, slab));
}

// A tensor larger than a slab, as the logits of a language model are, comes at the same place in
// every iteration; a client that gives slabs back to others in between would wait for its room.
bool Scheduler::GrowForLargest(ClientArena& arena) {
  const auto& last = arena.cycle.last();
  const Bytes slab = SlabSize(arena);
  if (!last || last->largest <= std::max(slab, arena.space.LargestHole())) return false;
  const Bytes near = last->largest_at + slab;  // it may come a little later than it did
  if (arena.live > near || near > arena.live + slab * (kSlabsBeforeLargest + 1)) return false;
  return AddSlabFor(arena, last->largest);
}

// The room that is left should lie beside what leaves first, and that may be what lies lowest: what
// a training step makes first it needs last. Room at both ends is worse for large tensors.
void Scheduler::AddLastSlab(ClientArena& arena, Bytes size) {
  const auto below = arena.space.AbsentFrom(Bytes{0});
  const bool small = arena.ready.count() * kSmallShare <= SlabSize(arena).count();
  if (Uses(Heuristic::kLastSlabBelow) && small && below && below->first == Bytes{0} &&
      below->second >= size && LowestIsNeededLater(arena, below->second)) {
    const Bytes slab = FirstSlabOf(arena, size);
    AddSlabAt(arena, below->second - slab, slab);
  } else {
    AddSlabBehind(arena, FirstSlabOf(arena, size));
  }
}

bool Scheduler::LowestIsNeededLater(const ClientArena& arena, Bytes begin) const {
  // The nearest tensor that could leave.
  const auto find = [&](ExtentMap::Block block, ExtentMap::Block (ExtentMap::*next)(
                                                    ExtentMap::Block) const) -> const TensorRow* {
    for (int i = 0; i < kBlocksTried && block != ExtentMap::kNone; ++i) {
      if (arena.space.KindOf(block) == ExtentMap::Kind::kUsed) {
        const TensorRow& tensor = catalog_[arena.space.OwnerOf(block)];
        if (EvictionIndex::CanLeave(tensor)) return &tensor;
      }
      block = (arena.space.map().*next)(block);
    }
    return nullptr;
  };
  const auto behind = arena.space.AbsentFrom(begin);
  if (!behind) return false;
  const TensorRow* lowest = find(arena.space.At(begin), &ExtentMap::After);
  const TensorRow* highest = find(arena.space.At(behind->first), &ExtentMap::Before);
  return lowest != nullptr && highest != nullptr && IsHinted(*lowest) &&
         arena.index->IsLater(*lowest, *highest);
}

bool Scheduler::AddSlabBehind(ClientArena& arena, Bytes size) {
  const auto place = arena.space.PlaceForSlab(size, options_.granularity);
  if (!place || place->room < size) return false;
  AddSlabAt(arena, place->offset, size);
  return true;
}

bool Scheduler::AddSlabFor(ClientArena& arena, Bytes need) {
  if (now_ < arena.backoff_until) return false;
  const auto place = arena.space.PlaceForSlab(need, options_.granularity);
  if (!place) return false;
  const Bytes left = RoomFor(arena);
  // What was given back for the request comes again slab by slab, while others are drained.
  const bool piecemeal = quota_.Reserved(arena.client, arena.pool()) > Bytes{0} &&
                         left >= FirstSlabOf(arena, SlabSize(arena));
  if (left < place->missing && !piecemeal) return false;
  // One after the other, if one does not suffice: small slabs can be given back where large ones
  // could not, but each takes time.
  const Bytes most = std::max(SlabSize(arena), std::min(place->missing, LargestSlab(arena)));
  const Bytes slab = std::min({most.RoundUp(options_.granularity), left, place->room})
                         .RoundDown(options_.granularity);
  AddSlabAt(arena, place->offset, FirstSlabOf(arena, slab));
  return true;
}

void Scheduler::AddSlabAt(ClientArena& arena, Bytes offset, Bytes size) {
  slabs_come_until_ = now_ + kSlabsComeFor;
  arena.space.Await(size);
  arena.trimming = false;
  quota_.Charge(arena.client, arena.pool(), size);
  plan_->push_back(AddSlab{arena.client, arena.device, offset, size});
}

bool Scheduler::AddSlabAndEvictFor(ClientArena& arena, Bytes need) {
  if (arena.space.awaited() > Bytes{0} || now_ < arena.backoff_until) return false;
  const auto range = arena.space.AbsentFrom(options_.granularity);
  if (!range) return false;
  const auto [offset, room] = *range;
  const Bytes slab =
      std::min({RoomFor(arena), room, arena.space.most()}).RoundDown(options_.granularity);
  if (slab == Bytes{0}) return false;
  Bytes reach = slab;
  std::vector<uint32_t> rows;
  ExtentMap::Block block = arena.space.At(offset);
  while (reach < need) {
    block = arena.space.Before(block);
    if (block == ExtentMap::kNone || rows.size() >= kMostEvictedAtOnce) return false;
    reach += arena.space.SizeOf(block);
    if (arena.space.KindOf(block) == ExtentMap::Kind::kFree) continue;
    if (arena.space.KindOf(block) != ExtentMap::Kind::kUsed) return false;
    rows.push_back(arena.space.OwnerOf(block));
    if (!EvictionIndex::CanLeave(catalog_[rows.back()])) return false;
  }
  if (!EvictAll(arena, rows, RedundantCopies::kMayDrop)) return false;
  // Harvested memory may have grown for what leaves.
  if (RoomFor(arena) >= slab) AddSlabAt(arena, offset, slab);
  return true;
}

}  // namespace ravenstore::core
