#include "core/schedule/overdue_pages.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "core/schedule/learned_foresight.h"
#include "tests/core/execution/word_backend.h"

namespace ravenstore::core {
namespace {

using std::chrono::milliseconds;

constexpr Duration kPatience = milliseconds(100);

class OverduePagesTest : public testing::Test {
 protected:
  PageMemory& memory() { return client_.executor().books().memory(); }
  void Release(uint32_t pages) {
    for (uint32_t i = 0; i < pages; ++i) EXPECT_TRUE(memory().Release().has_value());
  }

  const plan::PlanLimits limits_{.page = MiB(2), .pages = 8, .pools = {{.out_rate = 1e9}}};
  WordBackend backend_;
  ScheduledClient client_{
      {.id = ClientId{1},
       .backend = &backend_,
       .books = {.limits = limits_, .coming_most = MiB(2)},
       .foresight = std::make_unique<LearnedForesight>(limits_, LearnedForesight::Options{})}};
  std::vector<ScheduledClient*> clients_{&client_};
  OverduePages overdue_{kPatience};
};

TEST_F(OverduePagesTest, AClientIsLateThatReleasesNothingForAWhile) {
  Release(3);
  EXPECT_FALSE(overdue_.Update(clients_, milliseconds(1000)));
  EXPECT_FALSE(overdue_.Update(clients_, milliseconds(1099)));
  EXPECT_TRUE(overdue_.Update(clients_, milliseconds(1100)));
  EXPECT_EQ(overdue_.sum(), 3u);
  EXPECT_FALSE(overdue_.Update(clients_, milliseconds(1200)));
  // It goes on.
  memory().Destroyed();
  EXPECT_TRUE(overdue_.Update(clients_, milliseconds(1300)));
  EXPECT_EQ(overdue_.sum(), 0u);
}

TEST_F(OverduePagesTest, OneThatReleasesPagesAllTheTimeIsNotLate) {
  Release(1);
  for (int i = 0; i < 6; ++i) {
    overdue_.Update(clients_, milliseconds(60 * i));
    Release(1);
    memory().Destroyed();
    EXPECT_EQ(memory().releasing(), 1u);
    EXPECT_EQ(overdue_.sum(), 0u);
  }
}

TEST_F(OverduePagesTest, OneThatHasNothingToReleaseIsForgotten) {
  Release(1);
  overdue_.Update(clients_, milliseconds(0));
  EXPECT_TRUE(overdue_.Update(clients_, milliseconds(200)));
  EXPECT_TRUE(overdue_.Update({}, milliseconds(200))) << "it is gone";
  EXPECT_EQ(overdue_.sum(), 0u);
}

}  // namespace
}  // namespace ravenstore::core
