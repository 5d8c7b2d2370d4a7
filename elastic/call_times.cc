#include "elastic/call_times.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace ravenstore::elastic {

namespace {
constexpr size_t kFewestCalls = 256;
// Calls in a stretch; more where it is known what they take.
constexpr int64_t kStretch = 8;
constexpr int64_t kStretchMost = 64;
constexpr core::Duration kUnknown{-1};
}  // namespace

CallTimes::CallTimes(size_t most_calls)
    : mask_(std::bit_ceil(std::max(most_calls, kFewestCalls)) - 1),
      calls_(std::make_unique_for_overwrite<Call[]>(mask_ + 1)),
      kinds_(std::make_unique_for_overwrite<Kind[]>(mask_ + 1)) {}

void CallTimes::Add(std::optional<uint64_t> twin, core::Tick now) {
  const uint64_t call = end_++;
  core::Duration gap = std::max(core::Duration{0}, now - std::exchange(last_, now));
  if (twin && *twin > 0) gap = std::min(gap, Begin(*twin) - Begin(*twin - 1));
  Call& timed = At(call);
  timed.kind = twin ? At(*twin).kind : call & mask_;
  if (!twin) kinds_[timed.kind] = {kUnknown, false};
  timed.begins = {};
  if (call == 0) return;
  const core::Duration took = KindOf(call - 1).took;
  timed.begins = Begin(call - 1) + (took >= core::Duration{0} ? took : gap);
}

void CallTimes::Took(int64_t from, int64_t to, core::Duration all) {
  const auto end = static_cast<int64_t>(end_);
  if (from < 0 || from >= to || to > end) return;
  if (static_cast<uint64_t>(end - from) > mask_) return;
  core::Duration known{0};
  bool all_known = true;
  for (int64_t call = from; call < to; ++call) {
    const core::Duration took = KindOf(static_cast<uint64_t>(call)).took;
    all_known = all_known && took >= core::Duration{0};
    known += std::max(took, core::Duration{0});
  }
  if (all_known && all >= known) return;
  const double share = core::Seconds(all) / core::Seconds(known);
  for (int64_t call = from; call < to; ++call) {
    core::Duration& took = KindOf(static_cast<uint64_t>(call)).took;
    took = all_known ? core::FromSeconds(core::Seconds(took) * share) : all / (to - from);
  }
}

bool CallTimes::EndsStretch() {
  if (end_ == 0) return false;
  Kind& last = KindOf(end_ - 1);
  const int64_t most = last.took >= core::Duration{0} ? kStretchMost : kStretch;
  if (++stretch_ < most && !last.ends_stretch) return false;
  stretch_ = 0;
  return last.ends_stretch = true;
}

core::Duration CallTimes::Since(int64_t call) const {
  const auto end = static_cast<int64_t>(end_);
  if (call >= end) return {};
  const int64_t oldest = end - static_cast<int64_t>(mask_);
  return Begin(end_ - 1) - Begin(static_cast<uint64_t>(std::max({call, oldest, int64_t{0}})));
}

}  // namespace ravenstore::elastic
