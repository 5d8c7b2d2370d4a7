// A medium in memory whose pieces come and go, and which the test makes fail, slow and lose them.
#pragma once

#include <string.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/result.h"
#include "core/types.h"
#include "device/medium.h"

namespace ravenstore::device {

// Threads: any. A transfer is done as it begins, unless they are held.
class FakePieces : public PiecedMedium {
 public:
  enum class Fault : uint8_t { kNone, kFails, kFallsShort };
  enum class Way : uint8_t { kRead, kWrite };

  FakePieces(core::Bytes size, core::Bytes piece) : piece_(piece), bytes_(size.count()) {}
  ~FakePieces() override { RAVEN_CHECK(held_.empty()); }

  // What becomes of each transfer; asked under a lock.
  void SetFault(std::function<Fault(Way, core::Bytes offset)> fault) {
    const std::lock_guard lock(mutex_);
    fault_ = std::move(fault);
  }
  // Make fails from now on, or no more.
  void SetLends(bool lends) {
    const std::lock_guard lock(mutex_);
    lends_ = lends;
  }
  // Make waits from now on, or no more.
  void SetSlow(bool slow) {
    const std::lock_guard lock(mutex_);
    slow_ = slow;
    changed_.notify_all();
  }
  // Whether a Make is under way within half a minute.
  [[nodiscard]] bool AwaitMake() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this] { return making_ > 0; });
  }
  // Transfers of that kind wait from now on; Release ends them, those that began first come first.
  void Hold(Way way) {
    const std::lock_guard lock(mutex_);
    holds_ = way;
    held_back_ = true;
  }
  // Whether `count` calls wait within half a minute.
  [[nodiscard]] bool AwaitHeld(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this, count] { return held_.size() >= count; });
  }
  size_t held() const {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }
  void Release() {
    std::unique_lock lock(mutex_);
    held_back_ = false;
    EndHeld(lock, [](const Transfer&) { return true; });
  }
  // The piece that holds `offset` is lost, with what is under way there; whether it is there.
  [[nodiscard]] bool Lose(core::Bytes offset) {
    std::unique_lock lock(mutex_);
    const core::Bytes begin = offset.RoundDown(piece_);
    if (!pieces_.contains(begin)) return false;
    pieces_[begin] = State::kLost;
    memset(bytes_.data() + begin.count(), 0xee, piece_.count());
    EndHeld(lock, [&](const Transfer& one) { return one.offset.RoundDown(piece_) == begin; });
    return true;
  }
  // That were made and not destroyed.
  std::vector<core::Bytes> pieces() const {
    const std::lock_guard lock(mutex_);
    std::vector<core::Bytes> pieces;
    for (const auto& [offset, state] : pieces_) pieces.push_back(offset);
    return pieces;
  }

  const std::string& name() const override { return name_; }
  core::Bytes size() const override { return core::Bytes(bytes_.size()); }
  core::Bytes granularity() const override { return core::KiB(64); }
  core::Bytes piece() const override { return piece_; }
  core::Status Make(core::Bytes offset) override {
    std::unique_lock lock(mutex_);
    ++making_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !slow_; });
    --making_;
    if (!lends_) return core::Error{core::ErrorCode::kUnavailable, "nobody lends"};
    RAVEN_CHECK(offset.count() % piece_.count() == 0);
    RAVEN_CHECK(pieces_.emplace(offset, State::kThere).second);
    return core::Ok();
  }
  core::Status Destroy(core::Bytes offset) override {
    const std::lock_guard lock(mutex_);
    for (const Transfer& one : held_) RAVEN_CHECK(one.offset.RoundDown(piece_) != offset);
    RAVEN_CHECK(pieces_.erase(offset) == 1);
    memset(bytes_.data() + offset.count(), 0xdd, piece_.count());
    return core::Ok();
  }
  void Read(core::Bytes offset, std::byte* to, core::Bytes bytes, Completion completion) override {
    Begin({Way::kRead, offset, to, bytes_.data() + offset.count(), bytes, std::move(completion)});
  }
  void Write(core::Bytes offset, const std::byte* from, core::Bytes bytes,
             Completion completion) override {
    Begin(
        {Way::kWrite, offset, bytes_.data() + offset.count(), from, bytes, std::move(completion)});
  }

 private:
  static constexpr std::chrono::seconds kPatience{30};
  enum class State : uint8_t { kThere, kLost };
  struct Transfer {
    Way way;
    core::Bytes offset;
    std::byte* to;
    const std::byte* from;
    core::Bytes bytes;
    Completion completion;
  };

  void Begin(Transfer transfer) {
    std::unique_lock lock(mutex_);
    const core::Bytes begin = transfer.offset.RoundDown(piece_);
    RAVEN_CHECK(transfer.offset + transfer.bytes <= begin + piece_);
    RAVEN_CHECK(pieces_.contains(begin));  // no transfer touches a piece that was not made
    if (held_back_ && transfer.way == holds_ && pieces_[begin] == State::kThere) {
      held_.push_back(std::move(transfer));
      return changed_.notify_all();
    }
    End(lock, transfer);
  }
  // The completion runs without the lock.
  void End(std::unique_lock<std::mutex>& lock, Transfer& transfer) {
    const bool lost = pieces_.at(transfer.offset.RoundDown(piece_)) == State::kLost;
    const Fault fault = fault_ ? fault_(transfer.way, transfer.offset) : Fault::kNone;
    core::Result<core::Bytes> moved = core::Error{core::ErrorCode::kUnavailable, "piece lost"};
    if (!lost && fault != Fault::kFails) {
      moved =
          fault == Fault::kFallsShort ? core::Bytes(transfer.bytes.count() / 2) : transfer.bytes;
      memcpy(transfer.to, transfer.from, moved->count());
    }
    lock.unlock();
    transfer.completion(std::move(moved));
    lock.lock();
  }
  template <typename Which>
  void EndHeld(std::unique_lock<std::mutex>& lock, Which which) {
    std::deque<Transfer> all = std::exchange(held_, {});
    for (Transfer& one : all) {
      if (which(one)) {
        End(lock, one);
      } else {
        held_.push_back(std::move(one));
      }
    }
  }

  const std::string name_ = "the lenders";
  const core::Bytes piece_;
  mutable std::mutex mutex_;  // of all that follows
  std::condition_variable changed_;
  std::vector<std::byte> bytes_;
  std::map<core::Bytes, State> pieces_;
  std::function<Fault(Way, core::Bytes)> fault_;
  bool lends_ = true;
  bool slow_ = false;
  int making_ = 0;
  bool held_back_ = false;
  Way holds_ = Way::kRead;
  std::deque<Transfer> held_;  // oldest first
};

}  // namespace ravenstore::device
