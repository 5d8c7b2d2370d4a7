// The answers that ravenctl gets about a running daemon.
#include "daemon/admin.h"

#include <google/protobuf/io/coded_stream.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/ctl/session.h"
#include "core/check.h"
#include "ipc/clock.h"
#include "ipc/socket.h"
#include "ipc/unique_fd.h"
#include "proto/control.pb.h"
#include "proto/layout.h"
#include "proto/trace.pb.h"
#include "proto/version.h"
#include "tests/daemon/daemon_process.h"

namespace ravenstore::daemon {
namespace {

using client::ctl::Session;
using std::chrono::seconds;

class AdminTest : public testing::Test {
 protected:
  Store Connect(const std::string& name, uint64_t device_budget = 0) {
    return Store::connect(
        {.socket = daemon_.socket(), .name = name, .device_budget = device_budget});
  }
  std::map<std::string, proto::TensorInfo> ByName() {
    std::map<std::string, proto::TensorInfo> tensors;
    EXPECT_TRUE(admin_
                    .List(0,
                          [&](const proto::TensorInfo& tensor) {
                            tensors[tensor.name()] = tensor;
                            return true;
                          })
                    .ok());
    return tensors;
  }

  DaemonProcess daemon_{{"--device-total", "64MiB", "--pool-size", "128MiB"}};
  Session admin_ = std::move(*Session::Open(daemon_.socket(), seconds(30)));
};

TEST_F(AdminTest, ATensorsPlaceIsExplained) {
  Store store = Connect("one");
  Tensor tensor = store.create(MiB(1), {.name = "weights"});
  const auto in_use = admin_.Explain(tensor.id());
  ASSERT_TRUE(in_use.ok());
  EXPECT_EQ(in_use->tensor().name(), "weights");
  EXPECT_EQ(in_use->value(), 0) << "in use: it cannot leave";
  EXPECT_EQ(in_use->priority(), "normal");
  store.put(tensor, nullptr, {.needed_in = seconds(100), .priority = Priority::kHigh});
  EXPECT_TRUE(Eventually([&] {
    const auto idle = admin_.Explain(tensor.id());
    return idle.ok() && idle->value() > 0 && idle->needed_in_ns() > 90'000'000'000 &&
           idle->needed_in_ns() <= 100'000'000'000 && idle->priority() == "high";
  }));
  const auto unknown = admin_.Explain(tensor.id() + 12345);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, core::ErrorCode::kNotFound);
}

TEST_F(AdminTest, ARecordingHoldsWhatAClientDid) {
  Store store = Connect("one");
  ASSERT_TRUE(admin_.Record(0).ok());
  Session other = std::move(*Session::Open(daemon_.socket(), seconds(30)));
  const auto refused = other.Record(0);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, core::ErrorCode::kLimit);
  for (int i = 0; i < 2; ++i) {
    store.step();
    Tensor tensor = store.create(KiB(4), {.name = "weights"});
    store.put(tensor, nullptr, {.order = 3, .recompute = std::chrono::milliseconds(2)});
    store.get(tensor, nullptr);
    store.put(tensor, nullptr);
    store.free(std::move(tensor), nullptr);
  }
  std::vector<proto::TraceOp> ops;
  const auto frees = [&] {
    return std::count_if(ops.begin(), ops.end(),
                         [](const auto& op) { return op.kind() == proto::TraceOp::FREE; });
  };
  while (frees() < 2) {
    const auto recorded = admin_.Record(0);
    ASSERT_TRUE(recorded.ok());
    EXPECT_EQ(recorded->dropped(), 0u);
    google::protobuf::io::CodedInputStream in(
        reinterpret_cast<const uint8_t*>(recorded->ops().data()),
        static_cast<int>(recorded->ops().size()));
    uint32_t length = 0;
    while (in.ReadVarint32(&length)) {
      const auto limit = in.PushLimit(static_cast<int>(length));
      ASSERT_TRUE(ops.emplace_back().ParseFromCodedStream(&in));
      in.PopLimit(limit);
    }
  }
  std::erase_if(ops, [](const auto& op) { return op.kind() == proto::TraceOp::COMPUTE; });
  EXPECT_EQ(ops[0].kind(), proto::TraceOp::STEP);
  EXPECT_EQ(ops[1].kind(), proto::TraceOp::CREATE);
  EXPECT_EQ(ops[1].name(), "weights");
  EXPECT_EQ(ops[1].bytes(), KiB(4));
  EXPECT_EQ(ops[2].kind(), proto::TraceOp::PUT);
  EXPECT_EQ(ops[3].kind(), proto::TraceOp::GET);
  EXPECT_EQ(ops.back().kind(), proto::TraceOp::FREE);
  const auto stats = admin_.Stats();
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->bad_requests(), 0u);
}

TEST_F(AdminTest, ARecordingEndsWithItsConnection) {
  Store store = Connect("one");
  {
    Session first = std::move(*Session::Open(daemon_.socket(), seconds(30)));
    ASSERT_TRUE(first.Record(0).ok());
  }
  EXPECT_TRUE(Eventually([&] { return admin_.Record(0).ok(); }));
}

TEST_F(AdminTest, EveryTensorIsListedOnceOverManyPages) {
  Store store = Connect("one");
  Store other = Connect("other");
  const std::vector<uint64_t> sizes(700, 512);
  const std::vector<Tensor> tensors = store.create(sizes);
  const Tensor last = other.create(KiB(1));
  std::set<uint64_t> seen;
  ASSERT_TRUE(admin_
                  .List(0,
                        [&](const proto::TensorInfo& tensor) {
                          EXPECT_TRUE(seen.insert(tensor.id()).second) << tensor.id();
                          return true;
                        })
                  .ok());
  EXPECT_EQ(seen.size(), 701u);
  for (const Tensor& tensor : tensors) EXPECT_TRUE(seen.contains(tensor.id()));
  EXPECT_TRUE(seen.contains(last.id()));
}

TEST_F(AdminTest, OneClientsTensorsAloneAreListed) {
  Store store = Connect("one");
  Store other = Connect("other");
  const std::vector<uint64_t> sizes(200, 512);
  const std::vector<Tensor> tensors = store.create(sizes);
  const Tensor last = other.create(KiB(1));
  uint32_t client = 0;
  const auto clients = admin_.Clients();
  ASSERT_TRUE(clients.ok());
  for (const auto& info : *clients) {
    if (info.name() == "other") client = info.client();
  }
  std::vector<uint64_t> seen;
  ASSERT_TRUE(admin_
                  .List(client,
                        [&](const proto::TensorInfo& tensor) {
                          EXPECT_EQ(tensor.client(), client);
                          seen.push_back(tensor.id());
                          return true;
                        })
                  .ok());
  EXPECT_EQ(seen, std::vector<uint64_t>{last.id()});
}

TEST_F(AdminTest, TensorsShowTheirNameStateAndTier) {
  Store store = Connect("one", MiB(8));
  Tensor away = store.create(MiB(4), {.name = "away"});
  store.put(away, nullptr);
  Tensor idle = store.create(MiB(4), {.name = "idle"});
  store.put(idle, nullptr);
  Tensor used = store.create(MiB(4), {.name = "used"});  // pushes one of the others out
  EXPECT_TRUE(Eventually([&] {
    const auto now = ByName();
    return now.at("away").state() == "away" || now.at("idle").state() == "away";
  }));
  const auto now = ByName();
  ASSERT_EQ(now.size(), 3u);
  EXPECT_EQ(now.at("used").state(), "in use");
  EXPECT_EQ(now.at("used").tier(), "device 0");
  EXPECT_EQ(now.at("used").bytes(), MiB(4));
  EXPECT_EQ(now.at("used").id(), used.id());
  for (const auto& name : {"away", "idle"}) {
    const auto& tensor = now.at(name);
    if (tensor.state() == "away") {
      EXPECT_EQ(tensor.tier(), "host");
    }
  }
}

TEST_F(AdminTest, ClientsShowWhoTheyAreAndWhatTheyHold) {
  Store store = Connect("trainer", MiB(4));
  Tensor used = store.create(MiB(3));
  Tensor idle = store.create(MiB(1));
  store.put(idle, nullptr);
  EXPECT_TRUE(Eventually([&] { return admin_.Clients()->front().in_use_bytes() == MiB(3); }));
  const auto clients = admin_.Clients();
  ASSERT_EQ(clients->size(), 1u);
  const proto::ClientInfo& info = clients->front();
  EXPECT_EQ(info.name(), "trainer");
  EXPECT_EQ(info.pid(), static_cast<uint32_t>(::getpid()));
  EXPECT_EQ(info.uid(), ::geteuid());
  EXPECT_EQ(info.tensors(), 2u);
  EXPECT_EQ(info.device_bytes(), MiB(4));
  EXPECT_EQ(info.device_budget(), MiB(4));
  EXPECT_EQ(info.waiting(), 0u);
}

TEST_F(AdminTest, EveryClientIsListedOverManyPages) {
  std::vector<Store> stores;
  for (int i = 0; i < 140; ++i) stores.push_back(Connect("client " + std::to_string(i)));
  const auto clients = admin_.Clients();
  ASSERT_TRUE(clients.ok());
  std::set<std::string> names;
  for (const auto& info : *clients) names.insert(info.name());
  EXPECT_EQ(clients->size(), 140u);
  EXPECT_EQ(names.size(), 140u);
}

TEST(AdminLinkTest, EveryDevicesRatesAreReported) {
  const DaemonProcess daemon({"--devices", "2", "--link-bytes-per-second", "3000000000"});
  const auto session = Session::Open(daemon.socket(), seconds(30));
  ASSERT_TRUE(session.ok());
  ASSERT_EQ(session->welcome().devices_size(), 2);
  for (const proto::Device& device : session->welcome().devices()) {
    EXPECT_EQ(device.link_up(), 3'000'000'000u);
    EXPECT_EQ(device.link_down(), 3'000'000'000u);
  }
}

TEST_F(AdminTest, StatsCountWhatWasDone) {
  Store store = Connect("one");
  Store other = Connect("other");
  Tensor elsewhere = other.create(MiB(2));
  Tensor tensor = store.create(MiB(1));
  for (int i = 0; i < 5; ++i) {
    store.put(tensor, nullptr);
    store.get(tensor, nullptr);
  }
  for (int i = 0; i < 3; ++i) store.free(store.create(KiB(4)), nullptr);
  EXPECT_TRUE(Eventually([&] { return admin_.Stats()->frees() == 3; }));
  EXPECT_TRUE(Eventually([&] { return admin_.Stats()->hits() == 5; }));
  const auto stats = admin_.Stats();
  ASSERT_EQ(stats->tiers_size(), 2);
  EXPECT_EQ(stats->tiers(0).name(), "device 0");
  EXPECT_EQ(stats->tiers(0).capacity(), MiB(64));
  EXPECT_EQ(stats->tiers(0).used(), MiB(4)) << "a page of each";
  EXPECT_GE(stats->tiers(0).held(), MiB(4)) << "with spares";
  EXPECT_EQ(stats->tiers(1).name(), "host");
  EXPECT_EQ(stats->tiers(1).capacity(), MiB(128));
  EXPECT_EQ(stats->tiers(1).used(), 0u);
  EXPECT_EQ(stats->clients(), 2u);
  EXPECT_EQ(stats->tensors(), 2u);
  EXPECT_EQ(stats->creates(), 5u);
  EXPECT_EQ(stats->gets(), 5u);
  EXPECT_EQ(stats->misses(), 0u);
  EXPECT_EQ(stats->bad_requests(), 0u);
  EXPECT_GT(stats->uptime_ns(), 0u);
  EXPECT_GT(stats->daemon_rss_bytes(), 0u);
  EXPECT_GE(stats->loop_pause_max_ns(), stats->loop_pause_p999_ns());
}

TEST(ResidentBytesTest, WhatIsSharedWithOtherProcessesDoesNotCount) {
  constexpr uint64_t kShared = MiB(64);
  const uint64_t before = ResidentBytes();
  EXPECT_GT(before, 0u);
  void* const shared = mmap(nullptr, kShared, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  EXPECT_LT(ResidentBytes(), before + kShared / 2);
  munmap(shared, kShared);
}

TEST_F(AdminTest, AClientsOwnStatsCountItAlone) {
  Store store = Connect("one", MiB(16));
  Store other = Connect("other");
  const std::vector<Tensor> elsewhere = other.create(std::vector<uint64_t>(9, KiB(4)));
  Tensor tensor = store.create(MiB(1));
  store.put(tensor, nullptr);
  store.get(tensor, nullptr);
  EXPECT_TRUE(Eventually([&] { return store.stats().gets == 1; }));
  EXPECT_EQ(store.stats().tensors, 1u);
  EXPECT_EQ(store.stats().hits, 1u);
  EXPECT_EQ(store.stats().device_budget, MiB(16));
  EXPECT_EQ(other.stats().tensors, 9u);
  EXPECT_EQ(other.stats().gets, 0u);
}

// What the daemon answers to one message, cursors included.
class RawSession {
 public:
  explicit RawSession(const std::string& path) {
    auto socket = ipc::Connect(path, ipc::Now() + seconds(30));
    RAVEN_CHECK(socket.ok());
    socket_ = std::move(*socket);
    proto::ClientPacket hello;
    hello.mutable_hello()->set_protocol_version(proto::kProtocolVersion);
    hello.mutable_hello()->set_control_only(true);
    RAVEN_CHECK(Ask(hello).has_welcome());
  }
  proto::DaemonPacket Ask(proto::ClientPacket packet) {
    packet.set_request(++request_);
    RAVEN_CHECK(ipc::Send(socket_.get(), packet.SerializeAsString()).ok());
    const auto received = ipc::Receive(socket_.get(), /*wait=*/true);
    proto::DaemonPacket answer;
    RAVEN_CHECK(received.ok() && received->has_value());
    RAVEN_CHECK(answer.ParseFromString((*received)->bytes));
    return answer;
  }

 private:
  ipc::UniqueFd socket_;
  uint64_t request_ = 0;
};

TEST_F(AdminTest, AUsersListsShowNothingOfOthers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user as well";
  const std::string folder = daemon_.socket().substr(0, daemon_.socket().rfind('/'));
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(daemon_.socket().c_str(), 0666), 0);
  Store before = Connect("before");
  const std::vector<Tensor> others = before.create(std::vector<uint64_t>(300, 512));
  if (::seteuid(1001) != 0) GTEST_SKIP() << "no other users in this namespace";
  Store own = Connect("own");
  RawSession user(daemon_.socket());
  ASSERT_EQ(::seteuid(0), 0);
  const Tensor first = own.create(KiB(1));
  Store after = Connect("after");
  const std::vector<Tensor> later = after.create(std::vector<uint64_t>(300, 512));

  proto::ClientPacket question;
  question.mutable_list_tensors();
  const proto::DaemonPacket tensors = user.Ask(question);
  ASSERT_EQ(tensors.tensors().tensors_size(), 1) << "and no empty pages before it";
  EXPECT_EQ(tensors.tensors().tensors(0).id(), first.id());
  EXPECT_EQ(tensors.tensors().next_cursor(), 0u);
  question.mutable_list_clients();
  const proto::DaemonPacket clients = user.Ask(question);
  ASSERT_EQ(clients.clients().clients_size(), 1);
  EXPECT_EQ(clients.clients().next_cursor(), 0u);
  // What is another's and what is not there read the same.
  for (const uint64_t id : {others[0].id(), others[0].id() + 12345}) {
    question.mutable_explain_tensor()->set_id(id);
    EXPECT_EQ(user.Ask(question).failure().message(), "there is no tensor " + std::to_string(id));
  }
}

}  // namespace
}  // namespace ravenstore::daemon
