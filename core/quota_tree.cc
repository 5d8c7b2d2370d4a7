#include "core/quota_tree.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace ravenstore::core {

namespace {
// Of what is lent to one tenant others are kept this part of a device each, free (core/share.h).
constexpr uint64_t kKeptPart = 64;

void Subtract(Bytes* from, Bytes bytes) {
  RAVEN_CHECK(*from >= bytes);
  *from -= bytes;
}

void Subtract(QuotaTree::Usage* from, const QuotaTree::Usage& usage) {
  Subtract(&from->held, usage.held);
  Subtract(&from->reclaiming, usage.reclaiming);
  Subtract(&from->overdue, usage.overdue);
  Subtract(&from->pinned, usage.pinned);
}

void Add(QuotaTree::Usage* to, const QuotaTree::Usage& usage) {
  to->held += usage.held;
  to->reclaiming += usage.reclaiming;
  to->overdue += usage.overdue;
  to->pinned += usage.pinned;
}

// `of` times `part` by `whole`.
Bytes Scale(Bytes of, Bytes part, Bytes whole) {
  return Bytes(
      static_cast<uint64_t>(static_cast<double>(of.count()) * static_cast<double>(part.count()) /
                            static_cast<double>(std::max<uint64_t>(1, whole.count()))));
}
}  // namespace

QuotaTree::QuotaTree(Options options) : options_(std::move(options)) {
  pools_.push_back({.limit = options_.host});
  for (const std::vector<Bytes>* capacities : {&options_.devices, &options_.others}) {
    for (const Bytes capacity : *capacities) pools_.push_back({.limit = capacity});
  }
}

Bytes QuotaTree::BudgetOf(const Budgets& budgets, PoolId pool) const {
  if (pool == kHostPool) return budgets.host;
  if (IsDevice(pool)) return budgets.device;
  const auto found = budgets.others.find(pool);
  return found == budgets.others.end() ? kRangeMax : found->second;
}

const QuotaTree::Client& QuotaTree::At(ClientId client) const {
  if (found_.second == nullptr || found_.first != client) found_ = {client, &clients_.at(client)};
  return *found_.second;
}

QuotaTree::Tenant& QuotaTree::TenantFor(TenantId id) {
  const auto [tenant, is_new] = tenants_.try_emplace(id);
  if (is_new) {
    tenant->second.id = id;
    tenant->second.guarantee.resize(pools_.size());
    tenant->second.usage.resize(pools_.size());
  }
  return tenant->second;
}

void QuotaTree::SetBudgets(TenantId id, const Budgets& budgets) {
  Tenant& tenant = TenantFor(id);
  host_budgets_ -= std::min(tenant.budgets.host, options_.host);
  host_budgets_ += std::min(budgets.host, options_.host);
  if (tenant.clients > 0) CountClaims(tenant, false);
  tenant.budgets = budgets;
  for (size_t i = 0; i < options_.devices.size(); ++i) {
    const Bytes all = options_.devices[i];
    const uint64_t part = options_.guaranteed_part;
    const Bytes unless_set = part == 0 ? Bytes{0} : Bytes(all.count() / part);
    tenant.guarantee[ToInt(PoolOf(DeviceId{static_cast<uint16_t>(i)}))] =
        std::min(budgets.device_guarantee.value_or(unless_set), all);
  }
  if (tenant.clients > 0) CountClaims(tenant, true);
}

void QuotaTree::SetBudgets(ClientId client, const Budgets& budgets) {
  At(client).budgets = budgets;
}

void QuotaTree::SetLimit(PoolId device, Bytes limit) {
  pools_[ToInt(device)].limit = std::min(limit, options_.devices[ToInt(device) - 1]);
}

void QuotaTree::Attach(ClientId id, TenantId of, const Budgets& budgets) {
  const auto found = tenants_.find(of);
  RAVEN_CHECK(found != tenants_.end());
  Tenant& tenant = found->second;
  const bool is_new =
      clients_.try_emplace(id, Client{&tenant, budgets, std::vector<Usage>(pools_.size())}).second;
  RAVEN_CHECK(is_new);
  if (tenant.clients++ == 0) CountClaims(tenant, true);
}

void QuotaTree::Detach(ClientId id) {
  const Client& client = At(id);
  Tenant& tenant = *client.tenant;
  for (size_t i = 0; i < pools_.size(); ++i) {
    EndReservation(id, PoolId{static_cast<uint16_t>(i)});
    const Usage& own = client.usage[i];
    if (!IsDevice(PoolId{static_cast<uint16_t>(i)})) {
      // Its blocks are cut from its tenant's slabs.
      Subtract(&tenant.usage[i].held, own.held - own.pinned);
      continue;
    }
    Subtract(&tenant.usage[i], own);
    Subtract(&pools_[i].usage, own);
  }
  if (--tenant.clients == 0) CountClaims(tenant, false);
  clients_.erase(id);
  found_ = {};
}

void QuotaTree::CountClaims(const Tenant& tenant, bool present) {
  const int one = present ? 1 : -1;
  if (tenant.budgets.weight) weighted_ += one;
  if (tenant.budgets.priority != TenantPriority::kNormal) prioritized_ += one;
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (present) {
      pools_[i].guaranteed += tenant.guarantee[i];
    } else {
      pools_[i].guaranteed -= tenant.guarantee[i];
    }
  }
}

template <typename Change>
void QuotaTree::Apply(ClientId id, PoolId pool, Change change) {
  Client& client = At(id);
  const size_t i = ToInt(pool);
  for (Usage* usage : {&client.usage[i], &client.tenant->usage[i], &pools_[i].usage})
    change(*usage);
}

void QuotaTree::Charge(ClientId id, PoolId pool, Bytes bytes) {
  Client& client = At(id);
  client.usage[ToInt(pool)].held += bytes;
  client.tenant->usage[ToInt(pool)].held += bytes;
  pools_[ToInt(pool)].usage.held += bytes.RoundUp(kExtentAlignment);
  const auto reservation = reservations_.find({id, pool});
  if (reservation == reservations_.end()) return;
  Bytes& left = reservation->second.bytes;
  left = Minus(left, bytes);
  if (left == Bytes{0}) reservations_.erase(reservation);
}

void QuotaTree::Refund(ClientId id, PoolId pool, Bytes bytes) {
  Subtract(&pools_[ToInt(pool)].usage.held, bytes.RoundUp(kExtentAlignment));
  if (!clients_.contains(id)) return;
  Client& client = At(id);
  Subtract(&client.usage[ToInt(pool)].held, bytes);
  Subtract(&client.tenant->usage[ToInt(pool)].held, bytes);
}

void QuotaTree::Pin(ClientId client, PoolId device, Bytes bytes) {
  Apply(client, device, [=](Usage& usage) { usage.pinned += bytes; });
}

void QuotaTree::Unpin(ClientId client, PoolId device, Bytes bytes) {
  Apply(client, device, [=](Usage& usage) { Subtract(&usage.pinned, bytes); });
}

void QuotaTree::SetPinned(ClientId client, Bytes blocks) {
  Usage& usage = At(client).usage[ToInt(kHostPool)];
  usage.held += blocks;
  usage.held -= std::exchange(usage.pinned, blocks);
}

Bytes QuotaTree::SetPinned(TenantId tenant, Bytes slabs) {
  const Bytes before = TenantFor(tenant).usage[ToInt(kHostPool)].pinned;
  for (Usage* usage :
       {&TenantFor(tenant).usage[ToInt(kHostPool)], &pools_[ToInt(kHostPool)].usage}) {
    for (Bytes Usage::*count : {&Usage::held, &Usage::pinned}) {
      usage->*count += slabs;
      usage->*count -= before;
    }
  }
  return before;
}

void QuotaTree::BeginReclaiming(ClientId client, PoolId device, Bytes slabs) {
  Apply(client, device, [=](Usage& usage) { usage.reclaiming += slabs; });
}

void QuotaTree::EndReclaiming(ClientId client, PoolId device, Bytes slabs) {
  Apply(client, device, [=](Usage& usage) { Subtract(&usage.reclaiming, slabs); });
}

void QuotaTree::BeginOverdue(ClientId client, PoolId device, Bytes slabs) {
  Apply(client, device, [=](Usage& usage) {
    Subtract(&usage.reclaiming, slabs);
    usage.overdue += slabs;
  });
}

void QuotaTree::EndOverdue(ClientId client, PoolId device, Bytes slabs) {
  Apply(client, device, [=](Usage& usage) { Subtract(&usage.overdue, slabs); });
}

void QuotaTree::Reserve(ClientId client, PoolId device, const Reservation& reservation) {
  reservations_.insert_or_assign({client, device}, reservation);
}

Bytes QuotaTree::Reserved(ClientId client, PoolId device) const {
  const auto reservation = reservations_.find({client, device});
  return reservation == reservations_.end() ? Bytes{0} : reservation->second.bytes;
}

std::pair<Bytes, Bytes> QuotaTree::ReservedByOthers(ClientId asker, PoolId device,
                                                    uint64_t request) const {
  if (reservations_.empty()) return {};
  const auto own = reservations_.find({asker, device});
  const bool is_by_right = own != reservations_.end() && own->second.by_right;
  const Tenant* tenant = At(asker).tenant;
  Bytes of_all;
  Bytes of_tenant;
  for (const auto& [key, reservation] : reservations_) {
    const auto& [client, pool] = key;
    if (client == asker || pool != device) continue;
    const bool comes_first = reservation.by_right && !is_by_right;
    if (reservation.request >= request && !comes_first) continue;
    of_all += reservation.bytes;
    if (clients_.at(client).tenant == tenant) of_tenant += reservation.bytes;
  }
  return {of_all, of_tenant};
}

Bytes QuotaTree::LimitOf(ClientId id, PoolId pool, Limit limit) const {
  const Client& client = At(id);
  switch (limit) {
    case Limit::kClient: return BudgetOf(client.budgets, pool);
    case Limit::kTenant: return BudgetOf(client.tenant->budgets, pool);
    case Limit::kPool: break;
  }
  return LimitOf(pool);
}

const QuotaTree::Usage& QuotaTree::Against(ClientId id, PoolId pool, Limit limit) const {
  const Client& client = At(id);
  switch (limit) {
    case Limit::kClient: return client.usage[ToInt(pool)];
    case Limit::kTenant: return client.tenant->usage[ToInt(pool)];
    case Limit::kPool: break;
  }
  return Of(pool);
}

TenantId QuotaTree::LargestHolder(PoolId pool) const {
  return std::max_element(tenants_.begin(), tenants_.end(),
                          [pool](const auto& a, const auto& b) {
                            const size_t i = ToInt(pool);
                            return a.second.usage[i].held < b.second.usage[i].held;
                          })
      ->first;
}

QuotaTree::Holders QuotaTree::HoldersOf(ClientId asker, PoolId pool, Bytes Usage::*count) const {
  const Tenant* own = At(asker).tenant;
  Holders holders;
  for (const auto& [id, client] : clients_) {
    const Bytes has = client.usage[ToInt(pool)].*count;
    if (client.tenant == own && has > Bytes{0}) holders.own.emplace_back(id, has);
  }
  for (const auto& [id, tenant] : tenants_) {
    const Bytes has = tenant.usage[ToInt(pool)].*count;
    if (&tenant != own && has > Bytes{0}) holders.others.emplace_back(id, has);
  }
  return holders;
}

Bytes QuotaTree::Most(ClientId client, PoolId pool) const {
  return std::min({LimitOf(client, pool, Limit::kClient), LimitOf(client, pool, Limit::kTenant),
                   LimitOf(pool)});
}

std::optional<QuotaTree::Limit> QuotaTree::Exceeded(ClientId id, PoolId pool, Bytes of_client,
                                                    Bytes of_tenant) const {
  const auto exceeded = [&](Limit limit, Bytes more) {
    return Against(id, pool, limit).held + more > LimitOf(id, pool, limit);
  };
  if (exceeded(Limit::kClient, of_client)) return Limit::kClient;
  if (exceeded(Limit::kTenant, of_tenant)) return Limit::kTenant;
  return std::nullopt;
}

Bytes QuotaTree::Room(ClientId id, PoolId device, uint64_t request, Coming reclaiming) const {
  const auto [reserved, of_tenant] = ReservedByOthers(id, device, request);
  const auto left = [&, id = id](Limit limit, Bytes taken) {
    const Usage& usage = Against(id, device, limit);
    const Bytes coming = reclaiming == Coming::kIsThere ? usage.reclaiming : Bytes{0};
    return Minus(LimitOf(id, device, limit), Minus(usage.held + taken, coming));
  };
  const Tenant& tenant = *At(id).tenant;
  const Bytes free = left(Limit::kPool, reserved + pools_[ToInt(device)].harvested);
  const Bytes guaranteed = Minus(GuaranteeOf(tenant, device), tenant.usage[ToInt(device)].held);
  return std::min(
      {left(Limit::kClient, Bytes{0}), left(Limit::kTenant, of_tenant),
       std::max(Minus(free, KeptFromLoans(tenant, device)), std::min(free, guaranteed))});
}

Bytes QuotaTree::KeptFromLoans(const Tenant& borrower, PoolId id) const {
  const Pool& device = pools_[ToInt(id)];
  const bool others_are_guaranteed = device.guaranteed > borrower.guarantee[ToInt(id)];
  if (options_.guaranteed_part == 0 || !others_are_guaranteed) return {};
  const Bytes each = Bytes(device.limit.count() / kKeptPart).RoundUp(options_.granularity);
  const Bytes most = Bytes(device.limit.count() / options_.guaranteed_part);
  Bytes kept = each;  // for one who is still to come
  for (const auto& [other, tenant] : tenants_) {
    if (other == borrower.id || tenant.clients == 0) continue;
    kept += Minus(std::min(each, GuaranteeOf(tenant, id)), tenant.usage[ToInt(id)].held);
    if (kept >= most) break;
  }
  return std::min(kept, most);
}

Bytes QuotaTree::Excess(ClientId id, PoolId device) const {
  const Usage& own = Of(id, device);
  const auto beyond = [&](Limit limit) {
    const Usage& usage = Against(id, device, limit);
    return Minus(usage.held - usage.reclaiming, LimitOf(id, device, limit));
  };
  const Bytes of_client = Minus(beyond(Limit::kClient), own.overdue);
  const Tenant& tenant = *At(id).tenant;
  const Bytes of_tenant =
      std::max(beyond(Limit::kTenant), PartOfExcess(tenant, device, beyond(Limit::kPool)));
  if (of_tenant == Bytes{0}) return of_client;
  // Of what is shared, every client gives in proportion.
  const Bytes share = Scale(of_tenant, own.held, tenant.usage[ToInt(device)].held);
  return std::max({of_client, share, Bytes{1}});
}

Bytes QuotaTree::PartOfExcess(const Tenant& tenant, PoolId device, Bytes excess) const {
  if (excess == Bytes{0}) return excess;
  const Bytes own = BeyondGuarantee(tenant, device);
  Bytes lower;  // surplus
  Bytes equal;
  for (const auto& [id, other] : tenants_) {
    if (other.budgets.priority < tenant.budgets.priority) lower += BeyondGuarantee(other, device);
    if (other.budgets.priority == tenant.budgets.priority) equal += BeyondGuarantee(other, device);
  }
  const Bytes of_equal = std::min(Minus(excess, lower), equal);
  if (own == Bytes{0} || of_equal == Bytes{0}) return {};
  if (weighted_ == 0) return std::max(Scale(of_equal, own, equal), Bytes{1});
  const double level = LevelBeyond(tenant.budgets.priority, device, of_equal);
  return Minus(own, Bytes(static_cast<uint64_t>(level * tenant.weight())));
}

double QuotaTree::LevelBeyond(TenantPriority priority, PoolId id, Bytes excess) const {
  std::vector<std::pair<double, double>> tenants;  // surplus for its weight, weight
  for (const auto& [other, tenant] : tenants_) {
    if (tenant.budgets.priority != priority) continue;
    const auto surplus = static_cast<double>(BeyondGuarantee(tenant, id).count());
    tenants.emplace_back(surplus / tenant.weight(), tenant.weight());
  }
  std::sort(tenants.rbegin(), tenants.rend());
  double left = -static_cast<double>(excess.count());
  double weights = 0;
  double level = 0;
  for (const auto& [surplus, weight] : tenants) {
    if (weights > 0 && surplus <= level) break;
    left += surplus * weight;
    weights += weight;
    level = std::max(0.0, left / weights);
  }
  return level;
}

Bytes QuotaTree::GuaranteeOf(const Tenant& tenant, PoolId id) const {
  const Pool& device = pools_[ToInt(id)];
  const Bytes guarantee = tenant.guarantee[ToInt(id)];
  if (device.guaranteed <= device.limit) return guarantee;
  return Scale(guarantee, device.limit, device.guaranteed);
}

Bytes QuotaTree::ShareOf(const Tenant& tenant, PoolId id) const {
  const Pool& device = pools_[ToInt(id)];
  const Bytes all = std::min(device.guaranteed, device.limit);
  return Minus(device.limit, Minus(all, GuaranteeOf(tenant, id)));
}

bool QuotaTree::ExceedsShare(ClientId client, PoolId id, Bytes more) const {
  const Pool& device = pools_[ToInt(id)];
  if (device.guaranteed == Bytes{0}) return false;
  const Tenant& tenant = *At(client).tenant;
  // Nothing is guaranteed to others: what a tenant alone has in use is its own affair.
  if (device.guaranteed == tenant.guarantee[ToInt(id)]) return false;
  return tenant.usage[ToInt(id)].pinned + more > ShareOf(tenant, id);
}

bool QuotaTree::IsWithinGuarantee(ClientId client, PoolId device, Bytes need) const {
  if (!HasGuarantees(device)) return false;
  const Tenant& tenant = *At(client).tenant;
  const Bytes slabs = need.RoundUp(options_.granularity);
  return tenant.usage[ToInt(device)].held + slabs <= GuaranteeOf(tenant, device) &&
         Binding(client, device, slabs) == Limit::kPool;
}

Bytes QuotaTree::BeyondGuarantee(const Tenant& tenant, PoolId pool) const {
  const Usage& usage = tenant.usage[ToInt(pool)];
  return Minus(usage.held - usage.reclaiming, GuaranteeOf(tenant, pool));
}

Bytes QuotaTree::Yields(TenantId from, ClientId asker, PoolId device, Bytes need,
                        Claim claim) const {
  const Tenant& own = *At(asker).tenant;
  const Tenant& other = tenants_.at(from);
  const Bytes beyond = BeyondGuarantee(other, device);
  const Bytes held = own.usage[ToInt(device)].held + need.RoundUp(options_.granularity);
  if (held <= GuaranteeOf(own, device)) return beyond;
  if (other.budgets.priority != own.budgets.priority)
    return other.budgets.priority < own.budgets.priority ? beyond : Bytes{0};
  if (weighted_ == 0) return claim == Claim::kCost ? beyond : Bytes{0};
  // As long as it keeps no less surplus for its weight than the asker then has.
  const Bytes coming = ReservedByOthers(asker, device, kLastRequest).second;
  const Bytes surplus = Minus(held + coming, GuaranteeOf(own, device));
  const double level = static_cast<double>(surplus.count()) / own.weight();
  return Minus(beyond, Bytes(static_cast<uint64_t>(level * other.weight())));
}

bool QuotaTree::IsDue(ClientId client, PoolId device, Bytes need) const {
  if (!HasClaims(device)) return false;
  const auto reservation = reservations_.find({client, device});
  if (reservation != reservations_.end() && reservation->second.by_right) return true;
  if (IsWithinGuarantee(client, device, need)) return true;
  if (Binding(client, device, need.RoundUp(options_.granularity)) != Limit::kPool) return false;
  const Tenant* own = At(client).tenant;
  return std::any_of(tenants_.begin(), tenants_.end(), [&](const auto& other) {
    return &other.second != own &&
           Yields(other.first, client, device, need, Claim::kRight) >= options_.granularity;
  });
}

QuotaTree::Rank QuotaTree::RankOf(TenantId id, PoolId pool, Bytes less) const {
  const Tenant& tenant = tenants_.at(id);
  const Bytes surplus = Minus(BeyondGuarantee(tenant, pool), less);
  return {tenant.budgets.priority,
          weighted_ == 0 ? 0 : -static_cast<double>(surplus.count()) / tenant.weight()};
}

Bytes QuotaTree::GuaranteedHeld(TenantId asker, PoolId device) const {
  Bytes guaranteed;
  for (const auto& [id, tenant] : tenants_) {
    if (tenant.clients == 0 || id == asker) continue;
    guaranteed += std::min(tenant.usage[ToInt(device)].held, GuaranteeOf(tenant, device));
  }
  return guaranteed;
}

Bytes QuotaTree::Lent(ClientId client, PoolId id, Bytes more) const {
  const Tenant* own = At(client).tenant;
  Bytes claims;  // what is guaranteed to others and not held by them
  for (const auto& [other, tenant] : tenants_) {
    if (&tenant == own || tenant.clients == 0) continue;
    claims += Minus(GuaranteeOf(tenant, id), tenant.usage[ToInt(id)].held);
  }
  if (claims == Bytes{0}) return claims;
  return Minus(claims + more, Minus(LimitOf(id), Of(id).held));
}

Bytes QuotaTree::HostForCopies() const {
  return Minus(options_.host, Of(kHostPool).pinned.RoundUp(options_.granularity));
}

bool QuotaTree::IsWithinHostShare(Bytes held, Bytes of_tenant, Bytes more) const {
  if (options_.guaranteed_part == 0) return true;
  return held + more <= Lendable() || of_tenant + more <= PartOfKept();
}

bool QuotaTree::IsWithinHostShare(ClientId client, Bytes more) const {
  return IsWithinHostShare(Of(kHostPool).held, Against(client, kHostPool, Limit::kTenant).held,
                           more);
}

bool QuotaTree::MayDropCopiesOf(ClientId client, ClientId asking) const {
  const Tenant* holder = At(client).tenant;
  if (options_.guaranteed_part == 0 || holder == At(asking).tenant) return true;
  return holder->usage[ToInt(kHostPool)].held > Kept();
}

bool QuotaTree::TakeKept(ClientId client, Bytes more) {
  Tenant& tenant = *At(client).tenant;
  if (Of(kHostPool).held <= Lendable()) tenant.kept_taken = Bytes{0};
  if (tenant.usage[ToInt(kHostPool)].held + tenant.kept_taken + more > PartOfKept()) return false;
  tenant.kept_taken += more;
  return true;
}

bool QuotaTree::IsKeptTaken() const {
  return Of(kHostPool).held > Lendable() &&
         std::any_of(tenants_.begin(), tenants_.end(),
                     [](const auto& tenant) { return tenant.second.kept_taken > Bytes{0}; });
}

bool QuotaTree::MayPin(ClientId id, Bytes block, Bytes slab, Bytes idle_own, Bytes idle_others,
                       Bytes committed) const {
  const Usage& of_tenant = Against(id, kHostPool, Limit::kTenant);
  const Usage& of_all = Of(kHostPool);
  const Bytes held = of_tenant.held - std::min(of_tenant.pinned, idle_own);
  const Bytes pinned = Minus(of_all.pinned, idle_own + idle_others);
  const auto left = [&](Limit limit, Bytes taken) {
    return Minus(LimitOf(id, kHostPool, limit), taken);
  };
  return block <= left(Limit::kClient, Of(id, kHostPool).held) &&
         slab <= left(Limit::kTenant, held) && slab <= left(Limit::kPool, committed + pinned) &&
         IsWithinHostShare(of_all.held - of_all.pinned + pinned, held, slab);
}

void QuotaTree::CheckInvariants() const {
  std::map<const Tenant*, std::pair<uint32_t, std::vector<Usage>>> tenants;
  for (const auto& [id, tenant] : tenants_) tenants[&tenant].second.resize(pools_.size());
  for (const auto& [id, client] : clients_) {
    auto& [clients, sums] = tenants.at(client.tenant);
    ++clients;
    for (size_t i = 0; i < pools_.size(); ++i) {
      Usage usage = client.usage[i];
      RAVEN_CHECK(usage.reclaiming + usage.overdue <= usage.held);
      // Its blocks of pinned memory are cut from its tenant's slabs.
      if (PoolId{static_cast<uint16_t>(i)} == kHostPool)
        usage.held -= std::exchange(usage.pinned, Bytes{0});
      Add(&sums[i], usage);
    }
  }
  std::vector<Pool> pools(pools_.size());
  Bytes host_budgets;
  int weighted = 0;
  int prioritized = 0;
  for (const auto& [id, tenant] : tenants_) {
    host_budgets += std::min(tenant.budgets.host, options_.host);
    auto& [clients, sums] = tenants.at(&tenant);
    RAVEN_CHECK(tenant.clients == clients);
    weighted += clients > 0 && tenant.budgets.weight;
    prioritized += clients > 0 && tenant.budgets.priority != TenantPriority::kNormal;
    Usage& host = sums[ToInt(kHostPool)];
    host.pinned = tenant.usage[ToInt(kHostPool)].pinned;
    host.held += host.pinned;
    for (size_t i = 0; i < pools_.size(); ++i) {
      RAVEN_CHECK(sums[i] == tenant.usage[i]);
      Add(&pools[i].usage, sums[i]);
      if (clients > 0) pools[i].guaranteed += tenant.guarantee[i];
    }
  }
  RAVEN_CHECK(host_budgets == host_budgets_);
  RAVEN_CHECK(weighted == weighted_);
  RAVEN_CHECK(prioritized == prioritized_);
  for (size_t i = 0; i < pools_.size(); ++i) {
    RAVEN_CHECK(pools[i].guaranteed == pools_[i].guaranteed);
    // In whole extents, and with those of clients that are gone.
    if (!IsDevice(PoolId{static_cast<uint16_t>(i)})) {
      RAVEN_CHECK(pools[i].usage.pinned == pools_[i].usage.pinned);
      RAVEN_CHECK(pools[i].usage.held <= pools_[i].usage.held);
    } else {
      RAVEN_CHECK(pools[i].usage == pools_[i].usage);
      RAVEN_CHECK(pools_[i].usage.held <= options_.devices[i - 1]);
    }
  }
  for (const auto& [key, reservation] : reservations_) {
    RAVEN_CHECK(clients_.contains(key.first));
    RAVEN_CHECK(reservation.bytes > Bytes{0});
  }
}

}  // namespace ravenstore::core
