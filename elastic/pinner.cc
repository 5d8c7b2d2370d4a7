#include "elastic/pinner.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "elastic/own_thread.h"
#include "ipc/clock.h"

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
  Raise(&needed_, held);
}

void Pinner::Want(Bytes held) {
  Raise(&wanted_, held);
}

void Pinner::Raise(Bytes* to, Bytes held) {
  const std::lock_guard lock(mutex_);
  if (held <= *to) return;
  *to = held;
  raised_ = ipc::Now();
  wake_.notify_one();
}

void Pinner::Delay() {
  const std::lock_guard lock(mutex_);
  raised_ = ipc::Now();
}

void Pinner::Run() {
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kLowest);
  std::unique_lock lock(mutex_);
  Bytes refused;  // the request that failed last
  while (!stopping_) {
    const Bytes asked = std::max(needed_, wanted_);
    const Bytes held = parts_->held(Place::kHost);
    if (held >= asked || asked <= refused) {
      wake_.wait(lock);
      continue;
    }
    const core::Tick now = ipc::Now();
    if (held >= needed_ && now < raised_ + kQuiet) {
      wake_.wait_for(lock, raised_ + kQuiet - now);
      continue;
    }
    lock.unlock();
    const bool made = parts_->Add(Place::kHost, size_).ok();
    lock.lock();
    if (!made) refused = asked;
  }
}

}  // namespace ravenstore::elastic
