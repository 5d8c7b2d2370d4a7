#include "daemon/job_uses.h"

#include <algorithm>

namespace ravenstore::daemon {
namespace {

void Raise(std::optional<double>* known, double part) {
  *known = std::max(known->value_or(0), std::min(part, 1.0));
}

}  // namespace

double JobUses::PartOf(size_t device, const Moved& moved, core::Duration time) const {
  const core::LinkModel& link = links_[device];
  const auto part = [time](core::Bytes bytes, double bytes_per_second) {
    return static_cast<double>(bytes.count()) / bytes_per_second / core::Seconds(time);
  };
  return std::min(1.0, std::max(part(moved.in, link.up_bytes_per_second),
                                part(moved.out, link.down_bytes_per_second)));
}

void JobUses::Look(core::Tick now, const std::vector<std::optional<double>>& compute,
                   const std::vector<Holding>& holdings) {
  std::map<Place, Moved> moved;
  std::map<size_t, size_t> jobs;
  std::map<size_t, Moved> together;
  for (const Holding& holding : holdings) {
    const Place place{holding.job, holding.device};
    moved[place] = {holding.moved_in, holding.moved_out};
    ++jobs[holding.device];
    const auto before = moved_.find(place);
    if (before == moved_.end()) continue;
    const Moved since{Minus(holding.moved_in, before->second.in),
                      Minus(holding.moved_out, before->second.out)};
    Raise(&largest_[holding.job].link, PartOf(holding.device, since, now - looked_));
    together[holding.device].in += since.in;
    together[holding.device].out += since.out;
  }
  for (const Holding& holding : holdings) {
    const auto& part = compute[holding.device];
    if (part && jobs[holding.device] == 1) Raise(&largest_[holding.job].compute, *part);
  }
  link_.clear();
  for (const auto& [device, since] : together) link_[device] = PartOf(device, since, now - looked_);
  moved_ = std::move(moved);
  looked_ = now;
}

ResourceUse JobUses::Of(uint64_t job) const {
  const auto found = largest_.find(job);
  return found == largest_.end() ? ResourceUse{} : found->second;
}

std::optional<double> JobUses::LinkOf(size_t device) const {
  const auto found = link_.find(device);
  return found == link_.end() ? std::nullopt : std::optional(found->second);
}

void JobUses::Forget(uint64_t job) {
  largest_.erase(job);
  moved_.erase(moved_.lower_bound({job, 0}), moved_.lower_bound({job + 1, 0}));
}

}  // namespace ravenstore::daemon
