#include "sim/lower_bound.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace ravenstore::sim {

namespace {

constexpr size_t kLongestWindow = 1500;

// What happens between one compute and the next.
struct Step {
  double compute = 0;  // seconds
  std::vector<uint32_t> reads;
  std::vector<uint32_t> creates;
  std::vector<uint32_t> last_used;  // not read in any later step
  std::vector<uint32_t> used;       // on the device while it computes, sorted

  bool Uses(uint32_t tensor) const { return std::binary_search(used.begin(), used.end(), tensor); }
};

std::vector<Step> StepsOf(const Trace& trace, uint32_t client, size_t from) {
  std::vector<Step> steps(1);
  size_t iteration = 0;
  std::set<uint32_t> in_use;
  std::map<uint32_t, size_t> last_use;
  // What can be made anew need not be copied.
  std::set<uint32_t> anew;
  for (const Op& op : trace.ops) {
    if (op.kind == OpKind::kPut && op.recompute > core::Duration{0}) anew.insert(op.tensor);
  }
  for (const Op& op : trace.ops) {
    if (op.client != client) continue;
    if (op.kind == OpKind::kStep) ++iteration;
    if (op.kind == OpKind::kGet || op.kind == OpKind::kCreate) in_use.insert(op.tensor);
    if (op.kind == OpKind::kPut || op.kind == OpKind::kFree) in_use.erase(op.tensor);
    if (iteration < from) continue;
    Step& step = steps.back();
    switch (op.kind) {
      case OpKind::kGet:
        if (anew.contains(op.tensor)) break;
        step.reads.push_back(op.tensor);
        last_use[op.tensor] = steps.size() - 1;
        break;
      case OpKind::kCreate:
        if (anew.contains(op.tensor)) break;
        step.creates.push_back(op.tensor);
        last_use[op.tensor] = steps.size() - 1;
        break;
      case OpKind::kCompute:
        step.compute += core::Seconds(op.time);
        step.used.assign(in_use.begin(), in_use.end());
        steps.emplace_back();
        break;
      default: break;
    }
  }
  for (const auto& [tensor, step] : last_use) steps[step].last_used.push_back(tensor);
  return steps;
}

class Windows {
 public:
  Windows(const Trace& trace, const std::vector<Step>& steps, const Hardware& hardware,
          double budget, bool cold)
      : trace_(trace),
        steps_(steps),
        hardware_(hardware),
        budget_(budget),
        cold_(cold),
        seen_(trace.tensors.size(), 0),
        ahead_(steps.size() + 1) {
    for (size_t j = steps.size(); j-- > 0;) {
      const auto more = [&](double later) { return std::max(0.0, later - steps[j].compute); };
      ahead_[j].in = SizeOf(steps[j].reads) / hardware.up + more(ahead_[j + 1].in);
      ahead_[j].out = SizeOf(steps[j].creates) / hardware.down + more(ahead_[j + 1].out);
      most_used_ = std::max(most_used_, SizeOf(steps[j].used));
    }
  }

  double Best() {
    const size_t n = steps_.size();
    // best[j]: stalls before steps 0..j-1, from disjoint windows.
    std::vector<double> best(n + 1, 0);
    for (size_t i = 0; i < n; ++i) {
      best[i + 1] = std::max(best[i + 1], best[i]);
      Extend(i, best);
    }
    for (size_t j = 1; j <= n; ++j) best[j] = std::max(best[j], best[j - 1]);
    return best[n];
  }

 private:
  double SizeOf(uint32_t tensor) const {
    return static_cast<double>(trace_.tensors[tensor].bytes.count());
  }
  double SizeOf(const std::vector<uint32_t>& tensors) const {
    double sum = 0;
    for (const uint32_t tensor : tensors) sum += SizeOf(tensor);
    return sum;
  }

  // All windows that begin at i.
  void Extend(size_t i, std::vector<double>& best) {
    ++epoch_;
    double read = 0;
    double made = 0;
    double compute = 0;
    // The step before has its own tensors on the device until its end: those of them that the
    // window does not read leave no room for what it does.
    double idle_before = i > 0 ? SizeOf(steps_[i - 1].used) : 0;
    const auto in = [&] {
      const double held = i == 0 && cold_ ? 0 : budget_ - idle_before;
      return (read - held) / hardware_.up - compute;
    };
    for (size_t j = i; j < std::min(steps_.size(), i + kLongestWindow); ++j) {
      if (in() + ahead_[j].in <= 0 &&
          (made + most_used_ - budget_) / hardware_.down - compute + ahead_[j].out <= 0)
        return;
      // In the window a tensor is read from before it, or made in it: each counts once.
      for (const uint32_t tensor : steps_[j].reads) {
        if (!Mark(tensor, kRead)) continue;
        read += SizeOf(tensor);
        if (i > 0 && steps_[i - 1].Uses(tensor)) idle_before -= SizeOf(tensor);
      }
      for (const uint32_t tensor : steps_[j].creates) {
        if (Mark(tensor, kMade)) made += SizeOf(tensor);
      }
      // Stalls before steps i..j; best[] counts those before the steps below its index.
      best[j + 1] = std::max(best[j + 1], best[i] + in());
      // Stalls before i+1..j: what was made in i..j and lives as j begins.
      if (j > i) {
        double older = 0;
        for (const uint32_t tensor : steps_[j].used) {
          if (seen_[tensor] != epoch_ * 2 + kMade) older += SizeOf(tensor);
        }
        const double out = (made + older - budget_) / hardware_.down - compute;
        best[j + 1] = std::max(best[j + 1], best[i + 1] + out);
      }
      for (const uint32_t tensor : steps_[j].last_used) {
        if (seen_[tensor] == epoch_ * 2 + kMade) made -= SizeOf(tensor);
      }
      compute += steps_[j].compute;
    }
  }
  enum Use : uint64_t { kRead = 0, kMade = 1 };
  bool Mark(uint32_t tensor, Use use) {
    if (seen_[tensor] / 2 == epoch_) return false;
    seen_[tensor] = epoch_ * 2 + use;
    return true;
  }

  const Trace& trace_;
  const std::vector<Step>& steps_;
  const Hardware& hardware_;
  const double budget_;
  const bool cold_;
  std::vector<uint64_t> seen_;
  uint64_t epoch_ = 0;
  // The most that a window can gain, in seconds, by what is read and made in it from a step on, if
  // every read and create counts: most windows of a long trace need not be looked at.
  struct Gain {
    double in = 0;
    double out = 0;
  };
  std::vector<Gain> ahead_;
  double most_used_ = 0;  // by a step
};

}  // namespace

LowerBound LeastStall(const Trace& trace, const Hardware& hardware, core::Bytes budget,
                      size_t from) {
  LowerBound bound;
  for (uint32_t client = 0; client < trace.clients; ++client) {
    const std::vector<Step> steps = StepsOf(trace, client, from);
    double compute = 0;
    for (const Step& step : steps) compute += step.compute;
    Windows windows(trace, steps, hardware, static_cast<double>(budget.count()), from == 0);
    bound.stall += core::FromSeconds(windows.Best());
    bound.compute += core::FromSeconds(compute);
  }
  return bound;
}

}  // namespace ravenstore::sim
