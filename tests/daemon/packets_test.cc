#include "daemon/packets.h"

#include <gtest/gtest.h>

#include "proto/packet.h"

namespace ravenstore::daemon {
namespace {

TEST(PacketsTest, AnAnswerTooLargeForAPacketIsAFailure) {
  proto::DaemonPacket packet;
  packet.set_request(5);
  packet.mutable_failure_explained()->set_message(std::string(1000, 'x'));
  EXPECT_EQ(Encode(packet), packet.SerializeAsString());
  packet.mutable_failure_explained()->set_message(std::string(proto::kControlPacketMax, 'x'));
  proto::DaemonPacket encoded;
  ASSERT_TRUE(encoded.ParseFromString(Encode(packet)));
  EXPECT_EQ(encoded.request(), 5u);
  EXPECT_EQ(encoded.failure().code(), static_cast<uint32_t>(core::ErrorCode::kLimit));
}

TEST(PacketsTest, AFailureSaysWhichAndWhy) {
  const proto::DaemonPacket packet = FailureOf(7, {core::ErrorCode::kNotFound, "no such thing"});
  EXPECT_EQ(packet.request(), 7u);
  EXPECT_EQ(packet.failure().code(), static_cast<uint32_t>(core::ErrorCode::kNotFound));
  EXPECT_EQ(packet.failure().message(), "no such thing");
}

TEST(PacketsTest, APrintableNameIsShortAndPrintable) {
  EXPECT_EQ(PrintableName("train\x1b[2J\n"), "train?[2J?");
  EXPECT_EQ(PrintableName("na\xc3\xafve"), "na??ve");
  EXPECT_LT(PrintableName(std::string(100'000, 'x')).size(), 10'000u);
}

}  // namespace
}  // namespace ravenstore::daemon
