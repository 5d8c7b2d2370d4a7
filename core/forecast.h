// What a client will do next, from what it did before.
//
// Programs repeat themselves, iteration by iteration, but with new tensors each time. So tensors
// get a logical identity: the client's name for them, else (size, ordinal of that size in the
// iteration). Time is counted in positions: creates and gets of the client, which no stall
// stretches. For the n-th use of a logical tensor in an iteration the distance to its next use (or
// to its free) is remembered, for the last that are kept apart and all later ones together; the
// next time round it is what is predicted; another distance is believed when it comes twice. A
// prediction that turns out wrong costs confidence, and without confidence nothing is predicted.
// Before anything is known, what was put last is expected back first, as backward passes do, as
// long as that holds. Of large tensors it is also remembered how long they stayed in use at first.
// A client that does not repeat itself is told so by its predictions, and left alone.
//
// Sources: Capuchin (Peng et al., ASPLOS 2020) for the regularity of tensor accesses; DeepUM (Jung
// et al., ASPLOS 2023) for learning by logical identity instead of address.
//
// Owns: at most kMostRecords records of some 60 bytes, made when there is something to learn; the
//   oldest makes way for one more.
// Threads: one at a time. Cost: O(1) amortised.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <unordered_map>

#include "core/iteration_profile.h"
#include "core/tuned.h"
#include "core/types.h"

namespace ravenstore::core {

// What a tensor carries for the forecast; part of its row.
struct LogicalUse {
  uint32_t logical = 0;  // a hash of its identity
  // Logical time of the last put, before the first of a large tensor's create; 0: got or freed
  // since.
  uint32_t put_at = 0;
  uint8_t iteration = 0;     // of the last put
  uint8_t use : 4 = kNoUse;  // which of its puts in that iteration was the last
  uint16_t gets = 0;         // at most 65535; no part of the prediction
  static constexpr uint8_t kNoUse = 0xf;
};

class Forecast {
 public:
  enum class Source : uint8_t { kNothing, kLearned, kLastInFirstOut };
  struct Prediction {
    Source source = Source::kNothing;
    bool freed = false;        // not read again: freed at that time
    int64_t logical_time = 0;  // the larger, the later
  };

  // A client's access now, in its virtual time.
  void Created(NameId name, Bytes size, LogicalUse* use, Tick virtual_time);
  // Whether the tensor, just created, is expected to stay in use for a good part of an iteration:
  // a gradient and not what the next operation takes.
  bool StaysInUse(const LogicalUse& use) const;
  // Whether the prediction made at the put came true; nothing if there was none.
  std::optional<bool> Got(LogicalUse* use, Tick virtual_time);
  Prediction Put(LogicalUse* use);
  void Freed(NameId name, Bytes size, LogicalUse* use);
  // The client's next iteration begins. A client that never says so has its iterations inferred: it
  // begins one whenever as many tensors live as when it began the last.
  void Step();

  // Whether a predicted time is an assumption and no more.
  static bool IsAssumed(int64_t logical_time) { return logical_time > kFar / 2; }

  // Whether the prediction has turned out wrong: the assumption does not hold, or the time has
  // passed.
  bool Refutes(const LogicalUse& use, int64_t logical_time) const {
    if (IsAssumed(logical_time)) return lifo_ < kTrustMost / 2;
    return LatestFor(use, logical_time) < logical_time_;
  }
  // When a predicted time has expired.
  static int64_t LatestFor(const LogicalUse& use, int64_t logical_time) {
    const auto distance = static_cast<uint32_t>(logical_time) - use.put_at;
    return logical_time + distance / kLatePart + kLateUses;
  }

  // How often predictions like the one made at the put came true lately; 0: none was made.
  double ConfidenceIn(const LogicalUse& use) const {
    const Records& records = records_[ShardOf(KeyOf(use))];
    const auto record = records.find(KeyOf(use));
    if (record == records.end() || record->second.confidence == 0) return 0;
    return record->second.confidence == 1 ? fresh_accuracy_ : accuracy_;
  }

  int64_t logical_time() const { return logical_time_; }
  // The time between two accesses, on average.
  double seconds_per_access() const { return seconds_per_access_; }
  // The client's virtual time until a logical time that is still to come.
  Duration Until(int64_t logical_time) const {
    const int64_t distance = logical_time - logical_time_;
    if (const auto known = profile_.Until(distance)) return *known;
    return FromSeconds(static_cast<double>(distance) * seconds_per_access_);
  }
  uint64_t right() const { return right_; }
  uint64_t wrong() const { return wrong_; }

 private:
  static constexpr size_t kMostRecords = 1 << 18;
  // Uses of a tensor in an iteration that are learned apart, the last of them with all later ones:
  // fewer for a client without iterations, whose uses would go on for ever.
  static constexpr uint8_t kUsesKept = 14;
  // Of a record it stands for the time from the create to the first put, or the free.
  static constexpr uint8_t kFirstUse = kUsesKept;
  static constexpr int64_t kFar = int64_t{1} << 40;

  // What is the same each time, but for a disturbance now and then: another value is believed when
  // the next is on the same side of the old one.
  class Usual {
   public:
    explicit Usual(uint32_t value) : value_(value) {}
    uint32_t value() const { return value_; }
    void Observe(uint32_t value);

   private:
    uint32_t value_;
    int8_t side_ = 0;  // of it the last observation was
  };

  struct Record {
    Usual distance{0};       // from the put to the next use
    uint8_t confidence = 0;  // 0: makes no prediction
    bool seen = false;
    bool freed = false;
  };

  uint32_t Identify(NameId name, Bytes size);
  double& AccuracyOf(const Record& record) {
    return record.confidence == 1 ? fresh_accuracy_ : accuracy_;
  }
  static uint64_t KeyOf(const LogicalUse& use) { return uint64_t{use.logical} << 8 | use.use; }
  std::optional<bool> Learn(LogicalUse* use, bool freed);
  // What the record of the time in use at first is kept under.
  static LogicalUse FirstUseOf(LogicalUse use) { return use.use = kFirstUse, use; }
  // The tensor is put or freed: if it was created before that and no more, so long it was in use.
  void LearnFirstUse(const LogicalUse& use);
  Record& RecordOf(const LogicalUse& use);
  const Record* FindRecord(const LogicalUse& use) const;
  void Access(Tick virtual_time);
  void InferStep();
  void BeginIteration();

  // By KeyOf. In several tables: one that grows moves all that it holds.
  using Records = std::unordered_map<uint64_t, Record>;
  static constexpr size_t kShards = 16;
  static size_t ShardOf(uint64_t key) { return key >> 8 & (kShards - 1); }
  std::array<Records, kShards> records_;
  std::deque<uint64_t> recorded_;                    // their keys, oldest first
  std::unordered_map<uint64_t, uint32_t> ordinals_;  // the next by size, in this iteration
  std::map<uint64_t, uint32_t> unnamed_;             // tensors that live, by size
  int64_t logical_time_ = 0;
  uint8_t iteration_ = 0;
  double seconds_per_access_ = 1e-3;
  Tick last_access_ = Tick::max();
  IterationProfile profile_;

  uint8_t UsesKept() const { return has_iterations_ ? kUsesKept : kUsesWithoutIterations; }

  bool steps_are_marked_ = false;
  bool has_iterations_ = false;
  uint64_t live_ = 0;
  bool freeing_ = false;  // the last change of live_ was a free
  uint64_t created_ = 0;  // since the iteration began
  int64_t iteration_began_ = 0;
  int64_t iteration_length_ = 0;  // of the last whole one, in accesses
  std::unordered_map<uint64_t, uint32_t>
      free_ends_;  // how often frees ended, by the number alive then

  int lifo_ = kTrustMost / 2;  // saturating: whether what was put last comes back first
  uint32_t last_got_put_ = 0;  // when the tensor of the last get was put
  // The share of predictions that came true, lately; of those from records seen only once, and of
  // the others.
  double fresh_accuracy_ = 0.9;
  double accuracy_ = 0.9;
  uint64_t right_ = 0;
  uint64_t wrong_ = 0;
};

}  // namespace ravenstore::core
