#include "daemon/limits.h"

#include <optional>
#include <string>
#include <utility>

#include "proto/packet.h"

namespace ravenstore::daemon {

using core::Budgets;
using core::Bytes;
using core::ClientId;
using core::ErrorCode;

namespace {

void Set(uint64_t limit, Bytes unset, Bytes* budget) {
  if (limit != 0) *budget = limit == proto::kLimitNotSet ? unset : Bytes(limit);
}

// `budgets` with what the message changes of them; `unset`: what they are unless changed.
Budgets Changed(Budgets budgets, const proto::SetLimits& limits, const Budgets& unset) {
  Set(limits.device_budget(), unset.device, &budgets.device);
  Set(limits.host_budget(), unset.host, &budgets.host);
  if (!limits.has_device_guarantee()) return budgets;
  budgets.device_guarantee = limits.device_guarantee() == proto::kLimitNotSet
                                 ? unset.device_guarantee
                                 : std::optional(Bytes(limits.device_guarantee()));
  return budgets;
}

// Of legacy jobs; nullopt: as if never set.
std::optional<Bytes> VisibleOf(const proto::SetLimits& limits) {
  if (limits.visible_memory() == proto::kLimitNotSet) return std::nullopt;
  return Bytes(limits.visible_memory());
}

}  // namespace

Limits::Limits(Budgets defaults, Bytes guaranteed_by_default, LegacyLedger* ledger, Loop* loop,
               Connections* connections)
    : defaults_(defaults),
      guaranteed_by_default_(guaranteed_by_default),
      ledger_(ledger),
      loop_(loop),
      connections_(connections) {}

void Limits::SetDefaults(Budgets defaults) {
  const Budgets before = std::exchange(defaults_, defaults);
  const auto adopt = [](auto* own, const auto& was, const auto& now) {
    if (*own == was) *own = now;
  };
  for (auto& [uid, own] : budgets_) {
    adopt(&own.device, before.device, defaults.device);
    adopt(&own.host, before.host, defaults.host);
    adopt(&own.others, before.others, defaults.others);
    adopt(&own.device_guarantee, before.device_guarantee, defaults.device_guarantee);
    loop_->mailbox().Post(
        [loop = loop_, tenant = core::TenantId{uid}, own = own] { loop->SetTenant(tenant, own); });
  }
}

void Limits::Handle(const Caller& caller, uint64_t request, const proto::SetLimits& limits) {
  const auto fail = [&](ErrorCode code, const char* message) {
    connections_->Fail(caller.key, request, {code, message});
  };
  const bool admin = caller.IsAdmin();
  if (limits.has_paused() && (admin || ledger_->IsOf(limits.client(), caller.peer.uid)))
    return Pause(caller, request, limits);
  if (!admin)
    return fail(ErrorCode::kPermission, "only root and the daemon's own user may change limits");
  if (limits.client() == 0) return SetUser(caller, request, limits);
  if (limits.has_device_guarantee()) {
    return fail(ErrorCode::kInvalidArgument,
                "a guarantee is a user's, for all clients of that user together");
  }
  if (ledger_->HasClient(limits.client())) return SetJob(caller, request, limits);
  SetClient(caller, request, limits);
}

void Limits::Pause(const Caller& caller, uint64_t request, const proto::SetLimits& limits) {
  const core::Status paused = ledger_->SetPaused(limits.client(), limits.paused());
  if (!paused.ok()) return connections_->Fail(caller.key, request, paused.error());
  proto::DaemonPacket answer;
  answer.set_request(request);
  answer.mutable_limits_set()->set_visible_memory(
      ledger_->VisibleOfClient(limits.client()).count());
  answer.mutable_limits_set()->set_paused(limits.paused());
  connections_->Send(caller.key, answer, {});
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
    loop->SetTenant(core::TenantId{uid}, budgets);
  });
  proto::DaemonPacket answer = AnswerOf(request, budgets);
  answer.mutable_limits_set()->set_visible_memory(ledger_->VisibleOfTenant(uid).count());
  connections_->Send(caller.key, answer, {});
}

void Limits::SetClient(const Caller& caller, uint64_t request, const proto::SetLimits& limits) {
  // By value: the loop changes them after the message is gone.
  connections_->PostToLoop(
      caller.key, Connections::kQuestion, [this, limits, request, key = caller.key] {
        const ClientId client{limits.client()};
        Session* session = loop_->FindSession(client);
        if (session == nullptr || session->gone) {
          return connections_->PostAnswer(
              key, FailureOf(request,
                             {ErrorCode::kNotFound,
                              "no client " + std::to_string(limits.client()) + " is attached"}));
        }
        const Budgets budgets =
            Changed(loop_->planner().View(client).budgets, limits, session->attachment().budgets);
        loop_->SetClientBudgets(client, budgets);
        connections_->PostAnswer(key, AnswerOf(request, budgets));
      });
}

proto::DaemonPacket Limits::AnswerOf(uint64_t request, const Budgets& budgets) const {
  proto::DaemonPacket packet;
  packet.set_request(request);
  packet.mutable_limits_set()->set_device_budget(budgets.device.count());
  packet.mutable_limits_set()->set_host_budget(budgets.host.count());
  packet.mutable_limits_set()->set_device_guarantee(
      budgets.device_guarantee.value_or(guaranteed_by_default_).count());
  return packet;
}

}  // namespace ravenstore::daemon
