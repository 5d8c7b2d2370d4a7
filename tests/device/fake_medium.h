// A medium in memory, whose transfers the test holds up, reorders, shortens and fails.
#pragma once

#include <string.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/result.h"
#include "core/types.h"
#include "device/medium.h"

namespace ravenstore::device {

// Threads: one. A transfer is done as it begins, unless they are held.
class FakeMedium : public Medium {
 public:
  enum class Fault : uint8_t { kNone, kFails, kFallsShort };

  explicit FakeMedium(core::Bytes size) : bytes_(size.count()) {}

  // What becomes of the n-th transfer, counted from 1.
  void set_fault(std::function<Fault(uint64_t)> fault) { fault_ = std::move(fault); }
  // From now on transfers wait to be ended by End.
  void Hold() { held_back_ = true; }
  size_t held() const { return held_.size(); }
  // Ends the one that began before all others held but `index`.
  void End(size_t index) {
    RAVEN_CHECK(index < held_.size());
    const std::function<void()> transfer = std::move(held_[index]);
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(index));
    transfer();
  }
  std::byte* bytes() { return bytes_.data(); }
  uint64_t transfers() const { return transfers_; }

  const std::string& name() const override { return name_; }
  core::Bytes size() const override { return core::Bytes(bytes_.size()); }
  core::Bytes granularity() const override { return core::KiB(4); }
  void Read(core::Bytes offset, std::byte* to, core::Bytes bytes, Completion completion) override {
    Begin(to, bytes_.data() + offset.count(), bytes, std::move(completion));
  }
  void Write(core::Bytes offset, const std::byte* from, core::Bytes bytes,
             Completion completion) override {
    Begin(bytes_.data() + offset.count(), from, bytes, std::move(completion));
  }

 private:
  void Begin(std::byte* to, const std::byte* from, core::Bytes bytes, Completion completion) {
    const uint64_t number = ++transfers_;
    const Fault fault = fault_ ? fault_(number) : Fault::kNone;
    auto transfer = [=, completion = std::move(completion)] {
      if (fault == Fault::kFails) {
        completion(core::Error{core::ErrorCode::kSystem,
                               "the fake: transfer " + std::to_string(number) + " fails"});
        return;
      }
      const core::Bytes moved(fault == Fault::kFallsShort ? bytes.count() / 2 : bytes.count());
      memcpy(to, from, moved.count());
      completion(moved);
    };
    if (held_back_) {
      held_.push_back(std::move(transfer));
    } else {
      transfer();
    }
  }

  const std::string name_ = "the fake";
  std::vector<std::byte> bytes_;
  std::function<Fault(uint64_t)> fault_;
  bool held_back_ = false;
  std::deque<std::function<void()>> held_;  // oldest first
  uint64_t transfers_ = 0;
};

}  // namespace ravenstore::device
