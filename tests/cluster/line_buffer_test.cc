#include "cluster/line_buffer.h"

#include <gtest/gtest.h>

namespace ravenstore::cluster {
namespace {

TEST(LineBufferTest, LinesAreWholeWhateverPartsArrive) {
  LineBuffer buffer;
  EXPECT_FALSE(buffer.Next());
  buffer.Append("a");
  EXPECT_FALSE(buffer.Next());
  buffer.Append("b\n\nc");
  EXPECT_EQ(buffer.Next(), "ab");
  EXPECT_EQ(buffer.Next(), "");
  EXPECT_FALSE(buffer.Next());
  EXPECT_EQ(buffer.rest(), "c");
  buffer.Append("d\ne");
  EXPECT_EQ(buffer.rest(), "cd\ne");
  EXPECT_EQ(buffer.Next(), "cd");
  EXPECT_FALSE(buffer.Next());
  EXPECT_EQ(buffer.rest(), "e");
  buffer.Clear();
  EXPECT_EQ(buffer.rest(), "");
  buffer.Append("f\n");
  EXPECT_EQ(buffer.Next(), "f");
}

// Moved for each line, a megabyte of short lines would take seconds.
TEST(LineBufferTest, TakingALineMovesNoBytes) {
  LineBuffer buffer;
  buffer.Append("one\ntwo\nthree");
  const auto one = buffer.Next();
  const auto two = buffer.Next();
  ASSERT_TRUE(one && two);
  EXPECT_EQ(*one, "one");
  EXPECT_EQ(two->data(), one->data() + one->size() + 1);
}

}  // namespace
}  // namespace ravenstore::cluster
