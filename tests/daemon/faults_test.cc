// Bad input, dead processes and stopped processes: no data is lost that need not be, nothing hangs,
// and no other client notices.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "client/ctl/session.h"
#include "ipc/ring.h"
#include "ipc/segment.h"
#include "ipc/wake.h"
#include "proto/control.pb.h"
#include "proto/packet.h"
#include "tests/client/test_stream.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/stats_of.h"
#include "tests/ipc/acknowledge_maps.h"
#include "tests/ipc/child.h"
#include "tests/timing/timing.h"

namespace ravenstore::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Store Connect(const DaemonProcess& daemon, uint64_t device_budget = 0,
              Timeout timeout = std::nullopt) {
  return Store::connect({.socket = daemon.socket(),
                         .name = "faults_test",
                         .device_budget = device_budget,
                         .timeout = timeout});
}

// Works only if the daemon still serves others well.
void ExpectServes(const DaemonProcess& daemon) {
  Store store = Connect(daemon, MiB(8));
  Tensor tensor = store.create(MiB(1));
  std::memset(tensor.data(), 42, MiB(1));
  store.put(tensor, nullptr);
  EXPECT_EQ(static_cast<char*>(store.get(tensor, nullptr))[MiB(1) - 1], 42);
}

// A client that speaks the protocol by hand.
struct RawClient {
  explicit RawClient(const DaemonProcess& daemon) {
    socket = std::move(*ipc::Connect(daemon.socket(), ipc::Now() + seconds(30)));
    proto::ClientPacket hello;
    hello.set_request(1);
    hello.mutable_hello()->set_protocol_version(proto::kProtocolVersion);
    RAVEN_CHECK(ipc::Send(socket.get(), hello.SerializeAsString()).ok());
    auto packet = ipc::Receive(socket.get(), true);
    RAVEN_CHECK(packet.ok() && packet->has_value());
    RAVEN_CHECK((*packet)->descriptors.size() == 2);
    segment.emplace(std::move(*ipc::ControlSegment::Map(std::move((*packet)->descriptors[0]))));
    doorbell.emplace(std::move((*packet)->descriptors[1]));
    ring.emplace(&shared().requests);
    maps.emplace(&shared().maps);
  }
  proto::Segment& shared() { return *segment->get(); }
  proto::LeaseSlot& Row(uint32_t slot) { return shared().slots[slot]; }
  proto::LeaseState StateOf(uint32_t slot) { return proto::UnpackLease(Row(slot).word).state; }
  // On pages a create or a fetch is answered after its maps.
  void AcknowledgeMaps() {
    if (ipc::AcknowledgeMaps(&*maps)) doorbell->Ring();
  }
  bool EventuallyIs(uint32_t slot, proto::LeaseState wanted) {
    return Eventually([&] {
      AcknowledgeMaps();
      return StateOf(slot) == wanted;
    });
  }
  void Push(const proto::Request& request) {
    while (!ring->Push(request)) doorbell->Ring();
    doorbell->Ring();
  }
  // Of a row that is free.
  void Create(uint32_t slot, uint64_t bytes,
              int64_t deadline_ns = std::numeric_limits<int64_t>::max()) {
    proto::Request request{};
    request.op = static_cast<uint32_t>(proto::RequestOp::kCreate);
    request.slot = slot;
    request.bytes = bytes;
    request.deadline_ns = deadline_ns;
    Row(slot).word = proto::Pack({proto::LeaseState::kRequested, 0, 1});
    Push(request);
  }
  // Of a row that is in use or idle.
  void Free(uint32_t slot) {
    proto::LeaseSlot& row = Row(slot);
    proto::Request request{};
    request.op = static_cast<uint32_t>(proto::RequestOp::kFree);
    request.slot = slot;
    request.id = row.id;
    row.word =
        proto::Pack(proto::Next(proto::UnpackLease(row.word), proto::LeaseState::kFreeing, 0));
    Push(request);
  }

  ipc::UniqueFd socket;
  std::optional<ipc::ControlSegment> segment;
  std::optional<ipc::Doorbell> doorbell;
  std::optional<ipc::RequestProducer> ring;
  std::optional<ipc::MapConsumer> maps;
};

TEST(FaultsTest, MalformedPacketsGetAnErrorAndNothingElse) {
  DaemonProcess daemon;
  auto socket = std::move(*ipc::Connect(daemon.socket(), ipc::Now() + seconds(30)));
  for (const std::string& bytes :
       {std::string("\xff\xff\xff\xff"), std::string(60000, 'x'), std::string("\x08")}) {
    ASSERT_TRUE(ipc::Send(socket.get(), bytes).ok());
    auto packet = ipc::Receive(socket.get(), true);
    ASSERT_TRUE(packet.ok() && packet->has_value());
    proto::DaemonPacket answer;
    ASSERT_TRUE(answer.ParseFromString((*packet)->bytes));
    EXPECT_TRUE(answer.has_failure());
  }
  ExpectServes(daemon);
}

// A socket whose last close takes an hour: what it sent is never read, and it lingers for that.
struct Lingering {
  Lingering() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* name = reinterpret_cast<sockaddr*>(&address);
    const ipc::UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    RAVEN_CHECK(::bind(listener.get(), name, size) == 0 && ::listen(listener.get(), 1) == 0);
    RAVEN_CHECK(::getsockname(listener.get(), name, &size) == 0);
    end.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    RAVEN_CHECK(::connect(end.get(), name, size) == 0);
    other.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::string bytes(KiB(64), 'x');
    while (::send(end.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
    const linger hour{1, 3600};
    RAVEN_CHECK(::setsockopt(end.get(), SOL_SOCKET, SO_LINGER, &hour, sizeof(hour)) == 0);
  }
  ipc::UniqueFd end;
  ipc::UniqueFd other;
};

// No client waits until the daemon has closed a descriptor that a stranger sent along.
TEST(FaultsTest, DescriptorsThatTakeLongToCloseDelayNoOther) {
  DaemonProcess daemon;
  enum class Sent { kWithAMessage, kTooMany, kAsAPage, kBehindAHangUp };
  for (const Sent sent :
       {Sent::kWithAMessage, Sent::kTooMany, Sent::kAsAPage, Sent::kBehindAHangUp}) {
    SCOPED_TRACE(static_cast<int>(sent));
    Lingering lingering;
    daemon.Stop();  // so that its close is the last
    auto socket = std::move(*ipc::Connect(daemon.socket(), ipc::Now() + seconds(30)));
    if (sent == Sent::kBehindAHangUp) {
      EXPECT_EQ(::send(socket.get(), nullptr, 0, 0), 0);
    }
    proto::ClientPacket packet;
    packet.set_request(1);
    packet.mutable_stats();
    if (sent == Sent::kAsAPage)
      packet.mutable_legacy_hello()->set_protocol_version(proto::kProtocolVersion);
    std::string bytes = packet.SerializeAsString();
    std::vector<int> descriptors(sent == Sent::kTooMany ? 6 : 1, lingering.end.get());
    std::vector<char> control(CMSG_SPACE(sizeof(int) * descriptors.size()));
    iovec body{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &body;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(part), descriptors.data(), sizeof(int) * descriptors.size());
    EXPECT_GT(::sendmsg(socket.get(), &message, MSG_NOSIGNAL), 0);
    lingering.end.reset();
    socket.reset();
    daemon.Continue();
    ExpectServes(daemon);
  }
  EXPECT_EQ(daemon.Kill(SIGTERM), 0);
}

TEST(FaultsTest, AnotherProtocolIsTurnedAwayInWords) {
  DaemonProcess daemon;
  auto socket = std::move(*ipc::Connect(daemon.socket(), ipc::Now() + seconds(30)));
  proto::ClientPacket hello;
  hello.set_request(7);
  hello.mutable_hello()->set_protocol_version(proto::kProtocolVersion + 1);
  ASSERT_TRUE(ipc::Send(socket.get(), hello.SerializeAsString()).ok());
  auto packet = ipc::Receive(socket.get(), true);
  proto::DaemonPacket answer;
  ASSERT_TRUE(answer.ParseFromString((*packet)->bytes));
  EXPECT_EQ(answer.request(), 7u);
  EXPECT_EQ(answer.failure().code(), static_cast<uint32_t>(core::ErrorCode::kVersionMismatch));
  EXPECT_NE(answer.failure().message().find("same version"), std::string::npos);
}

TEST(FaultsTest, RandomRequestsHarmNoOther) {
  DaemonProcess daemon;
  RawClient raw(daemon);
  const uint64_t seed = 20261120;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  uint64_t sent = 0;
  for (int i = 0; i < 20000; ++i) {
    proto::Request request{};
    request.op = static_cast<uint32_t>(random() % 5);
    request.slot = static_cast<uint32_t>(random() % 8 == 0 ? random() : random() % 32);
    request.id = random() % 2 == 0 ? random() : raw.Row(request.slot % 32).id.load();
    request.bytes = random() % 3 == 0 ? random() : random() % MiB(1);
    request.deadline_ns = static_cast<int64_t>(random());
    request.ticket = random();
    request.device = static_cast<uint16_t>(random() % 3);
    request.name = static_cast<uint32_t>(random());
    // The row in every state, those that expect an answer most often.
    raw.Row(request.slot % 32).word.store(random() % 12 | random() << 24);
    while (!raw.ring->Push(request))
      ipc::WakeIfAsleep(&raw.shared().header.daemon_asleep, raw.doorbell->fd());
    ++sent;
  }
  raw.doorbell->Ring();
  EXPECT_TRUE(Eventually([&] { return raw.shared().requests.tail.load() == sent; }));
  EXPECT_GT(StatsOf(daemon).bad_requests(), 0u);
  ExpectServes(daemon);
}

// While a create waits its row has no tensor yet, by whatever id it is named.
TEST(FaultsTest, ARowWhoseCreateWaitsHasNoTensor) {
  DaemonProcess daemon({"--device-total", "16MiB"});
  RawClient raw(daemon);
  for (uint32_t slot = 0; slot < 3; ++slot) raw.Create(slot, MiB(12));  // one has room
  ASSERT_TRUE(raw.EventuallyIs(0, proto::LeaseState::kInUse));
  raw.Row(1).word = proto::Pack({proto::LeaseState::kFetching, 0, 1});
  raw.Row(2).word = proto::Pack({proto::LeaseState::kFreeing, 0, 1});
  proto::Request request{};
  request.bytes = MiB(12);
  request.deadline_ns = std::numeric_limits<int64_t>::max();
  for (const uint64_t id : {~uint64_t{0}, uint64_t{0}}) {
    request.id = id;
    request.op = static_cast<uint32_t>(proto::RequestOp::kFetch);
    request.slot = 1;
    raw.Push(request);
    request.op = static_cast<uint32_t>(proto::RequestOp::kFree);
    request.slot = 2;
    raw.Push(request);
  }
  ASSERT_TRUE(Eventually([&] { return raw.shared().requests.tail == 7; }));
  EXPECT_EQ(StatsOf(daemon).bad_requests(), 4u);
}

TEST(FaultsTest, ADeadlineBeforeAllTimeIsPast) {
  DaemonProcess daemon({"--device-total", "4MiB"});
  RawClient raw(daemon);
  for (uint32_t slot = 0; slot < 2; ++slot)
    raw.Create(slot, MiB(4), std::numeric_limits<int64_t>::min());
  EXPECT_TRUE(raw.EventuallyIs(1, proto::LeaseState::kFailed));
}

// The rows are read where log entries were dropped, the last ones too when that goes on and on.
TEST(FaultsTest, ALogThatIsAlwaysFullHidesNoPut) {
  constexpr uint32_t kTensors = 3000;
  DaemonProcess daemon({"--device-total", "32MiB"});
  RawClient raw(daemon);
  for (uint32_t slot = 0; slot < kTensors; ++slot) raw.Create(slot, KiB(4));
  ASSERT_TRUE(raw.EventuallyIs(kTensors - 1, proto::LeaseState::kInUse));
  for (uint32_t slot = 0; slot < kTensors; ++slot)
    raw.Row(slot).word = proto::Pack({proto::LeaseState::kIdle, 0, 5});
  raw.shared().header.log_lanes = 1;
  raw.Create(kTensors, MiB(32));  // every one of them must go
  EXPECT_TRUE(Eventually([&] {
    raw.AcknowledgeMaps();
    raw.shared().log[0].dropped.fetch_add(1);
    return raw.StateOf(kTensors) == proto::LeaseState::kInUse;
  }));
}

// A put counts once among what waits for its stream, however often its row is looked at.
TEST(FaultsTest, PutsThatWaitForALateStreamAreNoReasonToExpel) {
  constexpr uint32_t kTensors = 1000;
  constexpr uint32_t kLooks = 3 * proto::kSlotCapacity / kTensors;
  DaemonProcess daemon;
  RawClient raw(daemon);
  const auto done = [&] {
    return raw.shared().requests.tail.load() == raw.shared().requests.head.load();
  };
  for (uint32_t slot = 0; slot < kTensors; ++slot) raw.Create(slot, KiB(4));
  ASSERT_TRUE(raw.EventuallyIs(kTensors - 1, proto::LeaseState::kInUse));
  for (uint32_t slot = 0; slot < kTensors; ++slot) {
    proto::LeaseSlot& row = raw.Row(slot);
    row.ticket = proto::Pack(proto::WordValue{0, uint64_t{1} << 40});
    row.word = proto::Pack({proto::LeaseState::kIdle, 0, 5});
  }
  raw.shared().header.log_lanes = 1;
  proto::Request request{};
  request.op = static_cast<uint32_t>(proto::RequestOp::kStep);
  for (uint32_t look = 0; look < kLooks; ++look) {
    raw.shared().log[0].dropped.fetch_add(1);
    raw.Push(request);
    ASSERT_TRUE(Eventually(done));
  }
  auto packet = ipc::Receive(raw.socket.get(), false);
  while (packet.ok() && packet->has_value()) packet = ipc::Receive(raw.socket.get(), false);
  EXPECT_FALSE(packet.ok()) << "expelled";
}

// A stream that never gets there, and the same free over and over: what waits for it is bounded.
TEST(FaultsTest, AClientThatLetsTooMuchWaitForItsStreamsIsExpelled) {
  DaemonProcess daemon;
  RawClient raw(daemon);
  raw.Create(0, KiB(4));
  ASSERT_TRUE(raw.EventuallyIs(0, proto::LeaseState::kInUse));
  proto::Request request{};
  raw.Row(0).word = proto::Pack({proto::LeaseState::kFreeing, 0, 2});
  request.op = static_cast<uint32_t>(proto::RequestOp::kFree);
  request.id = raw.Row(0).id;
  request.ticket = proto::Pack(proto::WordValue{0, uint64_t{1} << 40});
  EXPECT_TRUE(Eventually([&] {
    while (raw.ring->Push(request)) {
    }
    raw.doorbell->Ring();
    auto packet = ipc::Receive(raw.socket.get(), false);
    return packet.ok() && !packet->has_value();
  }));
  ExpectServes(daemon);
}

// Copies to several devices at the same time: more than there are arrival words.
TEST(FaultsTest, GetsBeyondTheArrivalWordsWaitForOne) {
  constexpr int kDevices = 4;
  constexpr size_t kEach = 768;
  static_assert(kDevices * kEach > 2 * proto::kArrivalWords);
  constexpr uint64_t kBytes = KiB(4);
  DaemonProcess daemon({"--devices", "4", "--link-bytes-per-second", "20e6"});
  const TestStream stream;  // before the tensors that it frees
  Store store = Connect(daemon, MiB(8));
  std::vector<Tensor> tensors;
  for (int device = 0; device < kDevices; ++device) {
    for (Tensor& tensor : store.create(std::vector<uint64_t>(kEach, kBytes), {.device = device}))
      tensors.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::memset(tensors[i].data(), static_cast<int>(i % 251), kBytes);
    store.put(tensors[i], nullptr);
  }
  // All of them leave for it.
  for (int device = 0; device < kDevices; ++device)
    store.free(store.create(MiB(8), {.device = device}), nullptr);
  for (size_t i = 0; i < kEach; ++i) {
    for (int device = 0; device < kDevices; ++device)
      store.get(tensors[static_cast<size_t>(device) * kEach + i], stream);
  }
  stream.Synchronize();
  for (size_t i = 0; i < tensors.size(); ++i) {
    ASSERT_EQ(static_cast<unsigned char*>(tensors[i].data())[kBytes - 1], i % 251) << i;
  }
}

TEST(FaultsTest, AScribbledSegmentHarmsOnlyItsClient) {
  DaemonProcess daemon;
  RawClient raw(daemon);
  std::mt19937_64 random(7);
  auto* bytes = reinterpret_cast<std::atomic<uint64_t>*>(raw.segment->get());
  const size_t words = offsetof(proto::Segment, slots) / 8 + 4096;
  for (int i = 0; i < 200000; ++i) {
    bytes[random() % words].store(random(), std::memory_order_relaxed);
    if (i % 1000 == 0) raw.doorbell->Ring();
  }
  ExpectServes(daemon);
  // The daemon says goodbye to a client whose ring it can no longer follow.
  EXPECT_TRUE(Eventually([&] {
    auto packet = ipc::Receive(raw.socket.get(), false);
    return packet.ok() && !packet->has_value();
  }));
}

TEST(FaultsTest, AReplayedRingEntryEndsTheClientsSession) {
  DaemonProcess daemon;
  RawClient raw(daemon);
  proto::Request request{};
  request.op = static_cast<uint32_t>(proto::RequestOp::kFree);
  ASSERT_TRUE(raw.ring->Push(request));
  raw.shared().requests.entries[1] = raw.shared().requests.entries[0];
  raw.shared().requests.head.store(2);
  raw.doorbell->Ring();
  EXPECT_TRUE(Eventually([&] { return StatsOf(daemon).bad_requests() >= 2; }));
  ExpectServes(daemon);
}

TEST(FaultsTest, TheSegmentCannotBeTruncated) {
  DaemonProcess daemon;
  RawClient raw(daemon);
  EXPECT_NE(::ftruncate(raw.segment->fd(), 0), 0);
  EXPECT_NE(::ftruncate(raw.segment->fd(), 1 << 30), 0);
  EXPECT_LT(::fallocate(raw.segment->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 20),
            1);
  raw.doorbell->Ring();
  ExpectServes(daemon);
}

// A client in another process that does everything, over and over, until it is killed.
int Churn(const std::string& socket, uint64_t seed) {
  std::mt19937_64 random(seed);
  try {
    Store store = Store::connect({.socket = socket, .device_budget = MiB(8)});
    std::vector<Tensor> tensors;
    for (;;) {
      if (tensors.size() < 24 || random() % 3 == 0) {
        tensors.push_back(store.create(KiB(4) << random() % 8));
        store.put(tensors.back(), nullptr);
      }
      const size_t i = random() % tensors.size();
      store.get(tensors[i], nullptr);
      store.put(tensors[i], nullptr);
      if (tensors.size() > 40 || random() % 4 == 0) {
        std::swap(tensors[i], tensors.back());
        store.free(std::move(tensors.back()), nullptr);
        tensors.pop_back();
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "churn: %s\n", error.what());
    return 1;
  }
}

TEST(FaultsTest, AClientKilledAnywhereGivesEverythingBack) {
  DaemonProcess daemon;
  std::mt19937_64 random(20261120);
  for (int round = 0; round < 40; ++round) {
    const uint64_t seed = random();
    ipc::Child child([&] { return Churn(daemon.socket(), seed); });
    // Anywhere from the attach to a few thousand calls later.
    const core::Tick until = ipc::Now() + std::chrono::microseconds(random() % 60000);
    while (ipc::Now() < until) sched_yield();
    ::kill(child.pid(), SIGKILL);
    EXPECT_EQ(child.Wait(), -SIGKILL);
    EXPECT_TRUE(Eventually([&] {
      const proto::Stats stats = StatsOf(daemon);
      return stats.clients() == 0 && stats.tensors() == 0 && stats.tiers(0).held() == 0 &&
             stats.tiers(1).used() == 0;
    })) << "round "
        << round;
  }
  ExpectServes(daemon);
}

TEST(FaultsTest, AStoppedClientDelaysNoOther) {
  DaemonProcess daemon;
  ipc::Child child([&] { return Churn(daemon.socket(), 5); });
  ASSERT_TRUE(Eventually([&] { return StatsOf(daemon).creates() > 100; }));
  ::kill(child.pid(), SIGSTOP);
  for (int i = 0; i < 3; ++i) ExpectServes(daemon);
  ::kill(child.pid(), SIGKILL);
  child.Wait();
  EXPECT_TRUE(Eventually([&] { return StatsOf(daemon).clients() == 0; }));
}

// Its empty slabs are asked for first, and never come.
TEST(FaultsTest, AClientThatKeepsASlabKeepsNoOtherFromTheirs) {
  DaemonProcess daemon({"--device-total", "64MiB"});
  RawClient keeps(daemon);
  keeps.Create(0, MiB(24));
  ASSERT_TRUE(keeps.EventuallyIs(0, proto::LeaseState::kInUse));
  keeps.Free(0);
  ASSERT_TRUE(keeps.EventuallyIs(0, proto::LeaseState::kFree));
  Store other = Connect(daemon);
  std::vector<Tensor> idle;
  for (int i = 0; i < 36; ++i) {
    idle.push_back(other.create(MiB(1)));
    other.put(idle.back(), nullptr);
  }
  Store third = Connect(daemon, 0, seconds(10));
  third.free(third.create(MiB(8)), nullptr);
}

TEST(FaultsTest, AForkedChildIsRefusedAndItsParentGoesOn) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(16));
  Tensor tensor = store.create(MiB(1));
  std::memset(tensor.data(), 7, MiB(1));
  store.put(tensor, nullptr);
  ipc::Child child([&] {
    try {
      store.get(tensor, nullptr);
      return 1;
    } catch (const Error& error) {
      if (error.code() != RAVENSTORE_IS_FORKED) return 2;
    }
#ifndef __SANITIZE_THREAD__  // which knows no new threads in a child of a process with threads
    // It may attach on its own.
    Store own = Connect(daemon, MiB(16));
    own.free(own.create(MiB(1)), nullptr);
#endif
    return 0;
  });
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_EQ(*static_cast<char*>(store.get(tensor, nullptr)), 7);
}

TEST(FaultsTest, WhenTheDaemonDiesWaitsEndAndEverythingIsLost) {
  DaemonProcess daemon({"--link-bytes-per-second", "1000000"});
  Store store = Connect(daemon, MiB(4), seconds(60));
  Tensor first = store.create(MiB(3));
  store.put(first, nullptr);
  // Needs the first's room, whose copy takes three seconds: the call waits while the daemon dies.
  TimeLimit limit(seconds(20));
  std::thread killer([&] {
    EXPECT_TRUE(Eventually([&] { return StatsOf(daemon).waiting() == 1; }));
    daemon.Kill(SIGKILL);
  });
  EXPECT_THROW(store.create(MiB(3)), Lost);
  killer.join();
  EXPECT_FALSE(limit.IsOver());
  EXPECT_THROW(store.get(first, nullptr), Lost);
  EXPECT_THROW(store.check(nullptr), Lost);
  EXPECT_THROW(first.ready(), Lost);
}

TEST(FaultsTest, WithoutADaemonTheErrorSaysSo) {
  ipc::ShortDirectory directory;
  try {
    Store::connect({.socket = directory / "nobody", .timeout = milliseconds(100)});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), RAVENSTORE_UNAVAILABLE);
    EXPECT_NE(std::string(error.what()).find(directory / "nobody"), std::string::npos)
        << error.what();
  }
}

TEST(FaultsTest, TermDrainsAndSaysSo) {
  DaemonProcess daemon;
  { ExpectServes(daemon); }
  EXPECT_EQ(daemon.Kill(SIGTERM), 0);
  EXPECT_NE(daemon.Log().find("draining"), std::string::npos);
}

TEST(FaultsTest, ASecondDaemonAtTheSameSocketIsRefused) {
  DaemonProcess daemon;
  const std::string command =
      std::string(std::getenv("RAVENSTORE_DAEMON") ? std::getenv("RAVENSTORE_DAEMON")
                                                   : "daemon/ravenstored") +
      " --backend host --socket " + daemon.socket() + " 2>/dev/null";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 69);
  ExpectServes(daemon);
}

}  // namespace
}  // namespace ravenstore::daemon
