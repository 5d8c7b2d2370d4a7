#include "core/hint_scale.h"

#include <gtest/gtest.h>

namespace ravenstore::core {
namespace {

using std::chrono::milliseconds;

// A millisecond a position, before anything is known.
class HintScaleTest : public ::testing::Test {
 protected:
  std::optional<int64_t> KeyAt(int64_t logical_time) const {
    return scale_.KeyAt(logical_time, forecast_, now_);
  }
  static int64_t Nanoseconds(int64_t ms) { return Duration(milliseconds(ms)).count(); }

  Forecast forecast_;
  HintScale scale_;
  Tick now_{milliseconds(1000)};
};

TEST_F(HintScaleTest, PlacesAreCountedFromTheLastTensorOfWhichBothAreKnown) {
  EXPECT_FALSE(KeyAt(7));
  scale_.Add(UseKind::kOrder, 100, 5);
  EXPECT_FALSE(KeyAt(7));
  scale_.Add(UseKind::kOrder, 130, 15);
  scale_.Add(UseKind::kOrder, 1000, std::nullopt);
  EXPECT_EQ(KeyAt(15), 130);
  EXPECT_EQ(KeyAt(25), 160);
  EXPECT_EQ(KeyAt(5), 100);
}

TEST_F(HintScaleTest, TimesAreCountedFromAHintThatIsStillToCome) {
  scale_.Add(UseKind::kAt, Nanoseconds(1050), std::nullopt);
  EXPECT_EQ(KeyAt(10), Nanoseconds(1010));
  scale_.Add(UseKind::kAt, Nanoseconds(1050), 20);
  EXPECT_EQ(KeyAt(10), Nanoseconds(1040));
  scale_.Add(UseKind::kAt, Nanoseconds(1050), 0);  // gone
  EXPECT_EQ(KeyAt(10), Nanoseconds(1010));
}

TEST_F(HintScaleTest, WhoHintsInAnotherWayBeginsAnew) {
  scale_.Add(UseKind::kOrder, 100, 5);
  scale_.Add(UseKind::kOrder, 130, 15);
  scale_.Add(UseKind::kAt, Nanoseconds(1050), std::nullopt);
  EXPECT_EQ(scale_.kind(), UseKind::kAt);
  scale_.Add(UseKind::kOrder, 130, 15);
  EXPECT_FALSE(KeyAt(15));
}

TEST_F(HintScaleTest, StrangeNumbersStayWhereSumsAreSafe) {
  constexpr int64_t kMost = int64_t{1} << 55;
  scale_.Add(UseKind::kOrder, kMost - 1, 0);
  scale_.Add(UseKind::kOrder, -kMost, 1);
  for (const int64_t logical_time : {int64_t{-1} << 32, int64_t{0}, int64_t{1} << 32}) {
    EXPECT_LE(std::abs(KeyAt(logical_time).value()), int64_t{1} << 61);
  }
}

}  // namespace
}  // namespace ravenstore::core
