#include "sim/paged_replay.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/books/page_views.h"
#include "core/plan/page_size.h"
#include "core/schedule/page_scheduler.h"
#include "sim/paged_client.h"
#include "sim/paged_device.h"

namespace ravenstore::sim {

using core::Bytes;
using core::ClientId;
using core::Duration;

namespace {

ReplaySetup WithPage(ReplaySetup setup, uint32_t clients) {
  if (setup.page == Bytes{}) setup.page = core::plan::PageSizeFor(setup.budget, clients > 1);
  return setup;
}

// The one with the shortest way back first.
std::vector<PagedPool> PoolsOf(const ReplaySetup& setup) {
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

// Of a client. Each of `clients` has an equal part of each pool.
core::plan::PlanLimits LimitsFor(const ReplaySetup& setup, uint32_t client, uint32_t pages,
                                 uint32_t clients) {
  std::vector<core::plan::CopyPool> pools;
  for (const PagedPool& of : PoolsOf(setup)) {
    pools.push_back(of.pool);
    pools.back().capacity = Bytes(of.pool.capacity.count() / clients);
  }
  return {.page = setup.page,
          .pages = pages,
          .pools = pools,
          .in_place = setup.in_place > 0 && client < setup.in_place_clients};
}

class PagedReplay {
 public:
  PagedReplay(const Trace& trace, const ReplaySetup& setup)
      : setup_(WithPage(setup, trace.clients)),
        pages_(static_cast<uint32_t>(setup.budget.count() / setup_.page.count())),
        device_(setup.hardware, setup.mapping, PoolsOf(setup), setup.timeline),
        scheduler_({.pages = pages_, .making = setup.mapping.make}, &device_) {
    const uint32_t clients = trace.clients;
    for (uint32_t i = 0; i < clients; ++i) {
      const uint32_t share = pages_ / clients + (i < pages_ % clients ? 1 : 0);
      const ClientId id{i};
      clients_.push_back(
          std::make_unique<PagedClient>(clients == 1 ? trace : trace.Only(i), setup_, id, &device_,
                                        LimitsFor(setup_, i, share, clients), &scheduler_));
    }
  }

  Outcome Run() {
    while (!IsDone() && outcome_.failure.empty()) {
      if (now_ > kReplayMax) {
        outcome_.failure = kTooLong;
        break;
      }
      const auto event = device_.NextEvent();
      PagedClient* next = nullptr;
      std::optional<Duration> first;
      for (const auto& client : clients_) {
        const auto own = client->NextOwn();
        if (!own || (first && *own >= *first)) continue;
        first = own;
        next = client.get();
      }
      ClientId changed{};
      if (first && (!event || *first <= *event)) {
        SetTime(*first);
        next->Run();
        changed = next->id();
      } else if (event) {
        SetTime(*event);
        changed = device_.Advance(&scheduler_);
      } else {
        outcome_.failure =
            "no room for what is in use at call " + std::to_string(clients_.front()->next());
        break;
      }
      scheduler_.Advance(now_);
      for (const auto& client : clients_) client->TakeWoken();
      device_.Start();
      if (setup_.timeline) NoteMemory();
      if (setup_.check) core::CheckBooks(scheduler_.client(changed).executor().books());
    }
    return Finish();
  }

 private:
  bool IsDone() const {
    return std::all_of(clients_.begin(), clients_.end(), [](const auto& of) { return of->done(); });
  }
  void SetTime(Duration now) {
    now_ = now;
    device_.SetTime(now);
    for (const auto& client : clients_) client->SetTime(now);
  }

  Outcome Finish() {
    for (const auto& client : clients_) {
      core::CheckBooks(scheduler_.client(client->id()).executor().books());
      client->AddTo(&outcome_);
      outcome_.stats.Add(client->stats());
    }
    outcome_.time = now_;
    outcome_.stats.mapping = device_.mapping();
    outcome_.stats.handed_over = scheduler_.pages_made();
    if (setup_.timeline) {
      device_.AddTo(&outcome_);
      std::sort(outcome_.spans.begin(), outcome_.spans.end(),
                [](const Span& a, const Span& b) { return a.begin < b.begin; });
    }
    return std::move(outcome_);
  }
  // What is on the device now.
  void NoteMemory() {
    MemoryPoint point{now_, {}, {}};
    for (const auto& client : clients_) {
      const core::PageBooks& books = scheduler_.client(client->id()).executor().books();
      point.held += setup_.page * (books.memory().pages() - books.memory().supply().never_used());
      point.used += setup_.page * books.totals().occupied().pages();
    }
    point.used = std::min(point.used, point.held);
    auto& points = outcome_.memory;
    if (!points.empty() && points.back().at == now_) points.pop_back();
    const bool same =
        !points.empty() && points.back().held == point.held && points.back().used == point.used;
    if (!same) points.push_back(point);
  }

  const ReplaySetup setup_;
  const uint32_t pages_;
  PagedDevice device_;
  core::PageScheduler scheduler_;
  std::vector<std::unique_ptr<PagedClient>> clients_;
  Duration now_{0};
  Outcome outcome_;
};

}  // namespace

Outcome ReplayPaged(const Trace& trace, const ReplaySetup& setup) {
  return PagedReplay(trace, setup).Run();
}

}  // namespace ravenstore::sim
