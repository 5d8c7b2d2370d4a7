#include "daemon/admission.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "core/size_text.h"

namespace ravenstore::daemon {
namespace {

// Of one resource; 1 where nothing is known of it.
double SlowdownBy(std::optional<double> measured, size_t unmeasured, std::optional<double> added) {
  if (!measured) return 1;
  return std::max(1.0, *measured + static_cast<double>(unmeasured) + added.value_or(1));
}

std::string Factor(double factor) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", factor);
  return text;
}

std::string WordsOfReturn(const Judgement& judgement) {
  std::string words = core::SizeText(judgement.to_return) +
                      " of it is the store's until the job allocates, and is given back then";
  if (judgement.return_s <= 0) return words;
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), ", in some %.1f s", judgement.return_s);
  return words + text.data();
}

std::string HarmWords(const Judgement& judgement, double slowdown_most) {
  if (slowdown_most > 0 && !judgement.is_measured)
    return "by memory alone: how busy the device is cannot be measured";
  if (judgement.slowdown > 1)
    return "all jobs there may take " + Factor(judgement.slowdown) + " times as long";
  return "";
}

}  // namespace

Judgement Judge(const DeviceRoom& room, const JobNeed& need, double slowdown_most) {
  Judgement judgement;
  const ResourceUse& measured = room.measured;
  judgement.is_measured = slowdown_most > 0 && (measured.compute || measured.link);
  if (judgement.is_measured) {
    judgement.slowdown = std::max(SlowdownBy(measured.compute, room.unmeasured, need.use.compute),
                                  SlowdownBy(measured.link, 0, need.use.link.value_or(0)));
  }
  if (need.limit != core::Bytes{0} && room.own + need.bytes > need.limit) {
    judgement.verdict = Verdict::kUserIsAtLimit;
  } else if (room.committed + need.bytes > room.total) {
    judgement.verdict = Verdict::kNoMemory;
  } else if (judgement.slowdown > std::max(slowdown_most, 1.0)) {
    judgement.verdict = Verdict::kTooSlow;
  }
  if (judgement.verdict == Verdict::kMayStart) {
    judgement.to_return = Minus(room.committed + need.bytes, Minus(room.total, room.held));
    if (room.return_bytes_per_s > 0) {
      judgement.return_s =
          static_cast<double>(judgement.to_return.count()) / room.return_bytes_per_s;
    }
  }
  return judgement;
}

std::string WordsOf(const Judgement& judgement, double slowdown_most) {
  switch (judgement.verdict) {
    case Verdict::kUserIsAtLimit: return "for another job of its user to end (visible_memory)";
    case Verdict::kNotItsTurn: return "for those before it";
    case Verdict::kNoMemory: return "for memory";
    case Verdict::kTooSlow:
      return "for the jobs there to compute less: all would take " + Factor(judgement.slowdown) +
             " times as long, and at most " + Factor(slowdown_most) + " is allowed";
    case Verdict::kMayStart: break;
  }
  const std::string harm = HarmWords(judgement, slowdown_most);
  if (judgement.to_return == core::Bytes{0}) return harm;
  return (harm.empty() ? "" : harm + "; ") + WordsOfReturn(judgement);
}

}  // namespace ravenstore::daemon
