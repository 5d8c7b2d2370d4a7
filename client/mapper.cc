#include "client/mapper.h"

#include <pthread.h>

#include <exception>
#include <string>
#include <system_error>
#include <utility>

#include "client/no_signals.h"

namespace ravenstore::client {

core::Status Mapper::Start(std::function<void()> on_failure) {
  on_failure_ = std::move(on_failure);
  try {
    const NoSignals blocked;
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    return core::Error{core::ErrorCode::kSystem,
                       std::string("starting the mapper: ") + error.what()};
  }
  return core::Ok();
}

void Mapper::Post(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  changed_.notify_one();
}

void Mapper::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    tasks_.clear();
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Mapper::Run() {
  pthread_setname_np(pthread_self(), "raven-mapper");
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
