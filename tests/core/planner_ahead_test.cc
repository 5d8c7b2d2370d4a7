#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/planner.h"
#include "tests/core/script.h"

namespace ravenstore::core {
namespace {

using State = Script::State;
using std::chrono::milliseconds;
using std::chrono::seconds;

// ---- Prefetch.

TEST(PlannerAheadTest, PrefetchesInOrderOnceTheBackwardPassBegins) {
  Script s({.capacity = KiB(12), .slab = KiB(4), .prefetch = true});
  // Forward: what is saved last is needed first.
  for (int i = 0; i < 6; ++i) {
    s.Create("T" + std::to_string(i), KiB(4)).AllCopiesDone();
    s.Put("T" + std::to_string(i), Order(-i)).AllCopiesDone();
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(s.StateOf("T" + std::to_string(i)), State::kAway) << i;
  EXPECT_EQ(s.stats().prefetches, 0u);
  // Backward: each is used and freed, and the next ones come by themselves.
  for (int i = 5; i >= 0; --i) {
    const std::string name = "T" + std::to_string(i);
    ASSERT_EQ(s.StateOf(name), State::kIdle) << name;
    s.Get(name).Use(name).Free(name).AllCopiesDone();
  }
  EXPECT_EQ(s.stats().prefetches, 3u);
  EXPECT_EQ(s.stats().misses, 0u);
  EXPECT_EQ(s.stats().prefetches_unused, 0u);
}

TEST(PlannerAheadTest, DoesNotThrashWhileTensorsAreOnlyCreated) {
  Script s({.capacity = KiB(12), .slab = KiB(4), .prefetch = true, .preclean = true});
  for (int i = 0; i < 20; ++i) {
    s.Create("T" + std::to_string(i), KiB(4)).AllCopiesDone();
    s.Put("T" + std::to_string(i), Order(-i)).Pass(milliseconds(1)).AllCopiesDone();
  }
  EXPECT_EQ(s.stats().prefetches, 0u);
  EXPECT_EQ(s.stats().in, Bytes(0));
  EXPECT_LE(s.stats().out, KiB(4) * 20);  // each at most once
  for (int i = 0; i < 17; ++i) EXPECT_EQ(s.StateOf("T" + std::to_string(i)), State::kAway) << i;
}

TEST(PlannerAheadTest, StopsPrefetchingOnceTheNextForwardPassNeedsRoom) {
  Script s({.capacity = KiB(12), .slab = KiB(4), .prefetch = true});
  s.Make("first", KiB(4)).Get("first").Free("first");  // the end of a backward pass
  for (int i = 0; i < 10; ++i) {
    s.Create("T" + std::to_string(i), KiB(4)).AllCopiesDone();
    s.Put("T" + std::to_string(i), Order(-i)).Pass(milliseconds(1)).AllCopiesDone();
  }
  s.Free("T9").Pass(milliseconds(1));  // room, but nobody wants tensors back yet
  EXPECT_EQ(s.stats().prefetches, 0u);
  s.Get("T8");
  EXPECT_GT(s.stats().prefetches, 0u);
}

TEST(PlannerAheadTest, PrefetchesByTimeInThePlaceOfWhatIsNeededLater) {
  Script s({.capacity = KiB(4), .slab = KiB(4), .prefetch = true});
  const Tick due = s.world().now() + milliseconds(500);
  s.Make("A", KiB(4), At(due)).Create("B", KiB(4)).CopyDone("A").Put("B", At(due + seconds(1)));
  s.Create("C", KiB(4)).CopyDone("B").Free("C");
  s.Get("B").CopyDone("B");
  ASSERT_EQ(s.StateOf("A"), State::kAway);
  s.PutUnchanged("B", At(due + seconds(1)));
  EXPECT_EQ(s.StateOf("B"), State::kAway);  // clean, and needed later
  ASSERT_TRUE(s.IsCopying("A"));
  s.CopyDone("A").Get("A").Use("A");
  EXPECT_EQ(s.stats().misses, 1u);  // B's
}

TEST(PlannerAheadTest, ATimeThatWasToldStandsStillWhileItsClientWaits) {
  Script s({.capacity = KiB(8), .slab = KiB(4), .prefetch = true});
  const Tick now = s.world().now();
  s.Make("soon", KiB(4), At(now + milliseconds(50)));
  s.Make("late", KiB(4), At(now + milliseconds(60)));
  s.Create("big", KiB(8)).Pass(milliseconds(500));  // the copies take half a second
  s.AllCopiesDone().Free("big");
  // Both hints lie in the past by the clock, and 50 and 60 ms ahead by the client's own time.
  s.Create("C", KiB(4)).Get("soon").AllCopiesDone();
  s.PutUnchanged("soon", At(s.world().now() + milliseconds(1)));
  s.Put("C", At(s.world().now() + milliseconds(1))).Pass(milliseconds(1)).AllCopiesDone();
  EXPECT_EQ(s.StateOf("late"), State::kAway);  // 59 ms: the others are needed before it
}

TEST(PlannerAheadTest, PrefetchTakesNothingThatIsNeededSooner) {
  Script s({.capacity = KiB(8), .slab = KiB(4), .prefetch = true});
  s.Make("late", KiB(4), Order(30)).Make("mid", KiB(4), Order(20));
  s.Create("soon", KiB(4)).AllCopiesDone().Put("soon", Order(10)).AllCopiesDone();
  ASSERT_EQ(s.StateOf("late"), State::kAway);
  s.Get("soon").PutUnchanged("soon", Order(40)).Pass(milliseconds(10));
  // Dirty tensors do not make way, nor does what is needed before it.
  EXPECT_EQ(s.StateOf("mid"), State::kIdle);
  EXPECT_EQ(s.StateOf("soon"), State::kIdle);
  EXPECT_EQ(s.stats().prefetches, 0u);
}

TEST(PlannerAheadTest, AFetchOfWhatArrivesWaitsForThatCopy) {
  Script s({.capacity = KiB(8), .slab = KiB(4), .prefetch = true});
  s.Make("A", KiB(4), Order(2)).Make("B", KiB(4), Order(1));
  s.Create("C", KiB(4)).AllCopiesDone();
  ASSERT_EQ(s.StateOf("A"), State::kAway);
  s.Get("B").Free("C");
  ASSERT_TRUE(s.IsCopying("A"));
  s.Get("A");
  EXPECT_EQ(s.StateOf("A"), State::kInUse);
  EXPECT_EQ(s.stats().late_hits, 1u);
  EXPECT_EQ(s.stats().misses, 0u);
  s.CopyDone("A").Use("A");
}

TEST(PlannerAheadTest, AFailedPrefetchLosesNothing) {
  Script s({.capacity = KiB(8), .slab = KiB(4), .prefetch = true});
  s.Make("A", KiB(4), Order(2)).Make("B", KiB(4), Order(1));
  s.Create("C", KiB(4)).AllCopiesDone().Get("B").Free("C").CopyFails("A");
  EXPECT_EQ(s.StateOf("A"), State::kAway);
  s.Get("A").CopyDone("A").Use("A");
}

// ---- Pre-cleaning.

TEST(PlannerAheadTest, PrecleansOnlyUnderPressure) {
  Script s({.capacity = KiB(16), .slab = KiB(4), .preclean = true});
  for (const char* name : {"A", "B", "C", "D"}) s.Make(name, KiB(4));
  s.Pass(seconds(1));
  EXPECT_TRUE(s.world().copies().empty());
  s.Create("E", KiB(4));  // the first eviction
  EXPECT_EQ(s.StateOf("A"), State::kLeaving);
  EXPECT_FALSE(s.IsCopying("B"));  // what E waits for goes first
  s.CopyDone("A");
  EXPECT_FALSE(s.IsCopying("B"));  // E may be followed by another at once
  s.Pass(milliseconds(1));
  EXPECT_EQ(s.CopyKindOf("B"), World::CopyKind::kClean);
  EXPECT_EQ(s.StateOf("B"), State::kIdle);
  s.AllCopiesDone();
  EXPECT_FALSE(s.View("B").dirty);
  s.Create("F", KiB(4));
  EXPECT_EQ(s.StateOf("F"), State::kInUse);  // a drop, without waiting
}

// A client says what it needs when, and fills the device for the first time: it may outgrow it.
TEST(PlannerAheadTest, PrecleansWhatIsHintedUntilItKnowsThatEverythingFits) {
  Script s({.capacity = KiB(64), .slab = KiB(4), .preclean = true});
  s.Make("A", KiB(4), Order(40)).Pass(milliseconds(1));
  EXPECT_EQ(s.CopyKindOf("A"), World::CopyKind::kClean);
  for (const char* name : {"B", "C", "D"}) s.Make(name, KiB(4), Order(30));
  s.AllCopiesDone();
  for (const char* name : {"A", "B", "C", "D"}) s.Free(name);
  // The second time it is known where that ends.
  s.Make("E", KiB(4), Order(40)).Make("F", KiB(4), Order(30)).Pass(milliseconds(1));
  EXPECT_TRUE(s.world().copies().empty());
  // Unless it goes on.
  for (const char* name : {"G", "H", "I"}) s.Make(name, KiB(4), Order(20));
  s.Pass(milliseconds(1));
  EXPECT_EQ(s.CopyKindOf("E"), World::CopyKind::kClean);
}

// While tensors only come back, what is dirty stays: but not for ever in the place of what is clean
// and needed sooner.
TEST(PlannerAheadTest, PrecleansWhatWouldMakeWayForAPrefetchRatherThanTheClean) {
  Script s({.capacity = KiB(12),
            .slab = KiB(4),
            .prefetch = true,
            .preclean = true,
            .in_flight = KiB(4)});
  s.Make("next", KiB(4), Order(10)).Create("clean", KiB(4)).Create("B", KiB(4));
  s.Create("dirty", KiB(4)).CopyDone("next");
  s.Put("clean", Order(40)).Pass(milliseconds(1));
  ASSERT_EQ(s.CopyKindOf("clean"), World::CopyKind::kClean);
  s.Put("dirty", Order(50)).Put("B", Order(5)).Get("B").Pass(milliseconds(100));
  s.CopyDone("clean");
  EXPECT_EQ(s.StateOf("clean"), State::kAway);  // there is nothing better yet
  ASSERT_TRUE(s.IsCopying("dirty"));
  EXPECT_EQ(s.CopyKindOf("dirty"), World::CopyKind::kClean);
  s.AllCopiesDone().Get("next").Use("next");
}

TEST(PlannerAheadTest, ATornPrecleanIsThrownAway) {
  Script s({.capacity = KiB(16), .slab = KiB(4), .preclean = true});
  for (const char* name : {"A", "B", "C", "D"}) s.Make(name, KiB(4));
  s.Create("E", KiB(4)).CopyDone("A").Pass(milliseconds(1));
  ASSERT_EQ(s.CopyKindOf("B"), World::CopyKind::kClean);
  s.Get("B").Use("B");
  s.world().Write(s.At("B"));
  s.Use("B").CopyDone("B");
  EXPECT_TRUE(s.View("B").dirty);
  EXPECT_FALSE(s.View("B").has_copy);
}

// A prediction is no leave to discard bytes: what has to leave before it is freed is copied, and
// that as well ahead as any other.
TEST(PlannerAheadTest, WhatWillOnlyBeFreedIsCopiedOutAheadAsWell) {
  Script s({.capacity = KiB(16), .preclean = true});
  const std::vector<std::string> names = {"a", "b", "c", "d", "e", "f"};
  const auto make = [&s](const std::string& name) {
    s.Create(name, KiB(4)).AllCopiesDone().Put(name).Pass(std::chrono::microseconds(100));
  };
  for (int iteration = 0; iteration < 4; ++iteration) {
    for (const std::string& name : names) make(name);
    s.AllCopiesDone();
    for (auto name = names.rbegin(); name != names.rend(); ++name) s.Free(*name);
    s.world().Step(s.me());
    s.Poll();
  }
  const Bytes before = s.stats().precleaned;
  for (const char* name : {"a", "b", "c"}) make(name);
  const Explanation why = s.world().planner().Explain(s.View("a").id, s.world().now());
  EXPECT_EQ(why.future, Explanation::Future::kLearnedFreed);
  EXPECT_EQ(s.StateOf("a"), State::kIdle);
  EXPECT_GT(s.stats().precleaned, before);
}

}  // namespace
}  // namespace ravenstore::core
