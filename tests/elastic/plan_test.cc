#include "elastic/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::MiB;
using core::ToInt;

bool None(RangeId) {
  return false;
}

// A job whose calls take 10 ms each: long enough to move anything.
class Job {
 public:
  explicit Job(Bytes device) : plan_({.device = device, .most_calls = 1 << 12}) {}

  void Allocate(uint32_t range, Bytes size, Bytes away = {}) {
    plan_.Allocated(RangeId{range}, size);
    plan_.SetAway(RangeId{range}, away);
  }
  void Free(uint32_t range) { plan_.Freed(RangeId{range}); }
  void Use(uint64_t identity, const std::vector<uint32_t>& ranges) {
    std::vector<RangeId> ids;
    for (const uint32_t range : ranges) ids.push_back(RangeId{range});
    now_ += std::chrono::milliseconds(10);
    plan_.Used(identity, ids, now_);
  }
  // Each range by a call of its own.
  void UseEach(uint32_t from, uint32_t to) {
    for (uint32_t range = from; range < to; ++range) Use(range, {range});
  }
  void Away(uint32_t range, Bytes away) { plan_.SetAway(RangeId{range}, away); }
  Plan& plan() { return plan_; }

 private:
  Plan plan_;
  core::Tick now_{};
};

constexpr uint32_t kRanges = 10;

// `kRanges` of 100 MiB each, used one after the other, of which the device holds seven.
Job Cycle(int rounds) {
  Job job(MiB(700));
  for (uint32_t range = 0; range < kRanges; ++range)
    job.Allocate(range, MiB(100), range < 7 ? Bytes{} : MiB(100));
  for (int round = 0; round < rounds; ++round) job.UseEach(0, kRanges);
  return job;
}

TEST(PlanTest, ForeseesTheNextUseOfEachRangeFromTheSecondRoundOn) {
  Job job = Cycle(2);
  EXPECT_TRUE(job.plan().IsLearned());
  for (uint32_t range = 0; range < kRanges; ++range)
    EXPECT_EQ(job.plan().NextUse(RangeId{range}), job.plan().position() + range);
}

TEST(PlanTest, KnowsNothingInTheFirstRound) {
  Job job = Cycle(1);
  EXPECT_FALSE(job.plan().IsLearned());
  EXPECT_EQ(job.plan().NextUse(RangeId{0}), std::nullopt);
}

TEST(PlanTest, WhatIsNeededLastLeavesForWhatIsNeededSoonest) {
  Job job = Cycle(2);
  job.UseEach(0, 3);
  // 3 to 6 are there and needed before 7; 0 to 2 are needed again after 9.
  EXPECT_EQ(job.plan().NextIn(None), std::nullopt);
  EXPECT_EQ(job.plan().NextOut([](RangeId range) { return range == RangeId{2}; }), RangeId{1});
  ASSERT_EQ(job.plan().NextOut(None), RangeId{2});
  job.Away(2, MiB(100));
  const auto wanted = job.plan().NextIn(None);
  ASSERT_TRUE(wanted);
  EXPECT_EQ(wanted->range, RangeId{7});
  EXPECT_EQ(wanted->at, job.plan().position() + 4);
  EXPECT_TRUE(wanted->needs_copy);
}

TEST(PlanTest, TakesNothingOutThatIsNeededSooner) {
  Job job = Cycle(2);
  // All that is there is needed before 7.
  EXPECT_EQ(job.plan().NextOut(None), std::nullopt);
  EXPECT_EQ(job.plan().NextIn(None), std::nullopt);
}

// Before that what leaves might not be what is needed last.
TEST(PlanTest, WhatLeavesDoesSoOnlyShortlyBeforeItsRoomIsNeeded) {
  Job job(MiB(32) * 7);
  for (uint32_t range = 0; range < kRanges; ++range)
    job.Allocate(range, MiB(32), range < 7 ? Bytes{} : MiB(32));
  for (int round = 0; round < 2; ++round) job.UseEach(0, kRanges);
  // A move takes 0.77 ms, and a call 10.
  for (uint32_t range = 0; range < 6; ++range) {
    EXPECT_EQ(job.plan().NextOut(None), std::nullopt) << range;
    job.UseEach(range, range + 1);
  }
  EXPECT_EQ(job.plan().NextOut(None), RangeId{5});
}

TEST(PlanTest, WhatFitsStays) {
  Job job = Cycle(2);
  job.plan().SetDevice(MiB(1000));
  job.UseEach(0, 3);
  EXPECT_EQ(job.plan().NextOut(None), std::nullopt);
  job.plan().SetDevice(MiB(700));
  EXPECT_EQ(job.plan().NextOut(None), RangeId{2});
}

TEST(PlanTest, SkipsWhatCannotBeBrought) {
  Job job = Cycle(2);
  job.plan().SetDevice(MiB(1000));
  const auto wanted = job.plan().NextIn([](RangeId range) { return range == RangeId{7}; });
  ASSERT_TRUE(wanted);
  EXPECT_EQ(wanted->range, RangeId{8});
}

TEST(PlanTest, WhatIsDeadMakesRoom) {
  Job job = Cycle(2);
  job.UseEach(0, 3);
  job.Away(2, MiB(100));
  const auto wanted = job.plan().NextIn(None);
  EXPECT_EQ(job.plan().Victim(wanted, None), std::nullopt);
  job.Allocate(20, MiB(100));
  job.Free(20);
  EXPECT_EQ(job.plan().Victim(wanted, None), RangeId{20});
}

// A call of 300 us for each; a move takes 770.
TEST(PlanTest, WhatCannotBeInTimeComesForALaterUse) {
  Plan plan({.device = MiB(32) * kRanges, .most_calls = 1 << 12});
  for (uint32_t range = 0; range < kRanges; ++range) {
    plan.Allocated(RangeId{range}, MiB(32));
    plan.SetAway(RangeId{range}, range < 7 ? Bytes{} : MiB(32));
  }
  core::Tick now{};
  const auto use = [&](uint32_t range) {
    now += std::chrono::microseconds(300);
    plan.Used(range, std::vector{RangeId{range}}, now);
  };
  for (int round = 0; round < 2; ++round) {
    for (uint32_t range = 0; range < kRanges; ++range) use(range);
  }
  for (uint32_t range = 0; range < 6; ++range) use(range);
  // 7 comes in 600 us, and 8 in 900.
  const auto wanted = plan.NextIn(None);
  ASSERT_TRUE(wanted);
  EXPECT_EQ(wanted->range, RangeId{8});
}

// Four weights that come one after the other, of which the device holds two; all are named at once.
class Burst {
 public:
  Burst() : plan_({.device = MiB(32) * 4, .most_calls = 1 << 12}) {
    for (uint32_t range = 0; range < kCalls; ++range) {
      plan_.Allocated(RangeId{range}, MiB(32));
      plan_.SetAway(RangeId{range}, range < 2 ? Bytes{} : MiB(32));
    }
  }
  void Step() {
    for (uint32_t range = 0; range < kCalls; ++range)
      plan_.Used(range, std::vector{RangeId{range}}, {});
  }
  // Of the step before, by stretches of two calls.
  void Took(core::Duration each) {
    const int64_t begin = plan_.position() - kCalls;
    for (int64_t call = begin; call < plan_.position(); call += 2)
      plan_.Took(call, call + 2, each * 2);
  }
  Plan& plan() { return plan_; }
  static constexpr uint32_t kCalls = 4;

 private:
  Plan plan_;
};

TEST(PlanTest, WhatTheGpuTookCountsAndNotWhenCallsAreNamed) {
  for (const bool is_told : {false, true}) {
    Burst burst;
    for (int step = 0; step < 4; ++step) {
      burst.Step();
      if (is_told) burst.Took(std::chrono::milliseconds(10));
    }
    const auto wanted = burst.plan().NextIn([](RangeId range) { return range != RangeId{3}; });
    // As if each use came at once.
    EXPECT_EQ(wanted.has_value(), is_told);
    if (!is_told) continue;
    EXPECT_EQ(wanted->at, burst.plan().position() + 3);
    EXPECT_EQ(burst.plan().TimeSince(burst.plan().position() - 3), std::chrono::milliseconds(20));
  }
}

TEST(PlanTest, TheLeastThatAStretchTookCounts) {
  Burst burst;
  for (const int milliseconds : {1000, 10, 500, 500}) {
    burst.Step();
    burst.Took(std::chrono::milliseconds(milliseconds));
  }
  burst.Step();
  burst.Step();
  EXPECT_EQ(burst.plan().TimeSince(burst.plan().position() - 3), std::chrono::milliseconds(20));
}

TEST(PlanTest, WhatTheGpuHasBeforeItGivesTimeToMove) {
  Burst burst;
  for (int step = 0; step < 4; ++step) {
    burst.Step();
    burst.Took(std::chrono::microseconds(500));
  }
  // A move takes 771 us; 2 is used in 1.5 ms, 1 in 1 and 0 in 0.5.
  burst.plan().SetAway(RangeId{0}, MiB(32));
  burst.plan().SetPassed(burst.plan().position());
  const auto soon = [](RangeId range) { return range != RangeId{0}; };
  const auto late = burst.plan().NextIn(soon);
  EXPECT_TRUE(!late || late->at > burst.plan().position());
  burst.plan().SetPassed(burst.plan().position() - 3);
  const auto wanted = burst.plan().NextIn(soon);
  ASSERT_TRUE(wanted);
  EXPECT_EQ(wanted->at, burst.plan().position());
}

TEST(PlanTest, StretchesEndWhereTheyDid) {
  Burst burst;
  std::vector<bool> ends;
  for (int step = 0; step < 8; ++step) {
    for (uint32_t range = 0; range < Burst::kCalls; ++range) {
      burst.plan().Used(range, std::vector{RangeId{range}}, {});
      ends.push_back(burst.plan().EndsStretch());
    }
  }
  // The last call of the second step, and of all others.
  for (size_t call = 0; call < ends.size(); ++call)
    EXPECT_EQ(ends[call], call > 4 && call % 4 == 3) << call;
}

// The job is steps ahead of the GPU.
TEST(PlanTest, WhatIsToldLateIsOfTheCallsThatCome) {
  Burst burst;
  for (int step = 0; step < 10; ++step) burst.Step();
  for (int64_t call = 2; call < 10; call += 2)
    burst.plan().Took(call, call + 2, std::chrono::milliseconds(20));
  burst.Step();
  EXPECT_EQ(burst.plan().TimeSince(burst.plan().position() - 3), std::chrono::milliseconds(20));
}

TEST(PlanTest, IsShortWhereMoreWillLiveThanTheDeviceHolds) {
  Job job = Cycle(1);
  EXPECT_FALSE(job.plan().IsShort()) << "nothing is known yet";
  job.UseEach(0, kRanges);
  EXPECT_TRUE(job.plan().IsShort());
  job.plan().SetDevice(MiB(1000));
  EXPECT_FALSE(job.plan().IsShort());
}

// Weights that are used at the begin and at the end of each step, and a peak between.
class Peaks {
 public:
  static constexpr uint32_t kWeights = 4;
  static constexpr uint32_t kPeak = 6;  // pages, of which two too many
  Peaks() : job_(MiB(32) * (kWeights + kPeak - 2)) {
    for (uint32_t range = 0; range < kWeights; ++range) job_.Allocate(range, MiB(32));
    for (int step = 0; step < 2; ++step) {
      Begin();
      Rise();
      Fall();
    }
    Begin();
  }
  void Begin() { job_.UseEach(0, kWeights); }
  void Rise() {
    for (uint32_t i = 0; i < kPeak; ++i) job_.Allocate(kWeights + i, MiB(32));
    for (uint32_t i = 0; i < kPeak; ++i) job_.Use(100 + i, {kWeights + i});
  }
  void Fall() {
    for (uint32_t i = 0; i < kPeak; ++i) job_.Free(kWeights + i);
    for (uint32_t i = 0; i < kWeights; ++i) job_.Use(200 + i, {i});
  }
  Job& job() { return job_; }
  Plan& plan() { return job_.plan(); }

 private:
  Job job_;
};

TEST(PlanTest, BeforeAPeakAsMuchLeavesAsIsTooMuchAndNoMore) {
  Peaks peaks;
  ASSERT_EQ(peaks.plan().NextOut(None), RangeId{3});
  peaks.job().Away(3, MiB(32));
  ASSERT_EQ(peaks.plan().NextOut(None), RangeId{2});
  peaks.job().Away(2, MiB(32));
  EXPECT_EQ(peaks.plan().NextOut(None), std::nullopt);
}

TEST(PlanTest, WhatLeftForAPeakComesBackOnlyBehindIt) {
  Peaks peaks;
  for (const uint32_t range : {2, 3}) peaks.job().Away(range, MiB(32));
  // There is room now, but not until its use.
  EXPECT_EQ(peaks.plan().NextIn(None), std::nullopt);
  peaks.Rise();
  EXPECT_EQ(peaks.plan().NextIn(None), std::nullopt);
  for (uint32_t i = 0; i < Peaks::kPeak; ++i) peaks.job().Free(Peaks::kWeights + i);
  ASSERT_TRUE(peaks.plan().NextIn(None));
  EXPECT_EQ(peaks.plan().NextIn(None)->range, RangeId{2});
}

// Each step allocates what it uses, and frees it.
class Steps {
 public:
  explicit Steps(Bytes device) : job_(device) { job_.Allocate(0, MiB(32)); }

  // Temporaries are `first`, first + 1, ...
  void Run(uint32_t first, uint32_t from = 0, uint32_t to = kTemporaries) {
    for (uint32_t i = from; i < to; ++i) {
      job_.Allocate(first + i, MiB(64), away_);
      job_.Use(100 + i, {0, first + i});
      job_.Use(200 + i, {first + i});
      if (i >= 2) job_.Free(first + i - 2);
    }
    if (to < kTemporaries) return;
    job_.Free(first + kTemporaries - 2);
    job_.Free(first + kTemporaries - 1);
  }
  static constexpr uint32_t kTemporaries = 20;
  Job& job() { return job_; }
  Plan& plan() { return job_.plan(); }

 private:
  Job job_;
  Bytes away_;
};

TEST(PlanTest, WhatIsAllocatedBeforeItsUseNeedsNoCopy) {
  Steps steps(MiB(4096));
  steps.Run(1);
  steps.Run(1);
  steps.Run(1, 0, 5);
  steps.job().Away(8, MiB(64));
  const auto wanted = steps.plan().NextIn(None);
  ASSERT_TRUE(wanted);
  EXPECT_EQ(wanted->range, RangeId{8});
  EXPECT_FALSE(wanted->needs_copy);
}

TEST(PlanTest, AnAllocationTakesWhatIsLiveOnlyIfThatCostsLessThanItsUses) {
  for (const int uses : {1, 2}) {
    Job job(MiB(640));
    for (uint32_t range = 0; range < 20; ++range) job.Allocate(range, MiB(32));
    for (int step = 0; step < 3; ++step) {
      job.UseEach(0, 20);
      job.Allocate(20, MiB(32), MiB(32));
      if (step == 2) break;
      for (int i = 0; i < uses; ++i) job.Use(100 + static_cast<uint64_t>(i), {20});
      job.UseEach(30, 30);
      // It lives for long.
      for (uint64_t i = 0; i < 20; ++i) job.Use(200 + i, {0});
      job.Free(20);
    }
    EXPECT_EQ(job.plan().Victim(std::nullopt, None).has_value(), uses > 1) << uses;
  }
}

TEST(PlanTest, WithoutASequenceWhatIsUsedOftenComesForWhatIsNot) {
  Job job(MiB(320));
  for (uint32_t range = 0; range < 11; ++range)
    job.Allocate(range, MiB(32), range == 10 ? MiB(32) : Bytes{});
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) job.Use(random(), {10, static_cast<uint32_t>(random() % 5)});
  EXPECT_FALSE(job.plan().IsLearned());
  const auto wanted = job.plan().NextIn(None);
  ASSERT_TRUE(wanted);
  EXPECT_EQ(wanted->range, RangeId{10});
  const auto victim = job.plan().Victim(wanted, None);
  ASSERT_TRUE(victim);
  EXPECT_GE(ToInt(*victim), 5u);
}

// All are used as often: to exchange one for another gains nothing, and is not done often.
TEST(PlanTest, AShuffledSequenceMovesLittle) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Job job(MiB(32) * 50);
    for (uint32_t range = 0; range < 100; ++range)
      job.Allocate(range, MiB(32), range < 50 ? Bytes{} : MiB(32));
    int moves = 0;
    constexpr int kCalls = 10'000;
    for (int i = 0; i < kCalls; ++i) {
      job.Use(random(), {static_cast<uint32_t>(random() % 100)});
      const auto wanted = job.plan().NextIn(None);
      if (!wanted) continue;
      const auto victim = job.plan().Victim(wanted, None);
      ASSERT_TRUE(victim);
      job.Away(ToInt(*victim), MiB(32));
      job.Away(ToInt(wanted->range), Bytes{});
      ++moves;
    }
    // On demand every second call would move.
    EXPECT_LT(moves, kCalls / 4);
  }
}

// ---- Against the truth: random sequences of random calls, over and over, through a ring that is
// much shorter than all of them.

struct Call {
  uint64_t identity;
  std::vector<uint32_t> ranges;
};

std::vector<Call> RandomStep(std::mt19937_64* random, uint32_t ranges) {
  std::vector<Call> step(20 + (*random)() % 100);
  for (Call& call : step) {
    call.identity = (*random)() % 10;
    std::set<uint32_t> named;
    for (uint64_t i = (*random)() % 4; i-- > 0;)
      named.insert(static_cast<uint32_t>((*random)() % ranges));
    call.ranges.assign(named.begin(), named.end());
  }
  return step;
}

TEST(PlanTest, NextUsesAndVictimsAreThoseOfAPeriodicSequence) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    constexpr uint32_t kMany = 30;
    Job job(MiB(32) * kMany);
    for (uint32_t range = 0; range < kMany; ++range) job.Allocate(range, MiB(32));
    const std::vector<Call> step = RandomStep(&random, kMany);
    const auto next = [&](size_t from, uint32_t range) -> std::optional<int64_t> {
      for (size_t i = 0; i < step.size(); ++i) {
        const auto& ranges = step[(from + i) % step.size()].ranges;
        if (std::find(ranges.begin(), ranges.end(), range) != ranges.end())
          return static_cast<int64_t>(i);
      }
      return std::nullopt;
    };
    for (int round = 0; round < 200; ++round) {
      for (size_t i = 0; i < step.size(); ++i) {
        job.Use(step[i].identity, step[i].ranges);
        if (round < 3 || random() % 50 != 0) continue;
        ASSERT_TRUE(job.plan().IsLearned());
        std::optional<int64_t> last = 0;
        for (uint32_t range = 0; range < kMany; ++range) {
          const auto truth = next(i + 1, range);
          const auto predicted = job.plan().NextUse(RangeId{range});
          ASSERT_EQ(predicted.has_value(), truth.has_value()) << range;
          if (truth) {
            ASSERT_EQ(*predicted - job.plan().position(), *truth) << range;
          }
          last = last && truth ? std::optional(std::max(*last, *truth)) : std::nullopt;
        }
        // For something at the next call: what is never used, else what is used last.
        job.Allocate(kMany, MiB(32), MiB(32));
        job.Free(kMany);
        const auto victim =
            job.plan().Victim(Plan::Wanted{RangeId{kMany}, job.plan().position(), true}, None);
        if (!last) {
          ASSERT_TRUE(victim);
          ASSERT_EQ(next(i + 1, ToInt(*victim)), std::nullopt);
        }
      }
    }
  }
}

// The bytes that a cache of whole ranges must bring for a sequence: Belady's rule, with the choice
// not to keep what is used now.
int BeladyMisses(const std::vector<uint32_t>& uses, size_t capacity, size_t from) {
  std::set<uint32_t> held;
  int misses = 0;
  for (size_t i = 0; i < uses.size(); ++i) {
    if (held.contains(uses[i])) continue;
    if (i >= from) ++misses;
    held.insert(uses[i]);
    if (held.size() <= capacity) continue;
    const auto distance = [&](uint32_t range) {
      return std::find(uses.begin() + static_cast<ptrdiff_t>(i) + 1, uses.end(), range) -
             uses.begin();
    };
    held.erase(*std::max_element(held.begin(), held.end(), [&](uint32_t a, uint32_t b) {
      return distance(a) < distance(b);
    }));
  }
  return misses;
}

// With moves that take no time all is there when it is used, and nothing that was brought leaves
// before; with little more moves than by Belady's rule.
TEST(PlanTest, BringsAllInTimeAndNothingInVain) {
  int all = 0;
  int all_least = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const uint32_t ranges = 6 + static_cast<uint32_t>(random() % 20);
    const size_t capacity = 3 + random() % (ranges - 4);
    std::vector<uint32_t> step;
    for (uint32_t range = 0; range < ranges; ++range)
      step.insert(step.end(), 1 + random() % 3, range);
    std::shuffle(step.begin(), step.end(), random);
    constexpr int kRounds = 12;
    constexpr int kFrom = 4;
    Job job(MiB(32) * capacity);
    for (uint32_t range = 0; range < ranges; ++range) job.Allocate(range, MiB(32), MiB(32));
    std::set<uint32_t> held;
    std::vector<uint32_t> uses;
    std::set<uint32_t> brought;  // and not used yet
    int moves = 0;
    int absent = 0;
    int in_vain = 0;
    for (int round = 0; round < kRounds; ++round) {
      for (const uint32_t range : step) {
        uses.push_back(range);
        if (round >= kFrom && !held.contains(range)) ++absent;
        job.Use(range, {range});
        brought.erase(range);
        for (;;) {
          while (const auto leaves = job.plan().NextOut(None)) {
            held.erase(ToInt(*leaves));
            in_vain += round >= kFrom && brought.contains(ToInt(*leaves)) ? 1 : 0;
            brought.erase(ToInt(*leaves));
            job.Away(ToInt(*leaves), MiB(32));
          }
          const auto wanted = job.plan().NextIn(None);
          if (!wanted) break;
          if (held.size() == capacity) {
            // As long as nothing is known.
            const auto victim = job.plan().Victim(wanted, None);
            ASSERT_TRUE(victim);
            ASSERT_LT(round, kFrom);
            held.erase(ToInt(*victim));
            brought.erase(ToInt(*victim));
            job.Away(ToInt(*victim), MiB(32));
          }
          held.insert(ToInt(wanted->range));
          ASSERT_LE(held.size(), capacity);
          brought.insert(ToInt(wanted->range));
          job.Away(ToInt(wanted->range), Bytes{});
          if (round >= kFrom) ++moves;
        }
      }
    }
    EXPECT_EQ(absent, 0);
    EXPECT_EQ(in_vain, 0);
    const int least = BeladyMisses(uses, capacity, kFrom * step.size());
    printf("seed %d: %d moves, Belady %d\n", static_cast<int>(seed), moves, least);
    all += moves;
    all_least += least;
  }
  EXPECT_LE(all, all_least * 1.2);
}

}  // namespace
}  // namespace ravenstore::elastic
