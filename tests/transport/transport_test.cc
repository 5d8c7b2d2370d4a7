#include "transport/transport.h"

#include <gtest/gtest.h>

#include <string>

namespace ravenstore::transport {
namespace {

TEST(IsNodeNameTest, ANameIsLettersDigitsDotsDashesAndUnderscores) {
  for (const char* name : {"a", "node-7.rack_2", "..", "A0"}) EXPECT_TRUE(IsNodeName(name)) << name;
  for (const char* name : {"", "a b", "a/b", "a=b", "\xc3\xa4", "a\n"})
    EXPECT_FALSE(IsNodeName(name)) << name;
}

TEST(IsNodeNameTest, ANameHasABound) {
  EXPECT_TRUE(IsNodeName(std::string(kNodeNameMax, 'a')));
  EXPECT_FALSE(IsNodeName(std::string(kNodeNameMax + 1, 'a')));
  EXPECT_FALSE(IsNodeName(std::string("a\0b", 3)));
}

}  // namespace
}  // namespace ravenstore::transport
