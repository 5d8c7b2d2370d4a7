// When one client's tensors are used next, from what it says and from what it did before.
//
// The best source that has an answer gives it: the client's hint; the distance to the same use in
// earlier iterations (core/forecast.h); what followed the tensors just used (core/correlation.h);
// last in, first out. Where a client hints some of its tensors only, what is learned of the others
// is translated into its hints' scale (core/hint_scale.h). A prediction that did not come true
// expires. Times are the client's virtual time, which stands while it waits for the store: what it
// said will happen in 5 ms happens 5 ms of its own later.
//
// It only reads the catalog. What is known of the tensor that is used it returns, and what it now
// knows of others it appends to `changes`: all of that the caller writes into their rows before it
// calls again.
//
// Owns: what was learned of the client. Threads: one at a time.
// Cost: O(1) amortised a call, but for the first get, after which at most Correlation::kMostStates
// slots are looked at.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <vector>

#include "core/catalog.h"
#include "core/correlation.h"
#include "core/events.h"
#include "core/forecast.h"
#include "core/heuristic.h"
#include "core/hint_scale.h"
#include "core/types.h"

namespace ravenstore::core {

class Predictor {
 public:
  struct Options {
    bool learn = true;  // else hints alone count
    Heuristics heuristics;
  };
  struct Change {
    TensorId tensor;
    ExpectedUse use;
  };

  // `catalog` outlives it.
  Predictor(const Catalog* catalog, const Options& options)
      : catalog_(*catalog), options_(options) {}

  // The client begins to wait for the store, or ends one of its waits.
  // REQUIRES for EndWait: waits() > 0.
  void BeginWait(Tick now);
  void EndWait(Tick now);
  uint32_t waits() const { return waits_; }
  Tick VirtualTime(Tick now) const { return (waits_ > 0 ? waiting_since_ : now) - stalled_; }

  // The client's next iteration begins.
  void Step() { forecast_.Step(); }
  // The client creates, gets, puts or frees a tensor: what its row carries is brought up to date.
  void Created(NameId name, Bytes size, LogicalUse* logical, Tick now);
  // Whether what was just created is expected to stay in use for a good part of an iteration.
  bool StaysInUse(const LogicalUse& logical) const {
    return Uses(Heuristic::kStaysHigh) && forecast_.StaysInUse(logical);
  }
  // Whether what was predicted at the put came true; nullopt: nothing was.
  std::optional<bool> Got(LogicalUse* logical, Tick now);
  ExpectedUse Put(TensorId tensor, LogicalUse* logical, const NextUse& hint, Tick now);
  void Freed(NameId name, Bytes size, LogicalUse* logical);

  // What a create, or a get, says of other tensors; its own row, and `slots`, are up to date.
  // REQUIRES: nothing of it is predicted from others' use any more (Holding::correlated).
  void FollowCreate(const TensorRow& tensor, const TensorSlots& slots, Tick now,
                    std::vector<Change>* changes);
  void FollowGet(const TensorRow& tensor, const TensorSlots& slots, Tick now,
                 std::vector<Change>* changes);

  // That what is predicted of the tensor's next use comes true; 0: nothing is.
  double ConfidenceIn(const Holding& holding) const;
  // Until the next use of kind kAt or kLearned; zero: it is due, or when is not known.
  Duration UntilUse(const Holding& holding, Tick now) const;
  // For EvictionIndex.
  const Forecast& forecast() const { return forecast_; }

 private:
  // Until when what was learned of a tensor at a put is believed; some no longer hold.
  struct Expiry {
    int64_t latest;
    TensorId tensor;
    uint32_t put_at;
    auto operator<=>(const Expiry&) const = default;
  };

  bool Uses(Heuristic heuristic) const { return options_.heuristics.Uses(heuristic); }
  ExpectedUse HintedUse(const NextUse& hint, Tick now) const;
  // The use is the client's use number `logical_time`: beside hints the same as they are, so that
  // they can be compared.
  void SetPrediction(int64_t logical_time, Tick now, ExpectedUse* use) const;
  // What was made in a row is often got back in a row; and it was mostly made in the order of its
  // slots. Of many tensors that is not worth the memory, nor of any before the first get.
  void LearnWhatWasMade(const TensorSlots& slots);
  // Which tensors follow this one?
  void Correlate(const TensorRow& tensor, Tick now, std::vector<Change>* changes);
  // Looks at a few predictions; of what has turned out wrong nothing is known any more.
  void ExpireSome(Tick now, std::vector<Change>* changes);
  // What is known of its next use once `changes` are written.
  static ExpectedUse UseOf(const TensorRow& tensor, const std::vector<Change>& changes);

  const Catalog& catalog_;
  const Options options_;
  Forecast forecast_;
  Correlation correlation_;
  HintScale hints_;
  std::priority_queue<Expiry, std::deque<Expiry>, std::greater<>> expiries_;
  std::vector<Correlation::Step> missed_;  // during Correlate
  bool has_got_ = false;                   // it has got a tensor back
  uint32_t waits_ = 0;
  Tick waiting_since_{};  // if waits_ > 0
  Duration stalled_{0};   // how long it has waited in all, before that
};

}  // namespace ravenstore::core
