#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "bench/planner_score.h"
#include "sim/generators.h"
#include "sim/score.h"
#include "sim/simulator.h"

namespace ravenstore::bench {

namespace {

using core::Duration;
using core::Seconds;
using sim::Hints;
using sim::Outcome;
using sim::Trace;

constexpr double kTailFraction = 0.95;
constexpr size_t kWorstNamed = 3;

double MeanOf(const std::vector<double>& values) {
  double sum = 0;
  for (const double one : values) sum += one;
  return sum / static_cast<double>(values.size());
}

struct Targets {
  double hinted, hinted_tail, learned, learned_tail;
};
constexpr Targets kTuningTargets = {1.02, 1.10, 1.04, 1.20};
constexpr Targets kValidationTargets = {1.03, 1.12, 1.06, 1.25};

class Scorer {
 public:
  Scorer(const TraceSet& set, const References& references, LruRatios* against_lru,
         Failures* failures, bool table)
      : set_(set),
        references_(references),
        against_lru_(*against_lru),
        failures_(*failures),
        table_(table) {}

  SetScore Run() {
    if (table_)
      std::printf(
          "| machine | trace | budget | reference ms | hints: time | hints: order | learned |\n"
          "|---|---|---|---|---|---|---|\n");
    ForEachCase(set_, [this](const ScoreCase& of) { Run(of); });
    return std::move(result_);
  }

 private:
  void Run(const ScoreCase& of) {
    const auto& [entry, trace, fingerprint, hardware, budget] = of;
    where_ = set_.judges_only ? set_.CaseName()
                              : entry.name + " at " + std::to_string(budget.percent) + "% on " +
                                    std::string(hardware.name);
    const References::Key key{entry.name, std::string(hardware.name), budget.percent, 0};
    std::vector<Outcome> hinted;  // by time and by order, or as it was
    if (entry.hinted) {
      hinted.push_back(Replay(trace, "value", hardware, budget));
    } else {
      for (const Hints hints : {Hints::kTime, Hints::kOrder})
        hinted.push_back(Replay(sim::WithHints(trace, hints), "value", hardware, budget));
    }
    const Outcome learned = Replay(sim::WithHints(trace, Hints::kNone), "value", hardware, budget);
    const Outcome demand = Replay(trace, "demand-lru", hardware, budget);
    against_lru_.Take(demand, hinted.front(), learned, where_);
    const auto known = references_.Find(key, fingerprint, &result_.missing);
    if (!known) return;
    double scores[2] = {};
    for (size_t i = 0; i < hinted.size(); ++i) {
      scores[i] = ScoreOf(hinted[i], *known, 0);
      Take(&result_.hinted, entry.name, scores[i]);
    }
    double late = 0;
    if (entry.periodic) {
      const size_t from = LearnedFrom(entry, trace);
      References::Key of_late = key;
      of_late.from = from;
      const auto known_late = references_.Find(of_late, fingerprint, &result_.missing);
      if (!known_late) return;
      late = ScoreOf(learned, *known_late, from);
      Take(&result_.learned, entry.name, late);
    }
    if (table_)
      std::printf("| %s | %s | %d%% | %.1f | %.3f | %.3f | %.3f |\n", key.machine.c_str(),
                  key.trace.c_str(), key.percent, core::Milliseconds(known->stall), scores[0],
                  scores[1], late);
  }

  Outcome Replay(const Trace& trace, const char* policy, const sim::Hardware& hardware,
                 const ScoreBudget& budget) {
    Outcome outcome = sim::Simulate(trace, *sim::SetupFor(policy, hardware, budget.bytes));
    if (std::string_view(policy) == "value") failures_.Take(outcome, where_);
    return outcome;
  }

  // 0: the replay failed, which is counted elsewhere.
  static double ScoreOf(const Outcome& outcome, const References::Known& known, size_t from) {
    if (!outcome.failure.empty()) return 0;
    const Duration stall = from == 0 ? outcome.stall : sim::StallFrom(outcome, from);
    return Seconds(known.compute + stall) / Seconds(known.compute + known.stall);
  }
  static void Take(Score* score, const std::string& trace, double value) {
    if (value > 0) score->Take(trace, value);
  }

  const TraceSet& set_;
  const References& references_;
  LruRatios& against_lru_;
  Failures& failures_;
  const bool table_;
  std::string where_;
  SetScore result_;
};

void ReportScores(const TraceSet& set, const SetScore& score, const std::string& skipped,
                  const Report& report) {
  const Targets& targets = set.judges_only ? kValidationTargets : kTuningTargets;
  const std::string name = "planner." + set.name;
  ReportScore(name + "_hinted_score", score.hinted, set, skipped, targets.hinted,
              targets.hinted_tail, report);
  ReportScore(name + "_learned_score", score.learned, set, skipped, targets.learned,
              targets.learned_tail, report);
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

void Failures::Take(const Outcome& outcome, const std::string& whose) {
  if (outcome.failure.empty()) {
    if (outcome.refusals > 0) ++refused;
    return;
  }
  ++failed;
  if (outcome.endless) ++endless;
  // Once for all variants of a case.
  if (where.find(whose) == std::string::npos) where += (where.empty() ? "" : "; ") + whose;
}

void LruRatios::Take(const Outcome& demand, const Outcome& hinted, const Outcome& learned,
                     const std::string& whose) {
  if (!demand.failure.empty() || !hinted.failure.empty() || !learned.failure.empty()) return;
  const double with_hints = Seconds(demand.time) / Seconds(hinted.time);
  const double without = Seconds(demand.time) / Seconds(learned.time);
  for (const auto& [ratio, how] : {std::pair(with_hints, ", hinted"), {without, ", learned"}}) {
    if (cases_ > 0 && ratio >= worst_) continue;
    worst_ = ratio;
    where_ = whose + how;
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

void LruRatios::ReportAll(const std::string& of, const Report& report) const {
  if (cases_ == 0) return;
  ReportWorst("planner.vs_lru_worst", 1.0, report);
  const auto mean = [&](const char* name, double logarithms, double target) {
    report({.name = name,
            .unit = "x",
            .value = MeanOf(logarithms),
            .target = target,
            .at_least = true,
            .detail = std::to_string(cases_) + " cases of " + of});
  };
  mean("planner.vs_lru_geomean", hinted_, 1.35);
  mean("planner.vs_lru_geomean_learned", learned_, 1.30);
}

SetScore ScoreSet(const TraceSet& set, const References& references, LruRatios* against_lru,
                  Failures* failures, bool table) {
  return Scorer(set, references, against_lru, failures, table).Run();
}

void ReportSetScore(const TraceSet& set, const SetScore& score, const Report& report) {
  const std::string skipped =
      score.missing.empty() ? "" : score.missing + ": planner_bench --write-references finds them";
  ReportScores(set, score, skipped, report);
}

void SkipValidation(const Report& report) {
  TraceSet set;
  set.name = kValidationName;
  set.judges_only = true;
  PagedScore none;
  none.missing = "run once for each tagged state, with --validation";
  ReportScores(set, {}, none.missing, report);
  ReportPagedScore(set, none, report);
}

void FindReferences(const std::vector<const TraceSet*>& sets, References* references) {
  for (const TraceSet* set : sets) AddReferences(*set, references);
}

}  // namespace ravenstore::bench
