#include "daemon/admin.h"
#include "daemon/limits.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

namespace ravenstore::daemon {

using core::ClientId;
using core::ToInt;

namespace {

// Keeps an answer within a packet (proto/packet.h) and a pass of the loop short.
constexpr size_t kTensorsPerPage = 128;
constexpr size_t kClientsPerPage = 128;

const char* StateName(const core::TensorView& view) {
  switch (view.residency) {
    case core::Residency::kOnDevice: return view.in_use ? "in use" : "idle";
    case core::Residency::kAway: return "away";
    case core::Residency::kLost: return "lost";
  }
  return "unknown";
}

std::string TierName(const StoreViews& store, core::PoolId pool) {
  return pool == core::kHostPool ? "host" : store.NameOf(pool);
}

std::string TierName(const StoreViews& store, const core::TensorView& view) {
  const std::string device = "device " + std::to_string(ToInt(view.device));
  const bool on_device =
      view.residency != core::Residency::kAway && view.residency != core::Residency::kLost;
  if (!view.has_copy) return on_device ? device : "nowhere";
  const std::string away = TierName(store, view.away);
  return on_device ? device + " + " + away : away;
}

bool Visible(Loop& loop, const Audience& audience, ClientId client) {
  if (!audience) return true;
  Session* session = loop.sessions().Find(client);
  return session != nullptr && session->attachment().uid == *audience;
}

// From `from` on, in order.
std::vector<ClientId> VisibleFrom(Loop& loop, const Audience& audience, ClientId from) {
  std::vector<ClientId> ids = loop.store().Clients();
  std::erase_if(ids, [&](ClientId id) {
    return id < from || loop.sessions().Find(id) == nullptr || !Visible(loop, audience, id);
  });
  std::sort(ids.begin(), ids.end());
  return ids;
}

void FillTier(const std::string& name, const core::TierView& tier, proto::TierStats* stats) {
  stats->set_name(name);
  stats->set_capacity(tier.capacity.count());
  stats->set_held(tier.held.count());
  stats->set_used(tier.used.count());
}

}  // namespace

uint64_t ResidentBytes() {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/self/statm", "re"),
                                                   std::fclose);
  unsigned long long size = 0;
  unsigned long long resident = 0;
  unsigned long long shared = 0;
  if (!file || std::fscanf(file.get(), "%llu %llu %llu", &size, &resident, &shared) != 3) return 0;
  return (resident - shared) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::string NameOf(Loop& loop, const Names& names, ClientId client, core::NameId name) {
  Session* session = loop.sessions().Find(client);
  return session == nullptr ? "" : names.Text(name, session->attachment().tenant);
}

void FillStats(Loop& loop, std::optional<ClientId> client, size_t devices, core::Tick started,
               core::Tick now, proto::Stats* stats) {
  const StoreViews& store = loop.store();
  if (client) {
    const core::ClientView view = store.View(*client);
    FillTier("device", {view.budgets.device, view.device_held, view.device_used},
             stats->add_tiers());
    const core::Bytes host = view.host_used + view.pinned;
    FillTier("host", {view.budgets.host, host, host}, stats->add_tiers());
    stats->set_pinned_bytes(view.pinned.count());
    stats->set_pinned_locked(loop.pinned().Held(view.tenant).count());
    stats->set_tensors(view.tensors);
    stats->set_waiting(view.waiting);
  } else {
    for (size_t i = 0; i < devices; ++i) {
      FillTier("device " + std::to_string(i),
               store.DeviceTier(core::DeviceId{static_cast<uint16_t>(i)}), stats->add_tiers());
    }
    FillTier("host", store.HostTier(), stats->add_tiers());
    for (const core::PoolId pool : store.OtherPools())
      FillTier(TierName(store, pool), store.OtherTier(pool), stats->add_tiers());
    uint64_t tensors = 0;
    core::Bytes pinned;
    for (const ClientId id : store.Clients()) {
      const core::ClientView view = store.View(id);
      tensors += view.tensors;
      pinned += view.pinned;
    }
    stats->set_tensors(tensors);
    stats->set_pinned_bytes(pinned.count());
    stats->set_pinned_locked(loop.pinned().HeldByAll().count());
    stats->set_waiting(store.stats().waiting);
  }
  const core::PlannerStats& all = client ? store.StatsOf(*client) : store.stats();
  stats->set_clients(store.Clients().size());
  stats->set_page_bytes(loop.page().count());
  stats->set_creates(all.creates);
  stats->set_frees(all.frees);
  stats->set_gets(all.hits + all.late_hits + all.misses);
  stats->set_hits(all.hits);
  stats->set_late_hits(all.late_hits);
  stats->set_misses(all.misses);
  stats->set_prefetches(all.prefetches);
  stats->set_rescues(all.rescues);
  stats->set_discarded(all.discarded);
  stats->set_recomputes(all.recomputes);
  stats->set_predictions_right(all.predictions_right);
  stats->set_predictions_wrong(all.predictions_wrong);
  stats->set_bytes_out(all.out.count());
  stats->set_bytes_in(all.in.count());
  stats->set_stall_ns(static_cast<uint64_t>(all.waited.count()));
  stats->set_log_dropped(loop.sessions().log_dropped());
  stats->set_bad_requests(loop.sessions().bad_requests());
  stats->set_loop_pause_max_ns(static_cast<uint64_t>(loop.pauses().Longest().count()));
  stats->set_loop_pause_p999_ns(static_cast<uint64_t>(loop.pauses().Quantile(0.999).count()));
  stats->set_uptime_ns(static_cast<uint64_t>((now - started).count()));
}

namespace {

void FillTensor(Loop& loop, const Names& names, const core::TensorView& view,
                proto::TensorInfo* info) {
  info->set_id(ToInt(view.id));
  info->set_client(ToInt(view.client));
  info->set_name(NameOf(loop, names, view.client, view.name));
  info->set_bytes(view.size.count());
  info->set_device(ToInt(view.device));
  info->set_state(StateName(view));
  info->set_tier(TierName(loop.store(), view));
  info->set_dirty(view.dirty);
}

std::string PriorityText(core::Priority priority) {
  switch (priority) {
    case core::Priority::kLow: return "low";
    case core::Priority::kNormal: return "normal";
    case core::Priority::kHigh: return "high";
  }
  return "unknown";
}

std::string FutureText(const core::Explanation& why) {
  using Future = core::Explanation::Future;
  switch (why.future) {
    case Future::kUnknown: return "nothing is known";
    case Future::kHintedTime: return "its client said when";
    case Future::kHintedOrder: return "its client gave its place in an order";
    case Future::kHintedNever: return "its client will not read it again";
    case Future::kLearned: return "learned from earlier iterations";
  }
  return "unknown";
}

}  // namespace

bool FillExplanation(Loop& loop, const Names& names, const Audience& audience, core::TensorId id,
                     core::Tick now, proto::TensorExplained* explained) {
  const StoreViews& store = loop.store();
  if (!store.Knows(id) || !Visible(loop, audience, store.View(id).client)) return false;
  const core::Explanation why = store.Explain(id, now);
  const auto nanoseconds = [](core::Duration duration) {
    return static_cast<uint64_t>(std::max<int64_t>(duration.count(), 0));
  };
  FillTensor(loop, names, why.tensor, explained->mutable_tensor());
  explained->set_future(FutureText(why));
  explained->set_confidence(why.confidence);
  explained->set_needed_in_ns(nanoseconds(why.needed_in));
  explained->set_copy_back_ns(nanoseconds(why.copy_back));
  explained->set_copy_out_ns(nanoseconds(why.copy_out));
  explained->set_recompute_ns(nanoseconds(why.recompute));
  explained->set_discarded(why.discarded);
  explained->set_value(why.value);
  explained->set_priority(PriorityText(why.priority));
  explained->set_prefetched(why.prefetched);
  explained->set_gets(why.gets);
  explained->set_predictions_right(why.predictions_right);
  explained->set_predictions_wrong(why.predictions_wrong);
  return true;
}

void FillTensors(Loop& loop, const Names& names, const Audience& audience,
                 const proto::ListTensors& query, proto::Tensors* tensors) {
  const size_t limit =
      query.limit() == 0 ? kTensorsPerPage : std::min<size_t>(query.limit(), kTensorsPerPage);
  // A cursor is the client that is next, and in the lower half its slot.
  ClientId from{static_cast<uint32_t>(query.cursor() >> 32)};
  auto slot = static_cast<uint32_t>(query.cursor());
  std::vector<core::TensorView> views;
  for (const ClientId client : VisibleFrom(loop, audience, from)) {
    if (query.client() != 0 && ClientId{query.client()} != client) continue;
    if (client != from) slot = 0;
    // Where the last client ended exactly at the limit, this one is the next page's.
    const bool more =
        views.size() == limit || loop.store().List(client, &slot, limit - views.size(), &views);
    if (!more) continue;
    tensors->set_next_cursor(uint64_t{ToInt(client)} << 32 | slot);
    break;
  }
  for (const core::TensorView& view : views) FillTensor(loop, names, view, tensors->add_tensors());
}

void FillClients(Loop& loop, const Audience& audience, const proto::ListClients& query,
                 proto::Clients* clients) {
  const ClientId from{static_cast<uint32_t>(query.cursor())};
  for (const ClientId client : VisibleFrom(loop, audience, from)) {
    if (clients->clients_size() == static_cast<int>(kClientsPerPage))
      return clients->set_next_cursor(ToInt(client));
    const Attachment& attachment = loop.sessions().Find(client)->attachment();
    const core::ClientView view = loop.store().View(client);
    proto::ClientInfo* info = clients->add_clients();
    info->set_client(ToInt(client));
    info->set_pid(static_cast<uint32_t>(attachment.pid));
    info->set_uid(attachment.uid);
    info->set_name(attachment.name);
    info->set_tensors(view.tensors);
    info->set_device_bytes(view.device_held.count());
    info->set_host_bytes((view.host_used + view.pinned).count());
    info->set_pinned_bytes(view.pinned.count());
    info->set_in_use_bytes(view.in_use.count());
    info->set_device_budget(view.budgets.device.count());
    info->set_host_budget(view.budgets.host.count());
    info->set_waiting(view.waiting);
    info->set_weight(view.weight.value_or(0));
    info->set_priority(PriorityOf(view.priority));
  }
}

}  // namespace ravenstore::daemon
