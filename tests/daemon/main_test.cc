// What only the daemon's own process shows: its log's end, its signals, its exit.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "client/client.h"
#include "core/check.h"
#include "ipc/clock.h"
#include "ipc/socket.h"
#include "ipc/unique_fd.h"
#include "proto/control.pb.h"
#include "proto/layout.h"
#include "tests/daemon/daemon_process.h"
#include "tests/ipc/short_directory.h"
#include "tests/timing/timing.h"

namespace ravenstore::daemon {
namespace {

using core::MiB;
using std::chrono::seconds;

// EX_CONFIG of sysexits.h.
constexpr int kExitConfig = 78;

ipc::UniqueFd Attach(const DaemonProcess& daemon) {
  auto socket = ipc::Connect(daemon.socket(), ipc::Now() + seconds(20));
  RAVEN_CHECK(socket.ok());
  proto::ClientPacket hello;
  hello.set_request(1);
  hello.mutable_hello()->set_protocol_version(proto::kProtocolVersion);
  RAVEN_CHECK(ipc::Send(socket->get(), hello.SerializeAsString()).ok());
  return std::move(*socket);
}

proto::DaemonPacket Answer(int socket) {
  RAVEN_CHECK(ipc::WaitReadable(socket, ipc::Now() + seconds(20)).ok());
  auto received = ipc::Receive(socket, true);
  RAVEN_CHECK(received.ok() && received->has_value());
  proto::DaemonPacket answer;
  RAVEN_CHECK(answer.ParseFromString((*received)->bytes));
  return answer;
}

void AttachAndDetach(const DaemonProcess& daemon) {
  const ipc::UniqueFd client = Attach(daemon);
  ASSERT_TRUE(Answer(client.get()).has_welcome());
  proto::ClientPacket detach;
  detach.set_request(2);
  detach.mutable_detach();
  ASSERT_TRUE(ipc::Send(client.get(), detach.SerializeAsString()).ok());
  ASSERT_TRUE(Answer(client.get()).has_detached());
}

TEST(DaemonTest, AnUnreadLogHoldsUpNeitherTheServiceNorTheEnd) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC | O_NONBLOCK), 0);
  const ipc::UniqueFd from(pipe[0]);
  const ipc::UniqueFd to(pipe[1]);
  while (::write(to.get(), "x", 1) > 0) {
  }
  ::fcntl(to.get(), F_SETFL, 0);
  DaemonProcess daemon({}, "host", to.get());
  for (int i = 0; i < 500; ++i) AttachAndDetach(daemon);
  TimeLimit limit(seconds(10));
  EXPECT_EQ(daemon.Kill(SIGTERM), 0);
  EXPECT_FALSE(limit.IsOver());
}

TEST(DaemonTest, ALogThatCannotBeReadAnyMoreDoesNotEndIt) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  ipc::UniqueFd from(pipe[0]);
  const ipc::UniqueFd to(pipe[1]);
  DaemonProcess daemon({}, "host", to.get());
  from.reset();
  AttachAndDetach(daemon);
  AttachAndDetach(daemon);
  EXPECT_EQ(daemon.Kill(SIGTERM), 0);
}

TEST(DaemonTest, SignalsWithoutAMeaningDoNotEndIt) {
  DaemonProcess daemon;
  for (const int signal : {SIGHUP, SIGPIPE, SIGUSR1, SIGUSR2}) daemon.Signal(signal);
  AttachAndDetach(daemon);
  EXPECT_EQ(daemon.Kill(SIGINT), 0);
}

// A daemon with a configuration file that can be written again.
class ReloadTest : public testing::Test {
 protected:
  std::string path() const { return directory_ / "ravenstored.toml"; }
  void Write(const std::string& text) { std::ofstream(path()) << text; }
  // Until the log says so.
  static bool Says(const DaemonProcess& daemon, const std::string& words) {
    return Eventually([&] { return daemon.Log().find(words) != std::string::npos; });
  }
  static uint64_t DeviceBudget(const DaemonProcess& daemon) {
    const ipc::UniqueFd client = Attach(daemon);
    return Answer(client.get()).welcome().device_budget();
  }

  ipc::ShortDirectory directory_;
};

TEST_F(ReloadTest, AHangUpReadsTheFileAgain) {
  Write("[limits]\ndevice_budget = \"64MiB\"\n");
  DaemonProcess daemon({"--config", path()});
  EXPECT_EQ(DeviceBudget(daemon), MiB(64).count());
  Write("[limits]\ndevice_budget = \"32MiB\"\nclients_max = 9\n[devices]\npage = \"4MiB\"\n");
  daemon.Signal(SIGHUP);
  EXPECT_TRUE(Says(daemon, "SIGHUP: changed: limits.device_budget\n")) << daemon.Log();
  EXPECT_TRUE(Says(daemon, "SIGHUP: these take a restart: devices.page, limits.clients_max\n"))
      << daemon.Log();
  EXPECT_EQ(DeviceBudget(daemon), MiB(32).count());
}

TEST_F(ReloadTest, ABadFileChangesNothingAndIsNamedWithItsLineAndKey) {
  Write("[limits]\ndevice_budget = \"64MiB\"\n");
  DaemonProcess daemon({"--config", path()});
  Write("[limits]\ndevice_budget = \"32MiB\"\nclients_max = 0\n");
  daemon.Signal(SIGHUP);
  EXPECT_TRUE(Says(daemon, path() + ":3: \"limits.clients_max\" must be ")) << daemon.Log();
  EXPECT_EQ(DeviceBudget(daemon), MiB(64).count());
  std::filesystem::remove(path());
  daemon.Signal(SIGHUP);
  EXPECT_TRUE(Says(daemon, "No such file")) << daemon.Log();
  EXPECT_EQ(DeviceBudget(daemon), MiB(64).count());
}

TEST_F(ReloadTest, FlagsStillOverrideTheFile) {
  Write("");
  DaemonProcess daemon({"--config", path(), "--device-budget", "48MiB"});
  Write("[limits]\ndevice_budget = \"32MiB\"\n[log]\nlevel = \"error\"\n");
  daemon.Signal(SIGHUP);
  EXPECT_TRUE(Says(daemon, "SIGHUP: changed: log.level\n")) << daemon.Log();
  EXPECT_EQ(DeviceBudget(daemon), MiB(48).count());
}

TEST_F(ReloadTest, TheLogsLevelIsInForceImmediately) {
  Write("");
  DaemonProcess daemon({"--config", path()});
  Write("[log]\nlevel = \"error\"\n");
  daemon.Signal(SIGHUP);
  ASSERT_TRUE(Says(daemon, "SIGHUP: changed: log.level\n")) << daemon.Log();
  AttachAndDetach(daemon);
  daemon.Kill(SIGTERM);
  EXPECT_EQ(daemon.Log().find("attached"), std::string::npos) << daemon.Log();
}

TEST_F(ReloadTest, AConfigurationThatIsNoRegularFileIsRefusedImmediately) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  for (const std::string& no_file : {path(), directory_ / ""}) {
    const FailedStart refused =
        StartExpectingFailure({"--socket", directory_ / "s", "--config", no_file});
    EXPECT_EQ(refused.status, kExitConfig);
    EXPECT_NE(refused.words.find(no_file + ": is no regular file"), std::string::npos)
        << refused.words;
  }
}

TEST(DaemonTest, AFlagThatIsEmptyOrNoNumberIsRefusedByItsName) {
  const std::pair<const char*, const char*> bad[] = {{"--config", ""},
                                                     {"--pool-size", ""},
                                                     {"--devices", ""},
                                                     {"--link-bytes-per-second", "nan"},
                                                     {"--link-bytes-per-second", "inf"}};
  for (const auto& [flag, value] : bad) {
    const FailedStart refused = StartExpectingFailure({flag, value});
    EXPECT_EQ(refused.status, 2) << flag;
    EXPECT_NE(refused.words.find(flag), std::string::npos) << refused.words;
  }
}

TEST_F(ReloadTest, AConfigurationIsCheckedAndNothingStarts) {
  std::ofstream(path()) << "[limits]\nclients_max = 12\n";
  EXPECT_EQ(StartExpectingFailure({"--socket", directory_ / "s", "--check", path()}).status, 0);
  std::ofstream(path()) << "[limits]\nclients_max = 0\nclients_mix = 1\n";
  const FailedStart wrong =
      StartExpectingFailure({"--socket", directory_ / "s", "--check", path()});
  EXPECT_EQ(wrong.status, 1);
  EXPECT_EQ(wrong.words.find(path() + ":2: \"limits.clients_max\" must be"), 0u) << wrong.words;
  EXPECT_NE(wrong.words.find(path() + ":3: unknown key"), std::string::npos) << wrong.words;
}

// A client's segment is a file, too: SIGXFSZ would end the daemon without a word.
TEST(DaemonTest, WhereFilesMayNotGrowAClientIsRefusedAndTheDaemonGoesOn) {
  DaemonProcess daemon;
  rlimit before{};
  const rlimit none{0, RLIM_INFINITY};
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_FSIZE, &none, &before), 0);
  const ipc::UniqueFd refused = Attach(daemon);
  EXPECT_NE(Answer(refused.get()).failure().message(), "");
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_FSIZE, &before, nullptr), 0);
  AttachAndDetach(daemon);
  EXPECT_EQ(daemon.Kill(SIGTERM), 0);
}

TEST(DaemonTest, WhatIsMoreThanThereIsIsSaidWithBothNumbers) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the sanitizer leaves no range of addresses as large as the pool";
#endif
  const DaemonProcess daemon({"--pool-size", "2047GiB", "--device-budget", "5GiB"});
  // The log is written by a thread of its own.
  const auto says = [&](const char* words) {
    return Eventually([&] { return daemon.Log().find(words) != std::string::npos; });
  };
  EXPECT_TRUE(says("\"host_pool.size\" is 2.0 TiB, but this machine's memory is ")) << daemon.Log();
  EXPECT_TRUE(
      says("\"limits.device_budget\" is 5.0 GiB, but of the largest device the store has "
           "2.0 GiB"))
      << daemon.Log();
}

TEST(DaemonTest, TheDescriptorTableIsLargeBeforeItIsNeeded) {
  const DaemonProcess daemon;
  std::ifstream status("/proc/" + std::to_string(daemon.pid()) + "/status");
  std::string word;
  while (status >> word && word != "FDSize:") {
  }
  int size = 0;
  status >> size;
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_GE(size, std::min<rlim_t>(limit.rlim_max, 16384));
}

TEST(DaemonTest, SlabsThatFindNoDescriptorsAreNoWantOfMemory) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the undefined-behaviour sanitizer beside it looks at memory through a pipe, for "
                  "which a daemon without descriptors has none";
#endif
  const DaemonProcess daemon;
  Store store = Store::connect({.socket = daemon.socket(), .name = "main_test"});
  const auto open = static_cast<rlim_t>(std::distance(
      std::filesystem::directory_iterator("/proc/" + std::to_string(daemon.pid()) + "/fd"), {}));
  const rlimit few{open + 8, open + 8};
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, &few, nullptr), 0);
  std::vector<Tensor> tensors;
  try {
    for (int i = 0; i < 64; ++i) {
      tensors.push_back(store.create(MiB(2).count(), {.timeout = std::chrono::milliseconds(500)}));
    }
    FAIL() << "the descriptors were enough";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), RAVENSTORE_LIMIT) << error.what();
    EXPECT_NE(std::string(error.what()).find("LimitNOFILE"), std::string::npos) << error.what();
  }
}

TEST(DaemonTest, ASecondDaemonAtThePathIsRefusedAndTheFirstsSocketStays) {
  DaemonProcess daemon;
  const FailedStart refused = StartExpectingFailure({"--socket", daemon.socket()});
  EXPECT_EQ(refused.status, 69) << refused.words;  // EX_UNAVAILABLE
  AttachAndDetach(daemon);
}

}  // namespace
}  // namespace ravenstore::daemon
