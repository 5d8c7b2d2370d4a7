#include "daemon/ending_sockets.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "core/check.h"

namespace ravenstore::daemon {
namespace {

std::pair<ipc::UniqueFd, ipc::UniqueFd> Pair() {
  int ends[2];
  RAVEN_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  return {ipc::UniqueFd(ends[0]), ipc::UniqueFd(ends[1])};
}

class EndingSocketsTest : public testing::Test {
 protected:
  EndingSocketsTest() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}

  void RunMailbox() {
    pollfd bell{mailbox_.descriptor(), POLLIN, 0};
    ASSERT_EQ(::poll(&bell, 1, 10'000), 1);
    mailbox_.RunSome(mailbox_.size());
  }

  ipc::UniqueFd epoll_;
  Mailbox mailbox_;
  int released_ = 0;
  EndingSockets ending_{epoll_.get(), &mailbox_, [this] { ++released_; }};
};

TEST_F(EndingSocketsTest, ThePeerSeesTheEndImmediatelyAndItIsClosedWithTheTurn) {
  auto [mine, peers] = Pair();
  const int number = mine.get();
  bool closed = false;
  ending_.Close(std::move(mine), 1000, [&] { closed = true; });
  pollfd peer{peers.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&peer, 1, 0), 1);
  EXPECT_NE(peer.revents & POLLHUP, 0);
  EXPECT_NE(::fcntl(number, F_GETFD), -1);
  EXPECT_TRUE(mailbox_.empty());
  ending_.EndTurn();
  RunMailbox();
  EXPECT_TRUE(closed);
  EXPECT_EQ(released_, 1);
  EXPECT_EQ(::fcntl(number, F_GETFD), -1);
}

TEST_F(EndingSocketsTest, AUsersAreClosedByOneTask) {
  std::vector<ipc::UniqueFd> peers;
  int closed = 0;
  for (int i = 0; i < 20; ++i) {
    auto [mine, peer] = Pair();
    ending_.Close(std::move(mine), 1000, [&] { ++closed; });
    peers.push_back(std::move(peer));
  }
  ending_.EndTurn();
  RunMailbox();
  EXPECT_EQ(closed, 20);
  EXPECT_EQ(released_, 1);
  ending_.EndTurn();  // with nothing
  EXPECT_TRUE(mailbox_.empty());
}

TEST_F(EndingSocketsTest, NoSocketIsClosedImmediately) {
  bool closed = false;
  ending_.Close({}, 1000, [&] { closed = true; });
  EXPECT_TRUE(closed);
}

TEST_F(EndingSocketsTest, WatchesThemNoMore) {
  auto [mine, peer] = Pair();
  epoll_event event{};
  event.events = EPOLLIN;
  ASSERT_EQ(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, mine.get(), &event), 0);
  ending_.Close(std::move(mine), 1000);
  EXPECT_EQ(::epoll_wait(epoll_.get(), &event, 1, 0), 0);
}

}  // namespace
}  // namespace ravenstore::daemon
