#include "sim/paged_replay.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/decide/page_shares.h"
#include "core/plan/places.h"
#include "sim/paged_foresight.h"

namespace ravenstore::sim {

using core::Bytes;
using core::Duration;
using core::plan::Place;

namespace {

core::plan::SmallTensorRule RuleFor(const Trace& trace, Bytes page) {
  core::plan::SmallTensorRule rule{.page = page};
  Bytes small, small_most;
  for (const Op& op : trace.ops) {
    if (op.kind != OpKind::kCreate && op.kind != OpKind::kFree) continue;
    const Bytes size = trace.tensors[op.tensor].bytes;
    if (!rule.IsSmall(size)) continue;
    if (op.kind == OpKind::kCreate) small += size;
    if (op.kind == OpKind::kFree) small -= size;
    small_most = std::max(small_most, small);
  }
  rule.slots = core::plan::SmallTensorRule::SlotsPay(small_most, trace.Footprint());
  return rule;
}

// Bytes that are mapped or queued to come ahead of their need: enough to keep the link busy while
// the next page is mapped. More would take memory earlier than it is needed.
constexpr Bytes kComingLeast = core::MiB(16);
constexpr uint64_t kComingPages = 2;

core::PageBooks::Options OptionsFor(const PagedSetup& setup, uint32_t pages) {
  return {.limits = {.page = setup.page,
                     .pages = pages,
                     .out_bytes_per_second = setup.hardware.down,
                     .per_copy = setup.hardware.per_copy},
          .copy_in_rate = setup.hardware.up,
          .coming_most = std::max(kComingLeast, setup.page * kComingPages)};
}

// One client: its CPU, its stream and what plans for it.
class PagedClient {
 public:
  // `trace`: of this client alone.
  PagedClient(Trace trace, const PagedSetup& setup, core::PageExecutor* executor, bool is_alone)
      : trace_(std::move(trace)),
        runs_ahead_(setup.run_ahead != RunAhead::kNone),
        creates_block_(setup.run_ahead == RunAhead::kCreatesBlock),
        asks_for_room_(runs_ahead_ || !is_alone),
        rule_(RuleFor(trace_, setup.page)),
        executor_(*executor),
        plans_(MakePlanSource(trace_, setup.foresight, rule_, executor->books().limits())),
        tensors_(trace_.tensors.size()) {
    plans_->Begin(&executor_.books());
    planned_share_ = executor_.books().limits().pages;
  }

  // When the CPU or the stream goes on by itself.
  std::optional<Duration> NextOwn() const {
    if (wakes_) return now_;
    std::optional<Duration> next;
    for (const Duration until : {cpu_until_, stream_until_}) {
      if (until > now_ && (!next || until < *next)) next = until;
    }
    return next;
  }
  void SetTime(Duration now) { now_ = now; }
  // The executor begins what there is to do.
  void Start() { wakes_ |= executor_.Start(); }

  // Until both the CPU and the stream compute, wait or have ended.
  void Run() {
    wakes_ = false;
    while (RunStream() || RunCpu()) {
    }
    done_ = next_ == trace_.ops.size() && stream_.empty() && stream_until_ <= now_;
  }
  bool done() const { return done_; }
  size_t next() const { return next_; }

  // ---- Its share of the device.
  // Pages that its calls hold, with those of a call that waits for others to give some back.
  bool waits_for_room() const { return waits_for_room_ > 0; }
  core::decide::PageDemand Demand(bool with_waiting) const {
    const core::PageBooks& books = executor_.books();
    if (done_) return {.held = 0};
    const uint32_t in_use = books.PagesInUse({});
    return {.in_use = with_waiting ? std::max(in_use, waits_for_room_) : in_use,
            .expected = books.plan().pages_held(),
            .alive = std::max(books.plan().pages_alive(), books.PagesOccupied()),
            .held = books.pages()};
  }
  void SetShare(uint32_t pages) {
    const uint32_t now = executor_.books().limits().pages;
    if (pages == now) return;
    wakes_ |= pages > now && waits_for_room();
    executor_.SetShare(pages);
    const uint32_t change = std::max(pages, planned_share_) - std::min(pages, planned_share_);
    if (change < planned_share_ / kReplanPart) return;
    planned_share_ = pages;
    plans_->ShareChanged();
  }

  PagedStats stats() const {
    PagedStats stats = plans_->stats();
    stats.moves = executor_.stats();
    return stats;
  }
  const core::PageExecutor& executor() const { return executor_; }

  // What this client adds to the outcome of all.
  void AddTo(Outcome* outcome) const {
    outcome->compute += outcome_.compute;
    outcome->stall += outcome_.stall;
    outcome->create_stall += outcome_.create_stall;
    outcome->client_stall.push_back(outcome_.stall);
    auto& stalls = outcome->iteration_stall;
    const auto& own = outcome_.iteration_stall;
    stalls.resize(std::max(stalls.size(), own.size()));
    for (size_t i = 0; i < own.size(); ++i) stalls[i] += own[i];
    outcome->up += executor_.stats().in;
    outcome->down += executor_.stats().out;
  }

 private:
  // A plan is made anew when the share has changed by 1/kReplanPart. Higher: more plans while
  // another client grows. Lower: a plan's evictions are of another share for longer.
  static constexpr uint32_t kReplanPart = 16;

  struct ClientTensor {
    bool is_slot = false;
    bool in_use = false;  // for the CPU
    bool dead = false;    // its bytes are not used any more
  };
  // A call or a computation that the CPU has made and the stream has not executed.
  struct Enqueued {
    const Op* op;
    bool unpins = false;
    bool dies = false;
  };


  // ---- The CPU. Returns true if it has made a call.
  bool RunCpu() {
    if (next_ == trace_.ops.size() || cpu_until_ > now_) return false;
    if (!runs_ahead_ && (!stream_.empty() || stream_until_ > now_)) return false;
    const Op& op = trace_.ops[next_];
    if (runs_ahead_ && !std::exchange(has_computed_, true) && op.program > Duration{0}) {
      cpu_until_ = now_ + op.program;
      return false;
    }
    if (!Make(op)) return false;
    has_computed_ = false;
    ++next_;
    return true;
  }

  // Returns false if the CPU waits; it is called again.
  bool Make(const Op& op) {
    if (op.kind == OpKind::kCompute) {
      computed_ += op.time;
      stream_.push_back({&op});
    } else if (op.kind == OpKind::kStep) {
      plans_->Step();
      stream_.push_back({&op});
    } else if (op.kind == OpKind::kCreate || op.kind == OpKind::kGet) {
      return MakeUse(op);
    } else {
      MakeEnd(op);
    }
    return true;
  }

  bool MakeUse(const Op& op) {
    ClientTensor& tensor = tensors_[op.tensor];
    if (!made_) {
      plans_->Before(op, computed_, &executor_.books());
      if (op.kind == OpKind::kCreate) PlaceTensor(op);
      made_ = true;
    }
    if (!held_) {
      if (asks_for_room_ && !executor_.FitsInUse(op.tensor)) {
        waits_for_room_ = executor_.books().PagesInUse(executor_.tensors()[op.tensor].units);
        return false;
      }
      waits_for_room_ = 0;
      executor_.Pin(op.tensor);
      tensor.in_use = true;
      stream_.push_back({&op});
      held_ = true;
      if (runs_ahead_) plans_->After(op, &executor_.books());
    }
    const bool blocks = creates_block_ && op.kind == OpKind::kCreate;
    if (blocks && !executor_.IsResident(op.tensor)) return false;
    made_ = held_ = false;
    return true;
  }

  // A put or a free.
  void MakeEnd(const Op& op) {
    plans_->Before(op, computed_, &executor_.books());
    ClientTensor& tensor = tensors_[op.tensor];
    Enqueued ends{.op = &op, .unpins = std::exchange(tensor.in_use, false)};
    ends.dies = !tensor.dead && (op.kind == OpKind::kFree || plans_->IsLastPut(op));
    tensor.dead |= ends.dies;
    if (ends.unpins) executor_.Unpin(op.tensor);
    stream_.push_back(ends);
    // The stream's own order lets a later create have the addresses immediately.
    if (op.kind == OpKind::kFree && !tensor.is_slot) plans_->Free(op);
    if (runs_ahead_) plans_->After(op, &executor_.books());
  }

  void PlaceTensor(const Op& op) {
    ClientTensor& tensor = tensors_[op.tensor];
    const Bytes size = trace_.tensors[op.tensor].bytes;
    const Place place = plans_->PlaceFor(op);
    tensor.is_slot = place.slots_per_page > 0;
    executor_.Place(op.tensor, plans_->UnitsOf(place, size), plans_->BytesIn(place, size, 0), size);
  }

  // ---- The stream. Returns true if it has executed something.
  bool RunStream() {
    if (stream_until_ > now_ || stream_.empty()) return false;
    const Enqueued next = stream_.front();
    const Op& op = *next.op;
    const bool uses = op.kind == OpKind::kCreate || op.kind == OpKind::kGet;
    if (uses && !executor_.IsResident(op.tensor)) return false;
    CountStall(op);
    stream_.pop_front();
    if (op.kind == OpKind::kCompute) {
      outcome_.compute += op.time;
      stream_until_ = now_ + op.time;
    } else if (op.kind == OpKind::kStep) {
      ++iteration_;
    } else if (uses) {
      if (op.kind == OpKind::kCreate) executor_.Begin(op.tensor);
    } else {
      Yield(next);
    }
    const bool is_call = op.kind != OpKind::kCompute && op.kind != OpKind::kStep;
    if (is_call && !runs_ahead_) plans_->After(op, &executor_.books());
    return true;
  }

  // The stream was idle since it ended what it did last.
  void CountStall(const Op& op) {
    const Duration stall = now_ - std::exchange(stream_until_, now_);
    if (stall == Duration{0}) return;
    auto& stalls = outcome_.iteration_stall;
    stalls.resize(std::max(stalls.size(), iteration_ + 1));
    stalls[iteration_] += stall;
    outcome_.stall += stall;
    if (op.kind == OpKind::kCreate) outcome_.create_stall += stall;
  }

  void Yield(const Enqueued& ends) {
    const Op& op = *ends.op;
    if (op.kind == OpKind::kPut && op.modified && !ends.dies) executor_.Modify(op.tensor);
    if (ends.dies) executor_.End(op.tensor);
    if (ends.unpins) executor_.Reach(op.tensor);
    if (op.kind == OpKind::kFree && tensors_[op.tensor].is_slot) plans_->Free(op);
  }

  const Trace trace_;
  const bool runs_ahead_;
  const bool creates_block_;
  const bool asks_for_room_;
  const core::plan::SmallTensorRule rule_;
  core::PageExecutor& executor_;
  const std::unique_ptr<PlanSource> plans_;
  std::vector<ClientTensor> tensors_;
  Duration now_{0};
  bool wakes_ = true;  // it may go on now
  // The CPU is in the program, or the stream computes, until then. A time that has passed: since
  // then it has waited.
  Duration cpu_until_{0};
  Duration stream_until_{0};
  std::deque<Enqueued> stream_;
  size_t next_ = 0;  // of the CPU
  size_t iteration_ = 0;
  Duration computed_{0};         // of all that the CPU has enqueued
  bool has_computed_ = false;    // the CPU has come to the next call
  bool made_ = false;            // the next call is seen, and its tensor has a place
  bool held_ = false;            // its units are pinned
  uint32_t waits_for_room_ = 0;  // pages that its calls would hold with one that does not fit
  uint32_t planned_share_ = 0;
  bool done_ = false;
  Outcome outcome_;
};

class PagedReplay {
 public:
  PagedReplay(const Trace& trace, const PagedSetup& setup)
      : setup_(setup),
        pages_(static_cast<uint32_t>(setup.budget.count() / setup.page.count())),
        device_(setup.hardware, setup.mapping) {
    const uint32_t clients = trace.clients;
    for (uint32_t i = 0; i < clients; ++i) {
      const uint32_t share = pages_ / clients + (i < pages_ % clients ? 1 : 0);
      core::PageExecutor* executor = device_.AddClient(OptionsFor(setup, share));
      clients_.push_back(std::make_unique<PagedClient>(clients == 1 ? trace : trace.Only(i), setup,
                                                       executor, clients == 1));
    }
  }

  PagedOutcome Run() {
    while (!IsDone() && outcome_.failure.empty()) {
      const auto event = device_.NextEvent();
      PagedClient* next = nullptr;
      for (const auto& client : clients_) {
        const auto own = client->NextOwn();
        if (own && (!next || *own < *next->NextOwn())) next = client.get();
      }
      if (next && (!event || *next->NextOwn() <= *event)) {
        SetTime(*next->NextOwn());
        next->Run();
        next->Start();
      } else if (event) {
        SetTime(*event);
        next = clients_[device_.Advance()].get();
        next->Start();
      } else {
        outcome_.failure = "no room for what is in use at call " +
                           std::to_string(clients_.front()->next());
        break;
      }
      if (clients_.size() > 1) Share();
      device_.Start();
      if (setup_.check) next->executor().books().Check();
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

  // Divides the device among its clients. Of those that wait for pages that others hold, the first
  // is served: two that get a part each could wait for each other.
  void Share() {
    demands_.clear();
    bool served = false;
    for (const auto& client : clients_) {
      const bool serves = !served && client->waits_for_room();
      served |= serves;
      demands_.push_back(client->Demand(serves));
    }
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
      client->executor().books().Check();
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
  std::vector<core::decide::PageDemand> shared_;  // what the shares are for
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
