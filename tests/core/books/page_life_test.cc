#include "core/books/page_life.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>

namespace ravenstore::core {
namespace {

using Memory = PageStep::Memory;
using Copy = PageStep::Copy;
using Words = PageStep::Words;

template <typename Property>
void ForAllSteps(Property property) {
  for (const PageLifeRow& row : kPageLife) {
    SCOPED_TRACE("state " + std::to_string(static_cast<int>(row.state)) + ", event " +
                 std::to_string(static_cast<int>(row.event)));
    property(row.state, row.event, row.step);
  }
}

bool HasMemory(PageState state) {
  return state != PageState::kAway;
}
// Of a page with tensors.
bool HasWholeCopy(PageState state) {
  return state <= PageState::kClean;
}

TEST(PageLifeTest, EachStateAndEventHasOneStepAtMost) {
  std::set<std::pair<PageState, PageEvent>> seen;
  ForAllSteps([&](PageState state, PageEvent event, const PageStep& step) {
    EXPECT_TRUE(seen.emplace(state, event).second);
    EXPECT_EQ(StepOf(state, event), step);
  });
  size_t steps = 0;
  for (size_t state = 0; state < kPageStates; ++state) {
    for (size_t event = 0; event < kPageEvents; ++event) {
      const auto step = StepOf(static_cast<PageState>(state), static_cast<PageEvent>(event));
      steps += step.has_value() ? 1 : 0;
    }
  }
  EXPECT_EQ(steps, std::size(kPageLife));
}

TEST(PageLifeTest, MemoryIsTakenAndReleasedWithTheStates) {
  ForAllSteps([](PageState state, PageEvent, const PageStep& step) {
    EXPECT_EQ(step.memory == Memory::kTake, !HasMemory(state) && HasMemory(step.next));
    EXPECT_EQ(step.memory == Memory::kRelease, HasMemory(state) && !HasMemory(step.next));
  });
}

// A page that was resident and whose tensors clients could use leaves only after their words say
// so.
TEST(PageLifeTest, AResidentPageLeavesOnlyWithItsWordsRevoked) {
  ForAllSteps([](PageState state, PageEvent, const PageStep& step) {
    EXPECT_EQ(step.words == Words::kRevoked, IsResident(state) && !IsResident(step.next));
    EXPECT_EQ(step.words == Words::kPublish, !IsResident(state) && IsResident(step.next));
  });
}

TEST(PageLifeTest, OnlyACompleteCopyOfUnchangedBytesMakesADirtyPageClean) {
  ForAllSteps([](PageState state, PageEvent event, const PageStep& step) {
    if (HasWholeCopy(state) || !HasWholeCopy(step.next) || event == PageEvent::kEmpty) return;
    const bool was_empty = state == PageState::kLeavingEmpty;
    EXPECT_TRUE(was_empty || (state == PageState::kLeaving && event == PageEvent::kCopied));
  });
}

TEST(PageLifeTest, BytesThatChangeHaveNoCopyAfterwards) {
  ForAllSteps([](PageState, PageEvent event, const PageStep& step) {
    if (event == PageEvent::kChange) {
      EXPECT_FALSE(HasWholeCopy(step.next));
    } else if (event == PageEvent::kDropCopy) {
      EXPECT_EQ(step.copy, Copy::kFree);
    }
  });
}

// From kReserve until kFree a copy has memory; nothing else is copied into or from.
TEST(PageLifeTest, NoCopyIsFreedWhileTheLinkUsesIt) {
  ForAllSteps([](PageState state, PageEvent event, const PageStep& step) {
    const bool uses_it = state == PageState::kArriving || IsBeingCopiedOut(state);
    const bool ends = event == PageEvent::kArrivedEmpty || event == PageEvent::kCopied ||
                      event == PageEvent::kNotCopied;
    EXPECT_TRUE(!uses_it || ends || step.copy == Copy::kSame);
  });
}

TEST(PageLifeTest, AnEmptyPageOnItsWayCanStillArrive) {
  // All states from which a page may be emptied, and where it ends without more to do.
  EXPECT_EQ(StepOf(PageState::kAway, PageEvent::kEmpty)->next, PageState::kAway);
  EXPECT_EQ(StepOf(PageState::kMapping, PageEvent::kEmpty)->next, PageState::kMapping);
  EXPECT_EQ(StepOf(PageState::kMapping, PageEvent::kMappedEmpty)->next, PageState::kClean);
  EXPECT_EQ(StepOf(PageState::kQueued, PageEvent::kEmpty)->next, PageState::kClean);
  EXPECT_EQ(StepOf(PageState::kArriving, PageEvent::kEmpty)->next, PageState::kArriving);
  for (size_t state = 0; state < kPageStates; ++state)
    EXPECT_EQ(StepOf(static_cast<PageState>(state), PageEvent::kEmpty).has_value(),
              static_cast<PageState>(state) != PageState::kLeavingEmpty);
}

TEST(PageLifeTest, OnlyAnAwayPageIsGivenACopy) {
  for (size_t state = 0; state < kPageStates; ++state) {
    const auto step = StepOf(static_cast<PageState>(state), PageEvent::kCopyGiven);
    ASSERT_EQ(step.has_value(), static_cast<PageState>(state) == PageState::kAway);
    if (!step) continue;
    EXPECT_EQ(step->next, PageState::kAway);
    EXPECT_EQ(step->copy, Copy::kReserve);
  }
}

}  // namespace
}  // namespace ravenstore::core
