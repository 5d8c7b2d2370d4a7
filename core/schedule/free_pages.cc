#include "core/schedule/free_pages.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace ravenstore::core {

void FreePages::SetMost(uint32_t pages) {
  if (pages < pages_) {
    const uint32_t fewer = pages_ - pages;
    const uint32_t now = std::min(fewer, unassigned_);
    unassigned_ -= now;
    free_ -= now;
    surplus_ += fewer - now;
  } else {
    const uint32_t more = pages - pages_;
    const uint32_t kept = std::min(more, surplus_);
    surplus_ -= kept;
    unassigned_ += more - kept;
    free_ += more - kept;
  }
  pages_ = pages;
  all_have_theirs_ = false;
}

void FreePages::Take(uint32_t pages) {
  RAVEN_CHECK(pages <= unassigned_);
  free_ -= pages;
  unassigned_ -= pages;
}

void FreePages::Add() {
  all_have_theirs_ = false;
  if (surplus_ > 0 && ahead_ == 0) {
    --surplus_;
    return;
  }
  ++free_;
  if (ahead_ > 0) {
    --ahead_;
  } else {
    ++unassigned_;
  }
}

void FreePages::AssignAhead(PageExecutor* to) {
  ++ahead_;
  to->books().memory().Expect();
}

void FreePages::Unassign(const ScheduledClient& client) {
  uint32_t pages = client.executor().books().memory().expected();
  if (making_ == client.id()) --pages;
  const uint32_t destroyed = std::min(pages, free_ - unassigned_);
  unassigned_ += destroyed;
  all_have_theirs_ = false;
  RAVEN_CHECK(pages - destroyed <= ahead_);
  ahead_ -= pages - destroyed;
}

void FreePages::Assign(std::span<ScheduledClient* const> clients, const DeviceTenants& tenants) {
  while (unassigned_ > 0 && !all_have_theirs_) {
    std::pair<bool, uint32_t> most;  // an exchange ends with it; what a client lacks
    PageExecutor* found = nullptr;
    for (ScheduledClient* const client : clients) {
      const PageBooks& books = client->executor().books();
      const uint32_t has = books.memory().pages() + books.memory().expected();
      if (books.view().limits.pages <= has) continue;
      const plan::MoveView view = books.view();
      const bool returns = !view.copies.MayCreate() && plan::AwaitsReturn(view);
      const std::pair lacks(returns, view.limits.pages - has);
      if (lacks <= most) continue;
      if (tenants.Growth(client->tenant(), clients) == 0) continue;
      if (tenants.KeepsFree() && tenants.HasItsShares(client->tenant(), clients)) continue;
      most = lacks;
      found = &client->executor();
    }
    all_have_theirs_ = found == nullptr;
    if (all_have_theirs_) return;
    --unassigned_;
    found->books().memory().Expect();
  }
}

std::optional<ClientId> FreePages::Next(std::span<ScheduledClient* const> clients,
                                        const DeviceTenants& tenants) {
  Assign(clients, tenants);
  if (making_ || free_ == unassigned_) return std::nullopt;
  uint32_t most = 0;
  for (const ScheduledClient* client : clients) {
    const uint32_t expected = client->executor().books().memory().expected();
    if (expected <= most) continue;
    most = expected;
    making_ = client->id();
  }
  RAVEN_CHECK(making_.has_value());
  --free_;
  return making_;
}

}  // namespace ravenstore::core
