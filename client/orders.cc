#include "client/orders.h"

#include <algorithm>
#include <utility>

#include "ipc/clock.h"
#include "ipc/wake.h"

namespace ravenstore::client {

std::atomic<uint64_t> Orders::waiting_in_all{0};

void Orders::Offer(const wire::SleepOrder& order) {
  {
    const std::lock_guard lock(mutex_);
    const auto is_undone = [&](const wire::SleepOrder& each) {
      return each.number == order.undoes;
    };
    const size_t dropped = order.undoes == 0 ? 0 : std::erase_if(waiting_, is_undone);
    Count(-static_cast<int64_t>(dropped));
    // Whether one that is executed now will have changed anything is seen when this one is taken.
    if (order.undoes == 0 || order.undoes == executing_ || order.undoes == changed_by_) {
      waiting_.push_back(order);
      return Count(1);
    }
  }
  answer_({.order = order.number});
}

std::optional<wire::SleepOrder> Orders::Take() {
  for (;;) {
    wire::SleepOrder order;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty()) return std::nullopt;
      order = waiting_.front();
      waiting_.pop_front();
      Count(-1);
      executing_ = order.number;
      if (order.undoes == 0 || order.undoes == changed_by_) return order;
    }
    Finish(core::Ok(), /*changed=*/false, {});
  }
}

void Orders::Finish(const core::Status& status, bool changed, core::Bytes freed) {
  wire::OrderDone done{.bytes = freed.count()};
  if (!status.ok()) {
    done.code = static_cast<uint32_t>(status.error().code);
    done.message = status.error().message;
  }
  {
    const std::lock_guard lock(mutex_);
    done.order = std::exchange(executing_, 0);
    if (changed) changed_by_ = done.order;
  }
  answer_(done);
}

void Orders::Drop() {
  const std::lock_guard lock(mutex_);
  Count(-static_cast<int64_t>(waiting_.size()));
  waiting_.clear();
}

void Orders::Count(int64_t change) {
  waiting_in_all.fetch_add(static_cast<uint64_t>(change), std::memory_order_release);
  if (change > 0) ipc::WakeLowHalf(&waiting_in_all);
}

bool Orders::AwaitAny(core::Tick deadline) {
  while (!AnyWaits()) {
    if (ipc::SleepOnLowHalf(&waiting_in_all, 0, deadline) == ipc::Sleep::kTimedOut)
      return AnyWaits();
  }
  return true;
}

}  // namespace ravenstore::client
