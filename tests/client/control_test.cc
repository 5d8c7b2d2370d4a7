#include "client/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <future>
#include <new>
#include <thread>

#include "ipc/clock.h"
#include "ipc/socket.h"
#include "proto/control.pb.h"
#include "tests/ipc/short_directory.h"

namespace ravenstore::client {
namespace {

using core::ErrorCode;
using std::chrono::milliseconds;

core::Tick Patiently() {
  return ipc::Now() + std::chrono::seconds(10);
}

// A daemon's end that the test works by hand.
class ControlTest : public testing::Test {
 protected:
  ControlTest() : listener_(*ipc::Listen(path(), 0600, "")) {}

  std::string path() const { return directory_ / "s"; }
  void Accept() {
    ASSERT_TRUE(ipc::WaitReadable(listener_.get(), Patiently()).ok());
    peer_ = *ipc::Accept(listener_.get());
  }
  proto::ClientPacket Receive() {
    EXPECT_TRUE(ipc::WaitReadable(peer_.get(), Patiently()).ok());
    proto::ClientPacket packet;
    EXPECT_TRUE(packet.ParseFromString((*ipc::Receive(peer_.get(), false))->bytes));
    return packet;
  }
  void Send(const proto::DaemonPacket& packet) {
    ASSERT_TRUE(ipc::Send(peer_.get(), packet.SerializeAsString()).ok());
  }
  // The link after a handshake.
  std::unique_ptr<ControlLink> Connected() {
    std::thread daemon([this] {
      Accept();
      proto::DaemonPacket welcome;
      welcome.set_request(Receive().request());
      welcome.mutable_welcome()->set_client(4);
      Send(welcome);
    });
    Incoming welcome;
    auto link = ControlLink::Connect(path(), {1, wire::Hello{}}, Patiently(), &welcome);
    daemon.join();
    EXPECT_TRUE(link.ok());
    EXPECT_EQ(std::get<wire::Welcome>(welcome.packet.body).client, 4u);
    return *std::move(link);
  }
  std::unique_ptr<ControlLink> Started() {
    auto link = Connected();
    EXPECT_TRUE(
        link->Start({.on_packet = [this](Incoming) { unasked_.fetch_add(1); },
                     .on_missed = [this](const core::Error& why) { missed_.set_value(why); },
                     .on_hangup = [this] { hung_up_.store(true); }})
            .ok());
    return link;
  }

  ipc::ShortDirectory directory_;
  ipc::Listener listener_;
  ipc::UniqueFd peer_;
  PhaseWord phase_{Phase::kAttached};
  std::atomic<int> unasked_{0};
  std::atomic<bool> hung_up_{false};
  std::promise<core::Error> missed_;  // the only one
};

TEST_F(ControlTest, RefusalOfTheDaemonIsPassedOn) {
  std::thread daemon([this] {
    Accept();
    proto::DaemonPacket refusal;
    refusal.set_request(Receive().request());
    refusal.mutable_failure()->set_code(static_cast<uint32_t>(ErrorCode::kPermission));
    refusal.mutable_failure()->set_message("not for you");
    Send(refusal);
  });
  Incoming welcome;
  const auto link = ControlLink::Connect(path(), {1, wire::Hello{}}, Patiently(), &welcome);
  daemon.join();
  ASSERT_FALSE(link.ok());
  EXPECT_EQ(link.error().code, ErrorCode::kPermission);
  EXPECT_EQ(link.error().message, "not for you");
}

TEST_F(ControlTest, HangUpInsteadOfWelcomeIsUnavailable) {
  std::thread daemon([this] {
    Accept();
    peer_.reset();
  });
  Incoming welcome;
  const auto link = ControlLink::Connect(path(), {1, wire::Hello{}}, Patiently(), &welcome);
  daemon.join();
  ASSERT_FALSE(link.ok());
  EXPECT_EQ(link.error().code, ErrorCode::kUnavailable);
}

TEST_F(ControlTest, GreetingThatIsDiscardedIsTakenBack) {
  Incoming welcome;
  const auto link = ControlLink::Connect(path(), {1, wire::Hello{}}, ipc::Now(), &welcome);
  ASSERT_FALSE(link.ok());
  EXPECT_EQ(link.error().code, ErrorCode::kTimedOut);
  Accept();
  EXPECT_TRUE(Receive().has_hello());
  EXPECT_TRUE(Receive().has_detach()) << "its welcome would come all the same";
}

TEST_F(ControlTest, AnswersFindTheirCallers) {
  auto link = Started();
  std::thread daemon([this] {
    const auto first = Receive();
    const auto second = Receive();
    for (const auto& asked : {second, first}) {  // in another order
      proto::DaemonPacket answer;
      answer.set_request(asked.request());
      answer.mutable_name_interned()->set_id(
          static_cast<uint32_t>(asked.intern_name().name().size()));
      Send(answer);
    }
  });
  const auto ask = [&](const std::string& name) {
    const auto answer = link->Call({0, wire::InternName{name}}, Patiently(), phase_);
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(std::get<wire::NameInterned>(answer->packet.body).id, name.size());
  };
  std::thread other([&] { ask("longer name"); });
  ask("name");
  other.join();
  daemon.join();
  EXPECT_EQ(unasked_.load(), 0);
}

TEST_F(ControlTest, LateAnswerIsDropped) {
  auto link = Started();
  EXPECT_EQ(link->Call({0, wire::Detach{}}, ipc::Now(), phase_).error().code, ErrorCode::kTimedOut);
  proto::DaemonPacket late;
  late.set_request(Receive().request());
  late.mutable_detached();
  Send(late);
  proto::DaemonPacket unasked;
  unasked.mutable_memory_ready()->set_first(1);
  Send(unasked);
  while (unasked_.load() == 0) std::this_thread::yield();
  EXPECT_EQ(unasked_.load(), 1);
}

TEST_F(ControlTest, PacketWhoseDescriptorsCannotBeTakenIsReportedAndTakenLater) {
  auto link = Started();
  // The next descriptor is more than this process may open.
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  const ipc::UniqueFd next(dup(peer_.get()));
  const rlimit full{static_cast<rlim_t>(next.get()), usual.rlim_max};
  proto::DaemonPacket slab;
  slab.mutable_memory_ready()->set_first(1);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &full), 0);
  const auto sent = ipc::Send(peer_.get(), slab.SerializeAsString(), std::array{listener_.get()});
  const core::Error missed = missed_.get_future().get();
  EXPECT_EQ(unasked_.load(), 0);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_TRUE(sent.ok());
  EXPECT_THAT(missed.message, testing::HasSubstr("RLIMIT_NOFILE"));
  while (unasked_.load() == 0) std::this_thread::yield();
}

TEST_F(ControlTest, PacketThatThereIsNoMemoryForEndsTheLinkAndNotTheProcess) {
  auto link = Connected();
  ASSERT_TRUE(link->Start({.on_packet = [](Incoming) { throw std::bad_alloc(); },
                           .on_missed = {},
                           .on_hangup = [this] { hung_up_.store(true); }})
                  .ok());
  proto::DaemonPacket packet;
  packet.mutable_memory_ready()->set_first(1);
  Send(packet);
  while (!hung_up_.load()) std::this_thread::yield();
}

TEST_F(ControlTest, WatcherThatCannotBeStartedLeavesTheSignalsAsTheyWere) {
  auto link = Connected();
  pthread_attr_t usual;
  pthread_attr_t endless;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_getattr_default_np(&endless), 0);
  // A stack that no address space has room for.
  ASSERT_EQ(pthread_attr_setstacksize(&endless, size_t{1} << 47), 0);
  ASSERT_EQ(pthread_setattr_default_np(&endless), 0);
  const auto started = link->Start({});
  ASSERT_EQ(pthread_setattr_default_np(&usual), 0);
  ASSERT_FALSE(started.ok());
  EXPECT_EQ(started.error().code, ErrorCode::kSystem);
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  EXPECT_FALSE(sigismember(&blocked, SIGTERM));
}

TEST_F(ControlTest, HangUpIsReportedOnceAndStopStillWorks) {
  auto link = Started();
  peer_.reset();
  while (!hung_up_.load()) std::this_thread::yield();
  link->Stop();
}

TEST_F(ControlTest, CallsEndWhenTheSessionIsLost) {
  auto link = Started();
  std::thread watcher([&] {
    Receive();
    phase_.store(Phase::kLost);
    link->WakeCallers();
  });
  EXPECT_EQ(link->Call({0, wire::StatsQuery{}}, Patiently(), phase_).error().code,
            ErrorCode::kLost);
  watcher.join();
}

TEST_F(ControlTest, WaitForStopEndsWithStop) {
  auto link = Started();
  EXPECT_FALSE(link->WaitForStop(milliseconds(1)));
  std::thread stopper([&] { link->Stop(); });
  EXPECT_TRUE(link->WaitForStop(std::chrono::seconds(10)));
  stopper.join();
}

}  // namespace
}  // namespace ravenstore::client
