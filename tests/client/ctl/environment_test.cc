#include "client/ctl/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>

#include "tests/client/ctl/scripted_daemon.h"

namespace ravenstore::client::ctl {
namespace {

using testing::Contains;
using testing::HasSubstr;

constexpr core::Duration kTimeout = std::chrono::seconds(60);

TEST(EnvironmentTest, SeesVariablesFilesAndDirectories) {
  SystemEnvironment environment("/nowhere", kTimeout);
  ASSERT_EQ(setenv("RAVENSTORE_ENVIRONMENT_TEST", "here", 1), 0);
  EXPECT_EQ(environment.Variable("RAVENSTORE_ENVIRONMENT_TEST"), "here");
  EXPECT_EQ(environment.Variable("RAVENSTORE_NOT_SET"), std::nullopt);
  const auto limits = environment.ReadFile("/proc/self/limits");
  ASSERT_TRUE(limits.ok());
  EXPECT_THAT(*limits, HasSubstr("Max open files"));
  EXPECT_FALSE(environment.ReadFile("/no/such/file").ok());
  EXPECT_FALSE(environment.ReadFile("/proc").ok());
  EXPECT_THAT(environment.List("/proc"), Contains("self"));
  EXPECT_TRUE(environment.List("/no/such/directory").empty());
  EXPECT_TRUE(environment.Capacity("/proc").ok());
  EXPECT_FALSE(environment.Capacity("/no/such/directory").ok());
}

TEST(EnvironmentTest, AsksTheDaemonOnce) {
  GoodDaemon good;
  int hellos = 0;
  ScriptedDaemon daemon([&](const proto::ClientPacket& question) {
    hellos += question.has_hello();
    return good(question);
  });
  SystemEnvironment environment(daemon.path(), kTimeout);
  for (int i = 0; i < 3; ++i) {
    const auto view = environment.Daemon();
    ASSERT_TRUE(view.ok()) << core::Describe(view.error());
    EXPECT_EQ(view->pid, getpid());
    EXPECT_EQ(view->uid, getuid());
    EXPECT_EQ(view->welcome.backend(), "host");
    EXPECT_EQ(view->stats.gets(), 1000u);
  }
  EXPECT_EQ(hellos, 1);
}

TEST(EnvironmentTest, SaysWhenThereIsNoDaemon) {
  SystemEnvironment environment("/no/such/socket", kTimeout);
  ASSERT_FALSE(environment.Daemon().ok());
  EXPECT_EQ(environment.Daemon().error().code, core::ErrorCode::kUnavailable);
}

TEST(EnvironmentTest, TheKernelUnderTheTestsHasWhatTheStoreNeeds) {
  SystemEnvironment environment("/nowhere", kTimeout);
  EXPECT_TRUE(environment.TryPidfd().ok());
  EXPECT_TRUE(environment.TrySealedMemory().ok());
}

TEST(EnvironmentTest, EveryCheckRunsOnARealMachine) {
  GoodDaemon good;
  ScriptedDaemon daemon(std::ref(good));
  SystemEnvironment environment(daemon.path(), kTimeout);
  for (const Finding& finding : Examine(environment)) {
    EXPECT_FALSE(finding.what.empty()) << finding.check;
  }
}

}  // namespace
}  // namespace ravenstore::client::ctl
