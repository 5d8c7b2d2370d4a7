#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/planner_score.h"
#include "core/check.h"
#include "core/execution/page_executor.h"
#include "core/plan/residency_plan.h"
#include "sim/score.h"

namespace ravenstore::bench {

namespace {

using namespace core::plan;  // NOLINT(google-build-using-namespace): the plan's own words
using core::Bytes;
using core::TensorNumber;
using std::chrono::steady_clock;

constexpr Bytes kPageBytes = core::MiB(16);

double MicrosecondsSince(steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(steady_clock::now() - begin).count();
}

// Maps immediately. A copy ends when Finish() is called.
class ImmediateBackend : public core::PageBackend {
 public:
  bool Revoke(TensorNumber, uint32_t) override { return true; }
  void Publish(TensorNumber) override {}
  void Grant(TensorNumber) override { ++granted_; }
  void Refuse(TensorNumber) override { RAVEN_CHECK(!"a copy fails"); }
  bool Map(const MapOrder&) override { return true; }
  void Unmap(PhysicalPage page) override { unmapped_.push_back(page); }
  void Release(const PageSupply::Released&) override {}
  void CopyIn(const CopyOrder& order) override { in_.push_back(order.unit); }
  void CopyOut(const CopyOrder& order) override { out_.push_back(order.unit); }
  void FreeCopy(core::plan::Unit, PoolNumber) override {}
  void MoveSlot(const core::PageMemory::SlotMove&, Bytes) override {}
  bool MoveCopy(const CopyMove&) override { return true; }
  bool CanCopyIn(PoolNumber, bool) const override { return in_.empty(); }
  bool CanCopyOut(PoolNumber) const override { return out_.empty(); }

  // Reports the end of one move. Returns false if none is under way.
  bool Finish(core::PageExecutor* executor) {
    if (const auto unit = TakeLast(&in_)) {
      executor->CopiedIn(*unit, true);
    } else if (const auto unit = TakeLast(&out_)) {
      executor->CopiedOut(*unit, true);
    } else if (const auto page = TakeLast(&unmapped_)) {
      executor->Unmapped(*page);
    } else {
      return false;
    }
    return true;
  }
  size_t granted() const { return granted_; }

 private:
  static std::optional<uint32_t> TakeLast(std::vector<uint32_t>* of) {
    if (of->empty()) return std::nullopt;
    const uint32_t last = of->back();
    of->pop_back();
    return last;
  }

  std::vector<Unit> in_;
  std::vector<Unit> out_;
  std::vector<PhysicalPage> unmapped_;
  size_t granted_ = 0;
};

// A client with one tensor on each page, or on each four pages.
class PagedCrowd {
 public:
  struct Times {
    std::vector<double> calls;  // microseconds each
    std::vector<double> moves;  // of the report of each move's end, and what begins then
    double pages = 0;           // that a call touches, on average
  };

  // `part`: of the pages that all tensors are on, those that have room.
  PagedCrowd(uint32_t tensors, double part) : executor_(OptionsFor(tensors), &backend_) {
    Unit first = 0;
    for (TensorNumber tensor = 0; tensor < tensors; ++tensor) {
      spans_.push_back({first, tensor % 16 == 0 ? 4U : 1U, 1});
      first += 2 * spans_.back().count;
      Create(tensor);
      Put(tensor);
    }
    const auto pages = static_cast<uint32_t>(part * first / 2);
    executor_.SetShare(pages);
    executor_.Start();
    FinishMoves();
  }

  // The same calls are planned and made: gets and puts, and each eighth tensor is freed and created
  // where it was. Some tensors are used far more than others.
  void Plan(uint32_t calls) {
    std::mt19937_64 random(1);
    calls_.clear();
    for (uint32_t i = 0; calls_.size() < calls; ++i) {
      const double at = static_cast<double>(random() >> 11) * 0x1p-53;
      const auto tensor = static_cast<TensorNumber>(at * at * static_cast<double>(spans_.size()));
      const bool dies = i % 8 == 0;
      Expect(tensor, CallKind::kGet);
      Expect(tensor, dies ? CallKind::kFree : CallKind::kPut);
      if (!dies) continue;
      Expect(tensor, CallKind::kCreate);
      Expect(tensor, CallKind::kPut);
    }
    std::vector<PlannedCall> planned;
    for (const Call& call : calls_) planned.push_back(call.planned);
    auto begin = steady_clock::now();
    const auto snapshot = executor_.Snapshot();
    snapshot_ms_ = MicrosecondsSince(begin) / 1000;
    ResidencyPlan plan = ResidencyPlan::Make(planned, snapshot, executor_.books().view().limits);
    begin = steady_clock::now();
    executor_.books().SetPlan(std::move(plan));
    set_plan_ms_ = MicrosecondsSince(begin) / 1000;
  }
  uint64_t emergencies() const { return executor_.stats().emergencies; }
  double snapshot_ms() const { return snapshot_ms_; }
  double set_plan_ms() const { return set_plan_ms_; }

  Times Run() {
    Times times;
    times_ = &times;
    executor_.Start();
    FinishMoves();
    Position position = 0;
    for (const Call& call : calls_) {
      times.pages += call.planned.units.count;
      const auto begin = steady_clock::now();
      Make(call);
      executor_.books().MoveTo(++position);
      executor_.Start();
      times.calls.push_back(MicrosecondsSince(begin));
      FinishMoves();
      RAVEN_CHECK(executor_.IsResident(call.tensor) || !Pins(call.planned.kind));
      if (call.planned.kind == CallKind::kCreate) executor_.Begin(call.tensor);
    }
    times.pages /= static_cast<double>(calls_.size());
    times_ = nullptr;
    return times;
  }

  // Without a plan: what a get of a tensor that is away takes until its memory leaves another.
  std::vector<double> Wait(uint32_t gets) {
    executor_.books().SetPlan({});
    std::vector<double> times;
    for (TensorNumber tensor = 0; tensor < spans_.size() && times.size() < gets; ++tensor) {
      if (executor_.IsResident(tensor)) continue;
      const auto begin = steady_clock::now();
      executor_.Pin(tensor);
      executor_.Start();
      times.push_back(MicrosecondsSince(begin));
      FinishMoves();
      Put(tensor);
    }
    return times;
  }

 private:
  struct Call {
    TensorNumber tensor;
    PlannedCall planned;
  };

  static core::PageBooks::Options OptionsFor(uint32_t tensors) {
    return {.limits = {.page = kPageBytes,
                       .pages = 2 * tensors,
                       .pools = {{.in_rate = 55e9, .out_rate = 55e9}}},
            .coming_most = kPageBytes * 2};
  }
  void Expect(TensorNumber tensor, CallKind kind) {
    calls_.push_back({tensor,
                      {.kind = kind,
                       .unpins = !Pins(kind),
                       .dies = kind == CallKind::kFree,
                       .modifies = kind == CallKind::kPut,
                       .units = spans_[tensor],
                       .at = std::chrono::microseconds(100) * calls_.size()}});
  }
  void Create(TensorNumber tensor) {
    executor_.Place(tensor, spans_[tensor], Bytes{}, kPageBytes * spans_[tensor].count);
    if (!executor_.Pin(tensor)) {
      executor_.Start();
      FinishMoves();
    }
    executor_.Begin(tensor);
  }
  void Put(TensorNumber tensor) {
    executor_.Modify(tensor);
    executor_.Unpin(tensor);
    executor_.Reach(tensor);
  }
  void Make(const Call& call) {
    switch (call.planned.kind) {
      case CallKind::kGet: executor_.Pin(call.tensor); return;
      case CallKind::kPut: Put(call.tensor); return;
      case CallKind::kFree:
        executor_.End(call.tensor);
        executor_.Unpin(call.tensor);
        executor_.Reach(call.tensor);
        executor_.Remove(call.tensor);
        return;
      case CallKind::kCreate:
        executor_.Place(call.tensor, spans_[call.tensor], Bytes{},
                        kPageBytes * spans_[call.tensor].count);
        executor_.Pin(call.tensor);
        return;
    }
  }
  void FinishMoves() {
    for (;;) {
      const auto begin = steady_clock::now();
      if (!backend_.Finish(&executor_)) return;
      executor_.Start();
      if (times_) times_->moves.push_back(MicrosecondsSince(begin));
    }
  }

  ImmediateBackend backend_;
  core::PageExecutor executor_;
  std::vector<UnitSpan> spans_;  // by tensor
  std::vector<Call> calls_;
  Times* times_ = nullptr;
  double snapshot_ms_ = 0;
  double set_plan_ms_ = 0;
};

void ReportCalls(PagedCrowd::Times without, PagedCrowd::Times with, const Report& report) {
  char detail[160];
  std::snprintf(detail, sizeof(detail),
                "%.2f pages a call; with moves %.2f; the end of a move %.2f", without.pages,
                Median(with.calls), Median(with.moves));
  report({.name = "planner.paged_event_us_median",
          .unit = "us",
          .value = Median(without.calls),
          .target = 2 + 0.1 * without.pages,
          .detail = detail});
  std::snprintf(detail, sizeof(detail), "with moves; without %.2f; the end of a move %.2f",
                Quantile(without.calls, 0.99), Quantile(with.moves, 0.99));
  report({.name = "planner.paged_event_us_p99",
          .unit = "us",
          .value = Quantile(with.calls, 0.99),
          .target = 20.0,
          .detail = detail});
}

}  // namespace

void MeasurePagedEventCost(double scale, const Report& report) {
  constexpr uint32_t kCalls = 40'000;
  const auto tensors = static_cast<uint32_t>(1e6 * std::min(1.0, scale));
  double pause_of_many = 0;
  {
    PagedCrowd all(tensors, 1.0);
    all.Plan(kCalls);
    PagedCrowd::Times without = all.Run();
    PagedCrowd part(tensors, 0.8);
    part.Plan(kCalls);
    pause_of_many = part.set_plan_ms();
    ReportCalls(std::move(without), part.Run(), report);
    std::vector<double> waits = part.Wait(100);
    report({.name = "planner.paged_wait_us_median",
            .unit = "us",
            .value = Median(waits),
            .target = 20.0,
            .detail = std::to_string(part.emergencies()) +
                      " times a page had to leave for a get; " + std::to_string(tensors) +
                      " tensors"});
  }
  PagedCrowd device(9'000, 0.8);
  std::vector<double> snapshots, installs;
  for (int run = 0; run < 5; ++run) {
    device.Plan(kCalls);
    snapshots.push_back(device.snapshot_ms());
    installs.push_back(device.set_plan_ms());
    device.Run();
  }
  char detail[120];
  std::snprintf(detail, sizeof(detail),
                "40,000 calls, 10,689 pages; the snapshot %.2f ms; %u tensors: %.0f ms",
                Median(snapshots), tensors, pause_of_many);
  report({.name = "planner.paged_loop_pause_ms",
          .unit = "ms",
          .value = std::max(Median(installs), Median(snapshots)),
          .target = 2.0,
          .detail = detail});
}

}  // namespace ravenstore::bench
