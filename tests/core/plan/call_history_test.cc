#include "core/plan/call_history.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/core/plan/passes.h"
#include "tests/core/plan/seeds.h"

namespace ravenstore::core::plan {
namespace {

TEST(CallHistoryTest, EqualChainsOfCallsAreFound) {
  CallHistory history;
  Passes passes(20, [&](const auto& call, Bytes size) { history.Add(call, size); });
  passes.Run();
  passes.Run();
  EXPECT_EQ(history.SameChainBefore(39), CallHistory::kNone);
  EXPECT_EQ(history.SameChainBefore(79), 39u);
}

TEST(CallHistoryTest, ACreateCorrespondsToOneOfItsSizeWhoseTensorWasFreed) {
  CallHistory history;
  history.Add({CallKind::kCreate, false, 0, {}}, MiB(1));
  history.Add({CallKind::kCreate, false, 1, {}}, MiB(1));
  EXPECT_FALSE(history.Same(1, 0));
  history.Add({CallKind::kFree, false, 0, {}}, MiB(1));
  history.Add({CallKind::kCreate, false, 2, {}}, MiB(1));
  history.Add({CallKind::kCreate, false, 3, {}}, MiB(2));
  EXPECT_TRUE(history.Same(2, 0));
  EXPECT_FALSE(history.Same(2, 1));
  EXPECT_FALSE(history.Same(3, 0));
}

TEST(CallHistoryTest, ATensorAtACorrespondingCreateHasTheSameRole) {
  CallHistory history;
  history.Add({CallKind::kCreate, false, 0, {}}, MiB(1));
  EXPECT_EQ(history.HolderOf(0), 0u);
  history.Add({CallKind::kGet, false, 0, {}}, MiB(1));
  history.Add({CallKind::kFree, false, 0, {}}, MiB(1));
  history.Add({CallKind::kCreate, false, 1, {}}, MiB(1));
  history.Accept(2, 0);
  EXPECT_EQ(history.HolderOf(0), 1u);
  history.Add({CallKind::kGet, false, 1, {}}, MiB(1));
  EXPECT_TRUE(history.Same(3, 1));
}

TEST(CallHistoryTest, TheCommonSuffixPassesThroughCreatesOfNewIds) {
  CallHistory history;
  Passes passes(20, [&](const auto& call, Bytes size) { history.Add(call, size); });
  passes.Run();
  passes.Run();
  uint32_t work = 0;
  CallHistory::Unknowns unknowns(history);
  const CallHistory::Suffix suffix = history.CommonSuffix(79, 39, &unknowns, &work);
  EXPECT_EQ(suffix.length, 40u);
  EXPECT_EQ(suffix.score, 40);
  EXPECT_EQ(work, 40u);
}

TEST(CallHistoryTest, AFreedTensorHoldsNoRole) {
  CallHistory history;
  history.Add({CallKind::kCreate, false, 0, {}}, MiB(1));
  history.Add({CallKind::kFree, false, 0, {}}, MiB(1));
  EXPECT_EQ(history.HolderOf(0), CallHistory::kNoTensor);
  history.Add({CallKind::kCreate, false, 1, {}}, MiB(1));
  history.Accept(1, 0);
  EXPECT_EQ(history.HolderOf(0), 1u);
  EXPECT_EQ(history.HolderOf(1), CallHistory::kNoTensor);
}

TEST(CallHistoryTest, OnlyTheLastCallsAreKept) {
  CallHistory history;
  history.Add({CallKind::kCreate, false, 0, {}}, MiB(1));
  Passes passes(1000, [&](CallHistory::Call call, Bytes size) {
    ++call.tensor;
    history.Add(call, size);
  });
  while (history.size() <= 2 * CallHistory::kCallsMax) passes.Run();
  EXPECT_EQ(history.size() - history.first(), CallHistory::kCallsMax);
  EXPECT_LE(history.pinning_calls() - history.first_pinning(), CallHistory::kCallsMax / 2 + 1000);
  // Each has four calls. Of those at the border some calls are dropped.
  EXPECT_LE(history.tensors(), CallHistory::kCallsMax / 4 + 1000);
  const CallNumber last = history.pinning_calls() - 1;
  CallNumber first = last;
  for (CallNumber n = last; n != CallHistory::kNone; n = history.SameChainBefore(n)) first = n;
  EXPECT_LT(first, last);
  EXPECT_GE(first, history.first_pinning());
  uint32_t work = 0;
  const CallNumber early = history.first_pinning() + 10;
  CallHistory::Unknowns unknowns(history);
  EXPECT_LE(history.CommonSuffix(early + passes.pinning(), early, &unknowns, &work).length, 11u);
  EXPECT_EQ(work, 11u);
  // A tensor that lives is known though its calls are dropped.
  EXPECT_EQ(history.HolderOf(0), 0u);
  EXPECT_EQ(history.tensor(0).size, MiB(1));
  history.Add({CallKind::kGet, false, 0, {}}, MiB(1));
  EXPECT_EQ(history.pinning(last + 1).tensor, 0u);
}

// Roles are those of tensors that live or are in a call that is kept, whichever calls correspond.
TEST(CallHistoryTest, RandomProgramsKeepRolesOfLiveTensors) {
  ForSeeds(1, [](Random& random) {
    CallHistory history;
    std::vector<TensorIndex> live;
    TensorIndex next = 0;
    for (CallNumber i = 0; i < CallHistory::kCallsMax * 3 / 2; ++i) {
      if (live.empty() || (live.size() < 1000 && random.OneIn(4))) {
        live.push_back(next++);
        history.Add({CallKind::kCreate, false, live.back(), {}}, MiB(1));
        const CallNumber n = history.pinning_calls() - 1;
        const CallNumber first = history.first_pinning();
        const CallNumber earlier = first + random.Below(n - first + 1);
        if (earlier < n && history.Same(n, earlier)) history.Accept(n, earlier);
        ASSERT_EQ(history.HolderOf(history.tensor(live.back()).role), live.back());
        continue;
      }
      std::swap(live[random.Below(live.size())], live.back());
      const TensorIndex tensor = live.back();
      const RoleNumber role = history.tensor(tensor).role;
      const CallKind kinds[] = {CallKind::kGet, CallKind::kPut, CallKind::kFree};
      const CallKind kind = kinds[random.Below(3)];
      history.Add({kind, false, tensor, {}}, MiB(1));
      if (kind != CallKind::kFree) continue;
      live.pop_back();
      ASSERT_NE(history.HolderOf(role), tensor);
    }
    EXPECT_LE(history.tensors(), CallHistory::kCallsMax + live.size());
  });
}

}  // namespace
}  // namespace ravenstore::core::plan
