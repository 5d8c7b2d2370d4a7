#include "core/books/unit_copies.h"

#include <gtest/gtest.h>

namespace ravenstore::core {
namespace {

class UnitCopiesTest : public testing::Test {
 protected:
  UnitCopiesTest() : copies_(pools_, MiB(2)) { copies_.Resize(4); }

  const std::vector<plan::CopyPool> pools_ = {{.capacity = MiB(4)}, {.capacity = MiB(8)}};
  UnitCopies copies_;
};

TEST_F(UnitCopiesTest, ACopyCountsInItsPoolUntilItIsRemoved) {
  copies_.Add(2, 1, MiB(2));
  copies_.Shrink(2, 1, MiB(1));
  EXPECT_EQ(copies_.pools().used(0), Bytes{});
  EXPECT_EQ(copies_.pools().used(1), MiB(1));
  copies_.Remove(2, 1);
  EXPECT_EQ(copies_.pools().used(1), Bytes{});
}

TEST_F(UnitCopiesTest, ARedundantCopyIsFoundByItsPool) {
  copies_.Add(0, 0, MiB(1));
  copies_.Add(2, 0, MiB(2));
  copies_.SetRedundant(2, 0, true);
  copies_.SetRedundant(2, 0, true);
  EXPECT_EQ(copies_.Redundant(0), std::set<plan::Unit>({2}));
  EXPECT_EQ(copies_.pools().redundant(0), MiB(2));
  copies_.Remove(2, 0);
  EXPECT_TRUE(copies_.Redundant(0).empty());
  EXPECT_EQ(copies_.pools().redundant(0), Bytes{});
}

TEST_F(UnitCopiesTest, AUnitThatComesCountsInThePoolItComesFrom) {
  copies_.Add(2, 1, MiB(1));
  copies_.BeginComing(2, 1, MiB(2));
  EXPECT_EQ(copies_.pools().coming(1), MiB(2));
  copies_.EndComing(2);
  copies_.EndComing(2);
  EXPECT_EQ(copies_.pools().coming(1), Bytes{});
}

}  // namespace
}  // namespace ravenstore::core
