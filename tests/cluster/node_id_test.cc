#include "cluster/node_id.h"

#include <gtest/gtest.h>

#include <string>

namespace ravenstore::cluster {
namespace {

TEST(NodeIdTest, ReadsWhatItWrites) {
  Incarnation incarnation;
  for (size_t i = 0; i < incarnation.bytes.size(); ++i) {
    incarnation.bytes[i] = static_cast<uint8_t>(17 * i);
  }
  const std::string text = ToHex(incarnation);
  EXPECT_EQ(text, "00112233445566778899aabbccddeeff");
  EXPECT_EQ(FromHex<Incarnation>(text), incarnation);
}

TEST(NodeIdTest, ReadsNothingElse) {
  const std::string text(32, 'a');
  ASSERT_TRUE(FromHex<MachineId>(text));
  for (const std::string& other : {text.substr(1), text + "a", std::string(32, 'A'),
                                   text.substr(1) + "g", text.substr(1) + " ", std::string()}) {
    EXPECT_FALSE(FromHex<MachineId>(other)) << other;
  }
}

}  // namespace
}  // namespace ravenstore::cluster
