#include "daemon/prepared_memory.h"

#include <utility>

#include "daemon/threads.h"

namespace ravenstore::daemon {

PreparedMemory::PreparedMemory(std::unique_ptr<cluster::LentMemory> memory)
    : memory_(std::move(memory)) {}

void PreparedMemory::Start(const std::atomic<bool>& ending) {
  thread_ = Supervise("raven-memory", ending, [this] { Run(); });
}

PreparedMemory::~PreparedMemory() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

core::Result<std::span<std::byte>> PreparedMemory::Make(core::Bytes bytes) {
  std::unique_lock lock(mutex_);
  // What failed ahead of need is tried again, and what has another size does not do.
  changed_.wait(lock, [this] { return wanted_ == core::Bytes{}; });
  if (ahead_ && (!ahead_->ok() || (*ahead_)->size() != bytes.count())) DropAhead();
  while (!ahead_) {
    wanted_ = bytes;
    changed_.notify_all();
    changed_.wait(lock, [this] { return wanted_ == core::Bytes{}; });
  }
  Made made = *std::exchange(ahead_, std::nullopt);
  if (made.ok()) wanted_ = bytes;
  changed_.notify_all();
  return made;
}

void PreparedMemory::Release(std::span<std::byte> memory) {
  std::lock_guard lock(mutex_);
  returned_.push_back(memory);
  DropAhead();
  unwanted_ = wanted_ > core::Bytes{};
  changed_.notify_all();
}

void PreparedMemory::DropAhead() {
  if (ahead_ && ahead_->ok()) returned_.push_back(**ahead_);
  ahead_.reset();
}

void PreparedMemory::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock,
                  [this] { return ending_ || wanted_ > core::Bytes{} || !returned_.empty(); });
    if (ending_) DropAhead();
    if (!returned_.empty()) {
      const auto returned = std::exchange(returned_, {});
      lock.unlock();
      for (const std::span<std::byte> memory : returned) memory_->Release(memory);
      lock.lock();
    } else if (ending_) {
      return;
    } else {
      const core::Bytes bytes = wanted_;
      lock.unlock();
      Made made = memory_->Make(bytes);
      lock.lock();
      ahead_ = std::move(made);
      wanted_ = core::Bytes{};
      if (std::exchange(unwanted_, false)) DropAhead();
      changed_.notify_all();
    }
  }
}

}  // namespace ravenstore::daemon
