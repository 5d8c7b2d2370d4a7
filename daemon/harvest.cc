#include "daemon/harvest.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "core/size_text.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::Duration;
using core::Tick;

Bytes Harvest::Look(Tick now, Bytes held, const Unharvested& unharvested) {
  const Bytes missing = core::Minus(options_.reserve, unharvested.free);
  Bytes most = core::Minus(held + unharvested.idle, missing);
  const bool capped = now < capped_until_ || (under_way_ && under_way_->by_operator);
  if (capped) most = std::min(most, cap_);
  if (unharvested.is_stale) most = std::min(most, most_);
  return Begin(now, held, most);
}

Bytes Harvest::Return(Tick now, Bytes held, Bytes bytes, Duration within, Then then) {
  cap_ = held - bytes;
  if (under_way_ && under_way_->then) {
    under_way_->then({.bytes = core::Minus(under_way_->from, held),
                      .took = now - under_way_->began,
                      .late = "another give-back was asked for"});
  }
  const Bytes goal = under_way_ ? std::min(under_way_->goal, cap_) : cap_;
  under_way_ = {now, now + within, held, goal, false, true, std::move(then)};
  return most_ = goal;
}

Duration Harvest::DeadlineFor(Bytes bytes) const {
  const double gibs =
      static_cast<double>(bytes.count()) / static_cast<double>(core::GiB(1).count());
  return std::max(options_.least, core::FromSeconds(core::Seconds(options_.each_gib) * gibs));
}

Bytes Harvest::Begin(Tick now, Bytes held, Bytes most) {
  most_ = most;
  if (most >= held || (under_way_ && under_way_->goal <= most)) return most_;
  if (!under_way_) {
    under_way_ = {now, now + DeadlineFor(held - most), held, most, false, false, {}};
  } else {
    // It becomes a larger one, which may take as long as that from its beginning on.
    under_way_->goal = most;
    under_way_->deadline =
        std::max(under_way_->deadline, under_way_->began + DeadlineFor(under_way_->from - most));
  }
  return most_;
}

void Harvest::Lose(Bytes bytes) {
  if (under_way_) under_way_->from = core::Minus(under_way_->from, bytes);
}

void Harvest::Update(Tick now, Bytes held, const std::function<std::string()>& why) {
  if (!under_way_) return;
  UnderWay& one = *under_way_;
  const Bytes returned = core::Minus(one.from, held);
  const bool done = held <= one.goal;
  if (!done && !one.late && now >= one.deadline) {
    one.late = true;
    ++counts_.missed;
    const std::string cause = why();
    spdlog::warn("{}: of {} to be given back within {} ms {} are not: {}", options_.name,
                 core::SizeText(one.from - one.goal),
                 (one.deadline - one.began).count() / 1'000'000, core::SizeText(held - one.goal),
                 cause);
    if (one.then) std::exchange(one.then, {})({returned, now - one.began, cause});
  }
  if (!done) return;
  counts_.last = now - one.began;
  counts_.longest = std::max(counts_.longest, counts_.last);
  counts_.bytes += returned;
  ++counts_.returns;
  if (!one.late && now >= one.deadline) ++counts_.missed;
  if (one.by_operator) capped_until_ = now + options_.hold;
  if (one.then) one.then({returned, counts_.last, {}});
  under_way_.reset();
}

}  // namespace ravenstore::daemon
