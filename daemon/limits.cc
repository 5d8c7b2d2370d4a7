#include "daemon/limits.h"

#include <optional>
#include <string>
#include <utility>

#include "proto/packet.h"

namespace ravenstore::daemon {

using core::Budgets;
using core::Bytes;
using core::ClientId;
using core::Error;
using core::ErrorCode;
using core::PoolId;

namespace {

void Set(uint64_t limit, Bytes unset, Bytes* budget) {
  if (limit != 0) *budget = limit == proto::kLimitNotSet ? unset : Bytes(limit);
}

std::optional<Bytes> BudgetOf(const Budgets& budgets, core::PoolId pool) {
  const auto found = budgets.others.find(pool);
  return found == budgets.others.end() ? std::nullopt : std::optional(found->second);
}

void SetBudget(core::PoolId pool, std::optional<Bytes> budget, Budgets* budgets) {
  budgets->others.erase(pool);
  if (budget) budgets->others.emplace(pool, *budget);
}

// What is wrong with the weight or the priority, if something is.
std::optional<std::string> FaultOfShare(const proto::SetLimits& limits) {
  if (limits.weight() > proto::kWeightMost) {
    return "a weight is 1 to " + std::to_string(proto::kWeightMost) + ", not " +
           std::to_string(limits.weight());
  }
  if (!proto::TenantPriority_IsValid(limits.priority())) return "a priority is low, normal or high";
  if (limits.client() == 0) return std::nullopt;
  if (limits.has_device_guarantee())
    return "a guarantee is a user's, for all clients of that user together";
  if (limits.has_weight() || limits.has_priority())
    return "weight and priority are a user's, for all clients of that user together";
  return std::nullopt;
}

// Of legacy jobs; nullopt: as if never set.
std::optional<Bytes> VisibleOf(const proto::SetLimits& limits) {
  if (limits.visible_memory() == proto::kLimitNotSet) return std::nullopt;
  return Bytes(limits.visible_memory());
}

}  // namespace

proto::TenantPriority PriorityOf(core::TenantPriority priority) {
  return static_cast<proto::TenantPriority>(static_cast<int>(priority) + 1);
}

Limits::Limits(Budgets defaults, Bytes guaranteed_by_default,
               std::map<PoolId, core::Pool> other_pools, LegacyLedger* ledger, Loop* loop,
               Connections* connections)
    : defaults_(std::move(defaults)),
      guaranteed_by_default_(guaranteed_by_default),
      other_pools_(std::move(other_pools)),
      ledger_(ledger),
      loop_(loop),
      connections_(connections) {}

void Limits::SetDefaults(Budgets defaults) {
  const Budgets before = std::exchange(defaults_, std::move(defaults));
  const auto adopt = [](auto* own, const auto& was, const auto& now) {
    if (*own == was) *own = now;
  };
  for (auto& [uid, own] : budgets_) {
    adopt(&own.device, before.device, defaults_.device);
    adopt(&own.host, before.host, defaults_.host);
    adopt(&own.device_guarantee, before.device_guarantee, defaults_.device_guarantee);
    adopt(&own.weight, before.weight, defaults_.weight);
    adopt(&own.priority, before.priority, defaults_.priority);
    for (const auto& [id, pool] : other_pools_) {
      if (BudgetOf(own, id) == BudgetOf(before, id)) SetBudget(id, BudgetOf(defaults_, id), &own);
    }
    loop_->PostEvent(core::TenantLimits{core::TenantId{uid}, own});
  }
}

void Limits::Handle(const Caller& caller, uint64_t request, const proto::SetLimits& limits) {
  const auto fail = [&](ErrorCode code, const char* message) {
    connections_->Fail(caller.key, request, {code, message});
  };
  const bool admin = caller.IsAdmin();
  if (limits.has_paused()) {
    return fail(ErrorCode::kUnsupported,
                "elastic jobs are paused by ravenctl sleep --job: this ravenctl is older than the "
                "daemon");
  }
  if (!admin)
    return fail(ErrorCode::kPermission, "only root and the daemon's own user may change limits");
  if (const core::Status known = CheckPools(limits); !known.ok())
    return connections_->Fail(caller.key, request, known.error());
  if (const auto fault = FaultOfShare(limits))
    return fail(ErrorCode::kInvalidArgument, fault->c_str());
  if (limits.client() == 0) return SetUser(caller, request, limits);
  if (ledger_->HasClient(limits.client())) return SetJob(caller, request, limits);
  SetClient(caller, request, limits);
}

void Limits::SetJob(const Caller& caller, uint64_t request, const proto::SetLimits& limits) {
  if (limits.visible_memory() != 0) ledger_->SetClient(limits.client(), VisibleOf(limits));
  proto::DaemonPacket answer;
  answer.set_request(request);
  answer.mutable_limits_set()->set_visible_memory(
      ledger_->VisibleOfClient(limits.client()).count());
  connections_->Send(caller.key, answer, {});
}

void Limits::SetUser(const Caller& caller, uint64_t request, const proto::SetLimits& limits) {
  const uid_t uid = limits.uid();
  if (limits.visible_memory() != 0) ledger_->SetTenant(uid, VisibleOf(limits));
  const Budgets budgets = budgets_[uid] = Changed(Of(uid), limits, defaults_);
  connections_->PostToLoop(caller.key, Connections::kNotice, [loop = loop_, uid, budgets] {
    loop->Apply(core::TenantLimits{core::TenantId{uid}, budgets});
  });
  proto::DaemonPacket answer = AnswerOf(request, budgets);
  answer.mutable_limits_set()->set_weight(budgets.weight.value_or(0));
  answer.mutable_limits_set()->set_priority(PriorityOf(budgets.priority));
  answer.mutable_limits_set()->set_visible_memory(ledger_->VisibleOfTenant(uid).count());
  connections_->Send(caller.key, answer, {});
}

void Limits::SetClient(const Caller& caller, uint64_t request, const proto::SetLimits& limits) {
  // By value: the loop changes them after the message is gone.
  connections_->PostToLoop(
      caller.key, Connections::kQuestion, [this, limits, request, key = caller.key] {
        const ClientId client{limits.client()};
        Session* session = loop_->sessions().FindPresent(client);
        if (session == nullptr) {
          return connections_->PostAnswer(
              key, FailureOf(request,
                             {ErrorCode::kNotFound,
                              "no client " + std::to_string(limits.client()) + " is attached"}));
        }
        const Budgets budgets =
            Changed(loop_->store().View(client).budgets, limits, session->attachment().budgets);
        loop_->Apply(core::ClientLimits{client, budgets});
        connections_->PostAnswer(key, AnswerOf(request, budgets));
      });
}

std::optional<PoolId> Limits::FindPool(const std::string& name) const {
  for (const auto& [id, pool] : other_pools_) {
    if (NameOf(pool) == name) return id;
  }
  return std::nullopt;
}

core::Status Limits::CheckPools(const proto::SetLimits& limits) const {
  for (const proto::PoolBudget& budget : limits.pool_budgets()) {
    if (FindPool(budget.pool())) continue;
    std::string known;
    for (const auto& [id, pool] : other_pools_) {
      known += (known.empty() ? "" : ", ") + NameOf(pool);
    }
    return Error{ErrorCode::kNotFound, "there is no pool \"" + budget.pool() +
                                           "\" with a budget of its own: there " +
                                           (known.empty() ? "is none" : "are " + known)};
  }
  return core::Ok();
}

Budgets Limits::Changed(Budgets budgets, const proto::SetLimits& limits,
                        const Budgets& unset) const {
  Set(limits.device_budget(), unset.device, &budgets.device);
  Set(limits.host_budget(), unset.host, &budgets.host);
  if (limits.has_device_guarantee()) {
    budgets.device_guarantee = limits.device_guarantee() == proto::kLimitNotSet
                                   ? unset.device_guarantee
                                   : std::optional(Bytes(limits.device_guarantee()));
  }
  if (limits.has_weight())
    budgets.weight = limits.weight() == 0 ? unset.weight : std::optional(limits.weight());
  if (limits.has_priority()) {
    budgets.priority = limits.priority() == proto::PRIORITY_NOT_SET
                           ? unset.priority
                           : core::TenantPriority{static_cast<uint8_t>(limits.priority() - 1)};
  }
  for (const proto::PoolBudget& budget : limits.pool_budgets()) {
    if (budget.bytes() == 0) continue;
    const PoolId pool = *FindPool(budget.pool());
    const std::optional<Bytes> wanted = budget.bytes() == proto::kLimitNotSet
                                            ? BudgetOf(unset, pool)
                                            : std::optional(Bytes(budget.bytes()));
    SetBudget(pool, wanted, &budgets);
  }
  return budgets;
}

proto::DaemonPacket Limits::AnswerOf(uint64_t request, const Budgets& budgets) const {
  proto::DaemonPacket packet;
  packet.set_request(request);
  packet.mutable_limits_set()->set_device_budget(budgets.device.count());
  packet.mutable_limits_set()->set_host_budget(budgets.host.count());
  packet.mutable_limits_set()->set_device_guarantee(
      budgets.device_guarantee.value_or(guaranteed_by_default_).count());
  for (const auto& [id, pool] : other_pools_) {
    proto::PoolBudget* budget = packet.mutable_limits_set()->add_pool_budgets();
    budget->set_pool(NameOf(pool));
    budget->set_bytes(BudgetOf(budgets, id).value_or(pool.capacity).count());
  }
  return packet;
}

}  // namespace ravenstore::daemon
