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
  for (const char* text : {"", ":", ":1", "127.0.0.1", "127.0.0.1:", "localhost:1", "[]:1", "[::1]",
                           "127.0.0.1.1:1"}) {
    const auto address = ParseAddress(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.error().code, core::ErrorCode::kInvalidArgument);
    EXPECT_EQ(address.error().message,
              "\"" + std::string(text) + "\" is no numeric address with a port");
  }
}

// getaddrinfo takes port 65536 for 0 and 70000 for 4464.
TEST(AddressTest, PortsThatDoNotFitAreRefused) {
  for (const char* text :
       {"127.0.0.1:65536", "127.0.0.1:70000", "127.0.0.1:4294967297", "127.0.0.1:-1",
        "127.0.0.1:+1", "127.0.0.1:x", "127.0.0.1: 1", "[::1]:65536"}) {
    const auto address = ParseAddress(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.error().code, core::ErrorCode::kInvalidArgument);
    EXPECT_NE(address.error().message.find(text), std::string::npos);
  }
}

TEST(AddressTest, NoNodeIsReachedAtTheUnspecifiedAddress) {
  for (const char* text : {"0.0.0.0:7000", "[::]:7000", "0:7000", "[0:0::0]:7000"}) {
    EXPECT_TRUE(ParseAddress(text).ok()) << text;
    const auto address = ParseOwnAddress(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.error().code, core::ErrorCode::kInvalidArgument);
    EXPECT_NE(address.error().message.find("no address at which other nodes"), std::string::npos);
  }
  EXPECT_TRUE(ParseOwnAddress("127.0.0.1:0").ok());
}

}  // namespace
}  // namespace ravenstore::transport
