// Why a client does not get what it asked for, in words for it.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/planner_books.h"
#include "core/size_text.h"

namespace ravenstore::core {

namespace {
// The largest of {id, bytes} come first, at most four; how many more there are.
template <typename Id>
size_t KeepLargest(std::vector<std::pair<Id, Bytes>>* holders) {
  constexpr size_t kNamed = 4;
  std::stable_sort(holders->begin(), holders->end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  const size_t named = std::min(holders->size(), kNamed);
  const size_t more = holders->size() - named;
  holders->resize(named);
  return more;
}
}  // namespace

std::string PlannerBooks::WhyLost(const Object& object) const {
  const PoolId pool = object.away.pool;
  if (away_[pool].failed) return "they were in " + NameOf(pool) + ", which failed";
  if (away_[pool].comes_and_goes() && !away_[pool].covered)
    return "they were in " + NameOf(pool) + ", which lost them";
  return "a copy of them failed";
}

// The asker's own tenant is told which of its clients hold what, and of other tenants which.
std::string PlannerBooks::Holders(ClientId asker, PoolId pool) const {
  using Usage = QuotaTree::Usage;
  const bool pinned = pool == kHostPool;
  auto [own, others] = quota_.HoldersOf(asker, pool, pinned ? &Usage::pinned : &Usage::held);
  const std::string end = pinned ? " pinned;" : ";";
  std::string text;
  const size_t own_more = KeepLargest(&own);
  for (const auto& [id, has] : own) {
    text += " client " + std::to_string(ToInt(id)) + " holds " + SizeText(has);
    if (!pinned) text += " (" + SizeText(clients_.at(id)->in_use) + " in use)";
    text += end;
  }
  if (own_more > 0) text += " " + std::to_string(own_more) + " more of this user;";
  const size_t others_more = KeepLargest(&others);
  for (const auto& [id, has] : others)
    text += " user " + std::to_string(ToInt(id)) + " holds " + SizeText(has) + end;
  if (others_more > 0) text += " " + std::to_string(others_more) + " more users;";
  return text;
}

std::string PlannerBooks::DescribeHolders(const Request& request) const {
  const ClientArena& arena = *clients_.at(request.client)->arenas[ToInt(request.device)];
  const TenantId tenant = clients_.at(request.client)->tenant;
  std::string text = "device " + std::to_string(ToInt(arena.device)) + ": no room for " +
                     SizeText(request.size) + " within client " +
                     std::to_string(ToInt(arena.client)) + "'s budget of " +
                     SizeText(quota_.BudgetsOf(arena.client).device) + " and its tenant's of " +
                     SizeText(quota_.BudgetsOf(tenant).device) + "; holders:";
  text += Holders(arena.client, arena.pool());
  const Bytes share = quota_.Share(tenant, arena.pool());
  if (const Bytes kept = Minus(quota_.LimitOf(arena.pool()), share); kept > Bytes{0})
    text += " other tenants are guaranteed " + SizeText(kept) + ";";
  if (ExceedsShare(arena, request.size)) {
    text += " this user has " + SizeText(quota_.Of(tenant, arena.pool()).pinned) +
            " in use, of the " + SizeText(share) + " that it may while others are attached;";
  }
  if (!request.is_fetch() && LacksCover(arena, request.size))
    text += " the host has no room for what it would lend this user of what others are guaranteed;";
  text += DescribePieces(arena, request);
  if (host_.held() >= quota_.HostForCopies() && host_.LargestHole() < request.size)
    text += " the host pool of " + SizeText(options_.host_capacity) + " is full;";
  if (!quota_.IsWithinHostShare(arena.client, request.size)) text += HostHolder();
  return text + " put or free tensors, raise the budgets, or wait longer";
}

bool PlannerBooks::IsInPieces(const ClientArena& arena, const Request& request) const {
  const Bytes need = request.size.RoundUp(options_.granularity);
  const Bytes budget = BudgetOf(arena);
  return arena.last_resort.request == request.id && arena.last_resort.kept + need > budget &&
         UsageOf(arena).pinned + need <= budget;
}

std::string PlannerBooks::DescribePieces(const ClientArena& arena, const Request& request) const {
  if (!IsInPieces(arena, request)) return "";
  const Bytes kept = arena.last_resort.kept;
  return " its " + SizeText(UsageOf(arena).pinned) + " in use lie in slabs of " + SizeText(kept) +
         ", and what is left between them is in pieces (fragmentation): a device budget of " +
         SizeText(kept + request.size.RoundUp(options_.granularity)) + " would do;";
}

std::string PlannerBooks::HostHolder() const {
  return " the rest of the host pool of " + SizeText(options_.host_capacity) +
         " is kept for users who hold little of it, and user " +
         std::to_string(ToInt(quota_.LargestHolder(kHostPool))) +
         " holds the most (limits.single_user of the configuration keeps nothing);";
}

Status PlannerBooks::MayPin(ClientId id, Bytes block, Bytes slab,
                            const StorePlanner::IdlePinned& without) const {
  if (quota_.MayPin(id, block, slab, without.own, without.others, host_.committed())) return Ok();
  return Error{ErrorCode::kOutOfMemory, DescribePinned(id, block)};
}

std::string PlannerBooks::DescribePinned(ClientId asker, Bytes asked) const {
  std::string text =
      "pinned memory is exhausted: no room for " + SizeText(asked) + " within client " +
      std::to_string(ToInt(asker)) + "'s host budget of " + SizeText(quota_.BudgetsOf(asker).host) +
      ", its user's of " + SizeText(quota_.BudgetsOf(clients_.at(asker)->tenant).host) +
      " and the host pool of " + SizeText(options_.host_capacity) + ", which holds " +
      SizeText(host_.used()) + " of tensors and " + SizeText(quota_.Of(kHostPool).pinned) +
      " of pinned blocks; holders:" + Holders(asker, kHostPool);
  if (!quota_.IsWithinHostShare(asker, asked)) text += HostHolder();
  return text + " free pinned blocks or tensors, or raise the host budgets";
}

}  // namespace ravenstore::core
