#include "core/schedule/device_plans.h"

#include <algorithm>
#include <utility>

#include "core/decide/plan_drift.h"

namespace ravenstore::core {

bool DevicePlans::CanShare() const {
  const auto& clients = *device_.clients;
  const auto has_ended = [](const ScheduledClient* of) { return of->has_ended(); };
  const auto is_known = [](const ScheduledClient* of) {
    return of->has_ended() || of->foresight().has_plan();
  };
  // Priorities order the tensors of one client. They do not compare tensors of two clients.
  const auto ranks = [](const ScheduledClient* of) {
    return of->executor().tensors().has_priorities();
  };
  return clients.size() > 1 && std::none_of(clients.begin(), clients.end(), ranks) &&
         !device_.tenants->AreLimited(clients, *device_.pages) &&
         std::all_of(clients.begin(), clients.end(), is_known) &&
         !std::all_of(clients.begin(), clients.end(), has_ended);
}

std::vector<ScheduledClient*> DevicePlans::Planned() const {
  std::vector<ScheduledClient*> planned;
  for (ScheduledClient* client : *device_.clients) {
    if (!client->has_ended()) planned.push_back(client);
  }
  return planned;
}

void DevicePlans::Changed(ScheduledClient* of) {
  if (CanShare()) return BeginShared();
  if (of != nullptr && of->foresight().has_plan()) BeginOwn(of);
  if (are_shared_) EndSharing(of);
}

void DevicePlans::EndSharing(const ScheduledClient* but) {
  has_ended_ |= std::exchange(are_shared_, false);
  for (ScheduledClient* client : *device_.clients) {
    client->executor().SetOwnerMakesRoom(false);
    if (client != but && !client->has_ended() && client->foresight().has_plan()) BeginOwn(client);
  }
}

void DevicePlans::Update() {
  if (!are_shared_ || shared_) return;
  // The clients' plans are of different times by now.
  std::vector<decide::PlanClock> clocks;
  for (const ScheduledClient* client : Planned()) {
    const plan::ResidencyPlan& plan = client->executor().books().view().plan;
    if (!plan.empty()) clocks.push_back(decide::ClockOf(plan));
  }
  if (decide::HaveDrifted(clocks)) BeginShared();
}

void DevicePlans::BeginOwn(ScheduledClient* of) {
  const auto [under_way, is_new] = own_.try_emplace(of->id());
  under_way->second.again = !is_new;
  if (!is_new) return;
  auto work = std::make_shared<PlanWork>();
  work->limits = of->executor().books().view().limits;
  work->parts.push_back(of->BeginPlan());
  Begin(std::move(work));
}

void DevicePlans::BeginShared() {
  if (shared_) {
    shared_->again = true;
    return;
  }
  shared_ = UnderWay{};
  auto work = std::make_shared<PlanWork>();
  work->is_shared = true;
  const std::vector<ScheduledClient*> planned = Planned();
  work->limits = planned.front()->executor().books().view().limits;
  work->limits.pages = *device_.pages;
  Duration longest{0};
  for (ScheduledClient* client : planned) {
    work->parts.push_back(client->BeginPlan());
    longest = std::max(longest, client->foresight().pass());
  }
  for (ScheduledClient* client : planned) client->SetLeast(longest);
  Begin(std::move(work));
}

void DevicePlans::Begin(std::shared_ptr<PlanWork> work) {
  if (const auto made = device_.maker->MakePlan(device_.id, std::move(work))) Made(made);
}

void DevicePlans::Made(const std::shared_ptr<PlanWork>& work) {
  if (work->is_shared) {
    SharedMade(work.get());
  } else {
    OwnMade(work.get());
  }
}

void DevicePlans::OwnMade(PlanWork* work) {
  PlanWork::Part& part = work->parts.front();
  const bool again = own_.extract(part.client).mapped().again;
  const auto& clients = *device_.clients;
  const auto of = std::find_if(clients.begin(), clients.end(),
                               [&part](const auto* client) { return client->id() == part.client; });
  if (of == clients.end()) return;
  if ((*of)->IsCurrent(part)) {
    (*of)->SetPlan(std::move(part.plan), work->limits.pages);
    just_planned_.push_back(part.client);
  }
  if (again) Changed(*of);
}

void DevicePlans::SharedMade(PlanWork* work) {
  const bool again = std::exchange(shared_, std::nullopt)->again;
  if (CanShare() && IsCurrent(*work)) {
    const std::vector<ScheduledClient*> planned = Planned();
    for (size_t i = 0; i < planned.size(); ++i) {
      planned[i]->SetSharedPlan(std::move(work->parts[i].plan), *device_.pages);
      just_planned_.push_back(planned[i]->id());
    }
    device_.free_pages->SharesChanged();
    are_shared_ = true;
    if (again) BeginShared();
    return;
  }
  if (CanShare()) return BeginShared();
  EndSharing(nullptr);
}

bool DevicePlans::IsCurrent(const PlanWork& work) const {
  const std::vector<ScheduledClient*> planned = Planned();
  return work.limits.pages == *device_.pages &&
         std::equal(planned.begin(), planned.end(), work.parts.begin(), work.parts.end(),
                    [](const ScheduledClient* client, const PlanWork::Part& part) {
                      return client->id() == part.client && client->IsCurrent(part);
                    });
}

}  // namespace ravenstore::core
