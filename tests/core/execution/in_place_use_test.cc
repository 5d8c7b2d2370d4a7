#include "core/execution/in_place_use.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/books/page_views.h"
#include "core/execution/page_executor.h"
#include "tests/core/execution/word_backend.h"

namespace ravenstore::core {
namespace {

using plan::Unit;

constexpr Bytes kPage = MiB(2);

// Maps are done immediately. The test says when a copy ends.
class Backend : public WordBackend {
 public:
  void CopyIn(const CopyOrder& order) override { in.push_back(order.unit); }
  void CopyOut(const CopyOrder& order) override { out.push_back(order.unit); }
  void MakeCopy(Unit unit, plan::PoolNumber) override { made.push_back(unit); }

  std::vector<Unit> in;
  std::vector<Unit> out;
  std::vector<Unit> made;
};

// Two pages may be held. Tensor i fills page i, if no other place is said.
class InPlaceUseTest : public testing::Test {
 protected:
  void Create(TensorNumber tensor, Bytes size = kPage) {
    executor_.Place(tensor, {2 * tensor, 1}, Bytes{}, size);
    executor_.Pin(tensor);
    executor_.Start();
    ASSERT_TRUE(executor_.IsResident(tensor));
    executor_.Begin(tensor);
  }
  void Put(TensorNumber tensor) {
    executor_.Unpin(tensor);
    executor_.Modify(tensor);
    executor_.Reach(tensor);
  }
  void EndOut() {
    executor_.CopiedOut(backend_.out.back(), true);
    backend_.out.pop_back();
    executor_.Start();
  }
  bool CanUseInPlace(TensorNumber tensor) const {
    return core::CanUseInPlace(executor_.books(), executor_.tensors(), tensor);
  }
  bool IsUsedInPlace(TensorNumber tensor) const {
    return core::IsUsedInPlace(executor_.books(), executor_.tensors()[tensor].units);
  }

  Backend backend_;
  PageExecutor executor_{
      {.limits = {.page = kPage, .pages = 2, .pools = {{.in_rate = 1e9, .out_rate = 1e9}}},
       .coming_most = kPage * 2},
      &backend_};
};

TEST_F(InPlaceUseTest, ACallWithoutRoomUsesItsPageWhereTheCopyIs) {
  for (const TensorNumber tensor : {0u, 1u}) {
    Create(tensor);
    Put(tensor);
  }
  executor_.Place(2, {4, 1}, Bytes{}, kPage);
  EXPECT_FALSE(executor_.Pin(2));
  executor_.Start();
  EXPECT_FALSE(CanUseInPlace(2));  // a call waits for it
  EndOut();
  executor_.Begin(2);
  EXPECT_TRUE(executor_.Pin(1));
  // Tensor 0 is away, and calls hold both pages.
  ASSERT_TRUE(CanUseInPlace(0));
  executor_.in_place().Begin(0);
  EXPECT_TRUE(IsUsedInPlace(0));
  EXPECT_EQ(PagesInUse(executor_.books()), 2u);
  executor_.Unpin(0);
  Put(1);
  EXPECT_FALSE(executor_.Pin(0));  // it comes when the stream has used it
  executor_.Start();
  EXPECT_TRUE(backend_.out.empty());
  executor_.in_place().End(0, true);
  EXPECT_FALSE(IsUsedInPlace(0));
  executor_.Start();
  EndOut();
  EXPECT_EQ(backend_.in, std::vector<Unit>{0});
  EXPECT_FALSE(CanUseInPlace(0));  // it is on its way
  executor_.CopiedIn(0, true);
  EXPECT_TRUE(executor_.IsResident(0));
  CheckBooks(executor_.books());
}

TEST_F(InPlaceUseTest, ACreateWithoutRoomBeginsInAPool) {
  Create(0);
  Create(1, MiB(1));
  // It begins in the last half of tensor 1's page.
  executor_.Place(2, {2, 3}, MiB(1), kPage * 2);
  ASSERT_TRUE(CanUseInPlace(2));
  executor_.in_place().Begin(2);
  EXPECT_EQ(backend_.made, (std::vector<Unit>{4, 6}));
  EXPECT_TRUE(executor_.tensors()[2].lives());
  EXPECT_EQ(executor_.books()[2].live, 2u);
  EXPECT_EQ(executor_.books().copies().pools().used(), MiB(3));
  executor_.Unpin(2);
  executor_.in_place().End(2, true);
  executor_.End(2);
  EXPECT_EQ(executor_.books().copies().pools().used(), Bytes{});
  CheckBooks(executor_.books());
}

TEST_F(InPlaceUseTest, ACreateNeedsRoomInAPool) {
  executor_.books().SetPool(0, {.capacity = kPage, .in_rate = 1e9, .out_rate = 1e9});
  executor_.Place(0, {0, 2}, Bytes{}, kPage * 2);
  EXPECT_FALSE(CanUseInPlace(0));
  executor_.Place(1, {4, 1}, Bytes{}, kPage);
  EXPECT_TRUE(CanUseInPlace(1));
}

}  // namespace
}  // namespace ravenstore::core
