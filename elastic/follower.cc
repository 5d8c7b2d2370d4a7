#include "elastic/follower.h"

#include <algorithm>
#include <bit>

namespace ravenstore::elastic {

namespace {
constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
constexpr size_t kFewestCalls = 256;

uint64_t Power(uint64_t base, uint64_t exponent) {
  uint64_t power = 1;
  for (; exponent > 0; --exponent) power *= base;
  return power;
}
}  // namespace

Follower::Follower(size_t most_calls)
    : mask_(std::bit_ceil(std::max(most_calls, kFewestCalls)) - 1),
      kinds_(mask_ + 1),
      places_(mask_ + 1),
      by_place_{.keys = places_, .length = kPlaces},
      by_kind_{.keys = kinds_, .length = kKinds} {
  for (Chain* chain : {&by_place_, &by_kind_}) {
    chain->outgoing = Power(kFactor, chain->length);
    chain->last.resize(std::min<size_t>(kMostPlaces, (mask_ + 1) * 2));
  }
}

// Takes `call` in, and says where the chain that ends with it ended before.
std::optional<uint64_t> Follower::Extend(Chain* chain, uint64_t call) {
  const uint64_t length = chain->length;
  chain->hash = chain->hash * kFactor + chain->keys[call & mask_];
  if (call >= length) chain->hash -= chain->keys[(call - length) & mask_] * chain->outgoing;
  if (call + 1 < length) return std::nullopt;
  const auto shift = std::countl_zero(chain->last.size()) + 1;
  uint32_t& last = chain->last[chain->hash * kFactor >> shift];
  // The upper half of its number is that of the call, or of the one before.
  const uint64_t before = call - static_cast<uint32_t>(static_cast<uint32_t>(call + 1) - last);
  const bool known = last != 0 && before < call;
  last = static_cast<uint32_t>(call + 1);
  const bool remembered = known && before + 1 >= length && call - before + length <= mask_ / 8 * 7;
  return remembered ? std::optional(before) : std::nullopt;
}

bool Follower::Same(const Chain& chain, uint64_t a, uint64_t b) const {
  for (uint64_t i = 0; i < chain.length; ++i) {
    if (chain.keys[(a - i) & mask_] != chain.keys[(b - i) & mask_]) return false;
  }
  return true;
}

void Follower::Lose() {
  twin_.reset();
  matches_ = false;
  run_ = 0;
  not_before_ = calls_ + wait_;
  wait_ = std::min(kLongestWait, wait_ * 2);
}

// What was expected next does not come, but what was expected soon after does.
bool Follower::PassOver(uint64_t call) {
  for (uint64_t skipped = 1; skipped <= kPassedOver; ++skipped) {
    const uint64_t next = *twin_ + 1 + skipped;
    if (next >= call) return false;
    if (Place(next) != Place(call)) continue;
    twin_ = next;
    return true;
  }
  return false;
}

void Follower::Add(uint64_t kind, uint64_t place) {
  const uint64_t call = calls_++;
  // A chain's oldest call is still there when it leaves it: the ring is longer than any chain.
  kinds_[call & mask_] = kind;
  places_[call & mask_] = place;
  const auto same_places = Extend(&by_place_, call);
  const auto same_kinds = Extend(&by_kind_, call);
  matches_ = false;
  if (twin_ && call - *twin_ > mask_ / 8 * 7) Lose();
  if (twin_) {
    if (Kind(*twin_ + 1) == kind) {
      ++*twin_;
      matches_ = true;
      return;
    }
    trust_ -= kWrongCosts;
    run_ = 0;
    if (PassOver(call)) {
      matches_ = true;
      return;
    }
    if (trust_ < 0) Lose();
  }
  if (call < not_before_) return;
  std::optional<uint64_t> found = same_places;
  if (!found || !Same(by_place_, *found, call)) {
    // Without addresses a layer looks like the next: what is followed is not left for that.
    if (twin_ || !same_kinds || !Same(by_kind_, *same_kinds, call)) return;
    found = same_kinds;
  }
  if (twin_) {
    not_before_ = calls_ + wait_;
    wait_ = std::min(kLongestWait, wait_ * 2);
  } else {
    trust_ = kFirstTrust;
  }
  twin_ = found;
  matches_ = true;
}

void Follower::Confirm(bool right) {
  if (!twin_) return;
  trust_ = std::min(kTrustMost, trust_ + (right ? 1 : -kWrongCosts));
  run_ = right ? run_ + 1 : 0;
  if (run_ >= kGoodRun) wait_ = 1;
  if (trust_ < 0) Lose();
}

}  // namespace ravenstore::elastic
