#include "elastic/pinner.h"

#include <sys/resource.h>
#include <unistd.h>

#include "elastic/own_thread.h"

namespace ravenstore::elastic {

using core::Bytes;

namespace {

// Of Linux's for a thread: what the job runs goes first.
constexpr int kLowest = 19;

}  // namespace

Pinner::Pinner(const Driver* driver, Parts* parts, CUcontext context, Bytes size)
    : parts_(parts), size_(size) {
  thread_ = OwnThread("raven-pin", driver, context, [this] { Run(); });
}

Pinner::~Pinner() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  thread_.join();
}

void Pinner::Need(Bytes held) {
  const std::lock_guard lock(mutex_);
  if (held <= needed_) return;
  needed_ = held;
  wake_.notify_one();
}

void Pinner::Run() {
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kLowest);
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const Bytes needed = needed_;
    lock.unlock();
    bool made = true;
    while (made && parts_->held(Place::kHost) < needed) {
      made = parts_->Add(Place::kHost, size_).ok();
      lock.lock();
      made = made && !stopping_;
      lock.unlock();
    }
    lock.lock();
    wake_.wait(lock, [&] { return stopping_ || needed_ > needed; });
  }
}

}  // namespace ravenstore::elastic
