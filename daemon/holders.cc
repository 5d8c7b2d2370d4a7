#include "daemon/holders.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "core/size_text.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::TenantId;
using core::ToInt;

namespace {

constexpr size_t kNamed = 4;

// Sorts those that hold the most first. Returns how many are named.
template <typename T, typename HeldOf>
size_t SortByHeld(std::vector<T>* holders, HeldOf held_of) {
  std::stable_sort(holders->begin(), holders->end(),
                   [&](const T& a, const T& b) { return held_of(a) > held_of(b); });
  return std::min(holders->size(), kNamed);
}

}  // namespace

std::string DescribeHolders(TenantId asker, std::span<const Holder> holders,
                            const std::string& what) {
  std::vector<Holder> own;
  std::map<TenantId, Bytes> sums;
  for (const Holder& holder : holders) {
    if (holder.held == Bytes{}) continue;
    if (holder.tenant == asker) {
      own.push_back(holder);
    } else {
      sums[holder.tenant] += holder.held;
    }
  }
  std::vector<std::pair<TenantId, Bytes>> others(sums.begin(), sums.end());
  std::string text;
  const size_t own_named = SortByHeld(&own, [](const Holder& of) { return of.held; });
  for (size_t i = 0; i < own_named; ++i) {
    text += " client " + std::to_string(ToInt(own[i].client)) + " holds " +
            core::SizeText(own[i].held) + what;
    if (own[i].in_use) text += " (" + core::SizeText(*own[i].in_use) + " in use)";
    text += ";";
  }
  if (own.size() > own_named)
    text += " " + std::to_string(own.size() - own_named) + " more of this user;";
  const size_t others_named = SortByHeld(&others, [](const auto& of) { return of.second; });
  for (size_t i = 0; i < others_named; ++i) {
    text += " user " + std::to_string(ToInt(others[i].first)) + " holds " +
            core::SizeText(others[i].second) + what + ";";
  }
  if (others.size() > others_named)
    text += " " + std::to_string(others.size() - others_named) + " more users;";
  return text;
}

}  // namespace ravenstore::daemon
