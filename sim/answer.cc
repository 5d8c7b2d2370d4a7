#include "sim/answer.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "core/printable.h"
#include "core/size_text.h"

namespace ravenstore::sim {

using core::Bytes;
using core::Seconds;

namespace {

// A job that stalls less than this is not simulated with more memory.
constexpr double kAsGood = 1.02;
constexpr uint64_t kLargerMax = 3;

std::string Decimals(double value, int decimals) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

// "260 ms instead of 210", in one unit.
std::string Instead(core::Duration with, core::Duration without) {
  const double most = Seconds(std::max(with, without));
  const bool long_ones = most >= 10;
  const double unit = long_ones ? 1 : 1e-3;
  const int decimals = most / unit < 10 ? 2 : most / unit < 100 ? 1 : 0;
  return Decimals(Seconds(with) / unit, decimals) + (long_ones ? " s" : " ms") + " instead of " +
         Decimals(Seconds(without) / unit, decimals);
}

// How much of the time it takes to move that at that rate.
std::string Busy(Bytes moved, double rate, core::Duration time) {
  if (time <= core::Duration{0}) return "0%";
  const double share = static_cast<double>(moved.count()) / rate / Seconds(time);
  return Decimals(100 * std::min(share, 1.0), 0) + "%";
}

}  // namespace

double Slowdown(const Outcome& outcome) {
  if (outcome.compute <= core::Duration{0}) return 1;
  // Of several clients each has its own time line; what they compute and stall adds up.
  return Seconds(outcome.compute + outcome.stall) / Seconds(outcome.compute);
}

bool CouldGainFromMore(const Outcome& outcome) {
  return !outcome.failure.empty() || Slowdown(outcome) > kAsGood;
}

std::vector<Bytes> LargerBudgets(Bytes budget, Bytes all) {
  std::vector<Bytes> larger;
  if (budget >= all) return larger;
  const uint64_t gap = (all - budget).count();
  const Bytes unit = gap / kLargerMax >= core::GiB(1).count() ? core::GiB(1) : kBudgetUnit;
  for (uint64_t i = 1; i < kLargerMax; ++i) {
    const Bytes next = (budget + Bytes(gap / kLargerMax * i)).RoundUp(unit);
    if (next < all && (larger.empty() || next > larger.back())) larger.push_back(next);
  }
  larger.push_back(all);
  return larger;
}

std::string Answer(const RunReport& report, const Hardware& hardware,
                   const std::vector<OtherBudget>& larger) {
  const Outcome& outcome = report.outcome;
  std::string text = core::Printable(report.trace) + " with " + core::SizeText(report.budget) +
                     " (" + std::to_string(report.percent) + "%), " + report.policy + ": ";
  if (!outcome.failure.empty()) {
    text += "does not run";
  } else {
    text += Decimals(Slowdown(outcome), 2) + " times as long (" +
            Instead(outcome.compute + outcome.stall, outcome.compute) +
            (outcome.client_stall.size() > 1 ? ", all clients together" : "") +
            "); the link is busy " + Busy(outcome.up, hardware.up, outcome.time) +
            " to the device and " + Busy(outcome.down, hardware.down, outcome.time) + " from it";
  }
  const char* joint = "; ";
  for (const OtherBudget& other : larger) {
    if (!other.outcome.failure.empty()) continue;
    text += joint + Decimals(Slowdown(other.outcome), 2) + " with " + core::SizeText(other.budget);
    joint = ", ";
  }
  return text + "\n";
}

}  // namespace ravenstore::sim
