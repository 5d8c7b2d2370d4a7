// Tensor names as the daemon knows them: text to a small number and back.
//
// A name belongs to the tenant who gave it. Another tenant's equal text has another number, and
// only the name's own tenant can turn the number into text: no tenant reads others' names by
// guessing numbers. The name exists until the last connection that gave it ends. Then its number
// may be used again.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/result.h"
#include "core/share.h"
#include "core/types.h"

namespace ravenstore::daemon {

// Threads: any.
class Names {
 public:
  static constexpr size_t kNameBytesMax = 255;
  static constexpr core::Bytes kBytesMax = core::MiB(128);  // of all names, as counted below
  // What the tables take in addition to a name's text, and for each connection that gave it.
  static constexpr size_t kBytesOfName = 160;
  static constexpr size_t kBytesOfGiving = 48;

  explicit Names(core::Bytes most = kBytesMax)
      : shares_("bytes for tensor names", most.count(), core::Shares::Unit::kBytes) {}

  // `name`, which the connection `giver` of the tenant gives, is UTF-8, as the wire checks.
  // Errors: kLimit when there is no room for more names, or `name` is longer than kNameBytesMax;
  //   the message says which, and what to do.
  core::Result<core::NameId> Intern(std::string_view name, core::TenantId tenant, uint64_t giver);
  // The connection gives names no more: those that no other gave are forgotten. Takes some 100 ms
  // for the most that there may be; others wait for no more than a small part of that.
  void Release(uint64_t giver);

  // Empty for kNoName, for a number that a client made up, and for another tenant's.
  std::string Text(core::NameId id, core::TenantId tenant) const;

 private:
  struct Name {
    std::string text;
    core::TenantId tenant{};
    uint32_t givers = 0;  // 0: the number is free
  };
  // One giving less. REQUIRES: mutex_ is held.
  void Drop(uint32_t index);

  mutable std::mutex mutex_;
  // All guarded by mutex_.
  core::Shares shares_;
  std::deque<Name> names_;  // never moved
  std::vector<uint32_t> free_;
  // By tenant; views into names_.
  std::unordered_map<core::TenantId, std::unordered_map<std::string_view, uint32_t>> ids_;
  std::unordered_map<uint64_t, std::unordered_set<uint32_t>> given_;  // by connection
};

}  // namespace ravenstore::daemon
