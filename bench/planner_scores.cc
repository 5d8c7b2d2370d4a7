#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "bench/planner_score.h"
#include "sim/outcome.h"
#include "sim/score.h"

namespace ravenstore::bench {

namespace {

using core::Duration;
using core::Seconds;
using sim::Outcome;

constexpr double kTailFraction = 0.95;
constexpr size_t kWorstNamed = 3;

double MeanOf(const std::vector<double>& values) {
  double sum = 0;
  for (const double one : values) sum += one;
  return sum / static_cast<double>(values.size());
}

void AddReferences(const TraceSet& set, References* references) {
  ForEachCase(set, [references](const ScoreCase& of) {
    const auto& [entry, trace, fingerprint, hardware, budget] = of;
    std::vector<size_t> beginnings = {0};
    if (entry.periodic) beginnings.push_back(LearnedFrom(entry, trace));
    for (const size_t from : beginnings) {
      const References::Key key{entry.name, std::string(hardware.name), budget.percent, from};
      std::string unknown;
      if (references->Find(key, fingerprint, &unknown)) continue;
      const auto stall = sim::LeastKnownStall({trace}, hardware, budget.bytes, from);
      if (!stall) continue;
      references->Add(key, {fingerprint, sim::ComputeFrom(trace, from), *stall});
    }
  });
}

}  // namespace

void ReportScore(const std::string& name, const Score& score, const TraceSet& set,
                 const std::string& skipped, double target, std::optional<double> tail_target,
                 const Report& report) {
  Figure mean{.name = name, .unit = "x", .bound = 1.0, .target = target};
  Figure tail{.name = name + "_p95", .unit = "x", .bound = 1.0, .target = tail_target};
  if (!skipped.empty() || score.empty()) {
    mean.skipped = tail.skipped = skipped.empty() ? "no case got through" : skipped;
  } else {
    mean.value = score.Mean();
    mean.detail = score.Detail(set);
    tail.value = score.Tail();
  }
  report(mean);
  if (tail_target) report(tail);
}

void Score::Take(const std::string& trace, double score) {
  const double at_least_one = std::max(1.0, score);
  cases_.push_back(at_least_one);
  by_trace_[trace].push_back(std::log(at_least_one));
}

std::optional<double> Score::OfTrace(const std::string& trace) const {
  const auto found = by_trace_.find(trace);
  if (found == by_trace_.end()) return std::nullopt;
  return std::exp(MeanOf(found->second));
}

double Score::Mean() const {
  double sum = 0;
  for (const auto& [trace, logarithms] : by_trace_) sum += MeanOf(logarithms);
  return std::exp(sum / static_cast<double>(by_trace_.size()));
}

double Score::Tail() const {
  std::vector<double> sorted = cases_;
  std::sort(sorted.begin(), sorted.end());
  const double rank = std::ceil(kTailFraction * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(rank) - 1];
}

std::string Score::Detail(const TraceSet& set) const {
  std::string text = std::to_string(cases_.size()) + " cases";
  if (!set.without.empty()) text += " without " + set.without;
  if (set.judges_only) return text;
  std::vector<std::pair<double, std::string>> worst;
  for (const auto& [trace, logarithms] : by_trace_)
    worst.emplace_back(std::exp(MeanOf(logarithms)), trace);
  std::sort(worst.rbegin(), worst.rend());
  text += "; the worst traces:";
  for (size_t i = 0; i < std::min(kWorstNamed, worst.size()); ++i) {
    char one[80];
    std::snprintf(one, sizeof(one), "%s %s %.3f", i == 0 ? "" : ",", worst[i].second.c_str(),
                  worst[i].first);
    text += one;
  }
  return text;
}

void Failures::Take(const Outcome& outcome, const std::string& case_name) {
  if (outcome.failure.empty()) return;
  ++failed;
  // Once for all variants of a case.
  if (where.find(case_name) == std::string::npos) where += (where.empty() ? "" : "; ") + case_name;
}

void LruRatios::Take(const Outcome& demand, const Outcome& hinted, const Outcome& learned,
                     const std::string& case_name) {
  if (!demand.failure.empty() || !hinted.failure.empty() || !learned.failure.empty()) return;
  const double with_hints = Seconds(demand.time) / Seconds(hinted.time);
  const double without = Seconds(demand.time) / Seconds(learned.time);
  for (const auto& [ratio, how] : {std::pair(with_hints, ", hinted"), {without, ", learned"}}) {
    if (cases_ > 0 && ratio >= worst_) continue;
    worst_ = ratio;
    where_ = case_name + how;
  }
  hinted_ += std::log(with_hints);
  learned_ += std::log(without);
  ++cases_;
}

double LruRatios::MeanOf(double logarithms) const {
  return std::exp(logarithms / cases_);
}

void LruRatios::ReportWorst(const std::string& name, double target, const Report& report) const {
  if (cases_ == 0) return;
  char means[80];
  std::snprintf(means, sizeof(means), "; geomean hinted %.3f, learned %.3f", MeanOf(hinted_),
                MeanOf(learned_));
  report({.name = name,
          .unit = "x",
          .value = worst_,
          .target = target,
          .at_least = true,
          .detail = where_ + means});
}

void SkipValidation(const Report& report) {
  TraceSet set;
  set.name = kValidationName;
  set.judges_only = true;
  PagedScore none;
  none.missing = "run once for each tagged state, with --validation";
  ReportPagedScore(set, none, report);
}

void FindReferences(const std::vector<const TraceSet*>& sets, References* references) {
  for (const TraceSet* set : sets) AddReferences(*set, references);
}

}  // namespace ravenstore::bench
