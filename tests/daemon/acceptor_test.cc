#include "daemon/acceptor.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "proto/control.pb.h"
#include "tests/ipc/short_directory.h"

namespace ravenstore::daemon {
namespace {

using core::Error;
using core::ErrorCode;

constexpr uint64_t kKey = 5;
constexpr uint64_t kClients = 4;
// For four clients, all but the last eighth; and those that are kept for who runs the tests.
constexpr size_t kPlaces = (4 * kClients + 128) * 7 / 8;

class AcceptorTest : public testing::Test {
 protected:
  AcceptorTest()
      : epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        ending_(epoll_.get(), &mailbox_, [this] { acceptor_->OnClosed(); }) {
    auto listener = ipc::Listen(path_, 0600, "");
    RAVEN_CHECK(listener.ok());
    acceptor_.emplace(
        std::move(*listener),
        Acceptor::Options{.epoll = epoll_.get(),
                          .key = kKey,
                          .clients = kClients,
                          .turns = &turns_,
                          .descriptors = &descriptors_,
                          .ending = &ending_,
                          .may_connect = [this](uid_t) { return may_connect_; },
                          .admit = [this](ipc::UniqueFd& socket, ipc::Peer&,
                                          bool reserved) { return Admit(socket, reserved); }});
    RAVEN_CHECK(acceptor_->Begin().ok());
  }

  core::Status Admit(ipc::UniqueFd& socket, bool reserved) {
    if (!admits_.ok()) return admits_;
    admitted_.push_back(std::move(socket));
    reserved_ += reserved ? 1 : 0;
    return core::Ok();
  }
  ipc::UniqueFd Connect() {
    auto socket = ipc::Connect(path_, core::kNever);
    RAVEN_CHECK(socket.ok());
    return std::move(*socket);
  }
  // The message that the connection got; empty if it only ended.
  static std::string RefusalOf(const ipc::UniqueFd& socket) {
    const auto received = ipc::Receive(socket.get(), true);
    if (!received.ok() || !received->has_value()) return "";
    proto::DaemonPacket packet;
    RAVEN_CHECK(packet.ParseFromString((*received)->bytes));
    return packet.failure().message();
  }
  bool IsListening() {
    epoll_event event{};
    return ::epoll_wait(epoll_.get(), &event, 1, 0) == 1 && event.data.u64 == kKey;
  }
  // Closes what has ended.
  void EndTurn() {
    ending_.EndTurn();
    pollfd bell{mailbox_.descriptor(), POLLIN, 0};
    ASSERT_EQ(::poll(&bell, 1, 10'000), 1);
    mailbox_.RunSome(mailbox_.size());
  }

  ipc::ShortDirectory folder_;
  const std::string path_ = folder_ / "socket";
  ipc::UniqueFd epoll_;
  Mailbox mailbox_;
  TurnBudget turns_{32, 4};
  core::Shares descriptors_{"descriptors", 10'000};
  core::Status may_connect_ = core::Ok();
  core::Status admits_ = core::Ok();
  std::vector<ipc::UniqueFd> admitted_;
  size_t reserved_ = 0;
  EndingSockets ending_;
  std::optional<Acceptor> acceptor_;
};

TEST_F(AcceptorTest, AdmitsWhoConnects) {
  EXPECT_FALSE(IsListening());
  const auto socket = Connect();
  ASSERT_TRUE(IsListening());
  acceptor_->AcceptSome();
  EXPECT_EQ(admitted_.size(), 1u);
  EXPECT_EQ(reserved_, 0u);
  EXPECT_EQ(descriptors_.taken(), 2u);
  acceptor_->GivePlace(core::TenantId{::geteuid()}, false);
  EXPECT_EQ(descriptors_.taken(), 0u);
}

TEST_F(AcceptorTest, KeepsSomePlacesForWhoAdministersAndTurnsTheRestAway) {
  const size_t kept = ::geteuid() == 0 ? 16 : 8;
  std::vector<ipc::UniqueFd> sockets;
  for (size_t i = 0; i < kPlaces + kept; ++i) {
    sockets.push_back(Connect());
    acceptor_->AcceptSome();
    ASSERT_EQ(admitted_.size(), i + 1);
    ASSERT_EQ(reserved_, i < kPlaces ? 0 : i - kPlaces + 1);
  }
  const auto last = Connect();
  acceptor_->AcceptSome();
  EXPECT_EQ(admitted_.size(), kPlaces + kept);
  EXPECT_NE(RefusalOf(last).find("connections"), std::string::npos);
  // One that had such a place leaves it to the next.
  acceptor_->GivePlace(core::TenantId{::geteuid()}, true);
  const auto next = Connect();
  acceptor_->AcceptSome();
  EXPECT_EQ(admitted_.size(), kPlaces + kept + 1);
}

TEST_F(AcceptorTest, SaysWhyAndKeepsNoPlaceForWhomItDoesNotAdmit) {
  admits_ = Error{ErrorCode::kLimit, "nothing is left to watch it with"};
  const auto socket = Connect();
  acceptor_->AcceptSome();
  EXPECT_EQ(RefusalOf(socket), "nothing is left to watch it with");
  EXPECT_EQ(RefusalOf(socket), "");
  EXPECT_EQ(descriptors_.taken(), 0u);
}

TEST_F(AcceptorTest, AUserWhoMayNotConnectIsRefusedWithTheReason) {
  // Who runs the tests is an administrator, for whom places are kept in spite of that.
  may_connect_ = Error{ErrorCode::kLimit, "a close of yours does not end"};
  std::vector<ipc::UniqueFd> sockets;
  const size_t kept = ::geteuid() == 0 ? 16 : 8;
  for (size_t i = 0; i <= kept; ++i) {
    sockets.push_back(Connect());
    acceptor_->AcceptSome();
  }
  EXPECT_EQ(reserved_, kept);
  EXPECT_EQ(RefusalOf(sockets.back()), "a close of yours does not end");
}

TEST_F(AcceptorTest, RestsWhileTooManyThatWereTurnedAwayAreNotClosed) {
  admits_ = Error{ErrorCode::kLimit, "no"};
  for (int i = 0; i < 256; ++i) {
    EXPECT_EQ(acceptor_->paused_until(), core::kNever);
    const auto socket = Connect();
    acceptor_->AcceptSome();
  }
  const auto waiting = Connect();
  EXPECT_NE(acceptor_->paused_until(), core::kNever);
  EXPECT_FALSE(IsListening());
  admits_ = core::Ok();
  acceptor_->AcceptSome();
  EXPECT_EQ(admitted_.size(), 0u);
  EndTurn();
  acceptor_->Resume();
  EXPECT_EQ(acceptor_->paused_until(), core::kNever);
  ASSERT_TRUE(IsListening());
  acceptor_->AcceptSome();
  EXPECT_EQ(admitted_.size(), 1u);
}

TEST_F(AcceptorTest, StopsForGood) {
  acceptor_->Stop();
  EXPECT_FALSE(ipc::Connect(path_, core::kNever).ok());
  acceptor_->AcceptSome();
  acceptor_->Resume();
  EXPECT_EQ(admitted_.size(), 0u);
}

}  // namespace
}  // namespace ravenstore::daemon
