#include "daemon/threads.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

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

WorkerPool::WorkerPool(std::string name, size_t threads) {
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

void WorkerPool::Run(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void WorkerPool::Work() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return ending_.load() || !work_.empty(); });
      if (work_.empty()) return;
      work = std::move(work_.front());
      work_.pop_front();
    }
    work();
  }
}

}  // namespace ravenstore::daemon
