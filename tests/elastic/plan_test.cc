#include "elastic/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::MiB;
using core::ToInt;

constexpr Bytes kPage = MiB(32);

bool None(RangeId) {
  return false;
}

// A job whose calls take 10 ms each: long enough to move anything. Moves take no time.
class Job {
 public:
  explicit Job(uint32_t device) : plan_({.device = kPage * device, .most_calls = 1 << 12}) {}

  void Allocate(uint32_t page, bool resident = true, Bytes size = kPage) {
    plan_.Allocated(RangeId{page}, size);
    plan_.SetResident(RangeId{page}, resident);
  }
  void Free(uint32_t page) { plan_.Freed(RangeId{page}); }
  void Use(uint64_t identity, const std::vector<uint32_t>& pages) {
    std::vector<RangeId> ids;
    for (const uint32_t page : pages) ids.push_back(RangeId{page});
    now_ += std::chrono::milliseconds(10);
    plan_.Used(identity, ids, now_);
    MakePlan();
  }
  // Each page by a call of its own.
  void UseEach(uint32_t from, uint32_t to) {
    for (uint32_t page = from; page < to; ++page) Use(page, {page});
  }
  void MakePlan() {
    if (!plan_.NeedsPlan()) return;
    KernelForecast made = plan_.Copy();
    made.Make();
    plan_.Set(&made);
  }
  // A plan from here on, also if another was expected before.
  void Replan(uint32_t device) {
    plan_.SetDevice(kPage * (device + 1));
    plan_.SetDevice(kPage * device);
    MakePlan();
  }
  void Move(RangeId page, bool in) {
    plan_.BeginMove(page);
    plan_.SetResident(page, in);
  }
  // All that leaves by the plan has left.
  std::set<uint32_t> MoveOut() {
    std::set<uint32_t> left;
    while (const auto page = plan_.NextOut(None)) {
      Move(*page, false);
      left.insert(ToInt(*page));
    }
    return left;
  }
  std::set<uint32_t> MoveIn() {
    std::set<uint32_t> came;
    while (const auto wanted = plan_.NextIn(None)) {
      if (wanted->dead) plan_.SetResident(*wanted->dead, false);
      Move(wanted->page, true);
      came.insert(ToInt(wanted->page));
    }
    return came;
  }
  Plan& plan() { return plan_; }

 private:
  Plan plan_;
  core::Tick now_{};
};

using Pages = std::set<uint32_t>;

constexpr uint32_t kPages = 10;

// Ten pages, used one after the other, of which the device holds seven.
class Cycle : public Job {
 public:
  explicit Cycle(int rounds) : Job(7) {
    for (uint32_t page = 0; page < kPages; ++page) Allocate(page, page < 7);
    for (int round = 0; round < rounds; ++round) UseEach(0, kPages);
    Replan(7);
  }
};

TEST(PlanTest, IsLearnedFromTheSecondRoundOn) {
  EXPECT_FALSE(Cycle(1).plan().IsLearned());
  EXPECT_TRUE(Cycle(2).plan().IsLearned());
}

TEST(PlanTest, ThePagesNeededLastLeaveForThoseNeededFirst) {
  Cycle job(2);
  EXPECT_EQ(job.plan().NextOut(None), std::nullopt) << "all are needed before 7";
  job.UseEach(0, 7);
  EXPECT_EQ(job.plan().NextIn(None), std::nullopt);
  const Pages left = job.MoveOut();
  EXPECT_FALSE(left.empty());
  // 0 is needed first after 9.
  EXPECT_FALSE(left.contains(0));
  const auto wanted = job.plan().NextIn(None);
  ASSERT_TRUE(wanted);
  EXPECT_EQ(wanted->page, RangeId{7});
  EXPECT_TRUE(wanted->needs_copy);
  EXPECT_EQ(wanted->dead, std::nullopt);
}

TEST(PlanTest, PagesThatAreSkippedStay) {
  Cycle job(2);
  job.UseEach(0, 7);
  const auto first = job.plan().NextOut(None);
  ASSERT_TRUE(first);
  const auto second = job.plan().NextOut([&](RangeId page) { return page == *first; });
  EXPECT_NE(second, first);
  EXPECT_EQ(job.plan().NextOut([](RangeId) { return true; }), std::nullopt);
  // Once it may move again, it is the first again.
  EXPECT_EQ(job.plan().NextOut(None), first);
  job.Replan(kPages);
  const auto wanted = job.plan().NextIn([](RangeId page) { return page == RangeId{7}; });
  ASSERT_TRUE(wanted);
  EXPECT_EQ(wanted->page, RangeId{8});
}

TEST(PlanTest, PagesThatFitStay) {
  Cycle job(2);
  job.plan().SetDevice(kPage * kPages);
  EXPECT_EQ(job.MoveIn(), (Pages{7, 8, 9}));
  job.UseEach(0, 3);
  EXPECT_EQ(job.plan().NextOut(None), std::nullopt);
  job.plan().SetDevice(kPage * 7);
  job.UseEach(3, 4);
  EXPECT_NE(job.plan().NextOut(None), std::nullopt);
}

TEST(PlanTest, APageComesIntoTheMemoryOfADeadOne) {
  Cycle job(2);
  job.plan().SetDevice(kPage * 8);
  job.Allocate(20);
  job.Free(20);
  const auto wanted = job.plan().NextIn(None);
  ASSERT_TRUE(wanted);
  EXPECT_EQ(wanted->page, RangeId{7});
  EXPECT_EQ(wanted->dead, RangeId{20});
  EXPECT_EQ(job.plan().Dead(None), RangeId{20});
  EXPECT_EQ(job.plan().Victim(None), RangeId{20});
  EXPECT_EQ(job.plan().Surplus(None), RangeId{20});
}

TEST(PlanTest, WhereLessMayBeHeldAnIdlePageLeaves) {
  Cycle job(2);
  EXPECT_EQ(job.plan().Dead(None), std::nullopt);
  const auto surplus = job.plan().Surplus([](RangeId page) { return page == RangeId{6}; });
  ASSERT_TRUE(surplus);
  EXPECT_NE(*surplus, RangeId{6});
  EXPECT_LT(ToInt(*surplus), 7u);
}

TEST(PlanTest, SmallPagesThatFitStay) {
  Job job(2);
  for (uint32_t page = 0; page < 16; ++page) job.Allocate(page, true, MiB(4));
  for (int round = 0; round < 3; ++round) job.UseEach(0, 16);
  EXPECT_TRUE(job.plan().IsLearned());
  EXPECT_FALSE(job.plan().IsShort());
  EXPECT_EQ(job.plan().NextOut(None), std::nullopt);
  // One more does not.
  job.Allocate(16, false, MiB(4));
  for (int round = 0; round < 3; ++round) job.UseEach(0, 17);
  EXPECT_TRUE(job.plan().IsShort());
}

// Records before the next call, and none of the calls of a step.
TEST(PlanTest, APlanIsMadeOfWhatHappensBetweenCallsAlone) {
  Job job(2);
  for (uint64_t call = 0; call < 20; ++call) {
    job.plan().Used(call % 5, {}, {});
    if (job.plan().IsLearned()) break;
  }
  ASSERT_TRUE(job.plan().IsLearned());
  job.Allocate(0);
  ASSERT_TRUE(job.plan().NeedsPlan());
  job.MakePlan();
  EXPECT_FALSE(job.plan().NeedsPlan());
}

TEST(PlanTest, IsShortWhereMoreWillLiveThanTheDeviceHolds) {
  Cycle job(1);
  EXPECT_FALSE(job.plan().IsShort()) << "nothing is known yet";
  job.UseEach(0, kPages);
  EXPECT_TRUE(job.plan().IsShort());
  job.plan().SetDevice(kPage * kPages);
  EXPECT_FALSE(job.plan().IsShort());
}

TEST(PlanTest, APlanOfAnotherSequenceIsDropped) {
  Cycle job(1);
  KernelForecast made;
  for (uint32_t page = 0; page < kPages; ++page) {
    const std::vector<RangeId> pages{RangeId{page}};
    job.plan().Used(page, pages, {});
    if (!job.plan().NeedsPlan()) continue;
    made = job.plan().Copy();
    made.Make();
    break;
  }
  ASSERT_FALSE(made.plan.empty());
  EXPECT_FALSE(job.plan().NeedsPlan());
  for (uint64_t i = 0; i < 100; ++i) job.Use(1000 + i, {});
  EXPECT_FALSE(job.plan().IsLearned());
  job.plan().Set(&made);
  EXPECT_FALSE(job.plan().IsShort());
}

TEST(PlanTest, APageThatACallWaitsForComesFirstAndMakesRoom) {
  Cycle job(2);
  EXPECT_EQ(job.plan().NextOut(None), std::nullopt);
  job.plan().SetAwaited(RangeId{9}, true);
  const auto leaves = job.plan().NextOut(None);
  ASSERT_TRUE(leaves);
  job.plan().BeginMove(*leaves);
  EXPECT_EQ(job.plan().NextOut(None), std::nullopt) << "one is on its way out";
  job.plan().SetResident(*leaves, false);
  const auto wanted = job.plan().NextIn(None);
  ASSERT_TRUE(wanted);
  EXPECT_EQ(wanted->page, RangeId{9});
  job.plan().SetAwaited(RangeId{9}, false);
  const auto next = job.plan().NextIn(None);
  EXPECT_TRUE(!next || next->page != RangeId{9});
}

// Weights that are used at the begin and at the end of each step, and a peak between.
class Peaks {
 public:
  static constexpr uint32_t kWeights = 4;
  static constexpr uint32_t kPeak = 6;  // pages, of which two too many
  Peaks() : job_(kWeights + kPeak - 2) {
    for (uint32_t page = 0; page < kWeights; ++page) job_.Allocate(page);
    for (int step = 0; step < 2; ++step) {
      Begin();
      Rise();
      Fall();
    }
    Begin();
  }
  void Begin() { job_.UseEach(0, kWeights); }
  void Rise() {
    for (uint32_t i = 0; i < kPeak; ++i) job_.Allocate(kWeights + i);
    for (uint32_t i = 0; i < kPeak; ++i) job_.Use(100 + i, {kWeights + i});
  }
  void Fall() {
    for (uint32_t i = 0; i < kPeak; ++i) Free(kWeights + i);
    for (uint32_t i = 0; i < kWeights; ++i) job_.Use(200 + i, {i});
  }
  // Its memory is taken.
  void Free(uint32_t page) {
    job_.Free(page);
    plan().SetResident(RangeId{page}, false);
  }
  Job& job() { return job_; }
  Plan& plan() { return job_.plan(); }

 private:
  Job job_;
};

TEST(PlanTest, BeforeAPeakAsMuchLeavesAsIsTooMuchAndNoMore) {
  Peaks peaks;
  EXPECT_EQ(peaks.job().MoveOut().size(), 2u);
}

TEST(PlanTest, PagesThatLeftForAPeakComeBackOnlyAfterIt) {
  const auto is_of_peak = [](RangeId page) { return ToInt(page) >= Peaks::kWeights; };
  Peaks peaks;
  const Pages left = peaks.job().MoveOut();
  // There is room now, but not until their use.
  EXPECT_EQ(peaks.plan().NextIn(is_of_peak), std::nullopt);
  peaks.Rise();
  EXPECT_EQ(peaks.plan().NextIn(is_of_peak), std::nullopt);
  for (uint32_t i = 0; i < Peaks::kPeak; ++i) peaks.Free(Peaks::kWeights + i);
  const Pages came = peaks.job().MoveIn();
  EXPECT_TRUE(std::includes(came.begin(), came.end(), left.begin(), left.end()));
}

TEST(PlanTest, APageThatIsAllocatedBeforeItsUseNeedsNoCopy) {
  Job job(3);
  job.Allocate(0);
  for (int step = 0; step < 3; ++step) {
    for (uint32_t page = 1; page < 6; ++page) {
      if (step == 2 && page == 4) break;
      job.Allocate(page);
      job.Use(page, {0, page});
      job.Free(page);
      job.plan().SetResident(RangeId{page}, false);
    }
  }
  const auto wanted = job.plan().NextIn(None);
  ASSERT_TRUE(wanted);
  EXPECT_EQ(wanted->page, RangeId{4});
  EXPECT_FALSE(wanted->needs_copy);
}

// Otherwise each page that dies would change the place of all others.
TEST(PlanTest, APageThatWillBeAllocatedWaitsForTheDeadPageThatIsNeededLast) {
  Job job(3);
  for (int step = 0; step < 3; ++step) {
    for (uint32_t page = 0; page < 4; ++page) {
      if (step == 2 && page == 2) break;
      job.Allocate(page);
      job.Use(page, {page});
      job.Free(page);
      if (page == 2) job.plan().SetResident(RangeId{2}, false);
    }
  }
  job.Replan(3);
  // 0, 1 and 3 are dead and on the device; 2 is needed next, and 1 last.
  const auto wanted = job.plan().NextIn(None);
  ASSERT_TRUE(wanted);
  EXPECT_EQ(wanted->page, RangeId{2});
  EXPECT_EQ(wanted->dead, RangeId{1});
  EXPECT_EQ(job.plan().NextIn([](RangeId page) { return page == RangeId{1}; }), std::nullopt);
}

TEST(PlanTest, AnAllocationTakesALivePageOnlyIfThatCostsLessThanItsUses) {
  for (const int uses : {1, 2}) {
    Job job(20);
    for (uint32_t page = 0; page < 20; ++page) job.Allocate(page);
    for (int step = 0; step < 3; ++step) {
      job.UseEach(0, 20);
      job.Allocate(20, false);
      if (step == 2) break;
      for (int i = 0; i < uses; ++i) job.Use(100 + static_cast<uint64_t>(i), {20});
      // It lives for long.
      for (uint64_t i = 0; i < 20; ++i) job.Use(200 + i, {0});
      job.Free(20);
    }
    EXPECT_EQ(job.plan().Victim(None).has_value(), uses > 1) << uses;
  }
}

TEST(PlanTest, WithoutASequenceAPageThatIsUsedOftenComesForOneThatIsNot) {
  Job job(10);
  for (uint32_t page = 0; page < 11; ++page) job.Allocate(page, page < 10);
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) job.Use(random(), {10, static_cast<uint32_t>(random() % 5)});
  EXPECT_FALSE(job.plan().IsLearned());
  EXPECT_EQ(job.plan().NextIn(None), std::nullopt);
  const auto leaves = job.plan().NextOut(None);
  ASSERT_TRUE(leaves);
  EXPECT_GE(ToInt(*leaves), 5u);
  job.Move(*leaves, false);
  const auto wanted = job.plan().NextIn(None);
  ASSERT_TRUE(wanted);
  EXPECT_EQ(wanted->page, RangeId{10});
}

// All are used as often: to exchange one for another gains nothing, and is not done often.
TEST(PlanTest, AShuffledSequenceMovesLittle) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Job job(50);
    for (uint32_t page = 0; page < 100; ++page) job.Allocate(page, page < 50);
    size_t moves = 0;
    constexpr size_t kCalls = 10'000;
    for (size_t i = 0; i < kCalls; ++i) {
      job.Use(random(), {static_cast<uint32_t>(random() % 100)});
      if (const auto leaves = job.plan().NextOut(None)) job.Move(*leaves, false);
      moves += job.MoveIn().size();
    }
    // On demand every second call would move.
    EXPECT_LT(moves, kCalls / 4);
  }
}

// ---- Against the truth: random sequences over and over, through a ring that is much shorter than
// all of them.

// The pages that a cache must bring for a sequence: Belady's rule, with the choice not to keep the
// page that is used now.
size_t BeladyMisses(const std::vector<uint32_t>& uses, size_t capacity, size_t from) {
  std::set<uint32_t> held;
  size_t misses = 0;
  for (size_t i = 0; i < uses.size(); ++i) {
    if (held.contains(uses[i])) continue;
    if (i >= from) ++misses;
    held.insert(uses[i]);
    if (held.size() <= capacity) continue;
    const auto distance = [&](uint32_t page) {
      return std::find(uses.begin() + static_cast<ptrdiff_t>(i) + 1, uses.end(), page) -
             uses.begin();
    };
    held.erase(*std::max_element(held.begin(), held.end(), [&](uint32_t a, uint32_t b) {
      return distance(a) < distance(b);
    }));
  }
  return misses;
}

// With moves that take no time each page is there when it is used, with little more moves than by
// Belady's rule.
TEST(PlanTest, BringsAllInTimeWithFewMoves) {
  size_t all = 0;
  size_t all_least = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const uint32_t pages = 6 + static_cast<uint32_t>(random() % 20);
    const size_t capacity = 3 + random() % (pages - 4);
    std::vector<uint32_t> step;
    for (uint32_t page = 0; page < pages; ++page) step.insert(step.end(), 1 + random() % 3, page);
    std::shuffle(step.begin(), step.end(), random);
    constexpr size_t kRounds = 12;
    constexpr size_t kFrom = 4;
    Job job(static_cast<uint32_t>(capacity));
    for (uint32_t page = 0; page < pages; ++page) job.Allocate(page, false);
    Pages held;
    std::vector<uint32_t> uses;
    size_t absent = 0;
    for (size_t round = 0; round < kRounds; ++round) {
      for (const uint32_t page : step) {
        uses.push_back(page);
        if (round >= kFrom && !held.contains(page)) ++absent;
        job.Use(page, {page});
        for (bool moves = true; moves;) {
          const Pages left = job.MoveOut();
          const Pages came = job.MoveIn();
          for (const uint32_t gone : left) held.erase(gone);
          held.insert(came.begin(), came.end());
          ASSERT_LE(held.size(), capacity);
          moves = !left.empty() || !came.empty();
          if (round >= kFrom) all += came.size();
        }
      }
    }
    EXPECT_EQ(absent, 0u);
    all_least += BeladyMisses(uses, capacity, kFrom * step.size());
  }
  EXPECT_LE(all, all_least * 12 / 10) << "Belady: " << all_least;
}

}  // namespace
}  // namespace ravenstore::elastic
