// The planner's price: bytes per tensor, and time per event as tensors become many.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "core/planner.h"

namespace {

// What is allocated now, by everything in this process.
std::atomic<size_t> g_allocated{0};

constexpr size_t kHeader = 16;

}  // namespace

// The size stands before each allocation, so that it can be taken off again.
void* operator new(size_t size) {
  auto* block = static_cast<char*>(std::malloc(size + kHeader));
  if (block == nullptr) throw std::bad_alloc();
  *reinterpret_cast<size_t*>(block) = size;
  g_allocated.fetch_add(size, std::memory_order_relaxed);
  return block + kHeader;
}
void operator delete(void* pointer) noexcept {
  if (pointer == nullptr) return;
  char* block = static_cast<char*>(pointer) - kHeader;
  g_allocated.fetch_sub(*reinterpret_cast<size_t*>(block), std::memory_order_relaxed);
  std::free(block);
}
void operator delete(void* pointer, size_t) noexcept {
  operator delete(pointer);
}

namespace ravenstore::core {
namespace {

constexpr TenantId kTenant{1};
constexpr DeviceId kDevice{0};
constexpr Bytes kSize = KiB(16);

// Clients whose tensors fit, on a device and a host as large as they need.
class Crowd {
 public:
  Crowd(uint32_t clients, uint32_t tensors_each)
      : tensors_each_(tensors_each), planner_(MakeOptions(clients, tensors_each)) {
    plan_.reserve(64);
    const Budgets all{kSize * clients * tensors_each * 4, kSize * clients * tensors_each * 4};
    Tell(TenantLimits{kTenant, all});
    for (uint32_t id = 1; id <= clients; ++id) {
      Tell(ClientAttached{ClientId{id}, kTenant, {kSize * tensors_each, all.host}});
    }
    for (uint32_t slot = 0; slot < tensors_each; ++slot) {
      for (uint32_t id = 1; id <= clients; ++id) Create(id, slot);
    }
  }

  // Every tensor is used once and put again: three events each. Returns the seconds per event.
  double UseAll(int64_t hint) {
    const auto begin = std::chrono::steady_clock::now();
    for (const TensorId tensor : tensors_) {
      Tell(GetSeen{tensor});
      Tell(PutSeen{tensor, ++writes_, {NextUse::Kind::kOrder, {}, hint++}});
      Tell(Quiet{tensor});
    }
    const auto took = std::chrono::steady_clock::now() - begin;
    return std::chrono::duration<double>(took).count() / static_cast<double>(3 * tensors_.size());
  }
  // One tensor of every client makes room for a new one and is freed afterwards.
  double EvictSome() {
    size_t events = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (uint32_t id = 1; id <= clients(); ++id) {
      for (int i = 0; i < 10; ++i, events += 4) {
        Create(id, tensors_each_);
        Tell(Freed{planner_.Find(ClientId{id}, SlotId{tensors_each_})});
      }
    }
    const auto took = std::chrono::steady_clock::now() - begin;
    return std::chrono::duration<double>(took).count() / static_cast<double>(events);
  }
  const Planner& planner() const { return planner_; }
  uint32_t clients() const { return static_cast<uint32_t>(tensors_.size() / tensors_each_); }

 private:
  static PlannerOptions MakeOptions(uint32_t clients, uint32_t tensors_each) {
    PlannerOptions options;
    options.slab = MiB(2);
    options.device_capacity = {kSize * clients * tensors_each * 2};
    options.arena = {kSize * tensors_each * 2};
    options.host_capacity = kSize * clients * tensors_each * 2;
    options.host_step = MiB(64);
    options.host_ahead = MiB(1);
    return options;
  }

  void Create(uint32_t client, uint32_t slot) {
    Tell(CreateRequested{ClientId{client}, SlotId{slot}, kSize, kDevice, kNoName,
                         now_ + std::chrono::seconds(1), false});
  }

  // The executor: everything succeeds at once.
  void Tell(const Event& event) {
    now_ += std::chrono::microseconds(1);
    planner_.Apply(event, now_, &plan_);
    for (size_t i = 0; i < plan_.size(); ++i) {
      const Action action = plan_[i];
      if (const auto* add = std::get_if<AddSlab>(&action)) {
        planner_.Apply(SlabAdded{add->client, add->device, add->offset, add->size}, now_, &plan_);
      } else if (const auto* grow = std::get_if<GrowHost>(&action)) {
        planner_.Apply(HostGrown{grow->offset, grow->size}, now_, &plan_);
      } else if (const auto* grant = std::get_if<Grant>(&action)) {
        if (ToInt(grant->slot) < tensors_each_) tensors_.push_back(grant->tensor);
      } else if (const auto* drop = std::get_if<Drop>(&action)) {
        planner_.Apply(Dropped{drop->tensor, true}, now_, &plan_);
      } else if (const auto* out = std::get_if<CopyOut>(&action)) {
        planner_.Apply(CopiedOut{out->tensor, CopiedOut::Outcome::kCommitted, writes_}, now_,
                       &plan_);
      } else if (const auto* clean = std::get_if<Clean>(&action)) {
        planner_.Apply(Cleaned{clean->tensor, true, writes_}, now_, &plan_);
      } else if (const auto* in = std::get_if<CopyIn>(&action)) {
        planner_.Apply(CopiedIn{in->tensor, true}, now_, &plan_);
      }
    }
    plan_.clear();
  }

  const uint32_t tensors_each_;
  Planner planner_;
  Plan plan_;
  Tick now_{std::chrono::seconds(1)};
  uint32_t writes_ = 0;
  std::vector<TensorId> tensors_;
};

TEST(PlannerScaleTest, ATensorCostsFewBytes) {
  constexpr uint32_t kClients = 1000;
  constexpr uint32_t kEach = 1000;
  const size_t before = g_allocated.load();
  Crowd crowd(kClients, kEach);
  crowd.UseAll(0);
  // Not the planner's: the test's own list of ids.
  const size_t own = kClients * kEach * sizeof(TensorId) * 2;
  const size_t used = g_allocated.load() - before;
  const double each = static_cast<double>(used - std::min(used, own)) / (kClients * kEach);
  std::printf("%.0f bytes per tensor, %zu MB for %u tensors of %u clients\n", each, used >> 20,
              kClients * kEach, kClients);
  EXPECT_LE(each, 180);
  crowd.planner().CheckInvariants();
}

TEST(PlannerScaleTest, AnEventCostsAboutTheSameAmongAMillionTensors) {
  // The best of some rounds: the machine may be doing something else.
  const auto best = [](auto measure) {
    double least = measure();
    for (int i = 0; i < 2; ++i) least = std::min(least, measure());
    return least;
  };
  Crowd few(1, 1000);
  Crowd many(1000, 1000);
  // As much work as the crowd's, so that caches are warm in both, as they would be.
  const double use_few = best([&] { return few.UseAll(0); });
  const double use_many = best([&] { return many.UseAll(0); });
  const double evict_few = best([&] { return few.EvictSome(); });
  const double evict_many = best([&] { return many.EvictSome(); });
  std::printf("use: %.0f ns among 10^3, %.0f ns among 10^6\n", use_few * 1e9, use_many * 1e9);
  std::printf("evict: %.0f ns among 10^3, %.0f ns among 10^6\n", evict_few * 1e9, evict_many * 1e9);
  // O(log n) doubles from 10^3 to 10^6; what it takes beyond is cache misses.
  EXPECT_LE(use_many, use_few * 8);
  EXPECT_LE(evict_many, evict_few * 8);
}

TEST(PlannerScaleTest, WhatComesAndGoesForeverLeavesNothingBehind) {
  Crowd crowd(4, 200);
  for (int i = 0; i < 50; ++i) crowd.EvictSome();
  const size_t before = g_allocated.load();
  for (int i = 0; i < 2000; ++i) crowd.EvictSome();
  const size_t after = g_allocated.load();
  std::printf("%zu bytes more after 80000 tensors that came and went\n",
              after > before ? after - before : 0);
  EXPECT_LE(after, before + 16384);
}

}  // namespace
}  // namespace ravenstore::core
