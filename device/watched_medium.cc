#include "device/watched_medium.h"

#include <utility>

namespace ravenstore::device {

core::Status WatchedMedium::Health() const {
  if (!given_up_.load(std::memory_order_acquire)) return core::Ok();
  const std::lock_guard lock(mutex_);
  return why_;
}

void WatchedMedium::Read(core::Bytes offset, std::byte* to, core::Bytes bytes,
                         Completion completion) {
  if (const core::Status health = Health(); !health.ok()) return completion(health.error());
  medium_->Read(offset, to, bytes, Watch(bytes, std::move(completion)));
}

void WatchedMedium::Write(core::Bytes offset, const std::byte* from, core::Bytes bytes,
                          Completion completion) {
  if (const core::Status health = Health(); !health.ok()) return completion(health.error());
  medium_->Write(offset, from, bytes, Watch(bytes, std::move(completion)));
}

Medium::Completion WatchedMedium::Watch(core::Bytes bytes, Completion completion) {
  return [this, bytes, completion = std::move(completion)](core::Result<core::Bytes> moved) {
    Note(moved, bytes);
    completion(std::move(moved));
  };
}

void WatchedMedium::Note(const core::Result<core::Bytes>& moved, core::Bytes bytes) {
  if (moved.ok() && *moved == bytes) {
    failures_.store(0, std::memory_order_relaxed);
    return;
  }
  if (failures_.fetch_add(1, std::memory_order_relaxed) + 1 != most_) return;
  const std::string last = moved.ok() ? name() + ": transfers fall short" : moved.error().message;
  const std::lock_guard lock(mutex_);
  why_ = core::Error{core::ErrorCode::kSystem,
                     last + " (given up after " + std::to_string(most_) + " failures in a row)"};
  given_up_.store(true, std::memory_order_release);
}

}  // namespace ravenstore::device
