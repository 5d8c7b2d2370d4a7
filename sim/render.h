// Outcomes as text, as JSON and as a page to look at.
#pragma once

#include <string>
#include <vector>

#include "sim/score.h"
#include "sim/simulator.h"
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
};

// A line for each, under one heading.
std::string Table(const std::vector<RunReport>& reports);
// A JSON object on a line of its own.
std::string Json(const RunReport& report);
std::string JsonOfBound(const Trace& trace, core::Bytes budget, const LowerBound& bound);
// A whole HTML document that needs nothing else: the figures, and every client's computing and
// stalls above both directions of the link, over time. REQUIRES: simulated with Setup::timeline.
std::string Page(const RunReport& report, const Trace& trace);

}  // namespace ravenstore::sim
