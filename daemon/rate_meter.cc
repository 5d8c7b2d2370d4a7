#include "daemon/rate_meter.h"

#include <utility>

#include "core/check.h"

namespace ravenstore::daemon {
namespace {
// Less says more about one message's way than about the link.
constexpr core::Bytes kEnoughBytes = core::MiB(16);
}  // namespace

void RateMeter::Begin(core::Tick now) {
  std::lock_guard lock(mutex_);
  if (under_way_++ == 0) busy_since_ = now;
}

void RateMeter::End(core::Tick now, core::Bytes moved) {
  std::lock_guard lock(mutex_);
  RAVEN_CHECK(under_way_ > 0);
  moved_ += moved;
  if (--under_way_ > 0) return;
  busy_ += now - busy_since_;
  idle_.notify_all();
}

double RateMeter::Take(core::Tick now) {
  std::lock_guard lock(mutex_);
  if (under_way_ > 0) busy_ += now - std::exchange(busy_since_, now);
  if (moved_ < kEnoughBytes || busy_ <= core::Duration{}) return 0;
  const double seconds = core::Seconds(std::exchange(busy_, core::Duration{}));
  return static_cast<double>(std::exchange(moved_, core::Bytes{}).count()) / seconds;
}

void RateMeter::Wait() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return under_way_ == 0; });
}

}  // namespace ravenstore::daemon
