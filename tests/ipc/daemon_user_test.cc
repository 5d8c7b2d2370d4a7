#include "ipc/daemon_user.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "core/check.h"
#include "ipc/clock.h"
#include "ipc/socket.h"
#include "ipc/unique_fd.h"
#include "tests/ipc/child.h"
#include "tests/ipc/short_directory.h"

namespace ravenstore::ipc {
namespace {

constexpr uid_t kStranger = 12345;
constexpr const char* kUsers =
    "root:x:0:0:root:/root:/bin/bash\n"
    "ravenstore2:x:7:7::/:/bin/false\n"
    "raven:x:8:8::/:/bin/false\n"
    "odd:x:nine:9::/:/bin/false\n"
    "\n"
    "ravenstore:x:998:998:ravenstore:998:/run/ravenstore:/usr/sbin/nologin\n"
    "lab-daemon:x:2001:2001::/:/bin/false\n";

// A file that holds `text`, at its beginning.
UniqueFd File(const std::string& text) {
  UniqueFd file(memfd_create("users", MFD_CLOEXEC));
  RAVEN_CHECK(write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  lseek(file.get(), 0, SEEK_SET);
  return file;
}

std::optional<uid_t> Found(const std::string& users, const char* name) {
  uid_t uid = 0;
  return FindUser(File(users).get(), name, &uid) ? std::optional(uid) : std::nullopt;
}

bool Trusted(Listening listening, const char* users = kUsers) {
  const UniqueFd file = File(users);
  listening.users = file.get();
  if (listening.own == 0) listening.own = 1000;
  return MayBeTheDaemon(listening);
}

TEST(DaemonUserTest, UsersAreFoundByTheirWholeName) {
  EXPECT_EQ(Found(kUsers, "ravenstore"), 998u);
  EXPECT_EQ(Found(kUsers, "raven"), 8u);
  EXPECT_EQ(Found(kUsers, "lab-daemon"), 2001u);
  EXPECT_EQ(Found(kUsers, "ravens"), std::nullopt);
  EXPECT_EQ(Found(kUsers, "odd"), std::nullopt);
  EXPECT_EQ(Found(kUsers, "x"), std::nullopt);
  EXPECT_EQ(Found("", "root"), std::nullopt);
  // Moves the text across the border between two reads of the file.
  for (size_t before = 1000; before < 1030; ++before) {
    EXPECT_EQ(Found(std::string(before, 'y') + "\n" + kUsers, "ravenstore"), 998u) << before;
  }
}

TEST(DaemonUserTest, RootTheOwnUserAndRavenstoreAreTrusted) {
  EXPECT_TRUE(Trusted({.user = 0}));
  EXPECT_TRUE(Trusted({.user = 1000}));
  EXPECT_TRUE(Trusted({.user = 998}));
  EXPECT_FALSE(Trusted({.user = 998}, "root:x:0:0::/:/bin/sh\n"));
  EXPECT_FALSE(Trusted({.user = kStranger}));
}

TEST(DaemonUserTest, TheVariableNamesOneMore) {
  EXPECT_TRUE(Trusted({.user = kStranger, .wanted = "12345"}));
  EXPECT_TRUE(Trusted({.user = 2001, .wanted = "lab-daemon"}));
  EXPECT_TRUE(Trusted({.user = 998, .wanted = "lab-daemon"}));
  for (const char* wanted :
       {"", "12346", "lab-daemon", "nobody-here", "4294979641", "-1", "12345 "})
    EXPECT_FALSE(Trusted({.user = kStranger, .wanted = wanted})) << wanted;
}

TEST(DaemonUserTest, WhoIsUnmappedIsTrustedOnlyAtAGuardedPath) {
  EXPECT_TRUE(Trusted({.user = 65534, .unmapped = true, .guarded = true}));
  EXPECT_FALSE(Trusted({.user = 65534, .unmapped = true, .guarded = false}));
  EXPECT_FALSE(Trusted({.user = 65534, .unmapped = false, .guarded = true}));
}

TEST(DaemonUserTest, FoldersThatOthersMayWriteGuardNothing) {
  EXPECT_TRUE(IsGuarded("/s", 0));
  EXPECT_FALSE(IsGuarded("s", 0));
  EXPECT_FALSE(IsGuarded("/missing/s", 0));
  const ShortDirectory directory;  // in /tmp, where anybody may write
  EXPECT_FALSE(IsGuarded((directory / "s").c_str(), geteuid()));
}

// `what` as a stranger's listener at a path that all may reach sees it: 0 when it holds.
class StrangerTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(chmod((directory_ / "").c_str(), 0777), 0);
    int pipes[2];
    ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
    from_.reset(pipes[0]);
    UniqueFd to(pipes[1]);
    stranger_.emplace([this, to = to.get()] {
      char said = 'n';
      Listener listener;
      if (setresuid(kStranger, kStranger, kStranger) == 0) {
        auto made = Listen(path(), 0666, "");
        if (made.ok()) listener = std::move(*made);
        said = made.ok() ? 'y' : 'f';
      }
      if (write(to, &said, 1) != 1) return 1;
      if (!listener) return 0;
      // Until the test is over.
      char none;
      while (read(until_[0], &none, 1) < 0) {
      }
      return 0;
    });
    to.reset();
    char said = 0;
    ASSERT_EQ(read(from_.get(), &said, 1), 1);
    if (said == 'n') GTEST_SKIP() << "only root may listen as another user";
    ASSERT_EQ(said, 'y');
  }
  StrangerTest() { RAVEN_CHECK(pipe(until_) == 0); }
  ~StrangerTest() override {
    unsetenv(kDaemonUserVariable);
    RAVEN_CHECK(write(until_[1], "x", 1) == 1);
    stranger_.reset();
    close(until_[0]);
    close(until_[1]);
  }
  std::string path() const { return directory_ / "s"; }
  core::Result<UniqueFd> Connected() {
    return ConnectToDaemon(path(), Now() + std::chrono::seconds(20));
  }

  ShortDirectory directory_;
  int until_[2];
  UniqueFd from_;
  std::optional<Child> stranger_;
};

TEST_F(StrangerTest, IsNotTalkedTo) {
  const auto connected = Connected();
  ASSERT_FALSE(connected.ok());
  EXPECT_EQ(connected.error().code, core::ErrorCode::kUnavailable);
  for (const char* words :
       {"user 12345 listens", "root", "ravenstore", "RAVENSTORE_DAEMON_USER=12345"})
    EXPECT_NE(connected.error().message.find(words), std::string::npos)
        << connected.error().message;
}

TEST_F(StrangerTest, IsTalkedToWhenTheVariableSaysSo) {
  setenv(kDaemonUserVariable, "12345", 1);
  const auto connected = Connected();
  EXPECT_TRUE(connected.ok()) << core::Describe(connected.error());
}

}  // namespace
}  // namespace ravenstore::ipc
