// The plan's rule in its plainest form: every idle unit is looked at for every victim.
//
// Cost: O(calls x units). A unit keeps the size class of its first call.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "core/plan/calls.h"
#include "core/plan/residency_plan.h"

namespace ravenstore::core::plan {

class ReferencePlan {
 public:
  struct Departure {
    Position at;
    Unit unit;
    auto operator<=>(const Departure&) const = default;
  };

  ReferencePlan(std::vector<PlannedCall> calls, std::vector<UnitSnapshot> units, PlanLimits limits)
      : calls_(std::move(calls)), units_(std::move(units)), limits_(limits) {
    idle_since_.assign(units_.size(), Duration{0});
    for (UnitSnapshot& unit : units_) unit.held = unit.held && (unit.live > 0 || unit.pins > 0);
    for (const PlannedCall& call : calls_) {
      for (uint32_t k = 0; k < call.units.count; ++k)
        units_[call.units[k]].slots_per_page = call.units.slots_per_page;
    }
    Shrink(0);
    slack_.push_back(Slack());
    for (Position i = 0; i < static_cast<Position>(calls_.size()); ++i) {
      Apply(i);
      Shrink(i);
      slack_.push_back(Slack());
    }
  }

  const std::set<Departure>& departures() const { return departures_; }
  const std::vector<int64_t>& slack() const { return slack_; }
  uint32_t over_budget() const { return over_budget_; }

 private:
  const PlannedCall& CallAt(Position i) const { return calls_[static_cast<size_t>(i)]; }
  Duration CopyOf(const UnitSnapshot& of) const {
    return limits_.pools.front().OutOf(limits_.WeightOf(of.slots_per_page));
  }
  // Physical pages; slots of one size class share them.
  uint32_t Held() const {
    std::map<uint32_t, uint32_t> units;  // by slots per page
    for (const UnitSnapshot& unit : units_) units[unit.slots_per_page] += unit.held ? 1 : 0;
    uint32_t pages = 0;
    for (const auto& [slots, count] : units) pages += (count + slots - 1) / slots;
    return pages;
  }
  int64_t Slack() const {
    return (static_cast<int64_t>(limits_.pages) - Held()) *
           static_cast<int64_t>(limits_.page.count());
  }
  // Where the idle unit is pinned, or dies, after the call at `now`.
  Position Need(Unit unit, Position now) const {
    uint32_t live = units_[unit].live;
    for (Position i = now + 1; i < static_cast<Position>(calls_.size()); ++i) {
      const PlannedCall& call = CallAt(i);
      for (uint32_t k = 0; k < call.units.count; ++k) {
        if (call.units[k] != unit) continue;
        if (Pins(call.kind) || (call.dies && --live == 0)) return i;
      }
    }
    return kNoPosition;
  }
  Duration TimeOf(Position i) const {
    if (i != kNoPosition) return CallAt(i).at;
    return calls_.back().at + std::chrono::seconds(1000);
  }
  void Apply(Position i) {
    const PlannedCall& call = CallAt(i);
    for (uint32_t k = 0; k < call.units.count; ++k) {
      UnitSnapshot& unit = units_[call.units[k]];
      if (Pins(call.kind)) {
        unit.held = true;
        ++unit.pins;
        if (call.kind != CallKind::kCreate) continue;
        ++unit.live;
        unit.dirty = true;
        continue;
      }
      unit.dirty |= call.modifies;
      unit.pins -= call.unpins ? 1 : 0;
      unit.live -= call.dies ? 1 : 0;
      if (unit.pins > 0 || !unit.held) continue;
      if (unit.live == 0) unit.held = false;
      idle_since_[call.units[k]] = call.at + late_;
    }
  }
  void Shrink(Position i) {
    // The first time nothing has been done yet: a need at position 0 counts.
    const Position after = slack_.empty() ? -1 : i;
    while (Held() > limits_.pages) {
      const Duration now = CallAt(i).at + late_;
      // Of the dirty units that were idle for long enough only the last is asked for the link.
      std::optional<std::pair<Position, Unit>> latest, out, old;
      for (Unit unit = 0; unit < units_.size(); ++unit) {
        const UnitSnapshot& of = units_[unit];
        if (!of.held || of.pins > 0) continue;
        const std::pair candidate(Need(unit, after), unit);
        latest = std::max(latest, std::optional(candidate));
        const Duration copy = CopyOf(of);
        if (!of.dirty) out = std::max(out, std::optional(candidate));
        if (of.dirty && idle_since_[unit] + copy <= now)
          old = std::max(old, std::optional(candidate));
      }
      if (old && link_free_ + CopyOf(units_[old->second]) <= now) out = std::max(out, old);
      if (!latest) {
        ++over_budget_;
        return;
      }
      const Duration begin = CallAt(i).at;
      if (out && TimeOf(out->first) < begin + (TimeOf(latest->first) - begin) / 2) out.reset();
      const Unit victim = out.value_or(*latest).second;
      UnitSnapshot& of = units_[victim];
      of.held = false;
      departures_.insert({i, victim});
      if (!of.dirty) continue;
      link_free_ = std::max(link_free_, idle_since_[victim]) + CopyOf(of);
      late_ += std::max(Duration{0}, link_free_ - now);
      of.dirty = false;
    }
  }

  const std::vector<PlannedCall> calls_;
  std::vector<UnitSnapshot> units_;
  const PlanLimits limits_;
  std::vector<Duration> idle_since_;
  std::set<Departure> departures_;
  std::vector<int64_t> slack_;
  uint32_t over_budget_ = 0;
  Duration link_free_{0};
  Duration late_{0};
};

}  // namespace ravenstore::core::plan
