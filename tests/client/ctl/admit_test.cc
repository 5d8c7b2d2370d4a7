#include "client/ctl/admit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ipc/clock.h"
#include "tests/client/ctl/scripted_daemon.h"

namespace ravenstore::client::ctl {
namespace {

using core::ErrorCode;
using core::GiB;
using testing::ElementsAre;

proto::DaemonPacket Turn(uint32_t position, const char* words) {
  proto::DaemonPacket packet;
  packet.mutable_legacy_turn()->set_position(position);
  packet.mutable_legacy_turn()->set_bytes(GiB(3).count());
  packet.mutable_legacy_turn()->set_words(words);
  if (position == 0) packet.mutable_legacy_turn()->set_uuid("GPU-1");
  return packet;
}

class AdmitTest : public testing::Test {
 protected:
  core::Result<Admitted> Ask(Script script, core::Tick deadline = core::kNever) {
    const ScriptedDaemon daemon(std::move(script));
    const Estimate estimate{
        .source = "history", .bytes = GiB(2), .compute = 0.25, .margin = GiB(1)};
    return AwaitAdmission(
        daemon.path(), AdmitPacket(estimate, {"GPU-1"}, "train"), deadline,
        [this](const proto::LegacyTurn& turn) { turns_.push_back(turn.words()); });
  }

  std::vector<std::string> turns_;
};

TEST_F(AdmitTest, ItWaitsThroughItsPlacesUntilItIsAdmitted) {
  proto::AdmitJob asked;
  const auto admitted = Ask([&](const proto::ClientPacket& question) {
    asked = question.admit_job();
    Reply reply;
    for (const auto& packet : {Turn(2, "for memory"), Turn(1, "for memory"), Turn(0, "busy")})
      reply.packets.push_back(packet.SerializeAsString());
    return reply;
  });
  ASSERT_TRUE(admitted.ok());
  EXPECT_EQ(admitted->uuid, "GPU-1");
  EXPECT_EQ(admitted->bytes, GiB(3));
  EXPECT_EQ(admitted->words, "busy");
  EXPECT_EQ(asked.bytes(), GiB(2).count());
  EXPECT_EQ(asked.margin(), GiB(1).count());
  EXPECT_EQ(asked.uuids(0), "GPU-1");
  EXPECT_EQ(asked.compute(), 0.25);
  EXPECT_FALSE(asked.has_link());
  EXPECT_THAT(turns_, ElementsAre("for memory", "for memory"));
}

TEST_F(AdmitTest, ARefusalADaemonThatEndsAndATimeThatIsOverAreErrors) {
  const auto refused = Ask([](const proto::ClientPacket& question) {
    return Refuse(question, ErrorCode::kOutOfMemory, "it never fits");
  });
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(refused.error().message, "it never fits");
  const auto answer = Ask([](const proto::ClientPacket&) { return Reply{.hang_up = true}; });
  EXPECT_EQ(answer.error().code, ErrorCode::kUnavailable);
  const auto late = Ask([](const proto::ClientPacket&) { return Reply{}; }, ipc::Now());
  EXPECT_EQ(late.error().code, ErrorCode::kTimedOut);
}

TEST(VisibleDevicesTest, DevicesAreNamedByNumberOrTheBeginningOfTheirUuid) {
  proto::Welcome welcome;
  for (const char* uuid : {"GPU-aa", "GPU-bb"}) welcome.add_devices()->set_uuid(uuid);
  EXPECT_THAT(VisibleDevices("1,GPU-a", welcome).value(), ElementsAre("GPU-bb", "GPU-aa"));
  EXPECT_TRUE(VisibleDevices("", welcome).value().empty());
  for (const char* visible : {"2", "-1", "GPU-cc", "0,,1"})
    EXPECT_EQ(VisibleDevices(visible, welcome).error().code, ErrorCode::kInvalidArgument)
        << visible;
}

}  // namespace
}  // namespace ravenstore::client::ctl
