#include "daemon/mailbox.h"

#include <sys/eventfd.h>

#include "core/check.h"

namespace ravenstore::daemon {

Mailbox::Mailbox() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  RAVEN_CHECK(event_.get() >= 0);
}

void Mailbox::Post(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    if (pending_.exchange(true, std::memory_order_release)) return;
  }
  const uint64_t one = 1;
  // An eventfd takes a write of 1 unless 2^64 - 2 are pending.
  RAVEN_CHECK(::write(event_.get(), &one, sizeof(one)) == sizeof(one));
}

size_t Mailbox::size() const {
  std::lock_guard lock(mutex_);
  return work_.size();
}

size_t Mailbox::RunSome(size_t limit) {
  for (size_t ran = 0;; ++ran) {
    std::function<void()> work;
    {
      std::lock_guard lock(mutex_);
      // Looked at before the limit: an event that nothing is pending for would wake its owner again
      // and again.
      if (work_.empty()) {
        uint64_t count = 0;
        // Would-block only says that nothing was rung since the last drain.
        [[maybe_unused]] ssize_t drained = ::read(event_.get(), &count, sizeof(count));
        pending_.store(false, std::memory_order_release);
        return ran;
      }
      if (ran >= limit) return ran;
      work = std::move(work_.front());
      work_.pop_front();
    }
    work();
  }
}

}  // namespace ravenstore::daemon
