#include "daemon/names.h"

#include <gtest/gtest.h>

#include <string>

namespace ravenstore::daemon {
namespace {

TEST(NamesTest, OneNameHasOneNumber) {
  Names names;
  const auto first = names.Intern("layer0");
  const auto second = names.Intern("layer1");
  ASSERT_TRUE(first.has_value());
  ASSERT_TRUE(second.has_value());
  EXPECT_NE(*first, *second);
  EXPECT_EQ(names.Intern("layer0"), first);
  EXPECT_EQ(names.Text(*first), "layer0");
  EXPECT_EQ(names.Text(*second), "layer1");
}

TEST(NamesTest, NoNameIsTheEmptyOne) {
  Names names;
  EXPECT_EQ(names.Intern(""), core::kNoName);
  EXPECT_EQ(names.Text(core::kNoName), "");
}

TEST(NamesTest, NumbersThatWereMadeUpHaveNoText) {
  Names names;
  ASSERT_TRUE(names.Intern("layer0").has_value());
  EXPECT_EQ(names.Text(core::NameId{2}), "");
  EXPECT_EQ(names.Text(core::NameId{0xffffffff}), "");
}

TEST(NamesTest, LongNamesAreRefused) {
  Names names;
  EXPECT_TRUE(names.Intern(std::string(Names::kNameBytesMax, 'x')).has_value());
  EXPECT_FALSE(names.Intern(std::string(Names::kNameBytesMax + 1, 'x')).has_value());
}

TEST(NamesTest, ThereAreOnlySoManyButTheKnownStay) {
  Names names;
  for (size_t i = 0; i < Names::kNamesMax; ++i) {
    if (!names.Intern(std::to_string(i)).has_value()) FAIL() << "at " << i;
  }
  EXPECT_FALSE(names.Intern("one more").has_value());
  const auto known = names.Intern("12345");
  ASSERT_TRUE(known.has_value());
  EXPECT_EQ(names.Text(*known), "12345");
}

}  // namespace
}  // namespace ravenstore::daemon
