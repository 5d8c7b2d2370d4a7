#include "daemon/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace ravenstore::daemon {
namespace {

using testing::HasSubstr;

constexpr core::TenantId kTenant{1000};
constexpr core::TenantId kOther{1001};

TEST(NamesTest, AnotherTenantsNumberIsNoName) {
  Names names;
  const auto mine = names.Intern("secret", kTenant);
  const auto others = names.Intern("secret", kOther);
  ASSERT_TRUE(mine.ok());
  ASSERT_TRUE(others.ok());
  EXPECT_NE(*mine, *others) << "a number shows nobody what others call theirs";
  EXPECT_EQ(names.Text(*mine, kOther), "");
  EXPECT_EQ(names.Text(*others, kOther), "secret");
}

TEST(NamesTest, OneNameHasOneNumber) {
  Names names;
  const auto first = names.Intern("layer0", kTenant);
  const auto second = names.Intern("layer1", kTenant);
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(second.ok());
  EXPECT_NE(*first, *second);
  EXPECT_EQ(*names.Intern("layer0", kTenant), *first);
  EXPECT_EQ(names.Text(*first, kTenant), "layer0");
  EXPECT_EQ(names.Text(*second, kTenant), "layer1");
}

TEST(NamesTest, NoNameIsTheEmptyOne) {
  Names names;
  EXPECT_EQ(*names.Intern("", kTenant), core::kNoName);
  EXPECT_EQ(names.Text(core::kNoName, kTenant), "");
}

TEST(NamesTest, NumbersThatWereMadeUpHaveNoText) {
  Names names;
  ASSERT_TRUE(names.Intern("layer0", kTenant).ok());
  EXPECT_EQ(names.Text(core::NameId{2}, kTenant), "");
  EXPECT_EQ(names.Text(core::NameId{0xffffffff}, kTenant), "");
}

TEST(NamesTest, LongNamesAreRefused) {
  Names names;
  EXPECT_TRUE(names.Intern(std::string(Names::kNameBytesMax, 'x'), kTenant).ok());
  const auto refused = names.Intern(std::string(Names::kNameBytesMax + 1, 'x'), kTenant);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, core::ErrorCode::kLimit);
  EXPECT_THAT(refused.error().message, HasSubstr("at most 255 bytes, this one has 256"));
}

TEST(NamesTest, ThereAreOnlySoManyButTheKnownStay) {
  Names names;
  for (size_t i = 0; i < Names::kTenantNamesMax; ++i) {
    if (!names.Intern(std::to_string(i), kTenant).ok()) FAIL() << "at " << i;
  }
  const auto refused = names.Intern("one more", kTenant);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, core::ErrorCode::kLimit);
  EXPECT_THAT(refused.error().message, HasSubstr("this user has given 2^18"));
  EXPECT_THAT(refused.error().message, HasSubstr("the same names"));
  EXPECT_TRUE(names.Intern("one more", kOther).ok()) << "one tenant does not use up all";
  const auto known = names.Intern("12345", kTenant);
  ASSERT_TRUE(known.ok());
  EXPECT_EQ(names.Text(*known, kTenant), "12345");
}

TEST(NamesTest, TheDaemonsLimitIsToldFromTheUsers) {
  Names names;
  size_t given = 0;
  for (uint32_t user = 0; given < Names::kNamesMax; ++user) {
    for (size_t i = 0; i < Names::kTenantNamesMax; ++i, ++given) {
      if (!names.Intern(std::to_string(i), core::TenantId{user}).ok()) FAIL() << "at " << given;
    }
  }
  const auto refused = names.Intern("one more", kTenant);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("all users have given 2^20"));
}

}  // namespace
}  // namespace ravenstore::daemon
