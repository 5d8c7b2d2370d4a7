#include "elastic/call_log.h"

#include <gtest/gtest.h>

namespace ravenstore::elastic {
namespace {

using core::Duration;
using Kind = LoggedCall::Kind;

TEST(CallLogTest, CallsAreTakenOnceInTheirOrderWithTheirLastUses) {
  CallLog log;
  std::vector<Point> points = {{1, 7}, {2, 9}};
  std::vector<Point> none;
  log.Add({.kind = Kind::kUse, .range = 4, .at = Duration(1), .call = 12});
  log.Add({.kind = Kind::kPut, .range = 4, .at = Duration(2)}, &points);
  EXPECT_TRUE(points.empty());
  log.Add({.kind = Kind::kFree, .range = 5, .at = Duration(3), .stream = 2}, &none);
  EXPECT_EQ(log.size(), 3u);
  std::vector<LoggedCall> calls;
  log.Take(&calls);
  EXPECT_EQ(log.size(), 0u);
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[0].kind, Kind::kUse);
  EXPECT_EQ(calls[0].call, 12);
  EXPECT_EQ(calls[1].kind, Kind::kPut);
  EXPECT_EQ(calls[1].point.call, 9u);
  ASSERT_EQ(calls[1].others.size(), 1u);
  EXPECT_EQ(calls[1].others[0].call, 7u);
  EXPECT_EQ(calls[2].range, 5u);
  EXPECT_EQ(calls[2].stream, 2u);
  EXPECT_EQ(calls[2].point.stream, 0u);
  log.Take(&calls);
  EXPECT_TRUE(calls.empty());
}

}  // namespace
}  // namespace ravenstore::elastic
