#include "core/forecast.h"

#include <algorithm>
#include <utility>

#include "core/tuned.h"

namespace ravenstore::core {

namespace {
// What is smaller finds room anywhere, and is not worth a record.
constexpr Bytes kLarge = MiB(1);
constexpr size_t kMostFreeEnds = 64;
}  // namespace

// Without a name the ordinals go on from what lives already: weights are made once, and what is
// made of their size in each iteration, as their gradients are, is something else.
uint32_t Forecast::Identify(NameId name, Bytes size) {
  uint64_t key = uint64_t{ToInt(name)} << 32 | 1;
  if (name == kNoName) {
    uint32_t& living = unnamed_[size.count()];
    uint32_t& ordinal = ordinals_.try_emplace(size.count(), living).first->second;
    key = size.count() << 24 ^ ordinal++ << 1;
    ++living;
  }
  // The finalizer of MurmurHash3 (Appleby): all bits of the key matter to all of the hash.
  uint64_t hash = key * 0xff51afd7ed558ccd;
  hash = (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53;
  return static_cast<uint32_t>(hash >> 32);
}

void Forecast::Access(Tick virtual_time) {
  ++logical_time_;
  profile_.Access(virtual_time);
  if (last_access_ != Tick::max()) {
    const double gap = Seconds(virtual_time - last_access_);
    if (gap < kLongestGapSeconds) seconds_per_access_ += kSmoothing * (gap - seconds_per_access_);
  }
  last_access_ = virtual_time;
}

void Forecast::Created(NameId name, Bytes size, LogicalUse* use, Tick virtual_time) {
  if (!steps_are_marked_ && freeing_) InferStep();
  freeing_ = false;
  ++live_;
  // A client that once marked its steps, and does so no more.
  if (++created_ > kMostRecords) BeginIteration();
  Access(virtual_time);
  *use = {};
  use->logical = Identify(name, size);
  if (size >= kLarge) use->put_at = static_cast<uint32_t>(logical_time_);
}

bool Forecast::StaysInUse(const LogicalUse& use) const {
  const Record* const record = FindRecord(FirstUseOf(use));
  return record != nullptr && has_iterations_ &&
         int64_t{record->distance.value()} * kStaysPart > iteration_length_;
}

void Forecast::LearnFirstUse(const LogicalUse& use) {
  if (use.use != LogicalUse::kNoUse || use.put_at == 0) return;
  const uint32_t distance = static_cast<uint32_t>(logical_time_) - use.put_at;
  Record& record = RecordOf(FirstUseOf(use));
  if (!std::exchange(record.seen, true)) record.distance = Usual(distance);
  record.distance.Observe(distance);
}

// Frees ended and creates begin, with `live_` alive. Where that happened before, it is a turn.
void Forecast::InferStep() {
  if (created_ < kLeastCreates) return;
  if (free_ends_.size() > kMostFreeEnds) free_ends_.clear();
  const uint32_t seen = ++free_ends_[live_];
  if (seen < 2) return;
  // The lowest such turn is the iteration's; those above it are within.
  for (const auto& [live, count] : free_ends_) {
    if (live < live_ && count >= 2) return;
  }
  BeginIteration();
}

void Forecast::BeginIteration() {
  has_iterations_ = true;
  ++iteration_;
  iteration_length_ = logical_time_ - std::exchange(iteration_began_, logical_time_);
  profile_.BeginIteration();
  ordinals_.clear();
  created_ = 0;
}

void Forecast::Step() {
  steps_are_marked_ = true;
  free_ends_.clear();
  BeginIteration();
}

Forecast::Record& Forecast::RecordOf(const LogicalUse& use) {
  const uint64_t key = KeyOf(use);
  const auto [record, made] = records_[ShardOf(key)].try_emplace(key);
  if (!made) return record->second;
  recorded_.push_back(record->first);
  // Else a client that never repeats itself for a while would not be learned from any more.
  if (recorded_.size() > kMostRecords) {
    records_[ShardOf(recorded_.front())].erase(recorded_.front());
    recorded_.pop_front();
  }
  return record->second;
}

const Forecast::Record* Forecast::FindRecord(const LogicalUse& use) const {
  const Records& records = records_[ShardOf(KeyOf(use))];
  const auto record = records.find(KeyOf(use));
  return record == records.end() ? nullptr : &record->second;
}

void Forecast::Usual::Observe(uint32_t value) {
  const auto side = static_cast<int8_t>((value > value_) - (value < value_));
  if (std::exchange(side_, side) == side) value_ = value;
}

std::optional<bool> Forecast::Learn(LogicalUse* use, bool freed) {
  // A get or a free without a put before it says nothing.
  if (use->use == LogicalUse::kNoUse || use->put_at == 0) return std::nullopt;
  const uint32_t put_at = std::exchange(use->put_at, 0);
  const uint32_t distance = std::max<uint32_t>(1, static_cast<uint32_t>(logical_time_) - put_at);
  Record& record = RecordOf(*use);
  if (!record.seen) {
    record = {Usual(distance), 1, true, freed};
    return std::nullopt;
  }
  const bool was_predicted = record.confidence > 0;
  const uint32_t least = std::min(record.distance.value(), distance);
  const uint32_t most = std::max(record.distance.value(), distance);
  const bool close = record.freed == freed && most - least <= most / kClosePart + kCloseUses;
  if (was_predicted) {
    ++(close ? right_ : wrong_);
    double& accuracy = AccuracyOf(record);
    accuracy += kAccuracySmoothing * ((close ? 1 : 0) - accuracy);
  }
  if (close) {
    record.confidence = static_cast<uint8_t>(std::min(kSure, record.confidence + 1));
    record.distance.Observe(distance);
  } else {
    // A prediction that failed must come true again before it is made again.
    if (was_predicted) --record.confidence;
    if (record.confidence == 0) record = {Usual(distance), 0, true, freed};
  }
  return was_predicted ? std::optional(close) : std::nullopt;
}

std::optional<bool> Forecast::Got(LogicalUse* use, Tick virtual_time) {
  Access(virtual_time);
  // Going back in time, from get to get, is last in, first out.
  if (use->use != LogicalUse::kNoUse && use->put_at != last_got_put_) {
    const bool back = use->put_at < last_got_put_;
    lifo_ = std::clamp(lifo_ + (back ? 1 : -kLifoWrongCosts), -kTrustMost, kTrustMost);
    last_got_put_ = use->put_at;
  }
  return Learn(use, false);
}

Forecast::Prediction Forecast::Put(LogicalUse* use) {
  LearnFirstUse(*use);
  if (use->iteration != iteration_ || use->use == LogicalUse::kNoUse) {
    use->iteration = iteration_;
    use->use = 0;
  } else if (use->use + 1 < UsesKept()) {
    ++use->use;
  }
  const Record* const record = FindRecord(*use);
  use->put_at = static_cast<uint32_t>(logical_time_);
  if (record != nullptr && record->confidence > 0 && AccuracyOf(*record) >= 1 - kInaccurate)
    return {Source::kLearned, record->freed,
            std::max(logical_time_ + 1, logical_time_ + record->distance.value())};
  if (lifo_ >= kTrustMost / 2) return {Source::kLastInFirstOut, false, kFar - logical_time_};
  return {};
}

void Forecast::Freed(NameId name, Bytes size, LogicalUse* use) {
  freeing_ = true;
  const auto living = name == kNoName ? unnamed_.find(size.count()) : unnamed_.end();
  if (living != unnamed_.end() && --living->second == 0) unnamed_.erase(living);
  if (live_ > 0) --live_;
  LearnFirstUse(*use);
  Learn(use, true);
}

}  // namespace ravenstore::core
