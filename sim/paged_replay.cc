#include "sim/paged_replay.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/check.h"
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

core::plan::PlanLimits LimitsFor(const PagedSetup& setup) {
  return {.page = setup.page,
          .pages = static_cast<uint32_t>(setup.budget.count() / setup.page.count()),
          .out_bytes_per_second = setup.hardware.down,
          .per_copy = setup.hardware.per_copy};
}

// Bytes that are mapped or queued to come ahead of their need: enough to keep the link busy while
// the next page is mapped. More would take memory earlier than it is needed.
constexpr Bytes kComingLeast = core::MiB(16);
constexpr uint64_t kComingPages = 2;

core::PageBooks::Options OptionsFor(const PagedSetup& setup) {
  return {.limits = LimitsFor(setup),
          .copy_in_rate = setup.hardware.up,
          .coming_most = std::max(kComingLeast, setup.page * kComingPages)};
}

class PagedReplay {
 public:
  PagedReplay(const Trace& trace, const PagedSetup& setup)
      : trace_(trace),
        setup_(setup),
        runs_ahead_(setup.run_ahead != RunAhead::kNone),
        rule_(RuleFor(trace, setup.page)),
        backend_(setup.hardware, setup.mapping),
        executor_(OptionsFor(setup), &backend_),
        plans_(MakePlanSource(trace, setup.foresight, rule_, LimitsFor(setup))),
        tensors_(trace.tensors.size()) {}

  PagedOutcome Run() {
    plans_->Begin(&executor_.books());
    while (!done_ && outcome_.failure.empty()) {
      const auto event = backend_.NextEvent();
      const auto own = NextOwn();
      bool arrived = false;
      if (own && (!event || *own <= *event)) {
        now_ = *own;
        RunClient();
        backend_.SetTime(now_);
        arrived = Start();
      } else if (event) {
        now_ = *event;
        backend_.Advance(&executor_);
        arrived = Start();
      } else {
        outcome_.failure = "no room for what is in use at call " + std::to_string(next_);
      }
      wakes_ = arrived;
      if (setup_.check) executor_.books().Check();
    }
    return Finish();
  }

 private:
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

  bool Start() {
    const bool arrived = executor_.Start();
    backend_.StartPieces();
    return arrived;
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

  // Until both the CPU and the stream compute, wait or have ended.
  void RunClient() {
    wakes_ = false;
    while (RunStream() || RunCpu()) {
    }
    done_ = next_ == trace_.ops.size() && stream_.empty() && stream_until_ <= now_;
  }

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
      if (runs_ahead_ && !executor_.FitsInUse(op.tensor)) return false;
      executor_.Pin(op.tensor);
      tensor.in_use = true;
      stream_.push_back({&op});
      held_ = true;
      if (runs_ahead_) plans_->After(op, &executor_.books());
    }
    const bool blocks = setup_.run_ahead == RunAhead::kCreatesBlock && op.kind == OpKind::kCreate;
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

  PagedOutcome Finish() {
    executor_.books().Check();
    PagedOutcome result;
    outcome_.time = now_;
    outcome_.client_stall = {outcome_.stall};
    result.stats = plans_->stats();
    result.stats.moves = executor_.stats();
    result.stats.mapping = backend_.mapping();
    outcome_.up = result.stats.moves.in;
    outcome_.down = result.stats.moves.out;
    result.outcome = std::move(outcome_);
    return result;
  }

  const Trace& trace_;
  const PagedSetup setup_;
  const bool runs_ahead_;
  const core::plan::SmallTensorRule rule_;
  PagedBackend backend_;
  core::PageExecutor executor_;
  const std::unique_ptr<PlanSource> plans_;
  std::vector<ClientTensor> tensors_;
  Duration now_{0};
  bool wakes_ = true;  // the client may go on now
  // The CPU is in the program, or the stream computes, until then. A time that has passed: since
  // then it has waited.
  Duration cpu_until_{0};
  Duration stream_until_{0};
  std::deque<Enqueued> stream_;
  size_t next_ = 0;  // of the CPU
  size_t iteration_ = 0;
  Duration computed_{0};       // of all that the CPU has enqueued
  bool has_computed_ = false;  // the CPU has come to the next call
  bool made_ = false;          // the next call is seen, and its tensor has a place
  bool held_ = false;          // its units are pinned
  bool done_ = false;
  Outcome outcome_;
};

}  // namespace

PagedOutcome ReplayPaged(const Trace& trace, const PagedSetup& setup) {
  if (trace.clients != 1) {
    PagedOutcome outcome;
    outcome.outcome.failure = "the replay on pages is of one client";
    return outcome;
  }
  return PagedReplay(trace, setup).Run();
}

}  // namespace ravenstore::sim
