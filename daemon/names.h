// Tensor names as the daemon knows them: text to a small number and back, for as long as it lives.
//
// A name belongs to the tenant who gave it: another tenant's equal text has another number, and a
// number is text to its own tenant alone, so that nobody reads others' names by guessing numbers.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/result.h"
#include "core/types.h"

namespace ravenstore::daemon {

// Threads: any.
class Names {
 public:
  static constexpr size_t kNameBytesMax = 255;
  static constexpr size_t kNamesMax = 1 << 20;
  static constexpr size_t kTenantNamesMax = 1 << 18;  // nobody uses up what is for all

  // `name` is UTF-8, as the wire checks.
  // Errors: kLimit when there are kNamesMax names, or kTenantNamesMax of the tenant, or `name` is
  // longer than kNameBytesMax; the message says which, and what to do.
  core::Result<core::NameId> Intern(std::string_view name, core::TenantId tenant) {
    if (name.empty()) return core::kNoName;
    if (name.size() > kNameBytesMax) {
      return Refusal("a tensor's name is at most 255 bytes, this one has " +
                     std::to_string(name.size()));
    }
    std::lock_guard lock(mutex_);
    auto& ids = ids_[tenant];
    if (const auto found = ids.find(name); found != ids.end()) return found->second;
    if (ids.size() >= kTenantNamesMax) {
      return Refusal(std::string("this user has given 2^18 tensor names, as many as one user may") +
                     kReuse);
    }
    if (names_.size() >= kNamesMax) {
      return Refusal(
          std::string("all users have given 2^20 tensor names, as many as the daemon keeps") +
          kReuse);
    }
    names_.push_back({std::string(name), tenant});
    const core::NameId id{static_cast<uint32_t>(names_.size())};
    ids.emplace(names_.back().text, id);
    return id;
  }

  // Empty for kNoName, for a number that a client made up, and for another tenant's.
  std::string Text(core::NameId id, core::TenantId tenant) const {
    std::lock_guard lock(mutex_);
    const uint32_t index = core::ToInt(id);
    if (index == 0 || index > names_.size() || names_[index - 1].tenant != tenant) return {};
    return names_[index - 1].text;
  }

 private:
  static constexpr const char* kReuse =
      ": give the tensors of every iteration the same names, or none; names are forgotten when the "
      "daemon ends";
  static core::Error Refusal(std::string why) { return {core::ErrorCode::kLimit, std::move(why)}; }

  struct Name {
    std::string text;
    core::TenantId tenant;
  };

  mutable std::mutex mutex_;
  std::deque<Name> names_;  // guarded by mutex_; never moved
  // By tenant; views into names_. Guarded by mutex_.
  std::unordered_map<core::TenantId, std::unordered_map<std::string_view, core::NameId>> ids_;
};

}  // namespace ravenstore::daemon
