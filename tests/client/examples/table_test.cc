#include "client/examples/table.h"

#include <gtest/gtest.h>

namespace ravenstore::examples {
namespace {

TEST(TableTest, ColumnsAlignUnderTheirHeader) {
  Table table("Figures");
  table.Add("", {"plain", "store"});
  table.Add("step time", {"9.0 ms", "10.0 ms"});
  table.Add("hits", {"-", "7"});
  EXPECT_EQ(table.Print(),
            "Figures\n"
            "            plain    store\n"
            "--------------------------\n"
            "step time  9.0 ms  10.0 ms\n"
            "hits            -        7\n");
}

TEST(TableTest, BytesAndSecondsHaveFittingUnits) {
  EXPECT_EQ(FormatBytes(12), "12 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(5 << 20), "5.0 MiB");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(FormatSeconds(0.0123), "12.3 ms");
  EXPECT_EQ(FormatSeconds(1.5), "1.500 s");
}

}  // namespace
}  // namespace ravenstore::examples
