#include "daemon/names.h"

#include <utility>

namespace ravenstore::daemon {

using core::Error;
using core::ErrorCode;
using core::NameId;
using core::Result;
using core::TenantId;

namespace {

// So long others wait for a name.
constexpr size_t kReleasedPerLock = 256;

Error NoRoom(const Error& why) {
  return {why.code, why.message +
                        ": give the tensors of every iteration the same names, or none; a job's "
                        "names are forgotten when it ends"};
}

}  // namespace

Result<NameId> Names::Intern(std::string_view name, TenantId tenant, uint64_t giver) {
  if (name.empty()) return core::kNoName;
  if (name.size() > kNameBytesMax) {
    return Error{ErrorCode::kLimit, "a tensor's name is at most 255 bytes, this one has " +
                                        std::to_string(name.size())};
  }
  std::lock_guard lock(mutex_);
  uint32_t index = 0;
  const auto of_tenant = ids_.find(tenant);
  const bool known = of_tenant != ids_.end() && of_tenant->second.contains(name);
  if (known) index = of_tenant->second.at(name);
  const auto given = given_.find(giver);
  if (known && given != given_.end() && given->second.contains(index)) return NameId{index + 1};
  const size_t bytes = kBytesOfGiving + (known ? 0 : kBytesOfName + name.size());
  if (const auto room = shares_.Take(tenant, bytes); !room.ok()) return NoRoom(room.error());
  if (!known) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(names_.size()));
      names_.emplace_back();
    }
    index = free_.back();
    free_.pop_back();
    names_[index] = {std::string(name), tenant, 0};
    ids_[tenant].emplace(names_[index].text, index);
  }
  ++names_[index].givers;
  given_[giver].insert(index);
  return NameId{index + 1};
}

void Names::Release(uint64_t giver) {
  std::unordered_set<uint32_t> given;
  {
    std::lock_guard lock(mutex_);
    const auto found = given_.find(giver);
    if (found == given_.end()) return;
    given = std::move(found->second);
    given_.erase(found);
  }
  for (auto next = given.begin(); next != given.end();) {
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < kReleasedPerLock && next != given.end(); ++i, ++next) Drop(*next);
  }
}

void Names::Drop(uint32_t index) {
  Name& name = names_[index];
  size_t bytes = kBytesOfGiving;
  if (--name.givers == 0) {
    bytes += kBytesOfName + name.text.size();
    const auto of_tenant = ids_.find(name.tenant);
    of_tenant->second.erase(name.text);
    if (of_tenant->second.empty()) ids_.erase(of_tenant);
    name.text = {};
    free_.push_back(index);
  }
  shares_.Give(name.tenant, bytes);
}

std::string Names::Text(NameId id, TenantId tenant) const {
  std::lock_guard lock(mutex_);
  const uint32_t number = core::ToInt(id);
  if (number == 0 || number > names_.size()) return {};
  const Name& name = names_[number - 1];
  return name.givers == 0 || name.tenant != tenant ? std::string() : name.text;
}

}  // namespace ravenstore::daemon
