#include "daemon/names.h"

#include <gtest/gtest.h>

#include <string>

namespace ravenstore::daemon {
namespace {

constexpr core::TenantId kTenant{1000};
constexpr core::TenantId kOther{1001};

TEST(NamesTest, AnotherTenantsNumberIsNoName) {
  Names names;
  const auto mine = names.Intern("secret", kTenant);
  const auto others = names.Intern("secret", kOther);
  ASSERT_TRUE(mine.has_value());
  ASSERT_TRUE(others.has_value());
  EXPECT_NE(*mine, *others) << "a number shows nobody what others call theirs";
  EXPECT_EQ(names.Text(*mine, kOther), "");
  EXPECT_EQ(names.Text(*others, kOther), "secret");
}

TEST(NamesTest, OneNameHasOneNumber) {
  Names names;
  const auto first = names.Intern("layer0", kTenant);
  const auto second = names.Intern("layer1", kTenant);
  ASSERT_TRUE(first.has_value());
  ASSERT_TRUE(second.has_value());
  EXPECT_NE(*first, *second);
  EXPECT_EQ(names.Intern("layer0", kTenant), first);
  EXPECT_EQ(names.Text(*first, kTenant), "layer0");
  EXPECT_EQ(names.Text(*second, kTenant), "layer1");
}

TEST(NamesTest, NoNameIsTheEmptyOne) {
  Names names;
  EXPECT_EQ(names.Intern("", kTenant), core::kNoName);
  EXPECT_EQ(names.Text(core::kNoName, kTenant), "");
}

TEST(NamesTest, NumbersThatWereMadeUpHaveNoText) {
  Names names;
  ASSERT_TRUE(names.Intern("layer0", kTenant).has_value());
  EXPECT_EQ(names.Text(core::NameId{2}, kTenant), "");
  EXPECT_EQ(names.Text(core::NameId{0xffffffff}, kTenant), "");
}

TEST(NamesTest, LongNamesAreRefused) {
  Names names;
  EXPECT_TRUE(names.Intern(std::string(Names::kNameBytesMax, 'x'), kTenant).has_value());
  EXPECT_FALSE(names.Intern(std::string(Names::kNameBytesMax + 1, 'x'), kTenant).has_value());
}

TEST(NamesTest, ThereAreOnlySoManyButTheKnownStay) {
  Names names;
  for (size_t i = 0; i < Names::kTenantNamesMax; ++i) {
    if (!names.Intern(std::to_string(i), kTenant).has_value()) FAIL() << "at " << i;
  }
  EXPECT_FALSE(names.Intern("one more", kTenant).has_value());
  EXPECT_TRUE(names.Intern("one more", kOther).has_value()) << "one tenant does not use up all";
  const auto known = names.Intern("12345", kTenant);
  ASSERT_TRUE(known.has_value());
  EXPECT_EQ(names.Text(*known, kTenant), "12345");
}

}  // namespace
}  // namespace ravenstore::daemon
