#include "client/task_thread.h"

#include <pthread.h>

#include <exception>
#include <system_error>
#include <utility>

#include "client/no_signals.h"

namespace ravenstore::client {

void TaskThread::Post(std::function<void()> task) {
  std::unique_lock lock(mutex_);
  if (stopping_) return;
  if (!thread_.joinable()) {
    try {
      const NoSignals blocked;
      thread_ = std::thread([this] { Run(); });
    } catch (const std::system_error&) {
      stopping_ = true;
      lock.unlock();
      return on_failure_();
    }
  }
  tasks_.push_back(std::move(task));
  changed_.notify_one();
}

void TaskThread::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    tasks_.clear();
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void TaskThread::Run() {
  pthread_setname_np(pthread_self(), name_);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    try {
      task();
    } catch (const std::exception&) {
      lock.lock();
      stopping_ = true;
      tasks_.clear();
      lock.unlock();
      return on_failure_();
    }
    task = nullptr;  // closes its descriptors
    lock.lock();
  }
}

}  // namespace ravenstore::client
