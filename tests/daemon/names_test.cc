#include "daemon/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace ravenstore::daemon {
namespace {

using testing::HasSubstr;

constexpr core::TenantId kTenant{1000};
constexpr core::TenantId kOther{1001};
constexpr uint64_t kJob = 1;  // connections
constexpr uint64_t kOtherJob = 2;
constexpr uint64_t kOthersJob = 3;

TEST(NamesTest, AnotherTenantsNumberIsNoName) {
  Names names;
  const auto mine = names.Intern("secret", kTenant, kJob);
  const auto others = names.Intern("secret", kOther, kOthersJob);
  ASSERT_TRUE(mine.ok());
  ASSERT_TRUE(others.ok());
  EXPECT_NE(*mine, *others) << "a number shows nobody what others call theirs";
  EXPECT_EQ(names.Text(*mine, kOther), "");
  EXPECT_EQ(names.Text(*others, kOther), "secret");
}

TEST(NamesTest, OneNameHasOneNumber) {
  Names names;
  const auto first = names.Intern("layer0", kTenant, kJob);
  const auto second = names.Intern("layer1", kTenant, kJob);
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(second.ok());
  EXPECT_NE(*first, *second);
  EXPECT_EQ(*names.Intern("layer0", kTenant, kJob), *first);
  EXPECT_EQ(*names.Intern("layer0", kTenant, kOtherJob), *first);
  EXPECT_EQ(names.Text(*first, kTenant), "layer0");
  EXPECT_EQ(names.Text(*second, kTenant), "layer1");
}

TEST(NamesTest, NoNameIsTheEmptyOne) {
  Names names;
  EXPECT_EQ(*names.Intern("", kTenant, kJob), core::kNoName);
  EXPECT_EQ(names.Text(core::kNoName, kTenant), "");
}

TEST(NamesTest, NumbersThatWereMadeUpHaveNoText) {
  Names names;
  ASSERT_TRUE(names.Intern("layer0", kTenant, kJob).ok());
  EXPECT_EQ(names.Text(core::NameId{2}, kTenant), "");
  EXPECT_EQ(names.Text(core::NameId{0xffffffff}, kTenant), "");
}

TEST(NamesTest, LongNamesAreRefused) {
  Names names;
  EXPECT_TRUE(names.Intern(std::string(Names::kNameBytesMax, 'x'), kTenant, kJob).ok());
  const auto refused = names.Intern(std::string(Names::kNameBytesMax + 1, 'x'), kTenant, kJob);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, core::ErrorCode::kLimit);
  EXPECT_THAT(refused.error().message, HasSubstr("at most 255 bytes, this one has 256"));
}

TEST(NamesTest, ANameIsThereAsLongAsOneWhoGaveIt) {
  Names names;
  const auto name = names.Intern("layer0", kTenant, kJob);
  EXPECT_EQ(*names.Intern("layer0", kTenant, kOtherJob), *name);
  names.Release(kJob);
  names.Release(kJob);
  EXPECT_EQ(names.Text(*name, kTenant), "layer0");
  names.Release(kOtherJob);
  EXPECT_EQ(names.Text(*name, kTenant), "");
  const auto another = names.Intern("layer1", kOther, kOthersJob);
  EXPECT_EQ(*another, *name) << "numbers come again";
  EXPECT_EQ(names.Text(*another, kTenant), "");
  EXPECT_EQ(names.Text(*another, kOther), "layer1");
}

TEST(NamesTest, OneUserLeavesTheOthersRoomAndTheKnownStay) {
  Names names(core::KiB(256));
  size_t given = 0;
  core::Result<core::NameId> refused = core::kNoName;
  for (; given < 100'000 && refused.ok(); ++given)
    refused = names.Intern(std::to_string(given), kTenant, kJob);
  ASSERT_FALSE(refused.ok());
  EXPECT_GT(given, 1000u);
  EXPECT_EQ(refused.error().code, core::ErrorCode::kLimit);
  EXPECT_THAT(refused.error().message, HasSubstr("tensor names"));
  EXPECT_THAT(refused.error().message, HasSubstr("user 1000"));
  EXPECT_THAT(refused.error().message, HasSubstr("the same names"));
  EXPECT_TRUE(names.Intern("one more", kOther, kOthersJob).ok());
  const auto known = names.Intern("123", kTenant, kJob);
  ASSERT_TRUE(known.ok());
  EXPECT_EQ(names.Text(*known, kTenant), "123");
  names.Release(kJob);
  for (size_t i = 0; i < given / 2; ++i)
    ASSERT_TRUE(names.Intern("again " + std::to_string(i), kTenant, kJob).ok());
}

}  // namespace
}  // namespace ravenstore::daemon
