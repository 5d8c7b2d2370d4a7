#include "daemon/server.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "core/check.h"
#include "ipc/clock.h"
#include "ipc/socket.h"
#include "proto/control.pb.h"
#include "proto/layout.h"
#include "tests/ipc/short_directory.h"

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
    config_.slab = MiB(4);
    config_.pool_size = MiB(128);
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
    auto received = ipc::Receive(socket, true);
    RAVEN_CHECK(received.ok() && received->has_value());
    proto::DaemonPacket answer;
    RAVEN_CHECK(answer.ParseFromString((*received)->bytes));
    return answer;
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

// The simulator, whose figures the planner is judged by, replays with the defaults.
TEST(LoopOptionsTest, WithoutConfigurationThePlannerDecidesByTheDefaults) {
  const core::PlannerOptions planner = LoopOptionsOf({}).planner;
  const core::PlannerOptions defaults;
  EXPECT_EQ(planner.policy, defaults.policy);
  EXPECT_EQ(planner.learn, defaults.learn);
  EXPECT_EQ(planner.slab, defaults.slab);
  EXPECT_EQ(planner.host_step, defaults.host_step);
  EXPECT_EQ(planner.host_ahead, defaults.host_ahead);
  EXPECT_EQ(planner.in_flight, defaults.in_flight);
  EXPECT_EQ(planner.in_flight_copies, defaults.in_flight_copies);
  EXPECT_EQ(planner.demand_bytes, defaults.demand_bytes);
  EXPECT_EQ(planner.demand_copies, defaults.demand_copies);
  EXPECT_EQ(planner.prefetch, defaults.prefetch);
  EXPECT_EQ(planner.preclean, defaults.preclean);
}

TEST(LoopOptionsTest, LargerChunksLeaveMoreInFlight) {
  Config config;
  config.chunk = MiB(64);
  const LoopOptions options = LoopOptionsOf(config);
  EXPECT_EQ(options.transfers.chunk, MiB(64));
  EXPECT_EQ(options.transfers.in_flight, MiB(128));
  EXPECT_EQ(options.planner.in_flight, options.transfers.in_flight * 3);
}

TEST_F(ServerTest, DrainsAtOnceWithoutClients) {
  config_.drain = seconds(20);
  const auto server = Start();
  const core::Tick begun = ipc::Now();
  EXPECT_TRUE(server->Drain());
  EXPECT_LT(ipc::Now() - begun, seconds(10));
}

TEST_F(ServerTest, ADrainedServerIsNoLongerFoundAndAnotherMayTakeItsPlace) {
  auto server = Start();
  Attach();  // and hangs up at once; its process, which is this one, lives on
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
      [&] { capacity.set_value(server->loop().planner().DeviceTier(core::DeviceId{0}).capacity); });
  EXPECT_EQ(capacity.get_future().get(), MiB(64));
}

TEST_F(ServerTest, WhatCannotBeConfiguredIsNamed) {
  config_.pool_size = MiB(32);  // less than a step
  EXPECT_EQ(Refusal().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(Refusal().message.find("host_pool.size"), std::string::npos);
  config_.pool_size = MiB(128);
  config_.slab = MiB(3);
  EXPECT_EQ(Refusal().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(Refusal().message.find("devices.slab"), std::string::npos);
}

TEST_F(ServerTest, TheSocketOfALivingDaemonIsNotTaken) {
  const auto server = Start();
  EXPECT_EQ(Refusal().code, ErrorCode::kUnavailable);
  Attach();
}

}  // namespace
}  // namespace ravenstore::daemon
