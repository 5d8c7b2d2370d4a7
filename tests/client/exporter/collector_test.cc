#include "client/exporter/collector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <memory>

#include "tests/client/ctl/scripted_daemon.h"

namespace ravenstore::client::exporter {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class CollectorTest : public testing::Test {
 protected:
  std::string Text(const Collector& collector) {
    return prometheus::TextSerializer().Serialize(collector.Collect());
  }
  Collector Of(const std::string& socket) {
    return Collector({socket, std::chrono::seconds(5), [](uid_t) { return std::string("u"); },
                      [this](const std::string& what) { said_.push_back(what); }});
  }

  std::vector<std::string> said_;
};

TEST_F(CollectorTest, AsksTheDaemonEachTime) {
  ctl::GoodDaemon good;
  ctl::ScriptedDaemon daemon(std::ref(good));
  const Collector collector = Of(daemon.path());
  EXPECT_THAT(Text(collector), HasSubstr("\nravenstore_up 1\n"));
  EXPECT_THAT(Text(collector), HasSubstr("\nravenstore_up 1\n"));
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(CollectorTest, ADaemonThatIsNotThereIsToldOfOnce) {
  const Collector collector = Of("/nowhere/s");
  EXPECT_THAT(Text(collector), HasSubstr("\nravenstore_up 0\n"));
  EXPECT_THAT(Text(collector), HasSubstr("\nravenstore_up 0\n"));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("/nowhere/s")));
}

// As a daemon that is started anew: the connection is gone, and a new one is had.
TEST_F(CollectorTest, AConnectionThatBrokeIsMadeAnewInTheSameLook) {
  ctl::GoodDaemon good;
  int connections = 0;
  ctl::ScriptedDaemon daemon([&](const proto::ClientPacket& question) {
    if (question.body_case() == proto::ClientPacket::kHello) ++connections;
    ctl::Reply reply = good(question);
    reply.hang_up = question.body_case() == proto::ClientPacket::kListJobRecords;  // the last
    return reply;
  });
  const Collector collector = Of(daemon.path());
  EXPECT_THAT(Text(collector), HasSubstr("\nravenstore_up 1\n"));
  EXPECT_THAT(Text(collector), HasSubstr("\nravenstore_up 1\n"));
  EXPECT_EQ(connections, 2);
  EXPECT_THAT(said_, IsEmpty());
}

}  // namespace
}  // namespace ravenstore::client::exporter
