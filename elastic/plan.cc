#include "elastic/plan.h"
#include <map>
namespace ravenstore::elastic {
class Plan::State {
 public:
  struct R {
    core::Bytes size, away;
    bool live = false;
    int64_t used = -1;
  };
  std::map<RangeId, R> r;
  int64_t at = 0;
  core::Bytes device;
};
Plan::Plan(const PlanOptions& o) : state_(new State) {
  state_->device = o.device;
}
Plan::~Plan() = default;
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;
void Plan::Allocated(RangeId i, core::Bytes s) {
  auto& r = state_->r[i];
  r.size = s;
  r.live = true;
  r.used = state_->at;
}
void Plan::Freed(RangeId i) {
  state_->r[i].live = false;
}
void Plan::Used(uint64_t, std::span<const RangeId> ids, core::Tick) {
  ++state_->at;
  for (auto i : ids) state_->r[i].used = state_->at;
}
void Plan::SetAway(RangeId i, core::Bytes a) {
  auto& r = state_->r[i];
  r.away = a;
  if (r.size < a) r.size = a;
}
void Plan::SetDevice(core::Bytes d) {
  state_->device = d;
}
std::optional<Plan::Wanted> Plan::NextIn(const std::function<bool(RangeId)>& skip) const {
  const std::pair<const RangeId, State::R>* best = nullptr;
  for (auto& e : state_->r)
    if (e.second.live && e.second.away > core::Bytes{0} && state_->at - e.second.used < 64 &&
        (!best || e.second.used > best->second.used) && !skip(e.first))
      best = &e;
  if (!best) return std::nullopt;
  return Wanted{best->first, state_->at + 1, true};
}
std::optional<RangeId> Plan::Victim(const std::optional<Wanted>& w,
                                    const std::function<bool(RangeId)>& skip) const {
  const std::pair<const RangeId, State::R>* best = nullptr;
  for (auto& e : state_->r) {
    if (e.second.away >= e.second.size) continue;
    if (skip(e.first)) continue;
    if (!e.second.live) return e.first;
    if (w && (e.first == w->range || e.second.used >= state_->r.at(w->range).used)) continue;
    if (!best || e.second.used < best->second.used) best = &e;
  }
  if (!best) return std::nullopt;
  return best->first;
}
int64_t Plan::position() const {
  return state_->at;
}
std::optional<int64_t> Plan::NextUse(RangeId) const {
  return std::nullopt;
}
bool Plan::IsLearned() const {
  return false;
}
}  // namespace ravenstore::elastic
