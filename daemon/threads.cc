#include "daemon/threads.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <utility>

namespace ravenstore::daemon {

std::thread Supervise(std::string name, const std::atomic<bool>& expected_to_end,
                      std::function<void()> body) {
  return std::thread([name = std::move(name), &expected_to_end, body = std::move(body)] {
    pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
    try {
      body();
    } catch (const std::exception& error) {
      spdlog::critical("thread {} threw: {}", name, error.what());
      std::abort();
    }
    if (expected_to_end.load()) return;
    spdlog::critical("thread {} ended by itself", name);
    std::abort();
  });
}

WorkerPool::WorkerPool(std::string name, size_t threads)
    : running_most_(std::max<size_t>(1, threads - 1)) {
  for (size_t i = 0; i < threads; ++i) {
    threads_.push_back(Supervise(name + std::to_string(i), ending_, [this] { Work(); }));
  }
}

WorkerPool::~WorkerPool() {
  {
    std::lock_guard lock(mutex_);
    ending_.store(true);
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void WorkerPool::Add(core::TenantId owner, Queue Owner::*queue, std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    (owners_[owner].*queue).push_back(std::move(work));
  }
  wake_.notify_one();
}

WorkerPool::Owners::iterator WorkerPool::Next() {
  const auto behind = owners_.upper_bound(last_);
  const auto may = [this](const auto& entry) { return MayBegin(entry.second); };
  const auto next = std::find_if(behind, owners_.end(), may);
  if (next != owners_.end()) return next;
  const auto first = std::find_if(owners_.begin(), behind, may);
  return first == behind ? owners_.end() : first;
}

void WorkerPool::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    auto next = owners_.end();
    // At the end of the pool, too, the worker that ends a job takes its owner's next one.
    wake_.wait(lock, [&] { return (next = Next()) != owners_.end() || ending_.load(); });
    if (next == owners_.end()) return;
    last_ = next->first;
    Owner& owner = next->second;
    {
      Queue& queue = owner.first.empty() ? owner.work : owner.first;
      const std::function<void()> work = std::move(queue.front());
      queue.pop_front();
      ++owner.running;
      lock.unlock();
      work();
      // What the work holds is released here, which may take its time, too.
    }
    lock.lock();
    --owner.running;
    if (owner.running == 0 && !owner.waits()) owners_.erase(next);
  }
}

}  // namespace ravenstore::daemon
