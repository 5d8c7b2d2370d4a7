// The policies by which tensors leave a device.
//
// Threads: one at a time, as of EvictionIndex.
#pragma once

#include <cstdint>
#include <memory>

#include "core/catalog.h"
#include "core/eviction.h"
#include "core/heuristic.h"
#include "core/types.h"

namespace ravenstore::core {

// V = distance * size / cost, distance being the time to the next use and cost = a + size / B_up +
// dirty * w * (a + size / B_down), the time to bring it back and to take it out, which weighs more,
// over the links of the pool where it lies or would go. What has the largest V leaves first: for
// tensors well above 300 KB that is Belady's rule, below it size counts. With an unknown next use
// the distance is the time since the last one (LRU).
class ValueIndex final : public EvictionIndex {
 public:
  using EvictionIndex::EvictionIndex;

  double EvictionCost(const TensorRow& tensor, Tick now, const AwayLinks& links) const override;

 private:
  // When it is needed counts by the eighth root of the time until then.
  double CostAmongMany(const TensorRow& tensor, Tick now, const AwayLinks& links) const override;
};

// The least recently used leaves first, whatever its size.
class LruIndex final : public EvictionIndex {
 public:
  using EvictionIndex::EvictionIndex;

  double EvictionCost(const TensorRow& tensor, Tick now, const AwayLinks& links) const override;
};

// What was got least often for what bringing it back costs a byte, with what was evicted as the
// zero from which newcomers count. Source: Cherkasova, Improving WWW Proxies Performance with
// Greedy-Dual-Size-Frequency Caching Policy, HPL-98-69R1, 1998.
class GdsfIndex final : public EvictionIndex {
 public:
  using EvictionIndex::EvictionIndex;

  double EvictionCost(const TensorRow& tensor, Tick now, const AwayLinks& links) const override;
  int64_t KeyAtPut(const TensorRow& tensor, Tick virtual_time,
                   const AwayLinks& links) const override;
  void Evicted(const Holding& holding) override;

 private:
  double Lateness(const TensorRow& tensor, Tick now, const AwayLinks& links) const override;

  int64_t age_ = 0;  // the greatest key that was evicted
};

// That of the policy. Arguments as of EvictionIndex.
std::unique_ptr<EvictionIndex> MakeEvictionIndex(Policy policy, Catalog* catalog,
                                                 const Forecast* forecast, Heuristics heuristics);

}  // namespace ravenstore::core
