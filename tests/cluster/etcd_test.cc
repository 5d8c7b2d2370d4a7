// What is etcd's own: endpoints, TLS, and servers that are no etcd. The rest is in
// conformance_test.cc and etcd_json_test.cc.
#include "cluster/etcd.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "ipc/clock.h"
#include "tests/cluster/canned_server.h"
#include "tests/cluster/etcd_process.h"
#include "tests/timing/timing.h"
#include "tests/transport/proxy.h"

namespace ravenstore::cluster {
namespace {

using core::ErrorCode;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kVersion = R"({"etcdserver":"3.4.23","etcdcluster":"3.4.0"})";
constexpr const char* kRange = R"({"header":{"cluster_id":"5","revision":"7"}})";

class EtcdTest : public testing::Test {
 protected:
  void SetUp() override { server_.Say("/version", kVersion); }

  void Open(std::vector<std::string> endpoints) {
    auto opened = OpenEtcd({.endpoints = std::move(endpoints)});
    ASSERT_TRUE(opened.ok()) << Describe(opened.error());
    etcd_ = std::move(*opened);
  }
  core::Result<RangeRead> Range(core::Duration patience = seconds(10)) {
    std::optional<core::Result<RangeRead>> answer;
    etcd_->Range("/", 1, etcd_->Now() + patience,
                 [&](core::Result<RangeRead> read) { answer = std::move(read); });
    const core::Tick end = etcd_->Now() + 3 * patience;
    while (!answer && etcd_->Now() < end) {
      server_.Step();
      other_.Step();
      etcd_->Poll(etcd_->Now() + milliseconds(1));
    }
    if (answer) return *answer;
    return core::Error{ErrorCode::kTimedOut, "there was no answer"};
  }
  // Of the only endpoint.
  core::Error ErrorOf() {
    Open({server_.endpoint()});
    const auto read = Range();
    return read.ok() ? core::Error{ErrorCode::kUnsupported, "it was read"} : read.error();
  }
  static bool Says(const core::Error& error, const std::string& words) {
    EXPECT_NE(error.message.find(words), std::string::npos) << error.message;
    EXPECT_EQ(error.message.find('\n'), std::string::npos) << error.message;
    return error.message.find(words) != std::string::npos;
  }
  // An address where no process listens.
  static std::string Nowhere() {
    std::string address;
    transport::LoopbackListener(&address);
    return "http://" + address;
  }

  CannedServer server_;
  CannedServer other_;
  std::unique_ptr<KeyValues> etcd_;
};

TEST_F(EtcdTest, AsksForTheVersionOnce) {
  server_.Say("/v3/kv/range", kRange);
  Open({server_.endpoint() + "/"});
  for (int i = 0; i < 3; ++i) {
    const auto read = Range();
    ASSERT_TRUE(read.ok()) << Describe(read.error());
    EXPECT_EQ(read->at.revision, 7);
  }
  EXPECT_EQ(server_.requests(), 4u);
  EXPECT_EQ(etcd_->Describe(), "etcd 3.4.23 at " + server_.endpoint());
}

TEST_F(EtcdTest, WhatIsNoEtcdIsSaidInASentence) {
  server_.Say("/version", "<html>Welcome</html>");
  const core::Error error = ErrorOf();
  EXPECT_EQ(error.code, ErrorCode::kVersionMismatch);
  EXPECT_TRUE(Says(error, server_.endpoint() + " is no etcd"));
  EXPECT_TRUE(Says(error, "Welcome"));
}

TEST_F(EtcdTest, AServerWithoutTheGatewayIsNoEtcd) {
  const core::Error error = ErrorOf();
  EXPECT_EQ(error.code, ErrorCode::kVersionMismatch);
  EXPECT_TRUE(Says(error, "is no etcd: it answers HTTP 404 \"no way\""));
}

TEST_F(EtcdTest, AnEtcdThatIsTooOldIsNamed) {
  server_.Say("/version", R"({"etcdserver":"3.3.25","etcdcluster":"3.3.0"})");
  EXPECT_TRUE(Says(ErrorOf(), "is etcd 3.3.25, and 3.4 or newer is needed"));
}

TEST_F(EtcdTest, AnEtcdThatLosesDataIsUsedWithAWarning) {
  server_.Say("/version", R"({"etcdserver":"3.5.1","etcdcluster":"3.5.0"})");
  server_.Say("/v3/kv/range", kRange);
  Open({server_.endpoint()});
  ASSERT_TRUE(Range().ok());
  EXPECT_NE(etcd_->Describe().find("can lose what it has accepted"), std::string::npos);
}

TEST_F(EtcdTest, AServerOfAnotherProtocolIsNoEtcd) {
  server_.SayAlways("SSH-2.0-OpenSSH_9.2\r\n");
  const core::Error error = ErrorOf();
  EXPECT_EQ(error.code, ErrorCode::kVersionMismatch);
  EXPECT_TRUE(Says(error, "is no etcd: it speaks no HTTP"));
}

TEST_F(EtcdTest, HttpWhereTlsIsSpokenAndTlsWhereItIsNot) {
  server_.Say("/version", "Client sent an HTTP request to an HTTPS server.\n", "400 Bad Request");
  EXPECT_TRUE(Says(ErrorOf(), "speaks TLS: its endpoint begins with https://"));
  Open({"https" + server_.endpoint().substr(4)});
  server_.SayAlways("HTTP/1.1 400 Bad Request\r\n\r\n");
  const auto read = Range();
  ASSERT_FALSE(read.ok());
  EXPECT_TRUE(Says(read.error(), "speaks no TLS: its endpoint begins with http://"));
}

TEST_F(EtcdTest, AnswersWithoutSenseAreErrors) {
  for (const char* nonsense : {"", "{", "[]", "{}", R"({"header":{"cluster_id":"x"}})"}) {
    server_.Say("/v3/kv/range", nonsense);
    EXPECT_EQ(ErrorOf().code, ErrorCode::kCorrupt) << nonsense;
  }
  server_.Say("/v3/kv/range", R"({"error":"etcdserver: no leader","code":14})",
              "503 Service Unavailable");
  const core::Error error = ErrorOf();
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_TRUE(Says(error, "no leader"));
}

TEST_F(EtcdTest, TheNextEndpointIsAskedWhereOneIsAway) {
  server_.Say("/v3/kv/range", kRange);
  const std::string nowhere = Nowhere();
  Open({nowhere, server_.endpoint()});
  const core::Tick begun = etcd_->Now();
  ASSERT_TRUE(Range().ok());
  EXPECT_LT(etcd_->Now() - begun, seconds(5));
  EXPECT_EQ(etcd_->Describe(), "etcd 3.4.23 at " + server_.endpoint());
  // It stays with the one that answered.
  ASSERT_TRUE(Range().ok());
  EXPECT_EQ(server_.requests(), 3u);
}

TEST_F(EtcdTest, TheNextEndpointIsAskedWhereOneIsNoEtcd) {
  server_.Say("/version", "{}");
  other_.Say("/version", kVersion);
  other_.Say("/v3/kv/range", kRange);
  Open({server_.endpoint(), other_.endpoint()});
  EXPECT_TRUE(Range().ok());
}

TEST_F(EtcdTest, WhereNoEndpointAnswersEachIsNamed) {
  const std::string one = Nowhere();
  const std::string two = Nowhere();
  Open({one, two});
  const auto read = Range();
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(Says(read.error(), one + " "));
  EXPECT_TRUE(Says(read.error(), "; " + two + " "));
  // One that comes back is found again.
  server_.Say("/v3/kv/range", kRange);
  Open({one, server_.endpoint()});
  EXPECT_TRUE(Range().ok());
}

TEST_F(EtcdTest, ASilentEndpointCostsOneDeadlineAndThenTheNextIsAsked) {
  std::string silent;
  const ipc::UniqueFd listener = transport::LoopbackListener(&silent);
  server_.Say("/v3/kv/range", kRange);
  Open({"http://" + silent, server_.endpoint()});
  const auto first = Range(milliseconds(200));
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(first.error().code, ErrorCode::kTimedOut);
  EXPECT_TRUE(Says(first.error(), silent + " gave no answer in time"));
  EXPECT_TRUE(Range().ok());
}

TEST_F(EtcdTest, TheEnvironmentsProxyIsNotAsked) {
  ::setenv("http_proxy", Nowhere().c_str(), 1);
  server_.Say("/v3/kv/range", kRange);
  Open({server_.endpoint()});
  EXPECT_TRUE(Range().ok());
  ::unsetenv("http_proxy");
}

TEST_F(EtcdTest, MayGoWhileMuchIsUnderWay) {
  Open({server_.endpoint()});
  for (int i = 0; i < 10; ++i) {
    etcd_->Range("/", 1, core::kNever, [](const auto&) { FAIL() << "called after the end"; });
    etcd_->Watch("/", 1, core::kNever, [](const auto&) { FAIL() << "called after the end"; });
  }
  etcd_->Poll(core::Tick{});
  etcd_.reset();
}

TEST(EtcdOptionsTest, SaysWhatIsWrongWithThem) {
  const std::string here = testing::TempDir() + "/etcd_options_test.pem";
  std::ofstream(here) << "any";
  const std::string tls = "https://127.0.0.1:2379";
  struct Case {
    EtcdOptions options;
    ErrorCode code;
    const char* words;
  };
  for (const Case& each : std::vector<Case>{
           {{.endpoints = {}}, ErrorCode::kInvalidArgument, "no endpoint of etcd is given"},
           {{.endpoints = {"127.0.0.1:2379"}}, ErrorCode::kInvalidArgument, "write it as http://"},
           {{.endpoints = {"ftp://127.0.0.1"}}, ErrorCode::kInvalidArgument, "is no endpoint"},
           {{.endpoints = {tls + "/v3"}}, ErrorCode::kInvalidArgument, "is no endpoint"},
           {{.endpoints = {tls + "/?a"}}, ErrorCode::kInvalidArgument, "is no endpoint"},
           {{.endpoints = {"http://u:p@127.0.0.1"}}, ErrorCode::kInvalidArgument, "no endpoint"},
           {{.endpoints = {tls, ""}}, ErrorCode::kInvalidArgument, "\"\" is no endpoint"},
           {{.endpoints = {tls}, .authority = here + "x"}, ErrorCode::kNotFound, "authority"},
           {{.endpoints = {tls}, .certificate = here}, ErrorCode::kInvalidArgument, "only one"},
           {{.endpoints = {tls}, .key = here}, ErrorCode::kInvalidArgument, "only one is given"},
           {{.endpoints = {"http://127.0.0.1"}, .authority = here},
            ErrorCode::kInvalidArgument,
            "no endpoint of etcd begins with https://"}}) {
    const auto opened = OpenEtcd(each.options);
    ASSERT_FALSE(opened.ok()) << each.words;
    EXPECT_EQ(opened.error().code, each.code) << opened.error().message;
    EXPECT_NE(opened.error().message.find(each.words), std::string::npos) << opened.error().message;
  }
  EXPECT_TRUE(OpenEtcd({.endpoints = {tls + "/"}, .authority = here}).ok());
}

// An authority, and two certificates of it, made by the openssl command.
class EtcdTlsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoEtcd(); !why.empty()) GTEST_SKIP() << why;
    if (std::system("openssl version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no openssl command";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    MakeAuthority("authority");
    MakeAuthority("stranger");
    MakeCertificate("server", "authority");
    MakeCertificate("client", "authority");
    MakeCertificate("strange", "stranger");
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Run(const std::string& arguments) const {
    const std::string command =
        "cd '" + folder_ + "' && openssl " + arguments + " > /dev/null 2> log";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  void MakeAuthority(const std::string& name) const {
    Run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=" + name +
        " -keyout " + name + ".key -out " + name + ".pem");
  }
  void MakeCertificate(const std::string& name, const std::string& authority) const {
    std::ofstream(Path(name + ".ext")) << "subjectAltName=IP:127.0.0.1\n";
    Run("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=" + name + " -keyout " +
        name + ".key -out " + name + ".csr");
    Run("x509 -req -days 2 -in " + name + ".csr -CA " + authority + ".pem -CAkey " + authority +
        ".key -CAcreateserial -extfile " + name + ".ext -out " + name + ".pem");
  }
  // Asks until it answers, or is refused.
  core::Result<RangeRead> Ask(EtcdOptions options) const {
    auto etcd = OpenEtcd(std::move(options));
    if (!etcd.ok()) return etcd.error();
    TimeLimit limit(kTestPatience);
    while (true) {
      std::optional<core::Result<RangeRead>> answer;
      (*etcd)->Range("/", 1, ipc::Now() + seconds(10),
                     [&](core::Result<RangeRead> read) { answer = std::move(read); });
      while (!answer) (*etcd)->Poll(ipc::Now() + seconds(1));
      const bool starts = !answer->ok() && answer->error().code == ErrorCode::kUnavailable;
      if (!starts || limit.IsOver()) return *answer;
    }
  }

  const std::string folder_ = testing::TempDir() + "/etcd_tls_test";
};

TEST_F(EtcdTlsTest, ShowsItsCertificateAndChecksTheServers) {
  EtcdProcess process({.certificate = Path("server.pem"),
                       .key = Path("server.key"),
                       .authority = Path("authority.pem")});
  const EtcdOptions right{.endpoints = {process.endpoint()},
                          .authority = Path("authority.pem"),
                          .certificate = Path("client.pem"),
                          .key = Path("client.key")};
  const auto read = Ask(right);
  ASSERT_TRUE(read.ok()) << Describe(read.error()) << process.Log();

  EtcdOptions other = right;
  other.authority = Path("stranger.pem");
  auto refused = Ask(other);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kPermission) << refused.error().message;
  EXPECT_NE(refused.error().message.find("the authority does not vouch for"), std::string::npos);

  other = right;
  other.certificate = Path("strange.pem");
  other.key = Path("strange.key");
  refused = Ask(other);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kPermission) << refused.error().message;
  EXPECT_NE(refused.error().message.find("refuses this client's certificate"), std::string::npos);

  other.certificate = other.key = "";
  refused = Ask(other);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kPermission) << refused.error().message;

  other = right;
  other.key = Path("strange.key");
  refused = Ask(other);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("cannot be asked with the files for TLS"),
            std::string::npos)
      << refused.error().message;
}

}  // namespace
}  // namespace ravenstore::cluster
