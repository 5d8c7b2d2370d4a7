#include "core/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

namespace ravenstore::core {
namespace {

Result<int> Half(int n) {
  if (n % 2 != 0) return Error{ErrorCode::kInvalidArgument, "odd"};
  return n / 2;
}

Result<int> Quarter(int n) {
  RAVEN_ASSIGN_OR_RETURN(const int half, Half(n));
  return Half(half);
}

Status IsEven(int n) {
  RAVEN_RETURN_IF_ERROR(Half(n));
  return Ok();
}

TEST(ResultTest, HoldsAValueOrAnError) {
  EXPECT_EQ(Half(4).value(), 2);
  const Result<int> failed = Half(3);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(failed.error().message, "odd");
}

TEST(ResultTest, MacrosPassErrorsOn) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_FALSE(Quarter(6).ok());
  EXPECT_TRUE(IsEven(2).ok());
  EXPECT_EQ(IsEven(1).error().message, "odd");
}

TEST(ResultTest, MovesWhatCannotBeCopied) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(5));
  const std::unique_ptr<int> taken = std::move(result).value();
  EXPECT_EQ(*taken, 5);
}

TEST(ResultTest, EveryCodeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (int code = 1; code <= 16; ++code) names.insert(Name(static_cast<ErrorCode>(code)));
  EXPECT_EQ(names.size(), 16u);
  EXPECT_FALSE(names.contains("UNKNOWN"));
  EXPECT_EQ(Name(static_cast<ErrorCode>(0)), "UNKNOWN");
  EXPECT_EQ(Name(static_cast<ErrorCode>(17)), "UNKNOWN");
  EXPECT_EQ(Describe({ErrorCode::kOutOfMemory, "device 0"}), "OUT_OF_MEMORY: device 0");
}

TEST(ResultDeathTest, TheWrongSideAborts) {
  EXPECT_DEATH(static_cast<void>(Half(3).value()), "ok");
  EXPECT_DEATH(static_cast<void>(Half(4).error()), "ok");
}

}  // namespace
}  // namespace ravenstore::core
