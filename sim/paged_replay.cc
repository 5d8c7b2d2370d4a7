#include "sim/paged_replay.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/decide/page_shares.h"
#include "core/decide/page_transfer.h"
#include "core/decide/peak_turns.h"
#include "core/decide/plan_drift.h"
#include "core/plan/move_chooser.h"
#include "core/plan/page_size.h"
#include "core/tuned.h"
#include "sim/paged_client.h"
#include "sim/paged_device.h"

namespace ravenstore::sim {

using core::Bytes;
using core::Duration;

namespace {

// Bytes that are mapped or queued to come ahead of their need: enough to keep the link busy while
// the next page is mapped. More would take memory earlier than it is needed.
constexpr Bytes kComingLeast = core::MiB(16);

PagedSetup WithPage(PagedSetup setup, uint32_t clients) {
  if (setup.page == Bytes{}) setup.page = core::plan::PageSizeFor(setup.budget, clients > 1);
  return setup;
}

// The one with the shortest way back first.
std::vector<PagedPool> PoolsOf(const PagedSetup& setup) {
  const Hardware& hardware = setup.hardware;
  std::vector<PagedPool> pools{{.pool = {.capacity = setup.host.value_or(Bytes(UINT64_MAX)),
                                         .in_rate = hardware.up,
                                         .out_rate = hardware.down,
                                         .per_copy = hardware.per_copy},
                                .duplex = hardware.duplex,
                                .latency = hardware.latency,
                                .is_host = true}};
  for (const ExtraPool& extra : setup.pools) {
    const bool behind_host = extra.kind != core::PoolKind::kPeer;
    pools.push_back({.pool = {.capacity = extra.capacity,
                              .in_rate = extra.in,
                              .out_rate = extra.out,
                              .per_copy = hardware.per_copy},
                     .latency = behind_host ? extra.latency : hardware.latency,
                     .behind_host = behind_host});
  }
  std::stable_sort(pools.begin(), pools.end(), [](const PagedPool& a, const PagedPool& b) {
    return a.pool.in_rate > b.pool.in_rate;
  });
  return pools;
}

// Each of `clients` has an equal part of each pool.
core::PageBooks::Options OptionsFor(const PagedSetup& setup, uint32_t pages, uint32_t clients) {
  std::vector<core::plan::CopyPool> pools;
  for (const PagedPool& of : PoolsOf(setup)) {
    pools.push_back(of.pool);
    pools.back().capacity = Bytes(of.pool.capacity.count() / clients);
  }
  return {.limits = {.page = setup.page, .pages = pages, .pools = pools},
          .coming_most = std::max(kComingLeast, setup.page * core::kComingPages)};
}

class PagedReplay : public PagedHost {
 public:
  PagedReplay(const Trace& trace, const PagedSetup& setup)
      : setup_(WithPage(setup, trace.clients)),
        pages_(static_cast<uint32_t>(setup.budget.count() / setup_.page.count())),
        device_(setup.hardware, setup.mapping, PoolsOf(setup)) {
    const uint32_t clients = trace.clients;
    for (uint32_t i = 0; i < clients; ++i) {
      const uint32_t share = pages_ / clients + (i < pages_ % clients ? 1 : 0);
      core::PageExecutor* executor = device_.AddClient(OptionsFor(setup_, share, clients));
      clients_.push_back(std::make_unique<PagedClient>(clients == 1 ? trace : trace.Only(i), setup_,
                                                       executor, this, clients == 1));
    }
  }

  PagedOutcome Run() {
    while (!IsDone() && outcome_.failure.empty()) {
      const auto event = device_.NextEvent();
      PagedClient* next = nullptr;
      std::optional<Duration> first;
      for (const auto& client : clients_) {
        const auto own = client->NextOwn();
        if (!own || (first && *own >= *first)) continue;
        first = own;
        next = client.get();
      }
      if (first && (!event || *first <= *event)) {
        SetTime(*first);
        next->Run();
        next->Start();
      } else if (event) {
        SetTime(*event);
        next = clients_[device_.Advance()].get();
        next->Start();
      } else {
        outcome_.failure =
            "no room for what is in use at call " + std::to_string(clients_.front()->next());
        break;
      }
      if (clients_.size() > 1) Share();
      if (shares_plan_ && HasDrifted()) MakeSharedPlan();
      if (shares_plan_) HandOver();
      device_.Start();
      if (setup_.check) core::CheckBooks(next->executor().books());
    }
    return Finish();
  }

  void PlansChanged(PagedClient* client) override {
    const bool shares = clients_.size() > 1 &&
                        Each([](const PagedClient& of) { return of.done() || of.has_plan(); });
    if (shares) return MakeSharedPlan();
    if (client->has_plan()) client->MakeOwnPlan();
    if (!std::exchange(shares_plan_, false)) return;
    shared_.clear();
    for (const auto& other : clients_) {
      other->executor().SetOthersMakeRoom(false);
      if (other.get() != client && !other->done() && other->has_plan()) other->MakeOwnPlan();
    }
  }
  uint32_t MayHold(const PagedClient& client) const override {
    if (!shares_plan_) return client.executor().books().view().limits.pages;
    uint32_t others = 0;
    for (const auto& other : clients_)
      if (other.get() != &client) others += core::PagesInUse(other->executor().books());
    return others < pages_ ? pages_ - others : 0;
  }

 private:
  template <typename Is>
  bool Each(Is is) const {
    return std::all_of(clients_.begin(), clients_.end(), [&](const auto& of) { return is(*of); });
  }

  void MakeSharedPlan() {
    std::vector<PagedClient*> planned;
    std::vector<std::vector<core::plan::PlannedCall>> calls;
    std::vector<std::vector<core::plan::UnitSnapshot>> units;
    std::vector<core::plan::ResidencyPlan::Forecast> forecasts;
    for (const auto& client : clients_) {
      if (client->done()) continue;
      planned.push_back(client.get());
      calls.push_back(client->BeginPlan());
      units.push_back(client->executor().Snapshot());
    }
    Duration longest{0};
    for (const PagedClient* client : planned) longest = std::max(longest, client->pass());
    for (PagedClient* client : planned) client->SetLeast(longest);
    for (size_t i = 0; i < planned.size(); ++i) forecasts.push_back({calls[i], units[i]});
    core::plan::PlanLimits limits = planned.front()->executor().books().view().limits;
    limits.pages = pages_;
    auto plans = core::plan::ResidencyPlan::MakeShared(forecasts, limits);
    for (size_t i = 0; i < planned.size(); ++i) {
      planned[i]->executor().SetShare(pages_);
      planned[i]->executor().SetOthersMakeRoom(true);
      planned[i]->SetPlan(std::move(plans[i]));
    }
    shares_plan_ = true;
  }

  bool HasDrifted() {
    clocks_.clear();
    for (const auto& client : clients_) {
      const core::plan::ResidencyPlan& plan = client->executor().books().view().plan;
      if (!client->done() && !plan.empty()) clocks_.push_back(core::decide::ClockOf(plan));
    }
    return core::decide::HaveDrifted(clocks_);
  }

  // Free pages go to clients that need them sooner than their owners. Where a call waits and no
  // page is free, an idle unit leaves.
  void HandOver() {
    for (;;) {
      needs_.clear();
      for (const auto& client : clients_)
        needs_.push_back(core::decide::NeedOf(client->executor().books().view()));
      if (const auto transfer = core::decide::NextTransfer(needs_, setup_.mapping.make)) {
        device_.HandOver(transfer->from, transfer->to);
        continue;
      }
      const auto leaves = core::decide::NextToLeave(needs_);
      if (!leaves || !clients_[*leaves]->executor().Leave(setup_.page)) return;
      clients_[*leaves]->Start();
    }
  }

  bool IsDone() const {
    return Each([](const PagedClient& of) { return of.done(); });
  }
  void SetTime(Duration now) {
    now_ = now;
    device_.SetTime(now);
    for (const auto& client : clients_) client->SetTime(now);
  }

  // Divides the device among its clients.
  void Share() {
    if (shares_plan_) {
      for (const auto& client : clients_) client->WakeIfFits();
      return;
    }
    demands_.clear();
    for (const auto& client : clients_) demands_.push_back(client->Demand());
    turn_ = core::decide::NextTurn(turn_, demands_, pages_, now_);
    if (turn_) demands_[turn_->client].has_turn = true;
    if (demands_ == shared_) return;
    shared_ = demands_;
    const auto shares = core::decide::SharePages(demands_, pages_);
    for (size_t i = 0; i < clients_.size(); ++i) {
      clients_[i]->SetShare(shares[i]);
      clients_[i]->Start();
    }
  }

  PagedOutcome Finish() {
    PagedOutcome result;
    for (const auto& client : clients_) {
      core::CheckBooks(client->executor().books());
      client->AddTo(&outcome_);
      result.stats.Add(client->stats());
    }
    outcome_.time = now_;
    result.stats.mapping = device_.mapping();
    result.stats.handed_over = device_.handed_over();
    result.outcome = std::move(outcome_);
    return result;
  }

  const PagedSetup setup_;
  const uint32_t pages_;
  PagedDevice device_;
  std::vector<std::unique_ptr<PagedClient>> clients_;
  Duration now_{0};
  std::vector<core::decide::PageDemand> demands_;
  std::vector<core::decide::PageDemand> shared_;  // the demands that the shares are of
  bool shares_plan_ = false;  // all clients have one plan; else each a share and a plan of its own
  std::optional<core::decide::PeakTurn> turn_;
  // Kept for their memory.
  std::vector<core::decide::PageNeed> needs_;
  std::vector<core::decide::PlanClock> clocks_;
  Outcome outcome_;
};

}  // namespace

void PagedStats::Add(const PagedStats& other) {
  moves.Add(other.moves);
  plans += other.plans;
  over_budget += other.over_budget;
  creates += other.creates;
  elsewhere += other.elsewhere;
  compared += other.compared;
  found += other.found;
  range_end += other.range_end;
}

PagedOutcome ReplayPaged(const Trace& trace, const PagedSetup& setup) {
  return PagedReplay(trace, setup).Run();
}

}  // namespace ravenstore::sim
