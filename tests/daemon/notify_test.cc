#include "daemon/notify.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "core/check.h"
#include "ipc/unique_fd.h"
#include "tests/ipc/short_directory.h"

namespace ravenstore::daemon {
namespace {

// A service manager's end of $NOTIFY_SOCKET.
class Manager {
 public:
  explicit Manager(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    if (path[0] == '@') address.sun_path[0] = '\0';
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
    RAVEN_CHECK(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0);
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  }
  ~Manager() { ::unsetenv("NOTIFY_SOCKET"); }

  // What came, or "nothing".
  std::string Received() {
    char bytes[256];
    const ssize_t n = ::recv(socket_.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    return n < 0 ? "nothing" : std::string(bytes, static_cast<size_t>(n));
  }

 private:
  ipc::UniqueFd socket_;
};

TEST(NotifyTest, NotifiesTheManagerAtAPath) {
  ipc::ShortDirectory directory;
  Manager manager(directory / "notify");
  EXPECT_TRUE(NotifyServiceManager("READY=1"));
  EXPECT_EQ(manager.Received(), "READY=1");
  EXPECT_TRUE(NotifyServiceManager("STOPPING=1"));
  EXPECT_EQ(manager.Received(), "STOPPING=1");
  EXPECT_EQ(manager.Received(), "nothing");
}

TEST(NotifyTest, ReadingTheConfigurationAgainIsNotifiedWithItsTime) {
  ipc::ShortDirectory directory;
  Manager manager(directory / "notify");
  EXPECT_TRUE(NotifyReloading());
  const std::string notification = manager.Received();
  EXPECT_EQ(notification.find("RELOADING=1\nMONOTONIC_USEC="), 0u) << notification;
}

TEST(NotifyTest, NotifiesTheManagerAtAnAbstractAddress) {
  Manager manager("@raven-notify-" + std::to_string(::getpid()));
  EXPECT_TRUE(NotifyServiceManager("READY=1"));
  EXPECT_EQ(manager.Received(), "READY=1");
}

TEST(NotifyTest, WithoutAManagerNothingIsSent) {
  ::unsetenv("NOTIFY_SOCKET");
  EXPECT_FALSE(NotifyServiceManager("READY=1"));
}

TEST(NotifyTest, AddressesThatCannotBeAreNotUsed) {
  for (const std::string& path : {std::string(), std::string("relative"), std::string("vsock:2:1"),
                                  "/" + std::string(200, 'x'), std::string("/nowhere/notify")}) {
    ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
    EXPECT_FALSE(NotifyServiceManager("READY=1")) << path;
  }
  ::unsetenv("NOTIFY_SOCKET");
}

}  // namespace
}  // namespace ravenstore::daemon
