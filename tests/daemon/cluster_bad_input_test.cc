// A daemon's messages about a cluster that is configured wrongly or is not as configured. A setting
// that cannot be right keeps the daemon from starting. For a problem that may pass, it says what to
// do and serves its own jobs meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "tests/cluster/canned_server.h"
#include "tests/cluster/etcd_process.h"
#include "tests/daemon/cluster_fixture.h"
#include "tests/daemon/daemon_process.h"
#include "transport/ucx_library.h"

namespace ravenstore::daemon {
namespace {

using testing::HasSubstr;
using transport::FreeAddress;

// Of sysexits.h: try again, and do not.
constexpr int kExitUnavailable = 69;
constexpr int kExitConfig = 78;

class ClusterBadInputTest : public ClusterFixture {
 protected:
  // The one line that a daemon with these keys says before it ends.
  std::string Refusal(int status, const Keys& keys) {
    const FailedStart start = StartExpectingFailure(
        {"--socket", directory_ / "refused", "--config", Configure("a", "127.0.0.1:0", keys)});
    EXPECT_EQ(start.status, status) << start.words;
    EXPECT_EQ(std::ranges::count(start.words, '\n'), 1) << start.words;
    return start.words;
  }
  // Tensors that find no room on the device are stored on its host.
  void ExpectToServe(const DaemonProcess& daemon) {
    Store store = Connect(daemon);
    EXPECT_THAT(Consume(store, Make(store, 12)), testing::Each(Outcome::kRight));
  }
};

TEST_F(ClusterBadInputTest, AKeyFileThatIsNoneIsRefusedAndSaysHowToMakeOne) {
  const std::string none = directory_ / "none";
  EXPECT_THAT(Refusal(kExitConfig, {{"key", Quoted(none)}}),
              HasSubstr("\"cluster.key\" is " + none + ", but the key file " + none +
                        " cannot be read: No such file or directory: bring the cluster's here, or "
                        "make one for all nodes by openssl rand -hex 32"));
  Write("words", "seven\n");
  EXPECT_THAT(Refusal(kExitConfig, {{"key", Quoted(directory_ / "words")}}),
              HasSubstr("holds no key: 64 hexadecimal digits in one line, as of openssl rand"));
}

TEST_F(ClusterBadInputTest, AKeyFileThatOthersMayReadIsRefused) {
  const std::string key = directory_ / "key";
  ASSERT_EQ(::chmod(key.c_str(), 0640), 0);
  EXPECT_THAT(Refusal(kExitConfig, {}),
              HasSubstr("\"cluster.key\" is " + key + ", but the key file " + key +
                        " is open to other users than its owner (mode 0640): set its mode to "
                        "0600, and make a new key if they may have read it"));
}

TEST_F(ClusterBadInputTest, AnAddressThatIsNoneOfThisMachineMayBeAddedLater) {
  EXPECT_THAT(Refusal(kExitUnavailable, {{"listen", Quoted("192.0.2.1:7420")}}),
              HasSubstr("\"cluster.listen\" is 192.0.2.1:7420, but this node cannot listen at "
                        "192.0.2.1:7420 (Cannot assign requested address): it takes an address of "
                        "this machine and a free port"));
  EXPECT_THAT(Refusal(kExitConfig, {{"listen", Quoted("one:7420")}}),
              HasSubstr("\"cluster.listen\" is one:7420, but \"one:7420\" is no numeric address "
                        "with a port"));
}

TEST_F(ClusterBadInputTest, AStateFolderHasOneDaemon) {
  const auto first = Lender("b", FreeAddress());
  EXPECT_THAT(Refusal(kExitUnavailable, {{"state", Quoted(StateOf("b"))}}),
              HasSubstr("\"cluster.state\" is " + StateOf("b") +
                        ", but another process has the state folder " + StateOf("b") +
                        ": end it, or give this one a folder of its own"));
  ExpectToServe(*first);
}

TEST_F(ClusterBadInputTest, EndpointsThatCannotBeOnesOfEtcdAreRefused) {
  for (const char* endpoint : {"192.0.2.9:2379", "etcd://192.0.2.9:2379", "http://192.0.2.9/v3"}) {
    EXPECT_THAT(Refusal(kExitConfig, {{"etcd", List({endpoint})}}),
                HasSubstr("\"cluster.etcd\": \"" + std::string(endpoint) +
                          "\" is no endpoint of etcd: write it as http://HOST:PORT or "
                          "https://HOST:PORT"));
  }
}

TEST_F(ClusterBadInputTest, UcxWantsATrustedFabricAndDevices) {
  EXPECT_THAT(Refusal(kExitConfig, {{"transport", Quoted("ucx")}}),
              HasSubstr("whoever reaches its port owns this daemon. Set "
                        "\"cluster.trusted_fabric\" to true if all who do are trusted, or use "
                        "\"tls\""));
  EXPECT_THAT(Refusal(kExitConfig, {{"transport", Quoted("ucx")}, {"trusted_fabric", "true"}}),
              HasSubstr("\"cluster.ucx_devices\" must name the devices that UCX may use"));
}

TEST_F(ClusterBadInputTest, UcxWithoutTheWantedTransportIsRefused) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "UCX takes over calls that ThreadSanitizer has taken over";
#endif
  if (const auto ucx = transport::LoadUcx(); !ucx.ok()) GTEST_SKIP() << ucx.error().message;
  EXPECT_THAT(Refusal(kExitConfig, {{"transport", Quoted("ucx")},
                                    {"trusted_fabric", "true"},
                                    {"ucx_transports", Quoted("tcp,none")},
                                    {"ucx_devices", Quoted("lo")}}),
              HasSubstr("\"cluster.transport\" is \"ucx\", but UCX has no transport none on the "
                        "device lo here: "));
}

TEST_F(ClusterBadInputTest, ANodeWithAnotherKeyIsNamedAndBothServeTheirOwn) {
  const std::string there = FreeAddress();
  Write("other", std::string(64, '8'));
  const auto lender = Lender("b", there, {{"key", Quoted(directory_ / "other")}});
  const auto home =
      Start("a", FreeAddress(), {{"size", Quoted("256MiB")}, {"peers", List({"b=" + there})}});
  EXPECT_TRUE(Says(*home, "cluster.refused peer=b: the peer has another key: both need the same"))
      << home->Log();
  EXPECT_TRUE(Says(*lender, "cluster.home_refused: the peer has another key")) << lender->Log();
  ExpectToServe(*home);
  ExpectToServe(*lender);
  EXPECT_EQ(Reachable(*home), core::Bytes{});
}

TEST_F(ClusterBadInputTest, AStrangersNameIsNotLetIn) {
  const std::string there = FreeAddress();
  const auto lender = Lender("b", there, {{"nodes", List({"b", "c"})}});
  const auto home =
      Start("a", FreeAddress(), {{"size", Quoted("256MiB")}, {"peers", List({"b=" + there})}});
  EXPECT_TRUE(Says(*home,
                   "cluster.refused peer=b: the peer does not allow this node's name (its list of "
                   "nodes lacks it)"))
      << home->Log();
  EXPECT_TRUE(Says(*lender, "cluster.home_refused: the node a is not allowed here"))
      << lender->Log();
  ExpectToServe(*home);
  EXPECT_EQ(Reachable(*home), core::Bytes{});
}

TEST_F(ClusterBadInputTest, AServerThatIsNoEtcdIsSaidAndTheRestGoesOn) {
  cluster::CannedServer server;
  const std::string there = FreeAddress();
  const auto lender = Lender("b", there);
  const auto home = Start("a", FreeAddress(),
                          {{"size", Quoted("256MiB")},
                           {"peers", List({"b=" + there})},
                           {"etcd", List({server.endpoint()})}});
  const std::string words = "the nodes that are known stay known";
  EXPECT_TRUE(Eventually([&] {
    server.Step();
    return StatsOf(*home).cluster().discovery().find(words) != std::string::npos;
  })) << home->Log();
  EXPECT_THAT(StatsOf(*home).cluster().discovery(), HasSubstr("is no etcd"));
  EXPECT_TRUE(Says(*home, words)) << home->Log();
  EXPECT_TRUE(Eventually([&] { return Reachable(*home) == core::MiB(256); }));
  ExpectToServe(*home);
}

TEST_F(ClusterBadInputTest, AnEndpointWhereNoServerListensIsReportedAndTheRestGoesOn) {
  const auto node = Start("a", FreeAddress(), {{"etcd", List({"http://" + FreeAddress()})}});
  EXPECT_TRUE(Eventually([&] {
    return StatsOf(*node).cluster().discovery().find("does not answer") != std::string::npos;
  })) << node->Log();
  EXPECT_THAT(StatsOf(*node).cluster().discovery(), HasSubstr("not registered yet as a"));
  ExpectToServe(*node);
}

TEST_F(ClusterBadInputTest, OfTwoWithOneNameTheSecondServesItsOwnAndWaits) {
  if (const std::string why = cluster::WhyNoEtcd(); !why.empty()) GTEST_SKIP() << why;
  const cluster::EtcdProcess etcd;
  const Keys keys = {{"etcd", List({etcd.endpoint()})}};
  const auto first = Start("a", FreeAddress(), keys);
  ASSERT_TRUE(Says(*first, "cluster.discovery: registered as a")) << first->Log();

  Keys others = keys;
  others["state"] = Quoted(StateOf("other"));
  const auto second = Start("a", FreeAddress(), others);
  EXPECT_TRUE(
      Says(*second, "not registered: another node of this name is alive, or was lately, at " +
                        StatsOf(*first).cluster().address()))
      << second->Log();
  EXPECT_THAT(second->Log(), HasSubstr("this one waits until that is gone; stop it, or give one of "
                                       "them another name"));
  Store store = Connect(*second);
  std::vector<Held> held = Make(store, 12);

  // A start of its own folder is the first again, also where that gave nothing back.
  first->Kill(SIGKILL);
  first->Start();
  ASSERT_TRUE(Eventually([&] {
    return StatsOf(*first).cluster().discovery().starts_with("registered as a");
  })) << first->Log();

  EXPECT_EQ(first->Kill(SIGTERM), 0);
  EXPECT_TRUE(Says(*second, "cluster.discovery: registered as a")) << second->Log();
  EXPECT_THAT(Consume(store, std::move(held)), testing::Each(Outcome::kRight));
}

}  // namespace
}  // namespace ravenstore::daemon
