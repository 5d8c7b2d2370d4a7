#include "sim/lower_bound.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "sim/outcome.h"

namespace ravenstore::sim {

using core::Bytes;

namespace {

// Windows of that many steps begin at each step. Those that are longer begin the more rarely the
// longer they are: of what one could cover they miss no more than a 64th, and all of them
// together take O(n log n).
constexpr size_t kEverywhere = 1500;
constexpr size_t kOfWindowMissed = 64;

// The longest window that begins at step i.
size_t LongestFrom(size_t i) {
  if (i == 0) return std::numeric_limits<size_t>::max();
  return std::max(kEverywhere, kOfWindowMissed << std::countr_zero(i));
}

// What happens between one compute and the next.
struct Step {
  double compute = 0;           // seconds
  std::vector<uint32_t> reads;  // made in an earlier step
  std::vector<uint32_t> creates;
  std::vector<uint32_t> last_used;  // or made, and in no later step
  std::vector<uint32_t> used;       // on the device while it computes, sorted

  bool Uses(uint32_t tensor) const { return std::binary_search(used.begin(), used.end(), tensor); }
};

std::vector<Step> StepsOf(const Trace& trace, uint32_t client, size_t from) {
  std::vector<Step> steps(1);
  size_t iteration = 0;
  std::set<uint32_t> in_use;
  std::map<uint32_t, size_t> made;
  std::map<uint32_t, size_t> last_use;
  // What can be recomputed need not be copied.
  std::set<uint32_t> recomputable;
  for (const Op& op : trace.ops) {
    if (op.kind == OpKind::kPut && op.recompute > core::Duration{0}) recomputable.insert(op.tensor);
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
        if (recomputable.contains(op.tensor)) break;
        last_use[op.tensor] = steps.size() - 1;
        if (const auto at = made.find(op.tensor); at == made.end() || at->second < steps.size() - 1)
          step.reads.push_back(op.tensor);
        break;
      case OpKind::kCreate:
        if (recomputable.contains(op.tensor)) break;
        step.creates.push_back(op.tensor);
        made[op.tensor] = last_use[op.tensor] = steps.size() - 1;
        break;
      case OpKind::kCompute:
        step.compute += core::Seconds(op.time);
        step.used.assign(in_use.begin(), in_use.end());
        for (const uint32_t tensor : in_use) last_use[tensor] = steps.size() - 1;
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
    double compute = 0;
    sums_ = {};
    const double& read = sums_[kRead];
    const double& made = sums_[kMade];
    const double& put = sums_[kPut];
    // The step before has its own tensors on the device until its end: those of them that the
    // window does not read leave no room for what it does.
    double idle_before = i > 0 ? SizeOf(steps_[i - 1].used) : 0;
    const auto in = [&] {
      const double held = i == 0 && cold_ ? 0 : budget_ - idle_before;
      return (read - held) / hardware_.up - compute;
    };
    const auto out = [&](double bytes) { return (bytes - budget_) / hardware_.down - compute; };
    const size_t end = i + std::min(steps_.size() - i, LongestFrom(i));
    for (size_t j = i; j < end; ++j) {
      if (in() + ahead_[j].in <= 0 && out(made + put + most_used_) + ahead_[j].out <= 0) return;
      // In the window a tensor is read from before it, or made in it: each counts once.
      for (const uint32_t tensor : steps_[j].reads) {
        if (Add(tensor, kRead) && i > 0 && steps_[i - 1].Uses(tensor))
          idle_before -= SizeOf(tensor);
      }
      for (const uint32_t tensor : steps_[j].creates)
        Add(tensor, j > i || steps_[i].Uses(tensor) ? kMade : kPut);
      Forget(steps_[j], false);
      // Stalls before steps i..j; best[] counts those before the steps below its index.
      best[j + 1] = std::max(best[j + 1], best[i] + in());
      double older = 0;
      double put_but_used = 0;
      for (const uint32_t tensor : steps_[j].used) {
        if (!Is(tensor, kMade)) (Is(tensor, kPut) ? put_but_used : older) += SizeOf(tensor);
      }
      // What was made in i..j and lives as j begins.
      best[j + 1] = std::max(best[j + 1], best[i] + out(made + put + older));
      // Stalls before i+1..j: what step i put before it computed may have left before.
      if (j > i)
        best[j + 1] = std::max(best[j + 1], best[i + 1] + out(made + put_but_used + older));
      Forget(steps_[j], true);
      compute += steps_[j].compute;
    }
  }
  // What a tensor is to the window: read from before it; made in it; made, and put before its first
  // step computes.
  enum Part : uint64_t { kRead, kMade, kPut, kParts };
  bool Is(uint32_t tensor, Part part) const { return seen_[tensor] == epoch_ * kParts + part; }
  // False: the window has met it before.
  bool Add(uint32_t tensor, Part part) {
    if (seen_[tensor] / kParts == epoch_) return false;
    seen_[tensor] = epoch_ * kParts + part;
    sums_[part] += SizeOf(tensor);
    return true;
  }
  // What the window made and the step is the last to use.
  void Forget(const Step& step, bool used) {
    for (const uint32_t tensor : step.last_used) {
      for (const Part part : {kMade, kPut}) {
        if (Is(tensor, part) && step.Uses(tensor) == used) sums_[part] -= SizeOf(tensor);
      }
    }
  }

  const Trace& trace_;
  const std::vector<Step>& steps_;
  const Hardware& hardware_;
  const double budget_;
  const bool cold_;
  // By tensor: which window met it last, and as what.
  std::vector<uint64_t> seen_;
  uint64_t epoch_ = 0;
  std::array<double, kParts> sums_ = {};  // bytes
  // The most that a window can gain, in seconds, by what is read and made in it from a step on, if
  // every read and create counts: most windows of a long trace need not be looked at.
  struct Gain {
    double in = 0;
    double out = 0;
  };
  std::vector<Gain> ahead_;
  double most_used_ = 0;  // by a step
};

// The device or a pool.
struct Place {
  Bytes capacity;
  double back;  // bytes per second on the way to the device
};
// Between two places, by their numbers; bytes per second.
struct Joint {
  size_t a;
  size_t b;
  double a_to_b;
  double b_to_a;
};
struct Map {
  std::vector<Place> places;
  std::vector<Joint> joints;
};

Map MapOf(const Trace& trace, const ReplaySetup& setup) {
  constexpr size_t kDevice = 0;
  constexpr size_t kHost = 1;
  const Hardware& hardware = setup.hardware;
  const Bytes all = trace.Footprint();
  Map map;
  map.places.push_back({setup.budget, std::numeric_limits<double>::infinity()});
  map.places.push_back({std::min(setup.host.value_or(all), all), hardware.up});
  map.joints.push_back({kDevice, kHost, hardware.down, hardware.up});
  for (const ExtraPool& pool : setup.pools) {
    const size_t number = map.places.size();
    const bool peer = pool.kind == core::PoolKind::kPeer;
    map.places.push_back(
        {std::min(pool.capacity, all), peer ? pool.in : std::min(pool.in, hardware.up)});
    map.joints.push_back({peer ? kDevice : kHost, number, pool.out, pool.in});
    if (peer) map.joints.push_back({kHost, number, hardware.up, hardware.down});
  }
  return map;
}

// The device, then what comes back to it the sooner the nearer.
std::vector<size_t> NearestFirst(const Map& map) {
  std::vector<size_t> nearest(map.places.size());
  std::iota(nearest.begin(), nearest.end(), size_t{0});
  std::stable_sort(nearest.begin(), nearest.end(),
                   [&map](size_t a, size_t b) { return map.places[a].back > map.places[b].back; });
  return nearest;
}

}  // namespace

LowerBound LeastStall(const Trace& trace, const Hardware& hardware, core::Bytes budget,
                      size_t from) {
  LowerBound bound;
  for (uint32_t client = 0; client < trace.clients; ++client) {
    const std::vector<Step> steps = StepsOf(trace, client, from);
    double compute = 0;
    for (const Step& step : steps) compute += step.compute;
    Windows windows(trace, steps, hardware, static_cast<double>(budget.count()), from == 0);
    // Where the link takes longer than a replay may, less is still a bound.
    bound.stall += core::FromSeconds(std::min(windows.Best(), core::Seconds(kReplayMax)));
    bound.compute += core::FromSeconds(compute);
  }
  return bound;
}

LowerBound LeastStall(const Trace& trace, const ReplaySetup& setup) {
  const Map map = MapOf(trace, setup);
  LowerBound greatest;
  Bytes held;
  std::set<size_t> near;
  for (const size_t place : NearestFirst(map)) {
    near.insert(place);
    held += map.places[place].capacity;
    Hardware edge = setup.hardware;
    edge.up = edge.down = 0;
    for (const Joint& joint : map.joints) {
      const bool a = near.contains(joint.a);
      if (a == near.contains(joint.b)) continue;
      edge.up += a ? joint.b_to_a : joint.a_to_b;
      edge.down += a ? joint.a_to_b : joint.b_to_a;
    }
    if (edge.up == 0) break;  // nothing follows
    const LowerBound bound = LeastStall(trace, edge, held);
    greatest = {std::max(greatest.stall, bound.stall), bound.compute};
  }
  return greatest;
}

}  // namespace ravenstore::sim
