#include "transport/address.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

namespace ravenstore::transport {
namespace {

TEST(AddressTest, WhatIsReadIsWrittenAlike) {
  for (const char* text : {"127.0.0.1:7000", "0.0.0.0:0", "[::1]:65535", "[fe80::1]:1"}) {
    const auto address = ParseAddress(text);
    ASSERT_TRUE(address.ok()) << text;
    EXPECT_EQ(FormatAddress(*address), text);
  }
  EXPECT_EQ(ParseAddress("127.0.0.1:7000")->length, sizeof(sockaddr_in));
  EXPECT_EQ(ParseAddress("[::1]:7000")->length, sizeof(sockaddr_in6));
}

TEST(AddressTest, WhatIsNoNumericAddressWithAPortIsRefused) {
  for (const char* text : {"", ":", ":1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "localhost:1",
                           "[]:1", "[::1]", "127.0.0.1.1:1"}) {
    const auto address = ParseAddress(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.error().code, core::ErrorCode::kInvalidArgument);
    EXPECT_EQ(address.error().message,
              "\"" + std::string(text) + "\" is no numeric address with a port");
  }
}

}  // namespace
}  // namespace ravenstore::transport
