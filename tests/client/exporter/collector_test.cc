#include "client/exporter/collector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/ctl/scripted_daemon.h"

namespace ravenstore::client::exporter {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class CollectorTest : public testing::Test {
 protected:
  Collector Of(const std::string& socket) {
    return Collector({socket, std::chrono::seconds(5),
                      [this](const std::string& what) { said_.push_back(what); }});
  }

  std::vector<std::string> said_;
};

TEST_F(CollectorTest, AsksTheDaemonEachTime) {
  ctl::GoodDaemon good;
  ctl::ScriptedDaemon daemon(std::ref(good));
  Collector collector = Of(daemon.path());
  EXPECT_TRUE(collector.Look());
  EXPECT_TRUE(collector.Look());
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(CollectorTest, AMissingDaemonIsReportedOnce) {
  Collector collector = Of("/nowhere/s");
  EXPECT_FALSE(collector.Look());
  EXPECT_FALSE(collector.Look());
  EXPECT_THAT(said_, ElementsAre(HasSubstr("/nowhere/s")));
}

// As after a restart of the daemon: the connection is gone, and a new one is made.
TEST_F(CollectorTest, AConnectionThatBrokeIsReopenedInTheSameLook) {
  ctl::GoodDaemon good;
  int connections = 0;
  ctl::ScriptedDaemon daemon([&](const proto::ClientPacket& question) {
    if (question.body_case() == proto::ClientPacket::kHello) ++connections;
    ctl::Reply reply = good(question);
    reply.hang_up = question.body_case() == proto::ClientPacket::kListJobRecords;  // the last
    return reply;
  });
  Collector collector = Of(daemon.path());
  EXPECT_TRUE(collector.Look());
  EXPECT_TRUE(collector.Look());
  EXPECT_EQ(connections, 2);
  EXPECT_THAT(said_, IsEmpty());
}

}  // namespace
}  // namespace ravenstore::client::exporter
