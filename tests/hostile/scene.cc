#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "ipc/clock.h"
#include "tests/hostile/attacks.h"

namespace ravenstore::hostile {

bool AttackContext::running() const {
  return ipc::Now() < end_;
}

void AttackContext::Ready() {
  if (ready_) return;
  ready_ = true;
  std::printf("ready\n");
  std::fflush(stdout);
}

void AttackContext::Refused(const std::string& why) {
  if (refused_.empty()) refused_ = why;
}

void AttackContext::Hold() const {
  while (running()) Pause(end_ - ipc::Now());
}

void AttackContext::Pause(core::Duration duration) const {
  const auto left = std::clamp(end_ - ipc::Now(), core::Duration(0), duration);
  ::poll(nullptr, 0, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count()));
}

}  // namespace ravenstore::hostile
