#include "daemon/closers.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <latch>
#include <string>
#include <utility>
#include <vector>

#include "ipc/socket.h"
#include "tests/daemon/daemon_process.h"
#include "tests/timing/timing.h"

namespace ravenstore::daemon {
namespace {

using ipc::UniqueFd;
using std::chrono::seconds;

constexpr uid_t kUser = 1000;
constexpr uid_t kOther = 1001;

std::vector<UniqueFd> Some(UniqueFd descriptor) {
  std::vector<UniqueFd> descriptors;
  descriptors.push_back(std::move(descriptor));
  return descriptors;
}

UniqueFd Any() {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

// A connected TCP socket whose close lingers: its peer reads nothing of what it was sent.
class Lingering {
 public:
  Lingering() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    RAVEN_CHECK(::bind(listener_.get(), generic, size) == 0 && ::listen(listener_.get(), 1) == 0);
    RAVEN_CHECK(::getsockname(listener_.get(), generic, &size) == 0);
    socket_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    RAVEN_CHECK(::connect(socket_.get(), generic, size) == 0);
    const linger lingers{1, 60};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &lingers, sizeof(lingers));
    const std::string bytes(1 << 16, 'x');
    while (::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
  }
  UniqueFd Take() { return std::move(socket_); }

 private:
  UniqueFd listener_;
  UniqueFd socket_;
};

// A socket with `sent` in it, which no process has read.
UniqueFd Unread(UniqueFd sent) {
  std::array<int, 2> ends{};
  RAVEN_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const UniqueFd theirs(ends[0]);
  UniqueFd ours(ends[1]);
  const std::array<int, 1> descriptors{sent.get()};
  RAVEN_CHECK(ipc::Send(theirs.get(), "x", descriptors).ok());
  sent.reset();  // what is under way is the last that keeps it open
  return ours;
}

void CloseAndWait(Closers& closers, uid_t user, UniqueFd descriptor) {
  std::latch closed(1);
  closers.Close(user, Some(std::move(descriptor)), [&closed] { closed.count_down(); });
  closed.wait();
}

TEST(ClosersTest, ClosesAndSaysSo) {
  Closers closers;
  UniqueFd descriptor = Any();
  const int number = descriptor.get();
  CloseAndWait(closers, kUser, std::move(descriptor));
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

TEST(ClosersTest, ASocketThatLingersTakesNoTime) {
  Closers closers;
  Lingering received;
  Lingering unread;
  TimeLimit limit(seconds(20));
  CloseAndWait(closers, kUser, received.Take());
  CloseAndWait(closers, kUser, Unread(unread.Take()));
  EXPECT_FALSE(limit.IsOver()) << "each lingers for a minute";
}

TEST(ClosersTest, OneThatHangsMakesItsUserStuckAndNoOtherWait) {
  Lingering hangs;
  Closers closers(false);
  closers.Close(kUser, Some(hangs.Take()), {});
  closers.Close(kUser, Some(Any()), [] { ADD_FAILURE() << "it comes after the one that hangs"; });
  CloseAndWait(closers, kOther, Any());
  EXPECT_TRUE(Eventually([&] { return closers.IsStuck(kUser); }));
  EXPECT_FALSE(closers.IsStuck(kOther));
  EXPECT_FALSE(closers.AllStuck());
  EXPECT_LE(closers.threads(), 2u) << "one user's thread hangs, the other serves everybody";
}

TEST(ClosersTest, ManyThatHangTakeNoMoreThreadsThanThereMayBe) {
  std::vector<Lingering> hang(Closers::kThreadsMax + 1);
  Closers closers(false);
  uid_t user = kUser;
  for (Lingering& each : hang) closers.Close(user++, Some(each.Take()), {});
  EXPECT_TRUE(Eventually([&] { return closers.AllStuck(); }));
  EXPECT_EQ(closers.threads(), Closers::kThreadsMax);
}

TEST(ClosersTest, ThreadsEndWhenThereIsNothingToClose) {
  Closers closers;
  for (uid_t user = 0; user < 200; ++user) CloseAndWait(closers, user, Any());
  EXPECT_TRUE(Eventually([&] { return closers.threads() == 1; }));
  CloseAndWait(closers, kUser, Any());
}

}  // namespace
}  // namespace ravenstore::daemon
