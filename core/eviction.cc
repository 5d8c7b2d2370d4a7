#include "core/eviction.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "core/tuned.h"

namespace ravenstore::core {

namespace {

// Something that is due now, or overdue, is this far away.
constexpr double kSoonestSeconds = 1e-6;
// One step of a client's order, as time.
constexpr double kOrderStepSeconds = 1e-3;
constexpr double kNeverSeconds = 1e9;

double Seconds(int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}

Bytes RoomOf(const Object& object) {
  return object.size.RoundUp(kExtentAlignment);
}

}  // namespace

const LinkModel& AwayLinks::Of(const Object& object) const {
  if (!object.away.is_placed()) return For(object.size);
  const auto there = std::find_if(pools.begin(), pools.end(),
                                  [&](const Pool& pool) { return pool.id == object.away.pool; });
  RAVEN_CHECK(there != pools.end());
  return there->link;
}

const LinkModel& AwayLinks::For(Bytes size) const {
  const auto first =
      std::find_if(pools.begin(), pools.end(), [&](const Pool& pool) { return pool.room >= size; });
  return first != pools.end() ? first->link : pools.back().link;
}

uint16_t EvictionIndex::HeapOf(const TensorRow& tensor) {
  // Classes: below 2 KiB, then factors of 4.
  const int log4 = (static_cast<int>(std::bit_width(tensor.size.count())) - 10) / 2;
  const int size_class = std::clamp(log4, 0, kSizeClasses - 1);
  // What is only assumed has keys beyond all that is learned and would hide it.
  const bool assumed = tensor.use_kind == UseKind::kLearned && Forecast::IsAssumed(tensor.use_key);
  const int kind = assumed ? kKinds - 1 : static_cast<int>(tensor.use_kind);
  const int heap = (kind * kSizeClasses + size_class) * 2 + (tensor.dirty() ? 1 : 0);
  // One of another priority would hide those that it is worth more, or less, than.
  return static_cast<uint16_t>(static_cast<int>(tensor.priority) * kHeapsPerPriority + heap);
}

void EvictionIndex::Insert(TensorRow& tensor) {
  RAVEN_CHECK(!Contains(tensor));
  tensor.heap = HeapOf(tensor) & (kMostHeaps - 1);
  heaps_[tensor.heap].Insert(Catalog::RowOf(tensor.id), Traits{catalog_});
  ++size_;
  ++changes_;
  room_ += RoomOf(tensor);
  if (!IsDirtyHeap(tensor.heap)) clean_bytes_ += tensor.size;
}

void EvictionIndex::Erase(TensorRow& tensor) {
  if (!Contains(tensor)) return;
  heaps_.at(tensor.heap).Erase(Catalog::RowOf(tensor.id), Traits{catalog_});
  --size_;
  ++changes_;
  room_ -= RoomOf(tensor);
  if (!IsDirtyHeap(tensor.heap)) clean_bytes_ -= tensor.size;
}

bool EvictionIndex::IsHinted() const {
  return std::any_of(heaps_.begin(), heaps_.end(), [](const auto& heap) {
    const int kind = heap.first % kHeapsPerPriority / (kSizeClasses * 2);
    return heap.second.size() > 0 &&
           (kind == static_cast<int>(UseKind::kAt) || kind == static_cast<int>(UseKind::kOrder));
  });
}

// A large request is searched for again whenever a tensor comes into the index: it must cost
// little while there is not enough.
bool EvictionIndex::MaySuffice(const ExtentMap& map, Bytes need) const {
  Bytes most = map.held() - map.used() + room_;
  for (const uint32_t row : cleaning_) most += RoomOf((*catalog_)[row]);
  return most >= need;
}

double EvictionIndex::Value(const TensorRow& tensor, Tick now, const AwayLinks& links) const {
  return static_cast<double>(tensor.size.count()) / EvictionCost(tensor, now, links);
}

int64_t EvictionIndex::KeyAtPut(const TensorRow& /*tensor*/, Tick virtual_time,
                                const AwayLinks& /*links*/) const {
  return -virtual_time.time_since_epoch().count();
}

void EvictionIndex::Evicted(const Holding& /*holding*/) {}

double EvictionIndex::CostAmongMany(const TensorRow& tensor, Tick now,
                                    const AwayLinks& links) const {
  return EvictionCost(tensor, now, links);
}

double EvictionIndex::Lateness(const TensorRow& tensor, Tick now,
                               const AwayLinks& /*links*/) const {
  return Distance(tensor, now);
}

double EvictionIndex::Distance(const Holding& holding, Tick now) const {
  double distance = kNeverSeconds;
  const int64_t time = now.time_since_epoch().count();
  if (!holding.never) {
    switch (holding.use_kind) {
      case UseKind::kAt:
        // Overdue by x: the hint counts as wrong by x again.
        distance = Seconds(std::abs(holding.use_key - time));
        break;
      case UseKind::kOrder:
        distance =
            static_cast<double>(
                std::abs(holding.use_key - (order_cursor_ == kUnset ? 0 : order_cursor_)) + 1) *
            kOrderStepSeconds;
        break;
      case UseKind::kLearned:
        if (IsRefuted(holding)) {
          // As long again as it has lain idle; since the beginning, if it was never used.
          const auto idle =
              static_cast<uint32_t>(forecast_->logical_time()) - holding.logical.put_at;
          const bool unused = Forecast::IsAssumed(holding.use_key);
          const double accesses =
              unused ? kUnusedFor * (static_cast<double>(forecast_->logical_time()) + 1.0)
                     : idle + 1.0;
          distance = accesses * forecast_->seconds_per_access();
          break;
        }
        if (Forecast::IsAssumed(holding.use_key)) {
          // Last in, first out: it comes back in as long as it has lain idle, and what came after
          // it before.
          const auto idle =
              static_cast<uint32_t>(forecast_->logical_time()) - holding.logical.put_at;
          distance = (idle + 1.0) * forecast_->seconds_per_access();
          break;
        }
        distance = static_cast<double>(std::abs(holding.use_key - forecast_->logical_time()) + 1) *
                   forecast_->seconds_per_access();
        break;
      case UseKind::kUnknown: distance = Seconds(time + holding.use_key); break;
    }
  }
  return std::max(distance, kSoonestSeconds) / WeightOf(holding.priority);
}

double EvictionIndex::CostIn(const Limits& limits, const TensorRow& tensor, Tick now,
                             const AwayLinks& links) const {
  return limits.large ? CostAmongMany(tensor, now, links) : EvictionCost(tensor, now, links);
}

bool EvictionIndex::IsLater(const Holding& holding, const Holding& other) const {
  if (holding.never) return true;
  if (WeightOf(holding.priority) > WeightOf(other.priority)) return false;
  return holding.use_kind == other.use_kind && !IsRefuted(holding) &&
         holding.use_key > other.use_key;
}

bool EvictionIndex::Allowed(const TensorRow& tensor, const Limits& limits) const {
  if (!CanLeave(tensor)) return false;
  if (limits.clean_only && tensor.needs_copy()) return false;
  return limits.later_than == nullptr || IsLater(tensor, *limits.later_than);
}

// The i-th of those of the heap that may leave first. What is never used is assumed to come back
// last in, first out, and stands in that order; where that does not hold the last in leave first.
uint32_t EvictionIndex::RowAt(uint16_t heap, const IndexedHeap& rows, size_t i) const {
  const bool assumed = heap % kHeapsPerPriority >= (kKinds - 1) * kSizeClasses * 2;
  return assumed && IsRefuted((*catalog_)[rows[0]]) ? rows[rows.size() - 1 - i] : rows[i];
}

std::vector<uint32_t> EvictionIndex::Seeds(Bytes need, Tick now, const AwayLinks& links,
                                           const Limits& limits) const {
  std::vector<std::pair<double, uint32_t>> seeds;
  const auto consider = [&](uint32_t row) {
    const TensorRow& tensor = (*catalog_)[row];
    if (!Allowed(tensor, limits)) return;
    // Of a tensor larger than the request only the bytes that it needs count: else many large ones
    // would hide the small one that suffices.
    const auto useful =
        static_cast<double>(std::min(tensor.size, std::max(need, limits.useful)).count());
    seeds.emplace_back(-useful / CostIn(limits, tensor, now, links), row);
  };
  for (const auto& [heap, rows] : heaps_) {
    const size_t count = std::min(rows.size(), kRowsPerHeap);
    for (size_t i = 0; i < count; ++i) consider(RowAt(heap, rows, i));
    searched_ += count;
  }
  for (const uint32_t row : cleaning_) consider(row);
  const size_t count = std::min(seeds.size(), kSeeds);
  std::partial_sort(seeds.begin(), seeds.begin() + static_cast<ptrdiff_t>(count), seeds.end());
  std::vector<uint32_t> rows;
  for (size_t i = 0; i < count; ++i) rows.push_back(seeds[i].second);
  return rows;
}

std::optional<EvictionIndex::Run> EvictionIndex::LeastRunWith(const ExtentMap& map, uint32_t seed,
                                                              Bytes need, Tick now,
                                                              const AwayLinks& links,
                                                              const Limits& limits,
                                                              Sides* sides) const {
  // The cost of the block's leaving; none when it cannot leave.
  const auto cost_of = [&](ExtentMap::Block block) -> std::optional<double> {
    if (block == ExtentMap::kNone) return std::nullopt;
    if (map.KindOf(block) == ExtentMap::Kind::kFree) return 0;
    if (map.KindOf(block) != ExtentMap::Kind::kUsed) return std::nullopt;
    const TensorRow& tensor = (*catalog_)[map.OwnerOf(block)];
    if (!Allowed(tensor, limits)) return std::nullopt;
    return CostIn(limits, tensor, now, links);
  };
  const ExtentMap::Block middle = (*catalog_)[seed].home.block;
  const Reach start{middle, map.SizeOf(middle), CostIn(limits, (*catalog_)[seed], now, links)};
  const auto reach = [&](ExtentMap::Block (ExtentMap::*next)(ExtentMap::Block) const,
                         std::vector<Reach>* side) {
    side->assign(1, start);
    while (side->back().size < need && side->size() <= limits.blocks) {
      const ExtentMap::Block block = (map.*next)(side->back().block);
      const auto cost = cost_of(block);
      if (!cost) break;
      side->push_back({block, side->back().size + map.SizeOf(block), side->back().cost + *cost});
    }
  };
  auto& [left, right] = *sides;
  reach(&ExtentMap::Before, &left);
  reach(&ExtentMap::After, &right);
  searched_ += left.size() + right.size();
  std::optional<Run> least;
  auto last = right.end() - 1;
  for (const Reach& first : left) {
    const auto size_to = [&](auto end) { return first.size + end->size - start.size; };
    while (last != right.begin() && size_to(last - 1) >= need) --last;
    const Bytes size = size_to(last);
    if (size < need) continue;
    const auto useful = static_cast<double>(std::min(size, std::max(need, limits.useful)).count());
    const double cost = (first.cost + last->cost - start.cost) / useful;
    if (!least || cost < least->cost) least = Run{first.block, last->block, cost};
  }
  return least;
}

std::vector<uint32_t> EvictionIndex::FindRun(const ExtentMap& map, Bytes need, Tick now,
                                             const AwayLinks& links, const Limits& limits) const {
  if (!MaySuffice(map, need)) return {};
  std::vector<Run> runs;
  Sides sides;
  for (const uint32_t seed : Seeds(need, now, links, limits)) {
    auto run = LeastRunWith(map, seed, need, now, links, limits, &sides);
    if (!run) continue;
    if (Uses(Heuristic::kBesideRoom) && !IsBesideRoom(map, *run)) run->cost *= 1 + kApartMore;
    runs.push_back(*run);
  }
  if (runs.empty()) return {};
  const auto cheaper = [](const Run& a, const Run& b) { return a.cost < b.cost; };
  const auto least = [&] { return std::min_element(runs.begin(), runs.end(), cheaper); };
  Run best = *least();
  // A copy under way costs the link no more, but the request that needs the room waits for its end.
  if (Uses(Heuristic::kWorthNoWait) &&
      Any(map, best, [](const TensorRow& tensor) { return tensor.is_being_cleaned(); })) {
    std::erase_if(runs, [&](const Run& run) {
      return run.cost > kOutWeight * best.cost ||
             Any(map, run, [](const TensorRow& tensor) { return tensor.needs_copy(); });
    });
    if (!runs.empty()) best = *least();
  }
  if (Uses(Heuristic::kSlivers)) TakeSlivers(map, need, now, limits, &best);
  return RowsOf(map, best);
}

bool EvictionIndex::Any(const ExtentMap& map, const Run& run, bool (*is)(const TensorRow&)) const {
  const auto rows = RowsOf(map, run);
  return std::any_of(rows.begin(), rows.end(), [&](uint32_t row) { return is((*catalog_)[row]); });
}

bool EvictionIndex::IsBesideRoom(const ExtentMap& map, const Run& run) const {
  const auto is_room = [&](ExtentMap::Block block) {
    if (block == ExtentMap::kNone) return false;
    if (map.KindOf(block) != ExtentMap::Kind::kUsed)
      return map.KindOf(block) == ExtentMap::Kind::kFree;
    return (*catalog_)[map.OwnerOf(block)].is_leaving();
  };
  return is_room(map.Before(run.first)) || is_room(run.first) || is_room(run.last) ||
         is_room(map.After(run.last));
}

void EvictionIndex::TakeSlivers(const ExtentMap& map, Bytes need, Tick now, const Limits& limits,
                                Run* run) const {
  double soonest = std::numeric_limits<double>::infinity();
  for (const uint32_t row : RowsOf(map, *run))
    soonest = std::min(soonest, Distance((*catalog_)[row], now));
  const auto is_sliver = [&](ExtentMap::Block block) {
    if (block == ExtentMap::kNone || map.KindOf(block) != ExtentMap::Kind::kUsed) return false;
    const TensorRow& tensor = (*catalog_)[map.OwnerOf(block)];
    return static_cast<double>(tensor.size.count()) <=
               kSliverPart * static_cast<double>(need.count()) &&
           !tensor.dirty() && Contains(tensor) && Allowed(tensor, limits) &&
           Distance(tensor, now) >= (1 - kNearer) * soonest;
  };
  while (is_sliver(map.Before(run->first))) run->first = map.Before(run->first);
  while (is_sliver(map.After(run->last))) run->last = map.After(run->last);
}

std::vector<uint32_t> EvictionIndex::RunAround(const ExtentMap& map, uint32_t row, Bytes need,
                                               Tick now, const AwayLinks& links,
                                               const Limits& limits) const {
  Sides sides;
  const auto run = LeastRunWith(map, row, need, now, links, limits, &sides);
  return run ? RowsOf(map, *run) : std::vector<uint32_t>{row};
}

std::vector<uint32_t> EvictionIndex::RowsOf(const ExtentMap& map, const Run& run) const {
  std::vector<uint32_t> rows;
  for (ExtentMap::Block block = run.first;; block = map.After(block)) {
    if (map.KindOf(block) == ExtentMap::Kind::kUsed) rows.push_back(map.OwnerOf(block));
    if (block == run.last) return rows;
  }
}

std::optional<uint32_t> EvictionIndex::FarthestDirty(Tick now, const AwayLinks& links) const {
  std::optional<uint32_t> best;
  double best_lateness = 0;
  for (const auto& [heap, rows] : heaps_) {
    if (!IsDirtyHeap(heap)) continue;
    for (size_t i = 0; i < std::min(rows.size(), kRowsPerHeap); ++i) {
      const uint32_t row = RowAt(heap, rows, i);
      const TensorRow& tensor = (*catalog_)[row];
      // Copying it would be wasted. What is only predicted to be freed is copied: until then it may
      // have to leave, and a prediction is no leave to discard bytes.
      if (tensor.never || tensor.recompute > 0) continue;
      const double lateness = Lateness(tensor, now, links);
      if (!best || lateness > best_lateness) {
        best = row;
        best_lateness = lateness;
      }
      break;
    }
  }
  return best;
}

}  // namespace ravenstore::core
