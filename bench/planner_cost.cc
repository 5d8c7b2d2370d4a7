#include <chrono>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "bench/planner_figures.h"
#include "core/check.h"
#include "core/planner.h"
#include "sim/generators.h"
#include "sim/score.h"
#include "sim/simulator.h"

namespace ravenstore::bench {

namespace {

using core::Bytes;
using core::ClientId;
using core::SlotId;
using core::TensorId;
using std::chrono::steady_clock;

constexpr core::TenantId kTenant{1};
constexpr Bytes kSize = core::KiB(16);

// 16 clients whose tensors' four fifths fit. Whatever the planner proposes is done at once.
class Crowd {
 public:
  static constexpr uint32_t kClients = 16;

  explicit Crowd(uint32_t each) : each_(each), planner_(MakeOptions(each)) {
    const Bytes all = kSize * kClients * each;
    Apply(core::TenantLimits{kTenant, {all, all * 2}});
    for (uint32_t id = 1; id <= kClients; ++id)
      Apply(core::ClientAttached{ClientId{id}, kTenant, {kSize * (each / 5 * 4), all * 2}});
    for (uint32_t slot = 0; slot < each; ++slot) {
      for (uint32_t id = 1; id <= kClients; ++id) {
        Apply(core::CreateRequested{ClientId{id}, SlotId{slot}, kSize, core::DeviceId{0},
                                    core::kNoName, core::kNever, false});
        RAVEN_CHECK(granted_ != core::kNoTensor);
        tensors_.push_back(std::exchange(granted_, core::kNoTensor));
        Put(tensors_.back());
      }
    }
  }

  // Some tensors are used far more than others. Returns every event's microseconds.
  std::vector<double> Use(size_t uses) {
    times_.clear();
    measuring_ = true;
    std::mt19937_64 random(1);
    for (size_t i = 0; i < uses; ++i) {
      const double at = static_cast<double>(random() >> 11) * 0x1p-53;
      const TensorId tensor = tensors_[static_cast<size_t>(at * at * double(tensors_.size()))];
      const core::Residency where = planner_.View(tensor).residency;
      if (where == core::Residency::kOnDevice) {
        Apply(core::GetSeen{tensor});
      } else {
        Apply(core::FetchRequested{tensor, core::DeviceId{0}, core::kNever});
        RAVEN_CHECK(std::exchange(promised_, core::kNoTensor) == tensor);
      }
      Put(tensor);
    }
    measuring_ = false;
    return std::move(times_);
  }
  size_t size() const { return tensors_.size(); }

 private:
  static core::PlannerOptions MakeOptions(uint32_t each) {
    core::PlannerOptions options;
    const Bytes all = kSize * kClients * each;
    options.device_capacity = {all};
    options.arena = {all};
    options.host_capacity = (all * 2).RoundUp(options.host_step);
    return options;
  }
  void Put(TensorId tensor) {
    Apply(core::PutSeen{tensor, ++writes_, {}});
    Apply(core::StreamComplete{tensor});
  }
  void Apply(const core::Event& event) {
    pending_events_.push_back(event);
    while (!pending_events_.empty()) {
      const core::Event next = std::move(pending_events_.front());
      pending_events_.pop_front();
      plan_.clear();
      now_ += std::chrono::microseconds(2);
      const auto begin = steady_clock::now();
      planner_.Apply(next, now_, &plan_);
      const auto end = steady_clock::now();
      if (measuring_)
        times_.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
      const core::Plan plan = std::move(plan_);
      plan_ = {};
      for (const core::Action& action : plan) {
        std::visit([this](const auto& one) { Do(one); }, action);
      }
    }
  }
  void Do(const core::AddSlab& a) {
    pending_events_.push_back(core::SlabAdded{a.client, a.device, a.offset, a.size});
  }
  void Do(const core::RemoveSlab& a) {
    pending_events_.push_back(core::SlabRemoved{a.client, a.device, a.offset});
  }
  void Do(const core::GrowPool& a) {
    pending_events_.push_back(core::PoolGrown{a.pool, a.offset, a.size});
  }
  void Do(const core::ShrinkPool& a) {
    pending_events_.push_back(core::PoolShrunk{a.pool, a.offset, a.size});
  }
  void Do(const core::ReclaimPinned&) {}  // there are no pinned blocks here
  void Do(const core::AllocReply& a) { granted_ = a.tensor; }
  void Do(const core::AllocError&) { RAVEN_CHECK(!"room for all"); }
  void Do(const core::FetchReply& a) { promised_ = a.tensor; }
  void Do(const core::FetchError&) { RAVEN_CHECK(!"room for all"); }
  void Do(const core::Release&) {}
  void Do(const core::Drop& a) { pending_events_.push_back(core::Dropped{a.tensor, true}); }
  void Do(const core::Move& a) {
    pending_events_.push_back(core::Moved{a.tensor, core::Moved::Outcome::kDone});
  }
  void Do(const core::Prioritize&) {}
  void Do(const core::DeferDestroy&) {}

  const uint32_t each_;
  core::Planner planner_;
  core::Plan plan_;
  std::deque<core::Event> pending_events_;
  std::vector<TensorId> tensors_;
  std::vector<double> times_;
  core::Tick now_{std::chrono::seconds(1)};
  uint32_t writes_ = 0;
  bool measuring_ = false;
  TensorId granted_ = core::kNoTensor;
  TensorId promised_ = core::kNoTensor;
};

}  // namespace

void MeasurePlannerCost(double scale, const Report& report) {
  {
    Crowd crowd(static_cast<uint32_t>(62500 * std::min(1.0, scale)));
    std::vector<double> times = crowd.Use(static_cast<size_t>(2e5 * scale));
    const std::string detail = std::to_string(crowd.size()) + " tensors";
    report({.name = "planner.event_us_median",
            .unit = "us",
            .value = Median(times),
            .target = 2.0,
            .detail = detail});
    report({.name = "planner.event_us_p99",
            .unit = "us",
            .value = Quantile(times, 0.99),
            .target = 20.0,
            .detail = detail});
  }
  const sim::Hardware& hardware = sim::kHardware[0];
  const sim::Trace trace = sim::Generate("zipf", hardware, static_cast<int>(64 * scale) + 1);
  const core::Bytes budget(trace.Footprint().count() / 2);
  const auto begin = steady_clock::now();
  const sim::Outcome outcome = sim::Simulate(trace, *sim::SetupFor("value", hardware, budget));
  const double seconds = core::Seconds(steady_clock::now() - begin);
  RAVEN_CHECK(outcome.failure.empty());
  report({.name = "planner.sim_events_per_s",
          .unit = "1/s",
          .value = static_cast<double>(outcome.events) / seconds,
          .target = 1e5,
          .at_least = true,
          .detail = std::to_string(outcome.events) + " events of the zipf trace"});
}

}  // namespace ravenstore::bench
