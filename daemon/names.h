// Tensor names as the daemon knows them: text to a small number and back, for as long as it lives.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/types.h"

namespace ravenstore::daemon {

// Threads: any.
class Names {
 public:
  static constexpr size_t kNameBytesMax = 255;
  static constexpr size_t kNamesMax = 1 << 20;

  // nullopt when there are kNamesMax names, or `name` (UTF-8, as the wire checks) is longer than
  // kNameBytesMax.
  std::optional<core::NameId> Intern(std::string_view name) {
    if (name.empty()) return core::kNoName;
    if (name.size() > kNameBytesMax) return std::nullopt;
    std::lock_guard lock(mutex_);
    if (const auto found = ids_.find(name); found != ids_.end()) return found->second;
    if (names_.size() >= kNamesMax) return std::nullopt;
    names_.emplace_back(name);
    const core::NameId id{static_cast<uint32_t>(names_.size())};
    ids_.emplace(names_.back(), id);
    return id;
  }

  // Empty for kNoName and for a number that a client made up.
  std::string Text(core::NameId id) const {
    std::lock_guard lock(mutex_);
    const uint32_t index = core::ToInt(id);
    return index == 0 || index > names_.size() ? std::string() : names_[index - 1];
  }

 private:
  mutable std::mutex mutex_;
  std::deque<std::string> names_;                           // guarded by mutex_; never moved
  std::unordered_map<std::string_view, core::NameId> ids_;  // guarded by mutex_; views into names_
};

}  // namespace ravenstore::daemon
