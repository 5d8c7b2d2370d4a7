#include "core/plan/call_history.h"

#include <gtest/gtest.h>

#include "tests/core/plan/passes.h"

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

TEST(CallHistoryTest, ACreateCorrespondsToOneOfItsSizeWhoseTensorIsGone) {
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
  const CallHistory::Suffix suffix = history.CommonSuffix(79, 39, &work);
  EXPECT_EQ(suffix.length, 40u);
  EXPECT_EQ(suffix.score, 40);
  EXPECT_EQ(work, 40u);
}

}  // namespace
}  // namespace ravenstore::core::plan
