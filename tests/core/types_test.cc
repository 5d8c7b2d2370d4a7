#include "core/types.h"

#include <gtest/gtest.h>

#include <type_traits>

namespace ravenstore::core {
namespace {

TEST(TypesTest, RoundsUpToTheNextMultiple) {
  EXPECT_EQ(Bytes(0).RoundUp(Bytes(512)), Bytes(0));
  EXPECT_EQ(Bytes(1).RoundUp(Bytes(512)), Bytes(512));
  EXPECT_EQ(Bytes(512).RoundUp(Bytes(512)), Bytes(512));
  EXPECT_EQ(Bytes(513).RoundUp(Bytes(512)), Bytes(1024));
}

TEST(TypesTest, UnitsAreBinary) {
  EXPECT_EQ(KiB(1), Bytes(1024));
  EXPECT_EQ(MiB(1), KiB(1024));
  EXPECT_EQ(GiB(1), MiB(1024));
  EXPECT_EQ(KiB(3) * 2, Bytes(6144));
}

TEST(TypesTest, DistinctIdsDoNotConvert) {
  EXPECT_FALSE((std::is_convertible_v<ClientId, TensorId>));
  EXPECT_FALSE((std::is_convertible_v<uint32_t, ClientId>));
  EXPECT_FALSE((std::is_convertible_v<uint64_t, Bytes>));
  EXPECT_EQ(ToInt(SlotId{7}), 7u);
  static_assert(std::is_same_v<decltype(ToInt(DeviceId{1})), uint16_t>);
}

TEST(TypesTest, NeverIsAfterEveryInstant) {
  EXPECT_GT(kNever, Tick(std::chrono::hours(24 * 365 * 200)));
}

}  // namespace
}  // namespace ravenstore::core
