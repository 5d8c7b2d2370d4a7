#include "sim/cluster_load.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numbers>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/lend_limit.h"
#include "core/check.h"
#include "sim/cluster_member.h"
#include "transport/event_queue.h"

namespace ravenstore::sim {
namespace {

using core::Bytes;
using core::Duration;
using core::Seconds;
using core::Tick;

constexpr cluster::Sizes kReal = {};
constexpr cluster::Sizes kScaled = {.piece = Bytes(kReal.piece.count() / kClusterScale),
                                    .granule = Bytes(kReal.granule.count() / kClusterScale)};
// As the daemon has them.
constexpr Duration kLookEvery = std::chrono::seconds(1);
constexpr Duration kRise = std::chrono::seconds(10);
constexpr Duration kLease = std::chrono::seconds(10);
constexpr Duration kRecall = std::chrono::seconds(10);
// Nodes get lists of nodes at most this often: a thousand start together here.
constexpr Duration kFindEvery = std::chrono::milliseconds(250);
constexpr Duration kCountEvery = std::chrono::seconds(1);
constexpr Duration kMeasureEvery = std::chrono::seconds(30);

// Memory that an owner's job takes, more and more until it has all.
struct OwnerJob {
  Tick begin;
  Tick end;
  Bytes size;
};

struct Machine {
  Machine(ClusterMember::Fixed fixed, ClusterPlace* place, std::function<void()> dirtied,
          cluster::LendLimit limit)
      : node(std::move(fixed), place, std::move(dirtied)), limit(std::move(limit)) {}

  ClusterMember node;
  cluster::LendLimit limit;
  Bytes lendable;
  std::vector<OwnerJob> owners = {};
  std::unique_ptr<ClusterJobs> jobs = {};
  Tick due = core::kNever;
};

class Load {
 public:
  explicit Load(const ClusterLoad& load);
  ClusterUse Run();

 private:
  Tick Now() const { return place_.Now(); }
  double Chance() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  Duration Exponential(Duration mean) {
    return core::FromSeconds(-Seconds(mean) * std::log(1 - Chance()));
  }
  Bytes Size(Bytes least, Bytes most);
  void After(Duration time, std::function<void()> what) {
    later_.Add(Now() + time, std::move(what));
  }

  void Start(size_t index);
  ClusterMember::Options Options();
  void BeginOwner(Machine* machine);
  void BeginJob(Machine* machine);
  // Begins one such job after another: `mean` of them run at a time by an ordinary hour.
  void Arrive(double mean, Duration runs, const std::function<void()>& begin);
  double ByDay() const;
  void Look(Machine* machine);

  void Advance(size_t index);
  void RunUntil(Tick until);
  void Count();
  void Measure();

  const ClusterLoad load_;
  std::mt19937_64 random_;
  ClusterPlace place_;
  ClusterUse use_;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::vector<size_t> dirty_;
  std::set<std::pair<Tick, size_t>> due_;
  transport::EventQueue later_;
  uint64_t looks_ = 0;
  uint64_t measured_ = 0;  // tensors
};

Load::Load(const ClusterLoad& load) : load_(load), random_(load.seed), place_(load.seed) {
  for (uint32_t i = 0; i < load.nodes; ++i) {
    ClusterMember::Fixed fixed{.name = "n" + std::to_string(i)};
    fixed.machine = {.high = 1, .low = i};
    for (size_t byte = 0; byte < sizeof(i); ++byte) {
      fixed.key[byte] = static_cast<std::byte>(i >> (8 * byte));
    }
    auto limit = cluster::LendLimit::Make(
        {.reserve = Bytes(load.memory.count() / 8), .rise_time = kRise, .step = kReal.piece},
        load.lend, load.memory);
    place_.network.SetPort(fixed.name, load.port / static_cast<double>(kClusterScale));
    machines_.push_back(std::make_unique<Machine>(
        fixed, &place_, [this, i] { dirty_.push_back(i); }, *limit));
  }
  for (size_t i = 0; i < machines_.size(); ++i) {
    After(core::FromSeconds(Chance()), [this, i] { Start(i); });
  }
}

// ---- Nodes

ClusterMember::Options Load::Options() {
  ClusterMember::Options options;
  options.incarnation = {.high = random_(), .low = random_()};
  options.find_every = kFindEvery;
  options.violation = [this](uint64_t ClusterCounts::*which, const std::string& words) {
    if (use_.violations.first.empty()) use_.violations.first = words;
    ++(use_.violations.*which);
  };
  options.node.sizes = kScaled;
  options.node.random = [this] { return random_(); };
  options.node.home.pieces_max = static_cast<uint32_t>(load_.remote.count() / kReal.piece.count());
  options.node.home.repair_step = Bytes(options.node.home.repair_step.count() / kClusterScale);
  options.node.lender.lease = kLease;
  options.node.lender.recall_least = kRecall;
  // A second for each GiB; lenders see that much less.
  options.node.lender.recall_each_gib *= kClusterScale;
  options.membership.seed = random_();
  return options;
}

void Load::Start(size_t index) {
  Machine& machine = *machines_[index];
  machine.node.Start(Options());
  ClusterJobs::Options options{.memory = {.sizes = kScaled,
                                          .scale = kClusterScale,
                                          .device = load_.device,
                                          .host = load_.host,
                                          .remote = load_.remote,
                                          .now = [this] { return Now(); }}};
  machine.jobs =
      std::make_unique<ClusterJobs>(std::move(options), &machine.node.node().home(), &random_);
  machine.node.SetUser(machine.jobs.get());
  Look(&machine);
  Arrive(load_.owners, load_.owner_runs, [this, &machine] { BeginOwner(&machine); });
  Arrive(load_.jobs, load_.job_runs, [this, &machine] { BeginJob(&machine); });
}

// ---- Jobs

Bytes Load::Size(Bytes least, Bytes most) {
  const auto from = static_cast<double>(least.count());
  const double times = static_cast<double>(most.count()) / from;
  const Bytes size(static_cast<uint64_t>(from * std::pow(times, Chance())));
  return std::min(size.RoundUp(kReal.granule), most);
}

double Load::ByDay() const {
  const double days = Seconds(Now().time_since_epoch()) / Seconds(load_.day);
  return 1 + load_.daily * std::sin(2 * std::numbers::pi * days);
}

void Load::BeginOwner(Machine* machine) {
  machine->owners.push_back({.begin = Now(),
                             .end = Now() + Exponential(load_.owner_runs),
                             .size = Size(load_.owner_least, load_.owner_most)});
}

void Load::BeginJob(Machine* machine) {
  Bytes left = Size(load_.job_least, load_.job_most);
  std::vector<Bytes> tensors;
  while (left > Bytes{}) {
    tensors.push_back(std::min(left, Size(load_.tensor_least, load_.tensor_most)));
    left -= tensors.back();
  }
  machine->jobs->Begin(tensors, Now() + Exponential(load_.job_runs));
  machine->node.SetDirty();
}

void Load::Arrive(double mean, Duration runs, const std::function<void()>& begin) {
  const Duration gap = core::FromSeconds(Seconds(runs) / (mean * (1 + load_.daily)));
  // Those that run already.
  for (Duration at = Exponential(gap); at < runs; at += Exponential(gap)) {
    if (Chance() * (1 + load_.daily) < ByDay()) begin();
  }
  const auto next = std::make_shared<std::function<void()>>();
  *next = [this, gap, begin, again = std::weak_ptr(next)] {
    if (Chance() * (1 + load_.daily) < ByDay()) begin();
    After(Exponential(gap), [next = again.lock()] { (*next)(); });
  };
  After(Exponential(gap), [next] { (*next)(); });
}

// ---- What a machine may lend

void Load::Look(Machine* machine) {
  const Tick now = Now();
  std::erase_if(machine->owners, [now](const OwnerJob& job) { return job.end <= now; });
  const Bytes lent = machine->node.node().lent() * kClusterScale;
  Bytes used = load_.host + lent;
  for (const OwnerJob& job : machine->owners) {
    const Bytes filled(static_cast<uint64_t>(Seconds(now - job.begin) * load_.fills));
    used += std::min(job.size, filled);
  }
  const Bytes lendable = machine->limit.Look(now, core::Minus(load_.memory, used), lent);
  After(kLookEvery, [this, machine] { Look(machine); });
  if (std::exchange(machine->lendable, lendable) == lendable) return;
  const Bytes scaled(lendable.count() / kClusterScale);
  machine->node.ledger().SetLimit(scaled.count() / kScaled.piece.count());
  machine->node.node().SetLendable(scaled);
  machine->node.SetDirty();
}

// ---- Time

void Load::Advance(size_t index) {
  Machine& machine = *machines_[index];
  ++use_.events;
  if (machine.jobs != nullptr) machine.jobs->Advance();
  machine.node.Advance();
  due_.erase({machine.due, index});
  machine.due = machine.node.next();
  if (machine.jobs != nullptr) machine.due = std::min(machine.due, machine.jobs->Next());
  due_.insert({machine.due, index});
}

void Load::RunUntil(Tick until) {
  while (true) {
    for (const size_t index : std::exchange(dirty_, {})) {
      if (machines_[index]->node.dirty()) Advance(index);
    }
    if (!dirty_.empty()) continue;
    Tick next = std::min(until, later_.Next());
    if (!due_.empty()) next = std::min(next, due_.begin()->first);
    place_.RunNext(std::max(next, Now()));
    while (const auto what = later_.Take(Now())) what();
    while (!due_.empty() && due_.begin()->first <= Now()) {
      const size_t index = due_.extract(due_.begin()).value().second;
      machines_[index]->node.SetDirty();
    }
    if (dirty_.empty() && Now() >= until) return;
  }
}

void Load::Count() {
  Bytes wanted;
  Bytes useful;
  Bytes lendable;
  for (const auto& machine : machines_) {
    wanted += machine->jobs->wanted();
    useful += machine->jobs->useful();
    lendable += machine->lendable;
  }
  ++looks_;
  use_.wanted += static_cast<double>(wanted.count());
  use_.useful += static_cast<double>(useful.count());
  use_.lendable += static_cast<double>(lendable.count());
  use_.possible += static_cast<double>(std::min(wanted, lendable).count());
}

void Load::Measure() {
  for (const auto& machine : machines_) {
    const cluster::Home::Footprint footprint = machine->node.node().footprint();
    measured_ += machine->jobs->RemoteTensors();
    use_.record_bytes += static_cast<double>(footprint.records.count());
    use_.checksum_bytes += static_cast<double>(footprint.checksums.count());
    use_.tensor_bytes += static_cast<double>(machine->jobs->useful().count());
  }
}

ClusterUse Load::Run() {
  struct Sums {
    uint64_t messages = 0;
    uint64_t recalled = 0;
    uint64_t missed = 0;
  };
  const auto sum = [this] {
    Sums sums{.messages = 2 * place_.store.requests() + place_.network.bare_frames()};
    for (const auto& machine : machines_) {
      const ClusterMember::Counts& counts = machine->node.counts();
      sums.messages += counts.control;
      sums.recalled += counts.recalled;
      sums.missed += counts.taken;
    }
    return sums;
  };
  RunUntil(Tick(load_.warm_up));
  const Sums before = sum();
  Tick measure = Now();
  while (Now() < Tick(load_.time)) {
    RunUntil(Now() + kCountEvery);
    Count();
    if (Now() < measure) continue;
    measure = Now() + kMeasureEvery;
    Measure();
  }
  const Sums after = sum();
  const double node_seconds = load_.nodes * Seconds(load_.time - load_.warm_up);
  use_.messages = static_cast<double>(after.messages - before.messages) / node_seconds;
  use_.recalled = after.recalled - before.recalled;
  use_.missed = after.missed - before.missed;
  for (double* const bytes : {&use_.wanted, &use_.useful, &use_.lendable, &use_.possible}) {
    *bytes /= static_cast<double>(std::max<uint64_t>(looks_, 1));
  }
  for (double* const bytes : {&use_.record_bytes, &use_.checksum_bytes, &use_.tensor_bytes}) {
    *bytes /= static_cast<double>(std::max<uint64_t>(measured_, 1));
  }
  for (const auto& machine : machines_) {
    use_.jobs += machine->jobs->counts();
    use_.moved += machine->node.counts().moved;
  }
  use_.violations.wrong_bytes += use_.jobs.wrong;
  return std::move(use_);
}

}  // namespace

ClusterUse SimulateLoad(const ClusterLoad& load) {
  return Load(load).Run();
}

}  // namespace ravenstore::sim
