#include "core/share.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/size_text.h"

namespace ravenstore::core {

Shares::Shares(std::string what, uint64_t capacity, Unit unit)
    : what_(std::move(what)), capacity_(capacity), unit_(unit) {
  RAVEN_CHECK(capacity > 0);
}

uint64_t Shares::common() const {
  return capacity_ - capacity_ / 8 - (capacity_ % 8 != 0 ? 1 : 0);
}

uint64_t Shares::reserved() const {
  return std::max<uint64_t>(1, capacity_ / 64);
}

uint64_t Shares::Held(TenantId user) const {
  const auto found = held_.find(user);
  return found == held_.end() ? 0 : found->second;
}

bool Shares::Fits(TenantId user, uint64_t n) const {
  // `n` may be any number: sums of it would overflow, differences of what is known do not.
  if (n > capacity_ - taken_) return false;
  if (taken_ + n <= common()) return true;
  return Held(user) + n <= reserved();
}

Status Shares::Take(TenantId user, uint64_t n) {
  if (!Fits(user, n)) return RanOut(user, n);
  if (n == 0) return Ok();
  taken_ += n;
  held_[user] += n;
  return Ok();
}

void Shares::Give(TenantId user, uint64_t n) {
  if (n == 0) return;
  const auto found = held_.find(user);
  RAVEN_CHECK(found != held_.end());
  RAVEN_CHECK(found->second >= n);
  taken_ -= n;
  found->second -= n;
  if (found->second == 0) held_.erase(found);
}

std::string Shares::Text(uint64_t n) const {
  return unit_ == Unit::kBytes ? SizeText(Bytes(n)) : std::to_string(n);
}

Error Shares::RanOut(TenantId user, uint64_t n) const {
  std::string text = what_ + " ran out: " + Text(taken_) + " of " + Text(capacity_) + " are taken";
  const auto most = std::max_element(
      held_.begin(), held_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool another = most != held_.end() && most->first != user;
  if (another) text += ", the most by user " + std::to_string(ToInt(most->first));
  text += "; user " + std::to_string(ToInt(user)) + " holds " + Text(Held(user)) + ", asks for " +
          Text(n) + ", and may take the last eighth up to " + Text(reserved()) +
          " of its own; release some";
  if (another) text += ", or ask that user to";
  return Error{ErrorCode::kLimit, std::move(text)};
}

}  // namespace ravenstore::core
