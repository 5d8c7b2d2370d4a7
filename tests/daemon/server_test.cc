#include "daemon/server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "core/check.h"
#include "ipc/clock.h"
#include "ipc/socket.h"
#include "proto/control.pb.h"
#include "proto/layout.h"
#include "proto/ledger_page.h"
#include "tests/ipc/short_directory.h"
#include "tests/timing/timing.h"

namespace ravenstore::daemon {
namespace {

using core::ErrorCode;
using core::GiB;
using core::MiB;
using std::chrono::milliseconds;
using std::chrono::seconds;

class ServerTest : public testing::Test {
 protected:
  ServerTest() {
    config_.socket_path = directory_ / "s";
    config_.backend = "host";
    config_.host_devices = 2;
    config_.host_device_total = MiB(64);
    config_.pool_size = MiB(128);
    // The pool pins no memory ahead: its report would be one more message in the mailbox.
    config_.pool_ahead = core::Bytes{0};
    config_.drain = milliseconds(50);
  }

  // Attaches; the client stays until the socket's owner detaches or dies.
  ipc::UniqueFd Attach() {
    auto socket = ipc::Connect(config_.socket_path, ipc::Now() + seconds(20));
    RAVEN_CHECK(socket.ok());
    proto::ClientPacket hello;
    hello.set_request(1);
    hello.mutable_hello()->set_protocol_version(proto::kProtocolVersion);
    const proto::DaemonPacket answer = Ask(socket->get(), hello);
    EXPECT_TRUE(answer.has_welcome());
    return std::move(*socket);
  }
  proto::DaemonPacket Ask(int socket, const proto::ClientPacket& packet) {
    RAVEN_CHECK(ipc::Send(socket, packet.SerializeAsString()).ok());
    return Next(socket);
  }
  proto::DaemonPacket Next(int socket) {
    RAVEN_CHECK(ipc::WaitReadable(socket, ipc::Now() + seconds(20)).ok());
    auto received = ipc::Receive(socket, true);
    RAVEN_CHECK(received.ok() && received->has_value());
    proto::DaemonPacket answer;
    RAVEN_CHECK(answer.ParseFromString((*received)->bytes));
    return answer;
  }
  // Greets as a job under the interceptor does.
  ipc::UniqueFd AttachLegacy() {
    const ipc::UniqueFd page(::memfd_create("ledger", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    RAVEN_CHECK(::ftruncate(page.get(), proto::kLedgerBytes) == 0);
    RAVEN_CHECK(::fcntl(page.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    auto socket = ipc::Connect(config_.socket_path, ipc::Now() + seconds(20));
    RAVEN_CHECK(socket.ok());
    proto::ClientPacket hello;
    hello.set_request(1);
    hello.mutable_legacy_hello()->set_protocol_version(proto::kProtocolVersion);
    const int descriptors[] = {page.get()};
    RAVEN_CHECK(ipc::Send(socket->get(), hello.SerializeAsString(), descriptors).ok());
    EXPECT_TRUE(Next(socket->get()).has_legacy_welcome());
    return std::move(*socket);
  }
  // Greets as a tool does.
  ipc::UniqueFd Open() {
    auto socket = ipc::Connect(config_.socket_path, ipc::Now() + seconds(20));
    RAVEN_CHECK(socket.ok());
    proto::ClientPacket hello;
    hello.set_request(1);
    hello.mutable_hello()->set_protocol_version(proto::kProtocolVersion);
    hello.mutable_hello()->set_control_only(true);
    EXPECT_TRUE(Ask(socket->get(), hello).has_welcome());
    return std::move(*socket);
  }
  // What the control thread answers by itself. Twice, so that it looked in between at every other
  // connection that had said something before: at some of it, if that was much.
  void Pass(int socket) {
    proto::ClientPacket packet;
    packet.mutable_intern_name()->set_name("name");
    for (uint64_t i = 1; i <= 2; ++i) {
      packet.set_request(i);
      EXPECT_EQ(Ask(socket, packet).request(), i);
    }
  }
  // Exactly `count` messages come into the held loop's mailbox.
  void ExpectInMailbox(Server& server, size_t count, int other) {
    EXPECT_TRUE(Eventually([&] { return server.loop().mailbox().size() == count; }));
    Pass(other);
    EXPECT_EQ(server.loop().mailbox().size(), count);
  }
  std::unique_ptr<Server> Start() {
    auto server = Server::Create(config_);
    RAVEN_CHECK(server.ok());
    return std::move(*server);
  }
  core::Error Refusal() {
    auto server = Server::Create(config_);
    return server.ok() ? core::Error{ErrorCode::kSystem, "it was started"} : server.error();
  }

  ipc::ShortDirectory directory_;
  Config config_;
};

TEST(LoopOptionsTest, LargerChunksLeaveMoreInFlight) {
  Config config;
  config.chunk = MiB(64);
  const LoopOptions options = LoopOptionsOf(config);
  EXPECT_EQ(options.store.transfers.chunk, MiB(64));
  EXPECT_EQ(options.store.transfers.in_flight, MiB(128));
}

TEST_F(ServerTest, DrainsImmediatelyWithoutClients) {
  config_.drain = std::chrono::hours(1);
  const auto server = Start();
  TimeLimit limit(kTestPatience);
  EXPECT_TRUE(server->Drain());
  EXPECT_FALSE(limit.IsOver());
}

TEST_F(ServerTest, ADrainedServerIsNoLongerFoundAndAnotherMayTakeItsPlace) {
  auto server = Start();
  Attach();  // and hangs up immediately; its process, which is this one, lives on
  EXPECT_FALSE(server->Drain());
  EXPECT_NE(::access(config_.socket_path.c_str(), F_OK), 0);
  EXPECT_FALSE(ipc::Connect(config_.socket_path, ipc::Now() + milliseconds(1)).ok());
  server.reset();
  server = Start();
  EXPECT_TRUE(server->Drain());
}

TEST_F(ServerTest, DrainWaitsForClientsWithinItsBound) {
  const auto server = Start();
  const ipc::UniqueFd client = Attach();
  EXPECT_FALSE(server->Drain());
}

TEST_F(ServerTest, DrainIsDoneOnceTheLastClientLeft) {
  config_.drain = seconds(20);
  const auto server = Start();
  const ipc::UniqueFd client = Attach();
  auto drained = std::async(std::launch::async, [&] { return server->Drain(); });
  EXPECT_EQ(drained.wait_for(milliseconds(20)), std::future_status::timeout);
  proto::ClientPacket detach;
  detach.set_request(2);
  detach.mutable_detach();
  EXPECT_TRUE(Ask(client.get(), detach).has_detached());
  EXPECT_TRUE(drained.get());
}

TEST_F(ServerTest, OnlyTheNamedDevicesAreServed) {
  config_.uuids = {"HOST-1"};
  const auto server = Start();
  auto socket = ipc::Connect(config_.socket_path, ipc::Now() + seconds(20));
  ASSERT_TRUE(socket.ok());
  proto::ClientPacket hello;
  hello.set_request(1);
  hello.mutable_hello()->set_protocol_version(proto::kProtocolVersion);
  hello.mutable_hello()->set_control_only(true);
  const proto::DaemonPacket answer = Ask(socket->get(), hello);
  ASSERT_EQ(answer.welcome().devices_size(), 1);
  EXPECT_EQ(answer.welcome().devices(0).uuid(), "HOST-1");
  EXPECT_EQ(answer.welcome().backend(), "host");
}

// Keeps the loop from running what is posted until it ends.
class Held {
 public:
  explicit Held(Loop& loop) {
    loop.mailbox().Post([begun = &begun_, go = go_.get_future().share()] {
      begun->set_value();
      go.wait();
    });
    begun_.get_future().wait();
  }
  ~Held() { go_.set_value(); }

 private:
  std::promise<void> begun_;
  std::promise<void> go_;
};

TEST_F(ServerTest, TheDrainDoesNotWaitForALoopThatDoesNotAnswer) {
  const auto server = Start();
  const Held held(server->loop());
  EXPECT_FALSE(server->Drain());
}

// What an attached client may have.
core::Budgets BudgetsOf(const proto::DaemonPacket& answer) {
  return {core::Bytes(answer.welcome().device_budget()),
          core::Bytes(answer.welcome().host_budget()), core::Bytes{0}};
}

TEST_F(ServerTest, LimitsReadAgainHoldForUsersWithUnchangedLimits) {
  const auto server = Start();
  const ipc::UniqueFd admin = Open();
  proto::ClientPacket set;
  set.set_request(2);
  set.mutable_set_limits()->set_uid(::geteuid());
  set.mutable_set_limits()->set_host_budget(MiB(50).count());
  ASSERT_TRUE(Ask(admin.get(), set).has_limits_set());

  Config wanted = config_;
  wanted.device_budget = MiB(32);
  wanted.host_budget = MiB(64);
  wanted.restart_timeout = seconds(7);
  wanted.page = MiB(8);
  const ConfigChanges changes = server->Reload(wanted);
  EXPECT_EQ(changes.adopted, (std::vector<std::string>{"limits.device_budget", "limits.host_budget",
                                                       "shutdown.restart_timeout_s"}));
  EXPECT_EQ(changes.need_restart, std::vector<std::string>{"devices.page"});

  auto socket = ipc::Connect(config_.socket_path, ipc::Now() + seconds(20));
  ASSERT_TRUE(socket.ok());
  proto::ClientPacket hello;
  hello.set_request(1);
  hello.mutable_hello()->set_protocol_version(proto::kProtocolVersion);
  const proto::DaemonPacket answer = Ask(socket->get(), hello);
  EXPECT_EQ(BudgetsOf(answer).device, MiB(32));
  EXPECT_EQ(BudgetsOf(answer).host, MiB(50));
  EXPECT_EQ(answer.welcome().restart_timeout_ms(), 7000u);
}

// A signal that arrived in between ended the daemon without draining, and clients lost tensors.
TEST_F(ServerTest, NoClientIsAnsweredBeforeTheCallback) {
  std::optional<ipc::UniqueFd> early;
  const auto server = Server::Create(config_, [&] {
    auto socket = ipc::Connect(config_.socket_path, ipc::Now() + seconds(20));
    ASSERT_TRUE(socket.ok()) << "the socket is there";
    proto::ClientPacket hello;
    hello.set_request(1);
    hello.mutable_hello()->set_protocol_version(proto::kProtocolVersion);
    ASSERT_TRUE(ipc::Send(socket->get(), hello.SerializeAsString()).ok());
    EXPECT_FALSE(ipc::WaitReadable(socket->get(), ipc::Now() + milliseconds(200)).ok());
    early = std::move(*socket);
  });
  ASSERT_TRUE(server.ok());
  ASSERT_TRUE(early.has_value());
  EXPECT_TRUE(Next(early->get()).has_welcome());
}

TEST_F(ServerTest, AReserveAboveADeviceIsRefusedWithBothNumbers) {
  config_.harvest_reserve = MiB(65);
  const auto server = Server::Create(config_);
  ASSERT_FALSE(server.ok());
  EXPECT_EQ(server.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(server.error().message,
            "\"harvest.reserve\", of HOST-0: a reserve of 65.0 MiB is more than the 64.0 MiB that "
            "there are");
  config_.harvest_reserve = MiB(64);
  EXPECT_TRUE(Server::Create(config_).ok());
}

TEST_F(ServerTest, WhatOtherProcessesHoldIsShown) {
  config_.host_others = MiB(16);
  config_.peer_pool_size = MiB(8);
  config_.harvest_rise = core::Duration{0};
  config_.harvest_step = core::Bytes{0};
  const auto server = Start();
  const ipc::UniqueFd admin = Open();
  proto::ClientPacket question;
  question.set_request(2);
  question.mutable_stats();
  const proto::Stats stats = Ask(admin.get(), question).stats();
  ASSERT_EQ(stats.devices_size(), 2);
  const proto::DeviceUse& use = stats.devices(1);
  EXPECT_EQ(use.fault(), "");
  EXPECT_EQ(use.total(), MiB(64).count());
  EXPECT_EQ(use.peer_pool(), MiB(8).count());
  EXPECT_EQ(use.others(), MiB(16).count());
  EXPECT_EQ(use.free(), MiB(40).count());
  EXPECT_EQ(use.least_free(), MiB(40).count());
  EXPECT_EQ(use.idle(), MiB(32).count()) << "an eighth is the reserve";
  ASSERT_EQ(use.processes_size(), 1);
  EXPECT_EQ(use.processes(0).bytes(), MiB(16).count());
}

// As where a user has no watches left (fs.epoll.max_user_watches).
TEST_F(ServerTest, AClientThatEpollDoesNotTakeDoesNotEndTheDaemon) {
  const auto server = Start();
  auto segment = ipc::ControlSegment::Create(7);
  RAVEN_CHECK(segment.ok());
  ipc::Doorbell no_event(ipc::UniqueFd(::memfd_create("file", MFD_CLOEXEC)));
  auto attachment = std::make_shared<Attachment>(Attachment{core::ClientId{7},
                                                            core::TenantId{1},
                                                            {},
                                                            1,
                                                            2,
                                                            "server_test",
                                                            std::move(*segment),
                                                            std::move(no_event),
                                                            {}});
  attachment->arenas.resize(2);
  std::promise<void> detached;
  server->loop().mailbox().Post([&] {
    server->loop().Apply(core::TenantLimits{attachment->tenant, {}});
    server->loop().Attach(attachment);
    server->loop().Detach(core::ClientId{7}, [&] { detached.set_value(); });
  });
  detached.get_future().wait();
  Attach();
}

TEST_F(ServerTest, AConnectionsQuestionsReachTheLoopOneByOne) {
  constexpr uint64_t kQuestions = 100;
  const auto server = Start();
  const ipc::UniqueFd asker = Open();
  const ipc::UniqueFd other = Open();
  {
    const Held held(server->loop());
    proto::ClientPacket packet;
    packet.mutable_stats()->set_whole_store(true);
    for (uint64_t i = 1; i <= kQuestions; ++i) {
      packet.set_request(i);
      ASSERT_TRUE(ipc::Send(asker.get(), packet.SerializeAsString()).ok());
    }
    ExpectInMailbox(*server, 1, other.get());
  }
  for (uint64_t i = 1; i <= kQuestions; ++i) EXPECT_EQ(Next(asker.get()).request(), i);
}

TEST_F(ServerTest, NoticesReachTheLoopManyAtATimeButNotAll) {
  constexpr uint64_t kNotices = 100;
  const auto server = Start();
  const ipc::UniqueFd sender = Open();
  const ipc::UniqueFd other = Open();
  {
    const Held held(server->loop());
    proto::ClientPacket packet;
    packet.mutable_trim();
    for (uint64_t i = 1; i <= kNotices; ++i) {
      ASSERT_TRUE(ipc::Send(sender.get(), packet.SerializeAsString()).ok());
    }
    ExpectInMailbox(*server, 64, other.get());
  }
  Pass(sender.get());
}

TEST_F(ServerTest, AConnectionAsksForMemoryOnce) {
  constexpr uint64_t kAsks = 50;
  const auto server = Start();
  const ipc::UniqueFd job = AttachLegacy();
  const ipc::UniqueFd other = Open();
  auto asker = ipc::Connect(config_.socket_path, ipc::Now() + seconds(20));
  ASSERT_TRUE(asker.ok());
  proto::ClientPacket packet;
  packet.mutable_legacy_reclaim()->set_uuid("HOST-0");
  packet.mutable_legacy_reclaim()->set_bytes(1);
  {
    const Held held(server->loop());
    for (uint64_t i = 1; i <= kAsks; ++i) {
      packet.set_request(i);
      ASSERT_TRUE(ipc::Send(asker->get(), packet.SerializeAsString()).ok());
    }
    ExpectInMailbox(*server, 1, other.get());
  }
  int answers = 0;
  for (uint64_t i = 1; i <= kAsks; ++i) {
    const proto::DaemonPacket answer = Next(asker->get());
    answers += answer.has_legacy_reclaimed() ? 1 : 0;
    EXPECT_EQ(answer.has_legacy_reclaimed(), answer.request() == 1) << answer.request();
  }
  EXPECT_EQ(answers, 1);
  EXPECT_EQ(Ask(job.get(), packet).failure().code(), static_cast<uint32_t>(ErrorCode::kWrongState));
}

TEST_F(ServerTest, AClientThatHangsUpBeforeItsAnswerIsForgottenOnceItIsThere) {
  const auto server = Start();
  const ipc::UniqueFd other = Open();
  proto::ClientPacket record;
  record.set_request(1);
  record.mutable_record();
  {
    const Held held(server->loop());
    ipc::UniqueFd asker = Open();
    ASSERT_TRUE(ipc::Send(asker.get(), record.SerializeAsString()).ok());
    Pass(other.get());
    asker.reset();
    ExpectInMailbox(*server, 1, other.get());
  }
  // The recording ends with its connection.
  while (!Ask(other.get(), record).has_recorded()) sched_yield();
}

TEST_F(ServerTest, AClientThatDoesNotReadItsAnswersIsNotRead) {
  const auto server = Start();
  const ipc::UniqueFd deaf = Open();
  proto::ClientPacket packet;
  packet.set_request(1);
  packet.mutable_intern_name()->set_name("name");
  // Both directions fill up, and stay full.
  const std::string bytes = packet.SerializeAsString();
  uint64_t sent = 0;
  while (ipc::Send(deaf.get(), bytes).ok() ||
         ipc::WaitWritable(deaf.get(), ipc::Now() + milliseconds(200)).ok()) {
    ASSERT_LT(++sent, 100000u);
  }
  // It is read again, to the end, when it reads.
  packet.set_request(2);
  while (Next(deaf.get()).request() == 1) {
    if (packet.request() == 2 && ipc::Send(deaf.get(), packet.SerializeAsString()).ok())
      packet.set_request(0);
  }
}

TEST_F(ServerTest, DevicesThatAreNotThereAreNamed) {
  config_.uuids = {"HOST-0", "GPU-12345678"};
  const core::Error error = Refusal();
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_NE(error.message.find("GPU-12345678"), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("HOST-0 HOST-1"), std::string::npos) << error.message;
}

TEST_F(ServerTest, TheReserveTakesNothingFromSimulatedDevices) {
  config_.device_reserve = GiB(100);
  const auto server = Start();
  std::promise<core::Bytes> capacity;
  server->loop().mailbox().Post(
      [&] { capacity.set_value(server->loop().store().DeviceTier(core::DeviceId{0}).capacity); });
  EXPECT_EQ(capacity.get_future().get(), MiB(64));
}

TEST_F(ServerTest, WhatCannotBeConfiguredIsNamed) {
  config_.pool_size = MiB(32);  // less than a step
  EXPECT_EQ(Refusal().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(Refusal().message.find("host_pool.size"), std::string::npos);
  config_.pool_size = MiB(128);
  config_.page = MiB(3);
  EXPECT_EQ(Refusal().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(Refusal().message.find("devices.page"), std::string::npos);
}

TEST_F(ServerTest, TheSocketOfALivingDaemonIsNotTaken) {
  const auto server = Start();
  EXPECT_EQ(Refusal().code, ErrorCode::kUnavailable);
  Attach();
}

}  // namespace
}  // namespace ravenstore::daemon
