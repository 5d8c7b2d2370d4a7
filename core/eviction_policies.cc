#include "core/eviction_policies.h"

#include <algorithm>
#include <cmath>

#include "core/link_model.h"
#include "core/tuned.h"

namespace ravenstore::core {

namespace {

// Of GdsfIndex's keys: a second of copying for every byte.
constexpr double kFrequencyScale = 1e15;

// Not core's Seconds(), which differs in the last bit: plans are the same to the bit.
double SecondsOf(Duration duration) {
  return static_cast<double>(duration.count()) * 1e-9;
}

// The same bits on every machine, which std::pow need not give.
double RootOf(double value) {
  for (int i = 0; i < kLargeRoots; ++i) value = std::sqrt(value);
  return value;
}

}  // namespace

// cost / distance: seconds of copying for every second of room that leaving gives.
double ValueIndex::EvictionCost(const TensorRow& tensor, Tick now, const AwayLinks& links) const {
  const double distance = Distance(tensor, now);
  const auto bytes = static_cast<double>(tensor.size.count());
  const LinkModel& link = links.Of(tensor);
  const double latency = SecondsOf(link.latency);
  double cost = latency + bytes / link.up_bytes_per_second;
  if (tensor.never) {
    cost = latency;  // it is not brought back, nor copied
  } else if (tensor.dirty() && tensor.recompute > 0) {
    cost = SecondsOf(RecomputeTime(tensor));
  } else if (tensor.dirty() && !tensor.is_being_cleaned()) {
    const double weight = Uses(Heuristic::kOutCostsMore) ? kOutWeight : 1;
    cost += weight * (latency + bytes / link.down_bytes_per_second);
  }
  return cost / distance;
}

double ValueIndex::CostAmongMany(const TensorRow& tensor, Tick now, const AwayLinks& links) const {
  const double cost = EvictionCost(tensor, now, links);
  if (tensor.never) return cost;
  const double distance = Distance(tensor, now);
  return cost * distance / RootOf(distance);
}

double LruIndex::EvictionCost(const TensorRow& tensor, Tick now, const AwayLinks& /*links*/) const {
  return 1 / Distance(tensor, now);
}

double GdsfIndex::EvictionCost(const TensorRow& tensor, Tick now, const AwayLinks& links) const {
  if (!tensor.never)
    return WeightOf(tensor.priority) *
           static_cast<double>(std::max<int64_t>(1, -tensor.use_key - age_ + 1));
  // It is not brought back, nor copied.
  return SecondsOf(links.Of(tensor).latency) / Distance(tensor, now);
}

int64_t GdsfIndex::KeyAtPut(const TensorRow& tensor, Tick /*virtual_time*/,
                            const AwayLinks& links) const {
  const auto bytes = static_cast<double>(tensor.size.count());
  const LinkModel& link = links.Of(tensor);
  const double cost = SecondsOf(link.latency) + bytes / link.up_bytes_per_second;
  return -(age_ + static_cast<int64_t>((tensor.logical.gets + 1) * cost / bytes * kFrequencyScale));
}

// What comes from now on is worth more than it.
void GdsfIndex::Evicted(const Holding& holding) {
  age_ = std::max(age_, -holding.use_key);
}

double GdsfIndex::Lateness(const TensorRow& tensor, Tick now, const AwayLinks& links) const {
  return 1 / EvictionCost(tensor, now, links);
}

std::unique_ptr<EvictionIndex> MakeEvictionIndex(Policy policy, Catalog* catalog,
                                                 const Forecast* forecast, Heuristics heuristics) {
  switch (policy) {
    case Policy::kValue: break;
    case Policy::kLru: return std::make_unique<LruIndex>(catalog, forecast, heuristics);
    case Policy::kGdsf: return std::make_unique<GdsfIndex>(catalog, forecast, heuristics);
  }
  return std::make_unique<ValueIndex>(catalog, forecast, heuristics);
}

}  // namespace ravenstore::core
