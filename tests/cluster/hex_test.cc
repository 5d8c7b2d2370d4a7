#include "cluster/hex.h"

#include <gtest/gtest.h>

#include <string>

namespace ravenstore::cluster {
namespace {

TEST(HexTest, ReadsWhatItWrites) {
  const Incarnation incarnation{.high = 0x0011223344556677, .low = 0x8899aabbccddeeff};
  const std::string text = ToHex(incarnation);
  EXPECT_EQ(text, "00112233445566778899aabbccddeeff");
  EXPECT_EQ(FromHex<Incarnation>(text), incarnation);
  EXPECT_EQ(ToHex(MachineId{.high = 1, .low = 2}), "00000000000000010000000000000002");
  PublicKey key{};
  key.front() = std::byte{0x0f};
  key.back() = std::byte{0xa0};
  EXPECT_EQ(ToHex(key), "0f" + std::string(60, '0') + "a0");
  EXPECT_EQ(FromHex<PublicKey>(ToHex(key)), key);
}

TEST(HexTest, ReadsNothingElse) {
  const std::string text(32, 'a');
  ASSERT_TRUE(FromHex<MachineId>(text));
  for (const std::string& other : {text.substr(1), text + "a", std::string(32, 'A'),
                                   text.substr(1) + "g", text.substr(1) + " ", std::string()}) {
    EXPECT_FALSE(FromHex<MachineId>(other)) << other;
  }
  EXPECT_FALSE(FromHex<PublicKey>(text));
}

}  // namespace
}  // namespace ravenstore::cluster
