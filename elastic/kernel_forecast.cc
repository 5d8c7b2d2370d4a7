#include "elastic/kernel_forecast.h"

#include <algorithm>
#include <utility>

#include "core/tuned.h"

namespace ravenstore::elastic {

using core::Duration;
using core::plan::CallKind;
using core::plan::PlannedCall;
using core::plan::Position;
using core::plan::Unit;
using core::plan::UnitSpan;

namespace {

// A shorter step is expected several times. Fewer records: more plans. More: each takes longer.
constexpr size_t kRecordsLeast = 4096;

class Planned {
 public:
  explicit Planned(const std::vector<core::plan::UnitSnapshot>& units) {
    for (const auto& unit : units) lives_.push_back(unit.live > 0);
  }

  void Add(const PageRecord& record, Duration at) {
    const bool is_use = record.kind == PageRecord::Kind::kUse;
    if (!is_use || record.call != call_) EndCall(at);
    call_ = record.call;
    if (record.page >= lives_.size()) lives_.resize(record.page + 1);
    const bool allocates = record.kind == PageRecord::Kind::kAllocate;
    // The job may differ now from the step before.
    if (lives_[record.page] == allocates) return;
    if (is_use) return Use(record.page, at);
    lives_[record.page] = allocates;
    const UnitSpan page{.first = record.page, .count = 1};
    if (allocates) {
      calls_.push_back({.kind = CallKind::kCreate, .units = page, .at = at});
      calls_.push_back(
          {.kind = CallKind::kPut, .unpins = true, .modifies = true, .units = page, .at = at});
    } else {
      calls_.push_back({.kind = CallKind::kFree, .dies = true, .units = page, .at = at});
    }
  }
  void EndCall(Duration at) {
    for (const UnitSpan& span : used_)
      calls_.push_back(
          {.kind = CallKind::kPut, .unpins = true, .modifies = true, .units = span, .at = at});
    used_.clear();
  }
  const std::vector<PlannedCall>& calls() const { return calls_; }
  Position position() const { return static_cast<Position>(calls_.size()); }

 private:
  void Use(Unit page, Duration at) {
    // Consecutive pages are one call.
    if (!used_.empty() && used_.back()[used_.back().count] == page) {
      ++used_.back().count;
      ++calls_.back().units.count;
      return;
    }
    used_.push_back({.first = page, .count = 1});
    calls_.push_back({.kind = CallKind::kGet, .units = used_.back(), .at = at});
  }

  std::vector<PlannedCall> calls_;
  std::vector<UnitSpan> used_;  // by the call that runs
  uint32_t call_ = 0;
  std::vector<bool> lives_;  // by unit
};

}  // namespace

void KernelForecast::Make() {
  Planned planned(units);
  const size_t count = records.size();
  const size_t most = std::max(kRecordsLeast, count / 4 * core::kPassQuarters);
  const uint32_t first_call = records.front().call;
  positions.reserve(most + 1);
  Duration at{0};
  for (size_t i = 0; i < most; ++i) {
    const PageRecord& record = records[i % count];
    const Duration begun = step * static_cast<int64_t>(i / count);
    at = std::max(at, begun + times[record.call - first_call]);
    positions.push_back(planned.position());
    if (i % count == 0) planned.EndCall(at);
    planned.Add(record, at);
  }
  positions.push_back(planned.position());
  planned.EndCall(at);
  plan = core::plan::ResidencyPlan::Make(planned.calls(), units, limits);
  deadlines.Restart(plan);
}

}  // namespace ravenstore::elastic
