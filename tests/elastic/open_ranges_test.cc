#include "elastic/open_ranges.h"

#include <gtest/gtest.h>

namespace ravenstore::elastic {
namespace {

using core::MiB;
using Kind = LoggedCall::Kind;

class OpenRangesTest : public testing::Test {
 protected:
  OpenRangesTest() {
    open_.Grow(8);
    open_.SetPages(16);
  }
  std::vector<LoggedCall> Log() {
    std::vector<LoggedCall> calls;
    open_.TakeLog(&calls);
    return calls;
  }

  OpenRanges open_{{.begin = 4096, .page = MiB(4), .addresses = MiB(64)}};
};

TEST_F(OpenRangesTest, ARangeIsCreatedAtOnceWhereAllItsPagesAreOpen) {
  ASSERT_TRUE(open_.Place(1, MiB(8), 3));
  EXPECT_EQ(open_.AddressOf(1), 4096u);
  open_.OpenPage(0);
  EXPECT_FALSE(open_.TryCreate(1, {}, 7)) << "the second page is not open";
  EXPECT_TRUE(open_.ClosePage(0)) << "nothing holds the first";
  EXPECT_EQ(open_.logged(), 0u);
  open_.OpenPage(0);
  open_.OpenPage(2);
  ASSERT_TRUE(open_.TryCreate(1, {}, 7));
  EXPECT_FALSE(open_.ClosePage(2));
  EXPECT_FALSE(open_.Close(1));
  const auto calls = Log();
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].kind, Kind::kCreate);
  EXPECT_EQ(calls[0].size, MiB(8));
  EXPECT_EQ(calls[0].stream, 3u);
  EXPECT_EQ(calls[0].call, 7);
  EXPECT_EQ(calls[1].kind, Kind::kPut);
  open_.EndHoldOfPage(0);
  open_.EndHoldOfPage(2);
  open_.EndHold(1);
  EXPECT_TRUE(open_.ClosePage(2));
  EXPECT_TRUE(open_.IsOpen(1));
}

TEST_F(OpenRangesTest, AClosedRangeIsNotUsedAtOnce) {
  EXPECT_FALSE(open_.TryUse(1, {}, 0));
  open_.Open(1);
  EXPECT_TRUE(open_.TryUse(1, {}, 0));
  EXPECT_FALSE(open_.Close(1));
  std::vector<Point> points;
  open_.Put(1, {}, &points);
  EXPECT_FALSE(open_.Close(1)) << "the scheduler has not seen the end";
  EXPECT_EQ(Log().size(), 2u);
  open_.EndHold(1);
  EXPECT_TRUE(open_.Close(1));
}

}  // namespace
}  // namespace ravenstore::elastic
