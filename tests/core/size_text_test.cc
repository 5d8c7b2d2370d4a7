#include "core/size_text.h"

#include <gtest/gtest.h>

#include <limits>

namespace ravenstore::core {
namespace {

TEST(SizeTextTest, ReadsSizesAsPeopleWriteThem) {
  EXPECT_EQ(ParseBytes("512"), Bytes(512));
  EXPECT_EQ(ParseBytes("512B"), Bytes(512));
  EXPECT_EQ(ParseBytes("64KiB"), KiB(64));
  EXPECT_EQ(ParseBytes("64KB"), Bytes(64000));
  EXPECT_EQ(ParseBytes("64k"), KiB(64));
  EXPECT_EQ(ParseBytes("16 MiB"), MiB(16));
  EXPECT_EQ(ParseBytes("1.5GiB"), MiB(1536));
  EXPECT_EQ(ParseBytes("2TiB"), GiB(2048));
  EXPECT_EQ(ParseBytes("2T"), GiB(2048));
  EXPECT_EQ(ParseBytes("12 GB"), Bytes(12'000'000'000));
  EXPECT_EQ(ParseBytes("1.5TB"), Bytes(1'500'000'000'000));
  EXPECT_EQ(ParseBytes("0"), Bytes(0));
}

TEST(SizeTextTest, RefusesEverythingElse) {
  for (const char* text : {"", " ", "B", "-1", "1X", "1 KiBs", "1KK", "KiB", "nan", "inf", "1e30",
                           "8388608TiB", "1,5GiB", "0x10"}) {
    EXPECT_FALSE(ParseBytes(text).has_value()) << text;
  }
}

TEST(SizeTextTest, WritesSizesForPeople) {
  EXPECT_EQ(SizeText(Bytes(0)), "0 B");
  EXPECT_EQ(SizeText(Bytes(640)), "640 B");
  EXPECT_EQ(SizeText(MiB(16)), "16.0 MiB");
  EXPECT_EQ(SizeText(MiB(1536)), "1.5 GiB");
  EXPECT_EQ(SizeText(Bytes(std::numeric_limits<uint64_t>::max())), "16777216.0 TiB");
}

TEST(SizeTextTest, NeverShowsAThousandAndTwentyFourOfAUnit) {
  EXPECT_EQ(SizeText(MiB(1) - Bytes(1)), "1.0 MiB");
  EXPECT_EQ(SizeText(Bytes(1023)), "1023 B");
}

TEST(SizeTextTest, ReadsWholeNumbersOnly) {
  EXPECT_EQ(ParseNumber("0"), 0u);
  EXPECT_EQ(ParseNumber("18446744073709551615"), std::numeric_limits<uint64_t>::max());
  for (const char* text : {"", " 1", "1 ", "-1", "+1", "1.0", "0x10", "18446744073709551616"})
    EXPECT_FALSE(ParseNumber(text).has_value()) << text;
}

}  // namespace
}  // namespace ravenstore::core
