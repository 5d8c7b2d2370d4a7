#include "daemon/device_use.h"

#include <algorithm>

namespace ravenstore::daemon {

using core::Bytes;
using core::Minus;

namespace {

void FillHarvest(const Harvest::View& harvest, proto::HarvestUse* to) {
  to->set_most(harvest.most.count());
  to->set_used(harvest.used.count());
  to->set_returns(harvest.counts.returns);
  to->set_missed(harvest.counts.missed);
  to->set_bytes(harvest.counts.bytes.count());
  to->set_last_ns(static_cast<uint64_t>(harvest.counts.last.count()));
  to->set_longest_ns(static_cast<uint64_t>(harvest.counts.longest.count()));
}

}  // namespace

void FillDevice(const DeviceUse& use, const MemoryWatch::Seen& seen, core::Tick now,
                bool with_processes, proto::DeviceUse* to) {
  to->set_total(use.total.count());
  to->set_store(use.store.count());
  to->set_peer_pool(use.peer_pool.count());
  if (use.harvest) FillHarvest(*use.harvest, to->mutable_harvest());
  to->set_busy(seen.busy);
  if (seen.utilization) to->set_utilization(*seen.utilization);
  to->set_fault(seen.fault);
  if (!seen.fault.empty()) return to->set_jobs(use.jobs.count());
  const Bytes used = Minus(use.total, seen.free);
  const Bytes beyond_store = Minus(used, use.store + use.peer_pool + seen.context);
  const Bytes jobs = std::min(use.jobs, beyond_store);
  to->set_context(seen.context.count());
  to->set_jobs(jobs.count());
  to->set_others((beyond_store - jobs).count());
  to->set_free(seen.free.count());
  to->set_least_free(seen.least_free.count());
  to->set_idle(seen.idle.count());
  to->set_age_ns(static_cast<uint64_t>(std::max(now - seen.at, core::Duration{0}).count()));
  if (!with_processes) return;
  for (const device::DeviceProcess& process : seen.processes) {
    proto::DeviceProcess* shown = to->add_processes();
    shown->set_pid(process.pid);
    shown->set_bytes(process.bytes.count());
  }
}

}  // namespace ravenstore::daemon
