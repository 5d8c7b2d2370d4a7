// Outcomes as text, as JSON and as a page to look at.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/outcome.h"
#include "sim/score.h"
#include "sim/trace.h"

namespace ravenstore::sim {

// One replay, and what it was of.
struct RunReport {
  std::string trace;
  std::string hardware;
  std::string policy;
  core::Bytes budget;
  int percent = 0;  // of the footprint
  Outcome outcome;
  LowerBound bound;
  std::vector<StepTimes> recorded = {};  // of a trace of one client
};

// A bound, of which budget it is, and the least stall that anybody is known to reach (sim/score.h):
// the optimum is between the two.
struct BoundReport {
  Budget budget;
  LowerBound bound;
  std::optional<core::Duration> known;
  // The most that the trace's time can be over the bound's, played as well as can be.
  std::optional<double> Loose() const;
};

// A job that can be named, and its footprint.
struct JobReport {
  std::string name;
  std::string what;
  core::Bytes footprint;
};
std::string TableOfJobs(const std::vector<JobReport>& jobs);
// All of kHardware, with a line that says which figures are nominal.
std::string TableOfHardware();

// A line for each, under one heading, and below why those failed that did. Long names are cut.
std::string Table(const std::vector<RunReport>& reports);
std::string TableOfBounds(const Trace& trace, const std::vector<BoundReport>& reports);
// A JSON object on a line of its own.
std::string Json(const RunReport& report);
std::string JsonOfBound(const Trace& trace, const BoundReport& report);
// A whole HTML document that needs nothing else: the figures; and over time every client's
// computing, stalls and iterations, both directions of the link, and the device's memory. REQUIRES:
// simulated with ReplaySetup::timeline.
std::string Page(const RunReport& report, const Trace& trace);

}  // namespace ravenstore::sim
